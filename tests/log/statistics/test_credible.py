"""Statistics that contradict themselves decide nothing, in JSON and in typed columns, at the top and in structs."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint.part import CONSISTENT
from airflow_delta.log.checkpoint.stats import parse_stats
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import ArrayType, DecimalType, MapType, PrimitiveType, StructField, StructType
from airflow_delta.log.statistics.credible import are_consistent
from airflow_delta.log.statistics.data_skipping import skipping_mask
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.table.read.read_table import read_table
from airflow_delta.transaction import Operation
from airflow_delta.transaction.reads.row_condition import RowCondition
from support.actions import add
from support.tables import create_table, log_path, write_commit

INNER = StructType(
    (
        StructField("i", PrimitiveType("integer")),
        StructField("s", PrimitiveType("string")),
        StructField("d", PrimitiveType("date")),
        StructField("t", PrimitiveType("timestamp")),
        StructField("n", DecimalType(5, 2)),
        StructField("a", ArrayType(PrimitiveType("integer"), True)),
        StructField("m", MapType(PrimitiveType("string"), PrimitiveType("integer"), True)),
    )
)
SCHEMA = StructType((*INNER.fields, StructField("st", INNER)))
TYPED = {
    "i": pa.int32(),
    "s": pa.string(),
    "d": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "n": pa.decimal128(5, 2),
}
COUNTS = {name: pa.int64() for name in (*TYPED, "a", "m")}


def _struct(members: dict[str, pa.DataType]) -> pa.DataType:
    return pa.struct([*members.items(), ("st", pa.struct(list(members.items())))])


STATS = pa.struct(
    [("numRecords", pa.int64()), *((b, _struct(TYPED)) for b in ("minValues", "maxValues")), ("nullCount", _struct(COUNTS))]
)


def stats(name: str, low: Any, high: Any, nulls: int | None, rows: int | None = 2) -> dict[str, Any]:
    found: dict[str, Any] = {} if rows is None else {"numRecords": rows}
    for member, value in (("minValues", low), ("maxValues", high), ("nullCount", nulls)):
        if value is not None:
            found[member] = {name: value, "st": {name: value}}
    return found


CASES = [
    ("i = 5", stats("i", 1, 9, 2), True),  # as many nulls as rows, and values
    ("i = 50", stats("i", 1, 9, 2), True),
    ("i is not null", stats("i", 1, 9, 2), True),
    ("i is not null", stats("i", None, 9, 3), True),
    ("i is not null", stats("i", None, None, 3), True),  # more nulls than rows
    ("i is not null", stats("i", None, None, 2), False),
    ("i = 5", stats("i", None, None, 2), False),
    ("i is null", stats("i", 1, 9, -1), True),
    ("i is null", stats("i", 1, 9, 0), False),
    ("i is null", stats("i", 9, 1, 0), True),
    ("i = 5", stats("i", 9, 1, 0), True),
    ("i = 50", stats("i", 9, 1, 0), True),
    ("i = 50", stats("i", 1, 9, 1), False),
    ("i = 50", stats("i", 1, 9, 0, rows=-2), True),
    ("i = 50", stats("i", 1, 9, 0, rows=None), False),
    ("s = 'b'", stats("s", "z", "c", 0), True),
    ("s = 'b'", stats("s", "c", "z", 0), False),
    ("d = '2024-01-01'", stats("d", "2025-01-01", "2023-01-01", 0), True),
    ("n = 5", stats("n", 7, 6, 0), True),
    ("n = 5", stats("n", 6, 7, 0), False),
    ("a is null", stats("a", None, None, 0), True),  # counts of elements
    ("a is not null", stats("a", None, None, 2), True),
    ("m is null", stats("m", None, None, 0), True),
    ("m is not null", stats("m", None, None, 2), True),
    # The seconds of an old offset are lost: +00:53:28 in Berlin.
    ("t = '1880-01-01T00:00:30Z'", stats("t", "1880-01-01T00:54:00.000+00:53", "1880-01-01T00:54:00.000+00:53", 0), True),
    ("t = '1880-01-01T00:01:31Z'", stats("t", "1880-01-01T00:54:00.000+00:53", "1880-01-01T00:54:00.000+00:53", 0), True),
    ("t = '1880-01-01T00:02:01Z'", stats("t", "1880-01-01T00:54:00.000+00:53", "1880-01-01T00:54:00.000+00:53", 0), False),
    ("t = '2024-01-01T00:00:01Z'", stats("t", "2024-01-01T01:00:00.000+01:00", "2024-01-01T01:00:00.000+01:00", 0), False),
]


@pytest.mark.parametrize("nested", [False, True], ids=["top", "nested"])
@pytest.mark.parametrize("typed", [False, True], ids=["JSON", "typed"])
@pytest.mark.parametrize(("text", "file", "keep"), CASES)
def test_one_file(text: str, file: dict[str, Any], keep: bool, typed: bool, nested: bool) -> None:
    predicate = Predicate.parse(f"st.{text}" if nested else text, SCHEMA, [])
    # Beside a file that others may be skipped with, so that nothing is decided for all of them at once.
    given: pa.Array = pa.array([json.dumps(file), json.dumps(stats("i", 100, 200, 0)), None], pa.string())
    if typed:
        given = parse_stats(given, STATS)
    assert skipping_mask(predicate.data_part, given).to_pylist()[0] is keep
    if not typed:  # what conflicts ask
        found = add("f", stats=json.dumps(file))
        assert RowCondition(predicate).may_hold([found]) == [keep]


@pytest.mark.parametrize(("low", "high"), [(200, 300), (-300, -200)], ids=["above", "below"])
def test_bounds_outside_the_type(low: int, high: int) -> None:
    schema = StructType((StructField("b", PrimitiveType("byte")), StructField("n", DecimalType(3, 1))))
    for name, by in (("b", 1), ("n", 10)):
        text = json.dumps(
            {"numRecords": 1, "minValues": {name: low * by}, "maxValues": {name: high * by}, "nullCount": {name: 0}}
        )
        predicate = Predicate.parse(f"{name} = 1", schema, [])
        assert skipping_mask(predicate.data_part, pa.array([text])).to_pylist() == [True]


@pytest.mark.parametrize("digits", [19, 20, 38])
@pytest.mark.parametrize("checkpoint", ["none", "JSON", "typed"])
def test_bounds_of_decimals_that_delta_rs_caps_at_64_bits(tmp_path: Path, digits: int, checkpoint: str) -> None:
    from deltalake import write_deltalake

    most = Decimal("9" * digits)
    for value in (most, most.copy_negate(), Decimal(5)):
        write_deltalake(str(tmp_path), pa.table({"n": pa.array([value], pa.decimal128(digits, 0))}), mode="append")
    files = [add for line in _commits(tmp_path) if (add := line.get("add")) is not None]
    assert str(2**63 - 1) in files[0]["stats"], "delta-rs no longer caps bounds: say so where the engine mistrusts them"
    log = DeltaLog.for_table(str(tmp_path))
    if checkpoint != "none":
        if checkpoint == "typed":
            metadata = log.snapshot.metadata
            change = log.start_transaction()
            configuration = {**metadata.configuration, "delta.checkpoint.writeStatsAsStruct": "true"}
            change.update_metadata(msgspec.structs.replace(metadata, configuration=configuration))
            change.commit([], Operation.manual_update())
        log.checkpoint()
    log = DeltaLog.for_table(str(tmp_path))
    for where, kept in {
        f"n = {most}": [most],
        f"n = -{most}": [most.copy_negate()],
        f"n > {10**18}": [most],
        f"n < -{10**18}": [most.copy_negate()],
        f"n >= {10**18 * 9} and n < {most}": [],
        "n = 5": [Decimal(5)],
    }.items():
        assert read_table(log, where=where).to_table()["n"].to_pylist() == kept, where
        assert len(log.snapshot.files(where)) >= len(kept), where
    assert len(log.snapshot.files("n = 6")) == 2  # the bounds of the third file are believed


def _commits(path: Path) -> list[dict[str, Any]]:
    files = sorted((path / "_delta_log").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_row_groups_of_checkpoints_with_capped_bounds_are_not_skipped() -> None:
    typed = pa.struct([("n", pa.decimal128(20, 0))])
    wanted = pa.struct([("minValues", typed), ("maxValues", typed)])
    for number, consistent in ((2**63 - 1, False), (-(2**63), False), (10**19, True)):
        text = json.dumps({"minValues": {"n": number}, "maxValues": {"n": number}})
        assert are_consistent(parse_stats(pa.array([text]), wanted)) is consistent


def test_counts_of_rows() -> None:
    assert [num_records(text) for text in ('{"numRecords":3}', '{"numRecords":-1}', '{"numRecords":"3"}', "[", "{}", None)] == [
        3,
        *[None] * 5,
    ]


def test_the_earliest_timestamp_stays_one() -> None:
    first = pa.array([-(2**63)], pa.int64()).view(pa.timestamp("us", "UTC"))
    bounds = pa.StructArray.from_arrays([first], names=["t"])
    nulls = pa.array([{"t": 0}])
    given = pa.StructArray.from_arrays(
        [pa.array([1]), bounds, bounds, nulls], names=["numRecords", "minValues", "maxValues", "nullCount"]
    )
    for text, keep in (("t < '0001-01-02'", True), ("t > '0001-01-02'", False)):
        assert skipping_mask(Predicate.parse(text, SCHEMA, []), given).to_pylist() == [keep]


def test_consistency_of_many() -> None:
    def found(*files: dict[str, Any]) -> bool:
        return are_consistent(parse_stats(pa.array([json.dumps(file) for file in files]), STATS))

    assert found(stats("i", 1, 9, 1), stats("a", None, None, 7))
    assert not found(stats("s", "a", "ab\ufffd", 0))
    for wrong in (stats("i", 9, 1, 0), stats("s", "b", "c", 2), stats("d", "2024-01-01", "2024-01-01", 5), stats("n", 1, 2, -1)):
        assert not found(stats("i", 1, 9, 1), wrong)
    assert are_consistent(pa.array([{"numRecords": 1}]))


# -- checkpoints --------------------------------------------------------------------------------------------------------------


def _table(path: Path, *files: str) -> DeltaLog:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (("i", "integer"), ("d", "date"))]
    schema = json.dumps({"type": "struct", "fields": fields})
    configuration = {"delta.checkpoint.writeStatsAsStruct": "true"}
    create_table(
        path, *(add(f"{n}", stats=text) for n, text in enumerate(files)), schema_string=schema, configuration=configuration
    )
    return DeltaLog.for_table(str(path))


def _ordered(low: int, high: int) -> str:
    return json.dumps({"numRecords": 2, "minValues": {"i": low}, "maxValues": {"i": high}, "nullCount": {"i": 0}})


def test_row_groups_are_only_skipped_where_no_file_contradicts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.log.checkpoint import part_files as checkpoint_files

    monkeypatch.setattr(checkpoint_files, "ROW_GROUP_ROWS", 1)
    for name, third, marked, kept in (("right", _ordered(40, 50), True, []), ("wrong", _ordered(50, 40), False, ["2"])):
        log = _table(tmp_path / name, _ordered(0, 10), _ordered(20, 30), third)
        write_checkpoint(log.update())
        footer = pq.read_metadata(log_path(tmp_path / name, f"{0:020}.checkpoint.parquet"))
        assert (CONSISTENT.encode() in (footer.metadata or {})) is marked
        snapshot = DeltaLog.for_table(str(tmp_path / name)).update()
        assert [file.path for file in snapshot.add_files(Predicate.parse("i = 60", snapshot.schema, []))] == kept


def test_dates_that_python_cannot_hold(tmp_path: Path) -> None:
    """A checkpoint of delta-rs has them as numbers of days."""
    log = _table(tmp_path / "t", _ordered(0, 10))
    write_checkpoint(log.update())
    path = log_path(tmp_path / "t", f"{0:020}.checkpoint.parquet")
    table = pq.read_table(path)
    column = table.column("add").combine_chunks()
    days = pa.array([2_932_897 if valid else None for valid in column.is_valid().to_pylist()], pa.int32()).cast(pa.date32())

    def with_dates(values: pa.StructArray) -> pa.StructArray:
        return pa.StructArray.from_arrays([values.field(0), days], names=["i", "d"])

    stats_parsed = column.field("stats_parsed")
    members = {f.name: stats_parsed.field(n) for n, f in enumerate(stats_parsed.type)}
    for bound in ("minValues", "maxValues"):
        members[bound] = with_dates(members[bound])
    parsed = pa.StructArray.from_arrays(list(members.values()), names=list(members))
    fields = {f.name: column.field(n) for n, f in enumerate(column.type)} | {"stats_parsed": parsed}
    fields["stats"] = pa.nulls(len(column), pa.string())  # writeStatsAsJson=false
    changed = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=column.is_null())
    pq.write_table(table.set_column(table.schema.get_field_index("add"), "add", changed), path)
    snapshot = DeltaLog.for_table(str(tmp_path / "t")).update()
    for text, count in (("d = '2024-01-01'", 0), ("d > '9999-12-30'", 1), ("i = 5", 1), ("i = 11", 0)):
        assert len(snapshot.add_files(Predicate.parse(text, snapshot.schema, []))) == count, text
    [file] = snapshot.add_files()
    assert json.loads(file.stats or "")["minValues"] == {"i": 0, "d": "+10000-01-01"}
    write_commit(tmp_path / "t", 1, add("more", stats=_ordered(5, 6)))
    log = DeltaLog.for_table(str(tmp_path / "t"))
    write_checkpoint(log.update())  # carries the dates on
    assert len(DeltaLog.for_table(str(tmp_path / "t")).update().add_files()) == 2
