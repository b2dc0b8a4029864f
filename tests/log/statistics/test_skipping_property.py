"""For random tables and predicates, ``Snapshot.files`` never leaves out a file with a live row that the predicate selects."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from support.actions import add, metadata, protocol
from support.tables import write_commit

Row = dict[str, Any]
Truth = bool | None
Condition = tuple[str, Callable[[Row], Truth]]

TYPES: dict[str, Any] = {"p": "integer", "q": "timestamp_ntz", "i": "long", "s": "string", "f": "float", "t": "timestamp"}
PHYSICAL = {"p": "col-p", "q": "i", "i": "q", "s": "col-s", "f": "F", "t": "t.t", "st": "s", "y": "col y"}
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def field(name: str, data_type: Any, *, mapped: bool, identity: int) -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": identity, "delta.columnMapping.physicalName": PHYSICAL[name]} if mapped else {}
    return {"name": name, "type": data_type, "nullable": True, "metadata": mapping}


def schema(*, mapped: bool) -> str:
    inner = {"type": "struct", "fields": [field("y", "long", mapped=mapped, identity=99)]}
    kinds = {**TYPES, "st": inner}
    return json.dumps(
        {"type": "struct", "fields": [field(n, k, mapped=mapped, identity=i + 1) for i, (n, k) in enumerate(kinds.items())]}
    )


# -- rows and files -----------------------------------------------------------------------------------------------------------


def single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


SMALL = st.integers(-3, 3)
MICROSECONDS = st.integers(0, 3000)
TEXTS = st.sampled_from(["", "a", "ab", "b" * 40, "b" * 33 + "a", "ü", "\U0010ffff" * 3, "z"])
FLOATS = st.sampled_from([0.1, 0.7, 1.1, 0.30000001, 16777217.0, -0.7]).map(single)

ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | SMALL,
        "s": st.none() | TEXTS,
        "f": st.none() | FLOATS,
        "t": st.none() | MICROSECONDS.map(lambda us: EPOCH + dt.timedelta(microseconds=us)),
        "y": st.none() | SMALL,
    }
)
FILES = st.lists(
    st.fixed_dictionaries(
        {
            "rows": st.lists(ROWS, min_size=1, max_size=4),
            "deleted": st.sets(st.integers(0, 3), max_size=3),
            "p": st.none() | SMALL,
            "q": st.none() | st.integers(0, 3),
            "stats": st.sampled_from(["all", "all", "none", "records"]),
        }
    ),
    min_size=1,
    max_size=6,
)


def shortest(value: float) -> float:
    return next(float(f"{value:.{digits}g}") for digits in range(1, 18) if single(float(f"{value:.{digits}g}")) == value)


def milliseconds(value: dt.datetime) -> str:
    return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}Z"


def longest(text: str) -> str:
    return text if len(text) <= 32 else text[:32] + "\U0010ffff"


LEAST = {"i": min, "y": min, "s": lambda v: min(v, key=str.encode)[:32], "f": lambda v: shortest(min(v))}
LEAST["t"] = lambda v: milliseconds(min(v))
GREATEST = {"i": max, "y": max, "s": lambda v: longest(max(v, key=str.encode)), "f": lambda v: shortest(max(v))}
GREATEST["t"] = lambda v: milliseconds(max(v))


def statistics(rows: list[Row], names: dict[str, str], *, tight: bool) -> str:
    """The statistics of a file as Delta writes them: 32 characters of strings, milliseconds, the shortest text of floats."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name in ("i", "s", "f", "t", "y"):
        values = [row[name] for row in rows if row[name] is not None]
        key = names.get(name, name)

        def put(into: dict[str, Any], value: Any, name: str = name, key: str = key) -> None:
            (into.setdefault(names.get("st", "st"), {}) if name == "y" else into)[key] = value

        put(nulls, len(rows) - len(values))
        if values:
            put(least, LEAST[name](values))
            put(greatest, GREATEST[name](values))
    return json.dumps(
        {"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": nulls, "tightBounds": tight}
    )


# -- predicates ---------------------------------------------------------------------------------------------------------------


def atom(column: str, operator: str, text: str, value: Any) -> Condition:
    def holds(row: Row) -> Truth:
        left = row[column]
        if left is None:
            return None
        a, b = (left.encode(), value.encode()) if isinstance(left, str) else (left, value)
        return bool({"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[operator])

    return f"{'st.y' if column == 'y' else column} {operator} {text}", holds


def moment(us: int) -> tuple[str, dt.datetime]:
    value = EPOCH + dt.timedelta(microseconds=us)
    return f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S.%f} UTC'", value


LITERALS = {
    "p": SMALL.map(lambda v: (str(v), v)),
    "i": SMALL.map(lambda v: (str(v), v)) | st.just(("1.5", 1.5)),
    "y": SMALL.map(lambda v: (str(v), v)),
    "s": TEXTS.map(lambda v: (f"'{v}'", v)),
    "f": FLOATS.map(lambda v: (f"{v!r}D", v)) | st.sampled_from([0.1, 0.7, 1.1]).map(lambda v: (f"{v!r}D", v)),
    "t": st.integers(-1, 3001).map(moment),
    "q": st.integers(0, 3).map(lambda v: (f"TIMESTAMP_NTZ '2024-01-0{v + 1} 00:00:00'", dt.datetime(2024, 1, v + 1))),
}
OPERATORS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@st.composite
def atoms(draw: st.DrawFn) -> Condition:
    column = draw(st.sampled_from(list(LITERALS)))
    kind = draw(st.integers(0, 9))
    name = "st.y" if column == "y" else column
    if kind == 0:
        return f"{name} IS NULL", lambda row: row[column] is None
    if kind == 1:
        return f"{name} IS NOT NULL", lambda row: row[column] is not None
    if kind == 2:  # what only Spark evaluates
        return "i + st.y > 1", lambda row: None if row["i"] is None or row["y"] is None else row["i"] + row["y"] > 1
    return atom(column, draw(OPERATORS), *draw(LITERALS[column]))


def both(left: Condition, right: Condition) -> Condition:
    def holds(row: Row) -> Truth:
        values = left[1](row), right[1](row)
        return False if False in values else None if None in values else True

    return f"({left[0]}) AND ({right[0]})", holds


def either(left: Condition, right: Condition) -> Condition:
    def holds(row: Row) -> Truth:
        values = left[1](row), right[1](row)
        return True if True in values else None if None in values else False

    return f"({left[0]}) OR ({right[0]})", holds


def negated(inner: Condition) -> Condition:
    return f"NOT ({inner[0]})", lambda row: None if (value := inner[1](row)) is None else not value


PREDICATES = st.recursive(
    atoms(),
    lambda inner: st.builds(both, inner, inner) | st.builds(either, inner, inner) | inner.map(negated),
    max_leaves=5,
)


@pytest.mark.depends("sqlglot")
@settings(max_examples=150, deadline=None)
@given(files=FILES, predicates=st.lists(PREDICATES, min_size=1, max_size=4), mapped=st.booleans(), checkpoint=st.booleans())
def test_a_file_with_a_row_that_matches_is_kept(files, predicates, mapped, checkpoint):
    directory = Path(tempfile.mkdtemp())
    try:
        names = PHYSICAL if mapped else {}
        features = ["deletionVectors", "timestampNtz", *(["columnMapping"] if mapped else [])]
        configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"} if mapped else {}
        adds, live = [], {}
        for number, file in enumerate(files):
            deleted = {position for position in file["deleted"] if position < len(file["rows"])}
            values = {
                names.get("p", "p"): None if file["p"] is None else str(file["p"]),
                names.get("q", "q"): None if file["q"] is None else f"2024-01-0{file['q'] + 1} 00:00:00",
            }
            stats = {
                "all": statistics(file["rows"], names, tight=not deleted),
                "records": json.dumps({"numRecords": len(file["rows"])}),
                "none": None,
            }[file["stats"]]
            vector = inline_deletion_vector(BitMap64(deleted)) if deleted else None
            action = add(f"{number}.parquet", partition_values=values, stats=stats, deletion_vector=vector)
            adds.append(action)
            day = None if file["q"] is None else dt.datetime(2024, 1, file["q"] + 1)
            rows = [{**row, "p": file["p"], "q": day} for row in file["rows"]]
            live[action.path] = [row for position, row in enumerate(rows) if position not in deleted]
        write_commit(
            directory,
            0,
            protocol(3, 7, reader_features=features, writer_features=features),
            metadata(schema_string=schema(mapped=mapped), partition_columns=["p", "q"], configuration=configuration),
            *adds,
        )
        log = DeltaLog.for_table(str(directory))
        if checkpoint:
            write_checkpoint(log.snapshot)
            log = DeltaLog.for_table(str(directory))
        for action in log.snapshot.add_files():
            if action.deletion_vector is not None:
                assert len(read_deletion_vector(log.store, action.deletion_vector)) == action.deletion_vector.cardinality
        for text, holds in predicates:
            kept = set(log.snapshot.files(text, columns=["path"]).column("path").to_pylist())
            needed = {path for path, rows in live.items() if any(holds(row) is True for row in rows)}
            assert needed <= kept, (text, needed - kept)
    finally:
        shutil.rmtree(directory)
