"""Histories (slowly changing dimensions of type 2) by the worker as on Spark: the same versions after the same random sources."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.exceptions import DeltaError, DeltaUnsupportedOperationException
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.operations.merge.scd2 import history_columns, plan_history
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.actions import column
from support.feature_tables import create
from support.slow import slow_except
from support.table import Table, WorkerTable

pytestmark = pytest.mark.spark

POINT = {"type": "struct", "fields": [column("x", "integer"), column("y", "double")]}
ROUTE = {"type": "array", "elementType": "double", "containsNull": True}
PLACE = {"type": "struct", "fields": [column("route", ROUTE), column("point", POINT), column("name", "string")]}
ARROW_POINT = pa.struct([("x", pa.int32()), ("y", pa.float64())])
ARROW_PLACE = pa.struct([("route", pa.list_(pa.float64())), ("point", ARROW_POINT), ("name", pa.string())])
KEYS: dict[str, list[Any]] = {
    "k": [None, 1, 2, 3],
    "part": [None, "a", "ü"],
    "f": [None, 0.0, -0.0, math.nan, 1.5],
    "at": [None, {"x": 1, "y": math.nan}, {"x": None, "y": None}, {"x": 1, "y": 0.0}, {"x": 1, "y": -0.0}],
    "route": [None, [], [None], [0.0, 1.5, -0.0], [-0.0, 1.5, 0.0], [0.0, 2.5, 0.0], [math.nan, None]],
    "place": [
        None,
        {"route": None, "point": None, "name": None},
        {"route": [0.0], "point": {"x": 1, "y": -0.0}, "name": "a"},
        {"route": [-0.0], "point": {"x": 1, "y": 0.0}, "name": "a"},
        {"route": [0.0], "point": {"x": 1, "y": 0.0}, "name": "b"},
    ],
}
"""What columns may have that can be keys."""

TIMES: dict[str, tuple[Any, pa.DataType, dt.timedelta]] = {
    "timestamp": (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC"), dt.timedelta(microseconds=1)),
    "timestamp_ntz": (dt.datetime(2026, 1, 1), pa.timestamp("us"), dt.timedelta(hours=1)),
    "date": (dt.date(2026, 1, 1), pa.date32(), dt.timedelta(days=1)),
}


def columns_of(period: str) -> list[dict[str, Any]]:
    return [
        *(
            column("k", "long"),
            column("part", "string"),
            column("f", "double"),
            column("at", POINT),
            column("route", ROUTE),
            column("place", PLACE),
            column("note", "decimal(5,2)"),
        ),
        *(column("valid_from", period), column("valid_to", period), column("is_current", "boolean")),
        column("seen", {"type": "array", "elementType": period, "containsNull": True}),
    ]


def random_source(
    draw: random.Random, period: str, *, confirmed: bool, snapshot: bool, keys: tuple[str, ...] = ("k", "part")
) -> pa.Table:
    """Return rows of a few keys with nulls, at a few times; some of them equal, some that end a key."""
    start, kind, step = TIMES[period]
    rows: dict[Any, dict[str, Any]] = {}
    now = start + draw.randrange(12) * step
    for _ in range(draw.randint(1, 25)):
        at = now if snapshot else start + draw.randrange(12) * step
        row = {
            **{name: draw.choice(values) for name, values in KEYS.items()},
            "note": draw.choice([None, Decimal("1.25"), Decimal("2.00")]),
            "since": at,
            "gone": draw.random() < 0.2 and not snapshot,
        }
        rows.setdefault((key_of(row, keys), at), row)
    found = list(rows.values())
    found += draw.sample(found, min(2, len(found)))  # twice
    if draw.random() < 0.05:
        found.append({**found[0], "note": Decimal("9.99")})  # another row of one time: an error
    draw.shuffle(found)
    types = pa.schema(
        [
            *(("k", pa.int32()), ("part", pa.string()), ("f", pa.float64())),
            *(("at", ARROW_POINT), ("route", pa.list_(pa.float64())), ("place", ARROW_PLACE)),
            *(("note", pa.decimal128(4, 2)), ("since", kind), ("gone", pa.bool_())),
        ]
    )
    if not confirmed:
        types = types.append(pa.field("seen", pa.list_(kind)))
    return pa.Table.from_pylist(found, types).rename_columns({"k": "K"})


def key_of(row: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return what is the same for rows of equal keys."""
    return repr([row[name] for name in keys]).replace("-0.0", "0.0")


def first_versions(draw: random.Random, period: str, keys: tuple[str, ...]) -> pa.Table:
    """Return versions that a table begins with, whose keys have zeros of both signs."""
    start, kind, step = TIMES[period]
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(draw.randint(0, 6)):
        row = {name: draw.choice(values) for name, values in KEYS.items()}
        rows.setdefault(key_of(row, keys), {**row, "valid_from": start + draw.randrange(12) * step, "is_current": True})
    types = [
        *(("k", pa.int64()), ("part", pa.string()), ("f", pa.float64()), ("at", ARROW_POINT)),
        *(("route", pa.list_(pa.float64())), ("place", ARROW_PLACE)),
        *(("valid_from", kind), ("is_current", pa.bool_())),
    ]
    return pa.Table.from_pylist([{**row, "seen": []} for row in rows.values()], pa.schema([*types, ("seen", pa.list_(kind))]))


def plan(
    stage: Any, *, options: dict[str, Any], confirmed: bool, tracked: tuple[str, ...], keys: tuple[str, ...] = ("k", "part")
) -> Any:
    names = history_columns(stage, keys=keys, tracked=tracked, confirmed="seen" if confirmed else None)
    return plan_history(stage, HistoryArguments(columns=names, effective_at="since", **options))


def merged(table: Table, source: pa.Table, **arguments: Any) -> Any:
    rows: Any = source
    if table.spark is not None:
        path = table.path.parent / f"source-{len(table.versions())}.parquet"
        pq.write_table(source, path)
        rows = table.spark.read.parquet(str(path))
    try:
        result = table.run(plan, source=rows, **arguments)
    except DeltaError as error:
        return error
    metrics = table.info(result.version).get("operationMetrics", {})
    named = ("numSourceRows", "numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    changes = []
    if metrics:
        found = read_changes(table.log(), starting_version=result.version).to_table().drop_columns(["_commit_timestamp"])
        changes = readers._comparable(found.to_pylist())
    rows_now = readers._comparable(read_table(table.log()).to_table().to_pylist())
    return [rows_now, changes, *(metrics.get(name) for name in named)]


BY: tuple[tuple[str, ...], ...] = (("k", "part"), ("at",), ("f", "part"), ("route",), ("place",), ("f",), ("k", "at"))


@pytest.mark.parametrize("seed", slow_except(range(35), *range(5)))
def test_random_histories(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    period = list(TIMES)[seed % 3]
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": draw.choice(["true", "false"]),
        "delta.feature.timestampNtz": "supported",
    }
    here, there = WorkerTable(tmp_path / "worker"), Table(tmp_path / "spark", spark)
    keys = BY[seed % len(BY)]
    create(here, *columns_of(period), partition_by=draw.choice([(), ("part",), ("note",)]), **properties)
    if (rows := first_versions(draw, period, keys)).num_rows:
        here.write(rows)
    there.copy_from(here)
    confirmed = draw.random() < 0.7
    tracked = draw.choice([(), *(set_ for set_ in (("f",), ("at", "f"), ("k",)) if not {*set_} & {*keys})])
    for _ in range(4):
        snapshot = draw.random() < 0.25
        options = {"full_snapshot": True} if snapshot else {"deleted": draw.choice(["gone", "gone OR f = 1.5", "NULL"])}
        source = random_source(draw, period, confirmed=confirmed, snapshot=snapshot, keys=keys)
        arguments = {"options": options, "confirmed": confirmed, "tracked": tracked, "keys": keys}
        worker, other = merged(here, source, **arguments), merged(there, source, **arguments)
        told = f"{source.to_pylist()} {arguments} {properties}"
        if isinstance(worker, DeltaError) or isinstance(other, DeltaError):
            assert type(worker) is type(other), f"{told}\n{worker}\n{other}"
            assert str(worker).replace("worker", "spark") == str(other), told
        else:
            assert worker == other, told
    if confirmed:
        again = merged(here, source, **arguments)  # the same once more changes nothing
        assert isinstance(again, DeltaError) or again[1] == []


@pytest.mark.parametrize("keys", [("part",), ("k",)], ids=["a key", "a value"])
def test_texts_that_only_spark_compares(tmp_path: Path, keys: tuple[str, ...]) -> None:
    table, metadata = WorkerTable(tmp_path / "t"), {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}
    create(table, *({**each, "metadata": metadata} if each["name"] == "part" else each for each in columns_of("date")))
    source = random_source(random.Random(1), "date", confirmed=True, snapshot=False)
    with pytest.raises(DeltaUnsupportedOperationException, match=r"part has a collation, or is a char.*engine=.spark."):
        table.run(plan, source=source, options={}, confirmed=True, tracked=(), keys=keys)


@pytest.mark.parametrize("keys", [("k", "f"), ("at", "f"), ("place",), ("route", "part")], ids=" ".join)
def test_versions_that_overlap_are_named_as_on_spark(spark: Any, tmp_path: Path, keys: tuple[str, ...]) -> None:
    here, there = WorkerTable(tmp_path / "worker"), Table(tmp_path / "spark", spark)
    create(here, *columns_of("date"))
    row = {
        "k": None,
        "part": "a",
        "f": 1.5e10,
        "at": {"x": 1, "y": -0.0},
        "route": [-0.0, None, 1e-4, math.inf],
        "place": {"route": [0.0], "point": {"x": None, "y": math.nan}, "name": None},
    }
    versions = [{**row, "valid_from": dt.date(2026, 1, day), "is_current": True, "seen": []} for day in (1, 2)]
    here.write(pa.Table.from_pylist(versions, first_versions(random.Random(1), "date", keys).schema))
    there.copy_from(here)
    types = random_source(random.Random(1), "date", confirmed=True, snapshot=False).schema
    source = pa.Table.from_pylist([{**row, "since": dt.date(2026, 1, 3)}], types)
    arguments = {"options": {}, "confirmed": True, "tracked": (), "keys": keys}
    worker, other = merged(here, source, **arguments), merged(there, source, **arguments)
    assert type(worker) is type(other)
    assert "overlap" in str(other)
    assert str(worker).replace("worker", "spark") == str(other)


def test_versions_that_memory_does_not_take(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "t")
    create(table, *columns_of("date"), **{"delta.enableChangeDataFeed": "true"})
    types = random_source(random.Random(1), "date", confirmed=True, snapshot=False).schema
    versions = [
        {"K": 1, "part": "a", "note": Decimal(day), "since": dt.date(2026, 1, day), "gone": False} for day in range(1, 11)
    ]
    arguments = {"options": {"deleted": "gone"}, "confirmed": True, "tracked": ()}
    merged(table, pa.Table.from_pylist(versions, types), **arguments)
    again = pa.Table.from_pylist(versions[:1], types)
    before = table.versions()
    for most, what in ((10, "The source of"), (2 * again.nbytes, "What the table has of the source's keys takes more than")):
        table.max_memory = most
        error = merged(table, again, **arguments)
        assert isinstance(error, DeltaUnsupportedOperationException)
        assert what in error.message
    assert table.versions() == before
