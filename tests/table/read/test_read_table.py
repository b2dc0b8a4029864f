"""Rows of a version as record batches: other readers see the same ones."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaLogCorruptedException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    DeltaUnsupportedTableFeatureException,
    PredicateException,
    ReadLimitException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.log.data_files import batches, group_rows
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.actions import add, metadata, protocol, remove
from support.table import Table
from support.tables import commit_path, write_commit

MAPPING = ("delta.columnMapping.id", "delta.columnMapping.physicalName")


def field(name: str, data_type: Any, identity: int | None = None, physical: str | None = None) -> dict[str, Any]:
    mapping = {} if identity is None else dict(zip(MAPPING, (identity, physical or f"col-{identity}"), strict=True))
    return {"name": name, "type": data_type, "nullable": True, "metadata": mapping}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def create(table: Path, *fields: dict[str, Any], features: tuple[str, ...] = (), **changes: Any) -> None:
    of_table = protocol(3, 7, reader_features=list(features), writer_features=list(features)) if features else protocol()
    write_commit(table, 0, of_table, metadata(schema_string=json.dumps(struct(*fields)), **changes))


def put(table: Path, version: int, key: str, rows: pa.Table, *, stats: bool = True, values: Any = None, **changes: Any) -> None:
    path = table / key
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **changes.pop("writer", {}))
    text = json.dumps({"numRecords": rows.num_rows}) if stats else None
    action = add(quote(key, safe="/=+"), partition_values=values or {}, size=path.stat().st_size, stats=text, **changes)
    write_commit(table, version, action)


def read(table: Path, **options: Any) -> list[dict[str, Any]]:
    rows = read_table(DeltaLog.for_table(str(table)), **options)
    found = rows.to_table()
    assert found.schema == rows.schema
    found.validate(full=True)
    return found.to_pylist()


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return readers._comparable(rows)


# -- against other readers ----------------------------------------------------------------------------------------------------

PARTITIONS: dict[str, list[str | None]] = {
    "string": ["a b", "ü%20/=", None, "__HIVE_DEFAULT_PARTITION__x"],
    "long": ["-9223372036854775808", "0", None],
    "byte": ["-128", "127"],
    "date": ["2024-02-29", "1969-12-31", None],
    "timestamp": ["2024-02-29T12:00:00.123456Z", "1969-12-31T23:59:59.999999Z", None],
    "timestamp_ntz": ["2024-02-29 12:00:00.123456", "2024-01-01 00:00:00", None],
    "boolean": ["true", "false", None],
    "double": ["1.5", "NaN", "-Infinity", None],
    "float": ["0.1", None],
    "decimal(10,2)": ["12.30", "0.00", None],
    "binary": ["abc", None],
}


@pytest.mark.parametrize("data_type", PARTITIONS)
def test_partition_values_of_every_type(tmp_path, data_type):
    table = tmp_path / "table"
    features = ("timestampNtz",) if data_type == "timestamp_ntz" else ()
    create(table, field("id", "long"), field("p", data_type), features=features, partition_columns=["p"])
    for version, text in enumerate(PARTITIONS[data_type], start=1):
        put(table, version, f"{version}.parquet", pa.table({"id": pa.array([version])}), values={"p": text})
    assert comparable(read(table)) == comparable(readers.rows(table))
    assert [row["id"] for row in read(table, where="p IS NULL")] == [
        version for version, text in enumerate(PARTITIONS[data_type], start=1) if text is None
    ]
    assert len(read(table, columns=["p"])) == len(PARTITIONS[data_type])


def test_timestamps_of_partitions_without_a_zone_are_in_utc_as_for_delta_rs(tmp_path):
    table = tmp_path / "table"
    create(table, field("id", "long"), field("p", "timestamp"), partition_columns=["p"])
    put(table, 1, "1.parquet", pa.table({"id": pa.array([1])}), values={"p": "2024-02-29 12:00:00"})
    assert comparable(read(table)) == comparable(readers.rows(table))
    assert read(table, where="p = timestamp'2024-02-29 12:00:00Z'")
    assert not read(table, where="p < timestamp'2024-02-29 12:00:00Z'")


def random_table(table: Path, draw: random.Random) -> None:
    """A table with column mapping, nested columns, deletion vectors, and files from before some columns were there."""
    mode = draw.choice(["name", "id"])
    nested = struct(field("x", "integer", 4, "col-x"), field("y", "string", 5, "col-y"), field("late", "long", 6, "col-late"))
    entries = {"type": "array", "elementType": struct(field("e", "integer", 9, "col-e")), "containsNull": True}
    pairs = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
    fields = (
        field("id", "long", 1, "col-a"),
        field("p", "string", 2, "col-p"),
        field("s", nested, 3, "col-s"),
        field("list", entries, 7, "col-l"),
        field("map", pairs, 8, "col-m"),
        field("new", "timestamp", 10, "col-n"),
    )
    features = ("columnMapping", "deletionVectors")
    configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "10"}
    create(table, *fields, features=features, partition_columns=["p"], configuration=configuration)

    def identified(name: str, data_type: pa.DataType, identity: int) -> pa.Field:
        return pa.field(name, data_type, metadata={"PARQUET:field_id": str(identity)})

    old = [
        identified("col-a", pa.int64(), 1),
        identified("col-s", pa.struct([identified("col-x", pa.int32(), 4), identified("col-gone", pa.string(), 99)]), 3),
        identified("col-l", pa.list_(pa.field("element", pa.struct([identified("col-e", pa.int32(), 9)]))), 7),
    ]
    new = [
        identified("col-n", pa.timestamp("us", "UTC"), 10),
        identified("col-m", pa.map_(pa.string(), pa.float64()), 8),
        identified("col-s", pa.struct([identified("col-y", pa.string(), 5), identified("col-x", pa.int32(), 4)]), 3),
        identified("col-a", pa.int64(), 1),
    ]
    for version in range(1, draw.randint(2, 6)):
        schema = pa.schema(draw.choice([old, new]))
        count = draw.randint(1, 300)
        rows = [
            {
                "col-a": draw.choice([None, version * 1000 + i]),
                "col-s": draw.choice([None, {"col-x": draw.choice([None, i]), "col-y": f"y{i}", "col-gone": "?"}]),
                "col-l": draw.choice([None, [], [{"col-e": i}, None, {"col-e": None}]]),
                "col-m": draw.choice([None, [], [("k", 1.5), ("l", None)]]),
                "col-n": draw.choice([None, dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i)]),
            }
            for i in range(count)
        ]
        content = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
        dead = BitMap64(draw.sample(range(count), draw.choice([0, 1, count // 2, count])))
        vector = inline_deletion_vector(dead) if dead else None
        put(
            table,
            version,
            f"dir {version}/[x]%{version}.parquet",
            content,
            values={"col-p": draw.choice([None, "ü", "a/b"])},
            deletion_vector=vector,
            writer={"row_group_size": draw.choice([7, 100, 1000])},
        )


@pytest.mark.parametrize("seed", range(25))
def test_random_tables_with_mapping_deletion_vectors_and_nested_columns(tmp_path, monkeypatch, seed):
    draw = random.Random(seed)
    table = tmp_path / "ta ble"
    random_table(table, draw)
    monkeypatch.setattr("airflow_delta.table.read.read_table.BATCH_ROWS", draw.choice([3, 64, 65536]))
    expected = readers.READERS["Polars"](str(table), None).to_pylist()
    assert comparable(read(table)) == comparable(expected)
    # DuckDB returns null for this mapped partition column.
    others = readers.READERS["DuckDB"](str(table), None).drop_columns("p").to_pylist()
    assert comparable(read(table, columns=[name for name in others[0] if name != "p"] if others else None)) == comparable(others)
    threshold = draw.randint(0, 4000)
    for where, wanted in (
        (f"id >= {threshold}", lambda row: row["id"] is not None and row["id"] >= threshold),
        ("s.x IS NULL AND p <=> NULL", lambda row: (row["s"] or {}).get("x") is None and row["p"] is None),
        ("NOT (s.y LIKE 'y1%' OR p = 'ü')", None),
    ):
        if wanted is not None:
            assert comparable(read(table, where=where)) == comparable([row for row in expected if wanted(row)])
        else:

            def kept(row: dict[str, Any]) -> bool:
                y, p = (row["s"] or {}).get("y"), row["p"]
                parts = [None if y is None else y.startswith("y1"), None if p is None else p == "ü"]
                return not any(parts) and None not in parts

            assert comparable(read(table, where=where)) == comparable([row for row in expected if kept(row)])
    names = draw.sample(["id", "p", "s", "list", "map", "new"], 2)
    selected = read(table, columns=names, where=f"id < {threshold}")
    assert all(list(row) == names for row in selected)
    assert len(selected) == sum(row["id"] is not None and row["id"] < threshold for row in expected)


# -- types of files -----------------------------------------------------------------------------------------------------------

I96 = {"use_deprecated_int96_timestamps": True}
INSTANT = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
FILES: list[tuple[str, pa.Array, dict[str, Any], list[Any]]] = [
    ("long", pa.array([1, None], pa.int8()), {}, [1, None]),
    ("double", pa.array([1, None], pa.int32()), {}, [1.0, None]),
    ("double", pa.array([1.5], pa.float32()), {}, [1.5]),
    ("decimal(12,4)", pa.array([Decimal("1.25")], pa.decimal128(5, 2)), {}, [Decimal("1.2500")]),
    ("decimal(12,2)", pa.array([7], pa.int32()), {}, [Decimal("7.00")]),
    ("decimal(20,0)", pa.array([2**64 - 1, 0, None], pa.uint64()), {}, [Decimal(2**64 - 1), Decimal(0), None]),
    ("decimal(22,2)", pa.array([2**64 - 1], pa.uint64()), {}, [Decimal(f"{2**64 - 1}.00")]),
    ("timestamp_ntz", pa.array([dt.date(2024, 2, 29)]), {}, [dt.datetime(2024, 2, 29)]),
    ("timestamp", pa.array([INSTANT, None]), I96, [INSTANT, None]),
    ("timestamp", pa.array([INSTANT.replace(tzinfo=None)], pa.timestamp("us")), {}, [INSTANT]),
    ("timestamp", pa.array([INSTANT.replace(microsecond=0)], pa.timestamp("ms", "UTC")), {}, [INSTANT.replace(microsecond=0)]),
    ("timestamp", pa.array([INSTANT], pa.timestamp("ns", "Europe/Berlin")), {}, [INSTANT]),
    ("timestamp", pa.array([dt.datetime(9999, 12, 31)], pa.timestamp("us")), I96, [dt.datetime(9999, 12, 31, tzinfo=dt.UTC)]),
    ("string", pa.array(["a", "b", None]).dictionary_encode(), {}, ["a", "b", None]),
    ("string", pa.array(["a"], pa.large_string()), {}, ["a"]),
    ("string", pa.array([b"a"], pa.binary()), {}, ["a"]),
    ("binary", pa.array([b"\xff"], pa.large_binary()), {}, [b"\xff"]),
    ("byte", pa.array([127], pa.int32()), {}, [127]),
    ("void", pa.array([None], pa.int32()), {}, [None]),
    ("decimal(10,2)", pa.nulls(2), {}, [None, None]),
    (
        {"type": "array", "elementType": "long", "containsNull": True},
        pa.array([[1], None, [None]], pa.large_list(pa.int16())),
        {},
        [[1], None, [None]],
    ),
]


@pytest.mark.parametrize(("data_type", "values", "writer", "expected"), FILES, ids=lambda value: str(value)[:40])
def test_types_of_files_that_are_not_the_tables(tmp_path, data_type, values, writer, expected):
    table = tmp_path / "table"
    features = ("timestampNtz",) if data_type == "timestamp_ntz" else ()
    create(table, field("v", data_type), features=features)
    put(table, 1, "1.parquet", pa.table({"V": values}), writer=writer)
    assert [row["v"] for row in read(table)] == expected


@pytest.mark.parametrize(
    ("data_type", "values", "writer", "message"),
    [
        ("integer", pa.array([1], pa.int64()), {}, None),
        ("decimal(19,0)", pa.array([1], pa.uint64()), {}, "its column v is uint64"),
        ("long", pa.array(["1"]), {}, "its column v is string, and the table's v bigint"),
        ("decimal(10,2)", pa.array([Decimal("1.234")], pa.decimal128(5, 3)), {}, "its column v is decimal128(5, 3)"),
        ("timestamp_ntz", pa.array([INSTANT]), {}, "a point in time"),
        ("timestamp_ntz", pa.array([INSTANT.replace(tzinfo=None)]), I96, "96 bits"),
        (struct(field("a", "long")), pa.array([1]), {}, "its column v is int64"),
        ({"type": "array", "elementType": "long", "containsNull": True}, pa.array([1]), {}, "its column v is int64"),
        (
            {"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": True},
            pa.array([{"a": 1}]),
            {},
            "its column v is struct",
        ),
    ],
)
def test_types_of_files_that_are_refused(tmp_path, data_type, values, writer, message):
    table = tmp_path / "table"
    create(table, field("v", data_type), field("w", "long"), features=("timestampNtz",))
    put(table, 1, "1.parquet", pa.table({"v": values}), writer=writer)
    if message is None:  # a whole number that fits is that number
        assert [row["v"] for row in read(table)] == [1]
        put(table, 2, "2.parquet", pa.table({"v": pa.array([1 << 40])}))
        with pytest.raises(DeltaLogCorruptedException, match=r"2\.parquet"):
            read(table)
        return
    with pytest.raises(DeltaAnalysisException, match=r"1\.parquet .* version 1 cannot be read without Spark") as caught:
        read(table)
    assert message in str(caught.value)
    assert read(table, columns=["w"]) == [{"w": None}]


def test_columns_of_a_file_that_differ_by_case_only_are_refused(tmp_path):
    table = tmp_path / "table"
    create(table, field("v", "long"))
    put(table, 1, "1.parquet", pa.table({"V": pa.array([1]), "v": pa.array([2])}))
    assert read(table) == [{"v": 2}]
    put(table, 2, "2.parquet", pa.table({"V": pa.array([1]), "V ": pa.array([1])}))
    assert [row["v"] for row in read(table)] == [1, 2] or [row["v"] for row in read(table)] == [2, 1]
    create(table, field("ab", "long"))
    put(table, 1, "3.parquet", pa.table({"AB": pa.array([1]), "aB": pa.array([2])}))
    commit_path(table, 2).unlink()
    with pytest.raises(DeltaAnalysisException, match="several columns for ab: AB, aB"):
        read(table)


def test_names_with_dots_are_not_fields(tmp_path):
    table = tmp_path / "table"
    create(table, field("a.b", "long"), field("a", struct(field("b", "long"))))
    put(table, 1, "1.parquet", pa.table({"a.b": pa.array([1]), "a": pa.array([{"b": 2}])}))
    assert read(table) == [{"a.b": 1, "a": {"b": 2}}]
    assert read(table, where="`a.b` = 1 AND a.b = 2", columns=["a.b"]) == [{"a.b": 1}]


def test_dates_of_another_calendar_are_refused_where_they_differ(tmp_path):
    table = tmp_path / "table"
    create(table, field("d", "date"), field("t", "timestamp"))
    legacy = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}

    def rows(day: dt.date, moment: dt.datetime) -> pa.Table:
        return pa.table({"d": pa.array([day]), "t": pa.array([moment])})

    modern = rows(dt.date(1900, 1, 1), INSTANT).replace_schema_metadata(legacy)
    put(table, 1, "1.parquet", modern)
    assert read(table) == [{"d": dt.date(1900, 1, 1), "t": INSTANT}]
    put(table, 2, "2.parquet", rows(dt.date(1500, 1, 1), INSTANT).replace_schema_metadata(legacy))
    with pytest.raises(DeltaLogCorruptedException, match="Julian calendar"):
        read(table)
    assert len(read(table, columns=["t"])) == 2
    put(table, 3, "3.parquet", rows(dt.date(1500, 1, 1), INSTANT).replace_schema_metadata({"org.apache.spark.version": "4.0.0"}))
    assert len(read(table, version=1)) == 1


# -- predicates ---------------------------------------------------------------------------------------------------------------

NUMBERS = [None, -1.5, 0.0, -0.0, 1.0, float("nan"), float("inf"), 2.0]
WHERE = [
    ("d > 1", lambda row: row["d"] is not None and (row["d"] > 1 or row["d"] != row["d"])),
    ("d = 0", lambda row: row["d"] == 0),
    ("d <> 0", lambda row: row["d"] is not None and row["d"] != 0),
    ("d <= 1", lambda row: row["d"] is not None and row["d"] <= 1),
    ("d = double('NaN')", lambda row: row["d"] is not None and row["d"] != row["d"]),
    ("d IN (1, 2)", lambda row: row["d"] in (1.0, 2.0)),
    ("n IN (1, NULL)", lambda row: row["n"] == 1),
    ("n NOT IN (1, NULL)", lambda row: False),
    ("n NOT IN (1, 2)", lambda row: row["n"] is not None and row["n"] not in (1, 2)),
    ("n <=> NULL OR n = 7", lambda row: row["n"] is None or row["n"] == 7),
    ("NOT (n <=> 3)", lambda row: row["n"] != 3),
    ("n > 1.5", lambda row: row["n"] is not None and row["n"] > 1.5),
    ("n <> 99999999999999999999999", lambda row: row["n"] is not None),
    ("n BETWEEN 2 AND 4", lambda row: row["n"] is not None and 2 <= row["n"] <= 4),
    ("m < 1.005", lambda row: row["m"] is not None and row["m"] < Decimal("1.005")),
    ("t > '2024-01-01T02:00:00Z'", lambda row: row["t"] is not None and row["t"].hour > 2),
    ("s LIKE '%1' OR s IS NULL", lambda row: row["s"] is None or row["s"].endswith("1")),
    ("s >= 'ä'", lambda row: row["s"] is not None and row["s"].encode() >= "ä".encode()),
    ("n = NULL", lambda row: False),
    ("NOT (n = 1 AND d > 0)", None),
    ("true", lambda row: True),
    ("false OR b", lambda row: row["b"] is True),
    ("x = X'6101'", lambda row: row["x"] == b"a\x01"),
    ("upper(s) = 'A1' OR length(s) = 1 AND n < 3", lambda row: row["s"] == "a1" or (bool(row["s"]) and (row["n"] or 9) < 3)),
    ("n <> 1 AND 6 / (n - 1) > 2", lambda row: row["n"] in (2, 3)),
    ("n IS NULL OR n = 1 OR NOT 6 / (n - 1) > 2", lambda row: row["n"] in (None, 1, 7)),
    ("coalesce(m * 2, 0) = 2", lambda row: row["m"] == 1),
    ("n = n", lambda row: row["n"] is not None),
    ("hour(t) BETWEEN 1 AND 2", lambda row: row["t"] is not None and row["t"].hour in (1, 2)),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    table = tmp_path_factory.mktemp("mixed") / "table"
    types = {"n": "integer", "d": "double", "m": "decimal(6,2)", "s": "string", "t": "timestamp", "b": "boolean", "x": "binary"}
    create(table, *(field(name, kind) for name, kind in types.items()))
    draw = random.Random(1)
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "n": pa.array([draw.choice([None, 1, 2, 3, 7]) for _ in range(200)], pa.int32()),
            "d": pa.array([draw.choice(NUMBERS) for _ in range(200)]),
            "m": pa.array([draw.choice([None, Decimal("1.00"), Decimal("1.01")]) for _ in range(200)], pa.decimal128(6, 2)),
            "s": pa.array([draw.choice([None, "a1", "ä", "z", "b"]) for _ in range(200)]),
            "t": pa.array(
                [draw.choice([None, start + dt.timedelta(hours=i % 5)]) for i in range(200)], pa.timestamp("us", "UTC")
            ),
            "b": pa.array([draw.choice([None, True, False]) for _ in range(200)]),
            "x": pa.array([draw.choice([None, b"a\x01", b"b"]) for _ in range(200)]),
        }
    )
    put(table, 1, "1.parquet", rows)
    return table


@pytest.mark.parametrize("where", ["s = 'b' AND n > 50", "n > 90000", "s IN ('a', 'c')", "p = 1", "p = 1 AND s = 'b'", "n >= 0"])
def test_rows_are_selected_before_dictionaries_are_looked_up(tmp_path, monkeypatch, where):
    """By vectors and predicates, with columns that only the predicate needs."""
    create(tmp_path, field("n", "long"), field("s", "string"), field("p", "integer"), features=("deletionVectors",),
           partition_columns=["p"])  # fmt: skip
    data = pa.table({"n": range(100_000), "s": ["abc"[n % 3] * 10 if n % 5 else "b" for n in range(100_000)]})
    put(tmp_path, 1, "1.parquet", data, values={"p": "1"}, deletion_vector=inline_deletion_vector(BitMap64(range(0, 100_000, 7))))
    asked = []
    decode = batches.plain_parts
    monkeypatch.setattr(group_rows, "plain_parts", lambda batch: asked.append(batch.num_rows) or decode(batch))

    def wanted(n, s):
        known = {"n": n, "s": s, "p": 1}
        return n % 7 and eval(where.replace(" = ", " == ").replace("IN", "in").replace("AND", "and"), known)

    rows = [(n, s) for n, s in zip(*data.to_pydict().values(), strict=True) if wanted(n, s)]
    assert [(row["n"], row["s"], row["p"]) for row in read(tmp_path, where=where)] == [(n, s, 1) for n, s in rows]
    assert asked[-1] == len(rows) or not rows, "of all columns"
    assert [row["s"] for row in read(tmp_path, where=where, columns=["s"])] == [s for _, s in rows]
    assert [row["p"] for row in read(tmp_path, where=where, columns=["p"])] == [1] * len(rows)


def test_rows_are_not_compared_where_the_partition_decides(tmp_path, monkeypatch):
    create(tmp_path, field("n", "long"), field("p", "integer"), partition_columns=["p"])
    put(tmp_path, 1, "1.parquet", pa.table({"n": [1, 2]}), values={"p": "1"})
    put(tmp_path, 2, "2.parquet", pa.table({"n": [3]}), values={"p": None})
    monkeypatch.setattr("airflow_delta.table.read.read_table.selected", lambda *_: pytest.fail("rows are compared"))
    assert read(tmp_path, where="p = 1", columns=["n"]) == [{"n": 1}, {"n": 2}]
    assert read(tmp_path, where="p IS NULL OR p = 7") == [{"n": 3, "p": None}]
    assert read(tmp_path, where="false") == []


@pytest.mark.parametrize(("where", "wanted"), WHERE, ids=[where for where, _ in WHERE])
def test_a_predicate_selects_what_spark_would(mixed, where, wanted):
    everything = read(mixed)
    if wanted is None:

        def wanted(row: dict[str, Any]) -> bool:
            n = None if row["n"] is None else row["n"] == 1
            d = None if row["d"] is None else row["d"] > 0 or row["d"] != row["d"]
            return n is False or d is False

    assert comparable(read(mixed, where=where)) == comparable([row for row in everything if wanted(row)])


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("n = 1 AND s RLIKE 'a'", "s RLIKE 'a'"),
        ("n = 1 AND initcap(s) = 'A1'", "initcap() is a function that only Spark evaluates"),
        ("m = 123456789012345678901234567890123456789.5", "only Spark can evaluate"),
        ("unknown = 1", "unknown"),
        ("n =", "not valid"),
    ],
)
def test_a_predicate_that_cannot_be_decided_here_is_refused(mixed, where, message):
    with pytest.raises(PredicateException) as caught:
        read(mixed, where=where)
    assert message in str(caught.value)


@pytest.mark.depends("sqlglot")
def test_a_row_without_a_value_ends_the_reading(mixed):
    with pytest.raises(DeltaAnalysisException, match=r"'s = 1'.*'a1' cannot be cast to bigint \(CAST_INVALID_INPUT\)"):
        read(mixed, where="s = 1")


# -- versions, columns, limits, files -----------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    table = tmp_path / "table"
    create(table, field("id", "long"), field("part", "string"), partition_columns=["part"])
    for version in (1, 2):
        rows = pa.table({"id": pa.array(range(version * 10, version * 10 + 10))})
        put(table, version, f"{version}.parquet", rows, values={"part": f"p{version}"}, stats=version == 1)
    return table


def test_versions_and_times_in_the_past(table):
    log = DeltaLog.for_table(str(table))
    for version in range(3):
        os.utime(commit_path(table, version), (1_700_000_000 + version, 1_700_000_000 + version))
    assert read(table, version=0) == []
    assert len(read(table, version=1)) == 10
    assert len(read(table, timestamp=1_700_000_002_000)) == len(read(table, timestamp=1_900_000_000_000)) == 20
    assert len(read(table, timestamp=dt.datetime.fromtimestamp(1_700_000_001.5, dt.UTC))) == 10
    assert read_table(log, version=0).to_table().schema.names == ["id", "part"]
    with pytest.raises(VersionNotFoundException):
        read(table, version=3)
    with pytest.raises(VersionNotFoundException):
        read(table, timestamp=dt.datetime(1999, 1, 1))
    with pytest.raises(DeltaIllegalArgumentException, match="not both"):
        read(table, version=1, timestamp=1)
    with pytest.raises(DeltaIllegalArgumentException, match="-1"):
        read(table, version=-1)
    missing = (
        r"There is no Delta table at .*/none, so there is nothing to read\. Check the location, the connection, and that an "
    )
    with pytest.raises(DeltaTableNotFoundException, match=missing):
        read(table.parent / "none")


def test_columns(table):
    assert read(table, columns=["PART", "id"], version=1)[0] == {"part": "p1", "id": 10}
    for columns, message in (
        (["idd"], "no column 'idd' in version 2 of table .* Did you mean id"),
        ([], "list of names"),
        ("id", "list of names"),
        (["id", "ID"], "twice"),
    ):
        with pytest.raises(DeltaIllegalArgumentException, match=message):
            read(table, columns=columns)


def test_more_rows_than_the_limit_are_refused_before_reading_where_statistics_tell(table):
    (table / "1.parquet").unlink()
    with pytest.raises(ReadLimitException, match=r"table .* version 1 would return 10 rows, and limit is 9\b.*limit=None"):
        read_table(DeltaLog.for_table(str(table)), version=1, limit=9)
    with pytest.raises(ReadLimitException, match="would return 10 rows"):
        read_table(DeltaLog.for_table(str(table)), version=1, where="part = 'p1'", limit=9)
    with pytest.raises(ReadLimitException, match="would return at least 10 rows"):
        read_table(DeltaLog.for_table(str(table)), limit=9)


def test_more_rows_than_the_limit_are_refused_while_reading_where_statistics_do_not_tell(table):
    assert len(read(table, limit=20)) == 20
    assert len(read(table, limit=5, where="id >= 25")) == 5
    with pytest.raises(ReadLimitException, match="version 2 would return more than 4 rows"):
        read(table, limit=4, where="id >= 25")
    with pytest.raises(ReadLimitException, match="more than 19 rows"):
        read(table, limit=19)
    with pytest.raises(DeltaIllegalArgumentException, match="limit"):
        read(table, limit=-1)


def test_the_first_rows_need_no_more_files(table):
    log = DeltaLog.for_table(str(table))
    first, second = dict.fromkeys(row["part"] for row in read(table))  # in the order that they are read in
    (table / f"{second[1]}.parquet").unlink()
    assert read_table(log).head(3).column("part").to_pylist() == [first] * 3
    assert read_table(log).head(0).num_rows == 0
    assert read_table(log, where=f"part = '{first}'").to_reader().read_all().num_rows == 10
    with pytest.raises(DeltaFileNotFoundException, match=rf"{second[1]}\.parquet of table .* version 2 is gone"):
        read_table(log).head(11)


def test_files_elsewhere(table, tmp_path):
    outside = tmp_path / "else where" / "a%20b.parquet"
    outside.parent.mkdir()
    pq.write_table(pa.table({"id": pa.array([99])}), outside)
    clone = tmp_path / "clone"
    create(clone, field("id", "long"), field("part", "string"), partition_columns=["part"])
    size = outside.stat().st_size
    for version, path in enumerate((str(outside), f"file://{outside}"), start=1):
        write_commit(clone, version, add(quote(path, safe="/:"), partition_values={"part": "x"}, size=size))
    inside = f"{clone}/in side.parquet"
    pq.write_table(pa.table({"id": pa.array([1])}), inside)
    write_commit(clone, 3, add(quote(inside), partition_values={"part": None}, size=Path(inside).stat().st_size))
    assert sorted(row["id"] for row in read(clone)) == [1, 99, 99]


def test_damaged_files_are_named(table):
    (table / "2.parquet").write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    with pytest.raises(DeltaLogCorruptedException, match=r"2\.parquet of table .* version 2 cannot be read"):
        read(table)
    vector = inline_deletion_vector(BitMap64([10]))
    size = (table / "1.parquet").stat().st_size
    write_commit(table, 3, remove("2.parquet", part="p2"), add("1.parquet", part="p1", size=size, deletion_vector=vector))
    with pytest.raises(DeltaLogCorruptedException, match="marks row 10, but the file has 10 rows"):
        read(table)


def test_what_is_not_understood_is_refused(tmp_path):
    table = tmp_path / "table"
    create(table, field("id", "long"), features=("sealedRows",))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="sealedRows"):
        read(table)
    create(table, field("id", "long"), field("v", "variant"), features=("variantType",))
    put(table, 1, "1.parquet", pa.table({"id": pa.array([1])}))
    with pytest.raises(DeltaUnsupportedOperationException, match="Column v cannot be read without Spark: its type variant"):
        read(table)
    assert read(table, columns=["id"]) == [{"id": 1}]


def test_a_table_mapped_by_id_is_not_read_from_files_without_ids(tmp_path):
    table = tmp_path / "table"
    configuration = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "1"}
    create(table, field("id", "long", 1, "id"), features=("columnMapping",), configuration=configuration)
    put(table, 1, "1.parquet", pa.table({"id": pa.array([1])}))
    with pytest.raises(DeltaAnalysisException, match="no field ids"):
        read(table)


def test_physical_names_that_an_earlier_mapping_left_mean_nothing(tmp_path):
    table = tmp_path / "table"
    create(table, field("id", "long", 1, "col-1"), field("p", "string", 2, "col-2"), partition_columns=["p"])
    put(table, 1, "1.parquet", pa.table({"id": pa.array([1])}), values={"p": "x"})
    assert read(table) == [{"id": 1, "p": "x"}]


VALUES: dict[str, tuple[pa.Array, str]] = {
    "integer": (pa.array([1], pa.int32()), "1"),
    "string": (pa.array(["x"]), "'x'"),
    "date": (pa.array([dt.date(2024, 1, 1)]), "DATE '2024-01-01'"),
    "timestamp": (pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]), "TIMESTAMP '2024-01-01 00:00:00 UTC'"),
    "timestamp_ntz": (pa.array([dt.datetime(2024, 1, 1)]), "TIMESTAMP_NTZ '2024-01-01 00:00:00'"),
    "boolean": (pa.array([True]), "true"),
    "decimal": (pa.array([Decimal("1.50")]), "1.50"),
    "binary": (pa.array([b"x"]), "X'78'"),
    "double": (pa.array([2.5]), "2.5"),
}


@pytest.mark.parametrize("partition_by", [[], ["p"]], ids=["statistics", "partitions"])
@pytest.mark.parametrize(("before", "after"), [*itertools.pairwise([*VALUES, *list(VALUES)[::2], *list(VALUES)[::3]])])
def test_a_checkpoint_from_before_a_column_had_its_type(tmp_path: Path, before: str, after: str, partition_by: list[str]) -> None:
    table = Table(tmp_path / "table")
    (old, _), (new, text) = VALUES[before], VALUES[after]
    given = {"partition_by": partition_by, "configuration": {"delta.feature.timestampNtz": "supported"}}
    table.write(pa.table({"p": old, "n": [1]}), begin=given)
    table.log().checkpoint()
    table.write(pa.table({"p": new, "n": [2]}), mode="overwrite", overwrite_schema=True)
    rows = {"=": 1, "<=>": 1, "<": 0, ">=": 1, "<>": 0}
    for operator, expected in rows.items():
        assert read_table(table.log(), where=f"p {operator} {text}").to_table().num_rows == expected
    assert read_table(table.log(), where=f"p IS NULL OR p IN ({text}) AND n > 1").to_table().num_rows == 1
    assert table.log().update().files(f"p = {text}", columns=["size"]).num_rows == 1
