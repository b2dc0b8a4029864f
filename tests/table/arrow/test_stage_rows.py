"""Stages without Spark: from begin to commit, read by other readers, and by the same rules as a Spark stage."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.audit import AuditCheck
from airflow_delta.exceptions import (
    CharVarcharLimitException,
    ConstraintViolationException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    InvariantViolationException,
    ReplaceWhereMismatchException,
    SchemaDriftException,
    SchemaMismatchException,
)
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import LONG, ArrayType, MapType, StructField, StructType, parse_schema
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.table.arrow import files
from airflow_delta.table.arrow.row_checks import check_not_null
from airflow_delta.table.arrow.table_rows import table_rows
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.limit_checks import statistics_checks
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_create import plan_create
from support import readers
from support.table import Table
from table.arrow_stages import read, stage, write

UTC = dt.UTC
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "ta ble")


def stats(table: Table) -> list[dict[str, Any]]:
    return [json.loads(file.stats) for file in table.log().update().add_files()]


def test_named_levels_of_a_pandas_index_are_columns(table: Table) -> None:
    frame = pd.DataFrame({"day": ["a", "a", "b"], "n": [1, 2, 3], "id": [7, 8, 9]})
    write(table, frame.set_index("id"))
    write(table, frame.groupby(["day", "id"]).sum())
    unnamed = frame.set_index([pd.Index([5, 6, 7]), "id"])
    write(table, unnamed)
    assert list(table.log().update().schema.names) == ["day", "n", "id"]
    rows = frame.to_dict("records")
    assert readers._comparable(read(table)) == readers._comparable(3 * rows)
    for clash in (frame.set_index("id", drop=False), frame.set_index(["id", "id"])):
        with pytest.raises(DeltaIllegalArgumentException, match=r"index has the name of another column.* id"):
            write(table, clash)


def test_a_value_that_means_null_in_a_directory_is_refused(table: Table) -> None:
    rows = pa.table({"id": [1, 2], "p": ["a", "__HIVE_DEFAULT_PARTITION__"]})
    with pytest.raises(DeltaAnalysisException, match=r"Partition column p .* spell null as '__HIVE_DEFAULT_PARTITION__'"):
        write(table, rows, begin={"partition_by": ["p"]})
    write(table, rows)  # no directory, nothing lost
    assert [row["p"] for row in read(table)] == rows["p"].to_pylist()


TYPES = {
    "b": pa.array([1, None, -128], pa.int8()),
    "s": pa.array([1, None, -32768], pa.int16()),
    "i": pa.array([1, None, -(2**31)], pa.int32()),
    "l": pa.array([1, None, -(2**63)], pa.int64()),
    "f": pa.array([1.5, None, float("nan")], pa.float32()),
    "d": pa.array([1.5, None, float("-inf")], pa.float64()),
    "dec": pa.array([Decimal("1.50"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "big": pa.array([Decimal(10) ** 37, None, Decimal(1)], pa.decimal128(38, 0)),
    "t": pa.array(["a", None, "ü"]),
    "x": pa.array([b"\xff", None, b""]),
    "bo": pa.array([True, None, False]),
    "dt": pa.array([dt.date(1500, 1, 1), None, dt.date(2024, 2, 29)]),
    "ts": pa.array([NOON, None, dt.datetime(1960, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "li": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "st": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": None}]),
    "ma": pa.array([[("k", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
}


def test_every_type_makes_a_table_that_other_readers_read(table):
    rows = pa.table(TYPES)
    assert write(table, rows).num_records == 3
    found = read(table)
    assert readers._comparable(found) == readers._comparable(rows.to_pylist())
    assert [f.name for f in table.log().update().schema][:3] == ["b", "s", "i"]
    assert str(table.log().update().schema.find("ts").data_type) == "timestamp"
    (only,) = stats(table)
    assert (only["numRecords"], only["minValues"]["i"], only["nullCount"]["t"]) == (3, -(2**31), 1)
    (path,) = table.path.rglob("staged/**/*.parquet")
    footer = pq.read_metadata(path)
    physical = {footer.schema.column(i).path: footer.schema.column(i).physical_type for i in range(footer.num_columns)}
    assert (physical["ts"], physical["dec"], physical["big"]) == ("INT64", "INT64", "FIXED_LEN_BYTE_ARRAY")
    assert footer.row_group(0).column(0).compression == "SNAPPY"
    assert "ARROW:schema" not in {key.decode() for key in footer.metadata or {}}


def frames() -> dict[str, Any]:
    rows = pa.table({"id": pa.array([1, 2, 3]), "at": pa.array([NOON] * 3), "v": pa.array([1.5, None, 2.5])})
    return {
        "Table": rows,
        "RecordBatch": rows.to_batches()[0],
        "RecordBatchReader": pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(max_chunksize=2))),
        "pandas": pd.DataFrame(
            {"id": [1, 2, 3], "at": pd.to_datetime([NOON] * 3), "v": [1.5, float("nan"), 2.5]}, index=[7, 8, 9]
        ),
        "Polars": pl.DataFrame({"id": [1, 2, 3], "at": [NOON] * 3, "v": [1.5, None, 2.5]}),
        "lazy Polars": pl.LazyFrame({"id": [1, 2, 3], "at": [NOON] * 3, "v": [1.5, None, 2.5]}),
    }


@pytest.mark.parametrize("name", frames())
def test_frames_of_every_kind(table, name):
    write(table, frames()[name])
    assert readers._comparable(read(table)) == readers._comparable(frames()["Table"].to_pylist())


PARTITIONS = {
    "p": pa.array(["a b", "ü%/=:", None, "", "a b", ".x"]),
    "n": pa.array([1, None, 1, 2, 1, 3], pa.int32()),
    "at": pa.array([NOON, None, NOON, NOON, NOON, NOON], pa.timestamp("us", "UTC")),
    "d": pa.array([dt.date(2024, 2, 29), None] * 3),
    "dec": pa.array([Decimal("1.50"), Decimal("-1.50"), None] * 2, pa.decimal128(5, 2)),
    "bo": pa.array([True, False, None] * 2),
}


def test_partitions(table, monkeypatch):
    monkeypatch.setattr(files, "OPEN_FILES", 2)
    rows = pa.table({"id": pa.array(range(6)), **PARTITIONS})
    write(table, rows, begin={"partition_by": list(PARTITIONS)})
    expected = [{**row, "p": row["p"] or None} for row in rows.to_pylist()]
    assert readers._comparable(read_table(table.log()).to_table().to_pylist()) == readers._comparable(expected)
    assert readers._comparable(readers.READERS["DuckDB"](table.uri, None).to_pylist()) == readers._comparable(expected)
    values = [file.partition_values for file in table.log().update().add_files()]
    assert {value["at"] for value in values} == {"2024-02-29T12:00:00.123456Z", None}
    write(table, rows.slice(0, 1).set_column(0, "id", pa.array([100])), mode="dynamic")
    assert sorted(row["id"] for row in read_table(table.log()).to_table().to_pylist()) == [1, 2, 3, 4, 5, 100]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(table, mode):
    properties = {"delta.columnMapping.mode": mode}
    nested = pa.array(
        [{"in ner": [{"x y": 1}], "m": [("k", {"z": 1})]}],
        type=pa.struct(
            [
                ("in ner", pa.list_(pa.struct([("x y", pa.int32())]))),
                ("m", pa.map_(pa.string(), pa.struct([("z", pa.int64())]))),
            ]
        ),
    )
    rows = pa.table({"i d": pa.array([1]), "p": pa.array(["x"]), "s": nested})
    write(table, rows, begin={"partition_by": ["p"], "configuration": properties})
    assert read_table(table.log()).to_table().to_pylist() == rows.to_pylist()
    assert readers._comparable(readers.READERS["Polars"](table.uri, None).to_pylist()) == readers._comparable(rows.to_pylist())
    (path,) = table.path.rglob("staged/**/*.parquet")
    stored = pq.read_schema(path)
    assert stored.names[0].startswith("col-")
    assert stored.field(0).metadata[b"PARQUET:field_id"] == b"1"
    write(table, rows.append_column("new", pa.array([5])), merge_schema=True)
    assert sorted(row["new"] or 0 for row in read_table(table.log()).to_table().to_pylist()) == [0, 5]


def test_values_are_cast_only_where_none_is_lost(table):
    start = pa.table(
        {
            "l": pa.array([1]),
            "d": pa.array([1.5]),
            "t": pa.array(["a"]),
            "dec": pa.array([Decimal("1.5")]),
            "at": pa.array([NOON]),
        }
    )
    write(table, start)
    widened = pa.table(
        {
            "L": pa.array([2], pa.uint32()),
            "d": pa.array([2], pa.int32()),
            "t": pa.array([dt.date(2024, 2, 29)]),
            "at": pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    write(table, widened)
    assert {"l": 2, "d": 2.0, "t": "2024-02-29", "dec": None, "at": NOON} in read(table)
    write(table, pa.table({"t": pa.array(["cat"]).dictionary_encode(), "l": pa.nulls(1), "at": pa.array([dt.date(2024, 1, 1)])}))
    assert {"l": None, "d": None, "t": "cat", "dec": None, "at": dt.datetime(2024, 1, 1, tzinfo=UTC)} in read(table)
    for rows, error, message in (
        ({"l": pa.array([1.0])}, SchemaMismatchException, "column l: expected bigint, got double"),
        (
            {"at": pa.array([NOON.replace(tzinfo=None)])},
            SchemaMismatchException,
            "column at: expected timestamp, got timestamp_ntz",
        ),
        ({"t": pa.array([1.5])}, SchemaMismatchException, "column t goes from double to string"),
        ({"at": pa.array([1], pa.int64()).cast(pa.timestamp("ns", "UTC"))}, SchemaMismatchException, "without loss"),
        ({"d": pa.array([1 << 60], pa.int64())}, SchemaMismatchException, "column d: expected double, got bigint"),
        ({"new": pa.array([1])}, SchemaMismatchException, "merge_schema=True"),
        ({"l": pa.array([dt.time(1)])}, DeltaAnalysisException, "column l of Arrow type time64"),
        ({"l": pa.array([1]), "L": pa.array([1])}, SchemaMismatchException, "occurs twice"),
    ):
        with pytest.raises(error, match=message):
            write(table, pa.table(rows))
    assert len(table.versions()) == 3
    assert len(read(table)) == 3


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b" * 20])])
def test_categories_of_polars(table, kind):
    values = ["a", None, "b" * 20]
    rows = pl.DataFrame(
        {
            "c": pl.Series(values, dtype=kind),
            "l": pl.Series([values, None, []], dtype=pl.List(kind)),
            "s": pl.Series([{"x": value} for value in values], dtype=pl.Struct({"x": kind})),
        }
    )
    write(table, rows.slice(1), begin={"partition_by": ["c"]})
    found = sorted(read(table), key=repr)
    assert found == [{"c": "b" * 20, "l": [], "s": {"x": "b" * 20}}, {"c": None, "l": None, "s": {"x": None}}]


def test_encoded_runs(table):
    runs = pa.RunEndEncodedArray.from_arrays([2, 3, 6], pa.array(["a", None, "b"], pa.string_view()))
    write(table, pa.table({"r": runs.slice(1, 3)}))
    assert sorted(str(row["r"]) for row in read(table)) == ["None", "a", "b"]


NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"\xc3\xa9\xff\xfe")]
)


TOO_LONG = pa.Array.from_buffers(
    pa.decimal128(5, 2), 2, [None, pa.py_buffer(b"".join(n.to_bytes(16, "little") for n in (99999, 9999999)))]
)


@pytest.mark.parametrize("bad", [NOT_UTF8, TOO_LONG], ids=["not UTF-8", "too many digits"])
@pytest.mark.parametrize(
    "make",
    [
        lambda bad: bad,
        lambda bad: pa.StructArray.from_arrays([bad], ["x"]),
        lambda bad: pa.ListArray.from_arrays([0, 1, 2], bad),
        lambda bad: pa.MapArray.from_arrays([0, 1, 2], pa.array(["x", "y"]), bad),
        lambda bad: bad.cast(pa.large_string()) if bad is NOT_UTF8 else bad,
        lambda bad: pa.DictionaryArray.from_arrays([0, 1], bad),
        lambda bad: pa.ListArray.from_arrays([0, 1, 2], pa.StructArray.from_arrays([bad], ["x"])),
    ],
    ids=["plain", "struct", "list", "map", "wide", "dictionary", "structs in a list"],
)
def test_what_the_type_of_a_column_does_not_allow_is_refused_by_column_and_row(table, monkeypatch, bad, make):
    values = make(bad)
    good = values.slice(0, 1)
    table.write(pa.table({"v": pa.chunked_array([good, good])}))
    assert len(table.rows()) == 2, "what is not in the slice does not count"
    with pytest.raises(SchemaMismatchException, match=r"Column v .*, in row 3 \(the first is 0\): .*(UTF8|precision)"):
        table.write(pa.table({"v": pa.chunked_array([good, good, values])}))
    assert len(table.rows()) == 2


def test_the_row_of_what_does_not_fit_is_named(table):
    times = pa.array([*[0] * 200_000, 1], pa.timestamp("ns", "UTC"))
    with pytest.raises(SchemaMismatchException, match=r"Column t .*, in row 200000 \(the first is 0\): .*would lose data"):
        write(table, pa.table({"t": times}))


def test_partition_values_that_their_type_does_not_allow_are_refused(table):
    with pytest.raises(SchemaMismatchException, match=r"Column p .*, in row 1 "):
        table.write(pa.table({"p": TOO_LONG, "v": [1, 2]}), begin={"partition_by": ("p",)})


def test_offsets_that_are_not_those_of_a_list_are_refused(table):
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 9, 1)))
    lists = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets], children=[pa.array([1])])
    with pytest.raises(SchemaMismatchException, match="Column v"):
        table.write(pa.table({"v": lists}))


def column(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def with_void(*, mapped: bool) -> dict[str, Any]:
    """Return arguments that create a table with columns of the type ``void``, as Delta Spark makes them."""
    struct = {"type": "struct", "fields": [column("a", "integer"), column("v", "void")]}
    lists = {"type": "array", "elementType": struct, "containsNull": True}
    columns = [column("id", "integer"), column("v", "void"), column("s", struct), column("l", lists)]
    mode = {"delta.columnMapping.mode": "name"} if mapped else {}
    return {"schema": {"type": "struct", "fields": columns}, "configuration": mode}


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_what_is_void_is_in_no_file_and_takes_the_type_of_the_data(table, mapped):
    made = with_void(mapped=mapped)
    table.run(plan_create, schema=json.dumps(made["schema"]), properties=made["configuration"])
    rows = pa.table({"id": pa.array([1], pa.int32()), "s": [{"a": 1, "v": None}], "l": [[{"a": 2, "v": None}, None]]})
    rows = rows.set_column(1, "s", rows["s"].cast(pa.struct([("a", pa.int32()), ("v", pa.null())])))
    rows = rows.set_column(2, "l", rows["l"].cast(pa.list_(pa.struct([("a", pa.int32()), ("v", pa.null())]))))
    table.write(rows)
    (file,) = table.log().update().add_files()
    stored = pq.read_schema(table.path / file.path)
    assert not [kind for kind in pa_leaves(stored) if pa.types.is_null(kind)]
    if not mapped:
        assert pl.read_parquet(table.path / file.path).height == 1
    expected = {"id": 1, "v": None, "s": {"a": 1, "v": None}, "l": [{"a": 2, "v": None}, None]}
    assert read_table(table.log()).to_table().to_pylist() == [expected]

    typed = pa.table({"id": pa.array([2], pa.int32()), "v": ["x"], "s": [{"v": {"w": 1.5}}], "l": [[{"v": [1]}]]})
    with pytest.raises(
        SchemaMismatchException, match=r"expected void, got string.*merge_schema=True gives a column .* void the type"
    ):
        table.write(typed)
    table.write(typed, merge_schema=True)
    after = {"id": 2, "v": "x", "s": {"a": None, "v": {"w": 1.5}}, "l": [{"a": None, "v": [1]}]}
    # The others have no column mapping, and with an old PyArrow delta-rs cannot read a struct that got a field.
    ours = mapped or int(pa.__version__.partition(".")[0]) < 21
    rows = read_table(table.log()).to_table().to_pylist() if ours else read(table)
    assert sorted(rows, key=lambda row: row["id"]) == [expected, after]


def pa_leaves(fields: Any) -> list[pa.DataType]:
    kinds: list[pa.DataType] = []
    for each in fields:
        kind = each.type if isinstance(each, pa.Field) else each
        inner = list(kind.fields) if hasattr(kind, "fields") else [kind.field(n) for n in range(kind.num_fields)]
        kinds += pa_leaves(inner) if kind.num_fields else [kind]
    return kinds


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "elementType": "void", "containsNull": True},
        {"type": "struct", "fields": [column("v", "void")]},
        {"type": "map", "keyType": "string", "valueType": "void", "valueContainsNull": True},
    ],
    ids=lambda kind: kind["type"],
)
def test_void_of_which_no_file_can_hold_the_values(table, kind):
    schema = {"type": "struct", "fields": [column("id", "integer"), column("c", kind)]}
    table.run(plan_create, schema=json.dumps(schema))
    with pytest.raises(SchemaMismatchException, match=r"Column c of table .*merge_schema=True, or drop the column"):
        table.write(pa.table({"id": pa.array([1], pa.int32())}))


def test_what_is_not_rows_is_refused(table):
    for rows, message in ((None, "returned NoneType"), ([1], "returned list"), ({"a": 1}, "returned dict")):
        with pytest.raises(DeltaIllegalArgumentException, match=f"The stage 'stage' {message}, expected a pyarrow Table"):
            write(table, rows)
    with pytest.raises(DeltaIllegalArgumentException, match="table of typed columns"):
        write(table, pd.DataFrame({"a": [1, "x"]}))
    with pytest.raises(DeltaIllegalArgumentException, match=r"Duplicate column names found: \['a', 'a'\].*a name of its own"):
        write(table, pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(DeltaIllegalArgumentException, match=r"a type that Arrow does not have.*decimal"):
        write(table, pl.DataFrame({"a": pl.Series([2**100], dtype=pl.Int128)}))
    with pytest.raises(DeltaIllegalArgumentException, match="Python objects in a"):  # else their addresses would be written
        write(table, pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}))
    with pytest.raises(SchemaMismatchException, match="untyped nulls"):
        write(table, pa.table({"a": pa.nulls(1)}))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.period_range("2024-01", periods=2, freq="M"), "pandas.period"),  # else its number since 1970
        (pd.interval_range(0, 2), "pandas.interval"),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())), "arrow.bool8"),
        (pa.array([{}, {}], pa.struct([])), "struct<>"),
    ],
)
def test_types_whose_storage_means_something_else_are_refused(table, values, kind):
    rows = pa.table({"a": values}) if isinstance(values, pa.Array) else pd.DataFrame({"a": values})
    with pytest.raises(DeltaAnalysisException, match=f"column a of Arrow type .*{kind}"):
        write(table, rows)


def test_types_whose_storage_is_what_they_mean(table):
    uuid = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    text = pa.array(["{}"])
    document = pa.ExtensionArray.from_storage(pa.json_(), text) if hasattr(pa, "json_") else text  # PyArrow 19 has it first
    write(table, pa.table({"j": document, "u": uuid}))
    assert read(table) == [{"j": "{}", "u": b"0123456789abcdef"}]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"\xff"]),
        pa.array([2**31 - 1], pa.int32()).view(pa.date32()),
        pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC")),
    ],
    ids=["binary", "date", "timestamp"],
)
def test_partition_values_that_the_log_cannot_hold_are_refused(table, values):
    with pytest.raises(DeltaAnalysisException, match=r"Partition column p .* cannot hold"):
        write(table, pa.table({"id": pa.array([1]), "p": values}), begin={"partition_by": ["p"]})


COLUMNS = "id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), name VARCHAR(3) NOT NULL, n INT DEFAULT 7"


def ruled(table: Table, columns: str = COLUMNS, **options: Any) -> None:
    properties = {"delta.constraints.small": "n < 100 AND name <> 'no'", "delta.feature.allowColumnDefaults": "supported"}
    handle = table.begin()
    created = plan_create(table.view(handle, task_id="create"), schema=columns, properties=properties, **options)
    table.publish(handle, created)


def test_lengths_are_no_difference_to_a_strict_stage(table):
    """No rows have such types, and the table keeps to the lengths."""
    ruled(table, "name VARCHAR(3) NOT NULL, n INT, l ARRAY<STRUCT<x: STRING>>")
    rows = pa.table({"name": ["abc"], "n": pa.array([1], pa.int32()), "l": pa.array([[{"x": "y"}]])})
    write(table, rows, schema_policy="strict", expected_schema="name VARCHAR(3), n INT, l ARRAY<STRUCT<x: CHAR(2)>>")
    with pytest.raises(SchemaDriftException, match="column n: expected string, got int"):
        write(table, rows, schema_policy="strict", expected_schema="name VARCHAR(3), n CHAR(3), l ARRAY<STRUCT<x: STRING>>")


def test_rules_of_the_table(table):
    ruled(table)
    write(table, pa.table({"name": pa.array(["a", "bcd"])}))
    write(table, pa.table({"name": pa.array(["ü"]), "n": pa.array([99], pa.int32())}))
    found = sorted(read_table(table.log()).to_table().to_pylist(), key=lambda row: row["id"])
    assert found == [
        {"id": 10, "name": "a", "n": 7},
        {"id": 15, "name": "bcd", "n": 7},
        {"id": 20, "name": "ü", "n": 99},
    ]
    for rows, error, message in (
        ({"name": pa.array(["a", None])}, InvariantViolationException, "NOT NULL column name would get a null"),
        ({"n": pa.array([1], pa.int32())}, InvariantViolationException, "lacks the NOT NULL column name"),
        ({"name": pa.array(["long"])}, CharVarcharLimitException, "too long for varchar"),
        ({"name": pa.array(["a", "no"])}, ConstraintViolationException, r"small \(.*row with values: \{'n': 7, 'name': 'no'\}"),
        ({"name": pa.array(["a"]), "n": pa.nulls(1, pa.int32())}, ConstraintViolationException, "small"),
        ({"name": pa.array(["a"]), "id": pa.array([1])}, IdentityInsertException, "GENERATED ALWAYS"),
    ):
        with pytest.raises(error, match=message):
            write(table, pa.table(rows))
    assert len(table.versions()) == 3


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("id BIGINT, d DATE GENERATED ALWAYS AS (CAST(name AS DATE)), name STRING, n INT", {"id": [1]}, "generated column d"),
        ("name STRING DEFAULT upper('x'), n INT", {"n": [1]}, "default upper"),
        ("name STRING, n INT, l ARRAY<VARCHAR(2)>", {"name": ["a"]}, "length of strings inside column l"),
    ],
)
def test_rules_that_only_spark_can_keep_are_refused_by_name(table, columns, rows, message):
    ruled(table, columns)
    with pytest.raises(DeltaUnsupportedOperationException, match=message):
        write(table, pa.table({name: pa.array(values, pa.int32() if name == "n" else None) for name, values in rows.items()}))
    assert len(table.versions()) == 1


def test_times_without_a_zone_in_constraints_are_in_utc(table):
    handle = table.begin()
    properties = {"delta.constraints.new": "t >= '2024-01-01'"}
    table.publish(handle, plan_create(table.view(handle, task_id="create"), schema="t TIMESTAMP", properties=properties))
    write(table, pa.table({"t": pa.array([dt.datetime(2024, 1, 1, tzinfo=UTC)])}))
    with pytest.raises(ConstraintViolationException, match="new"):
        write(table, pa.table({"t": pa.array([dt.datetime(2023, 12, 31, 23, 59, tzinfo=UTC)])}))


@pytest.mark.depends("sqlglot")
def test_a_constraint_that_only_spark_evaluates_is_refused_by_name(table):
    handle = table.begin()
    properties = {"delta.constraints.title": "initcap(name) = name"}
    table.publish(handle, plan_create(table.view(handle, task_id="create"), schema="name STRING", properties=properties))
    with pytest.raises(
        DeltaUnsupportedOperationException, match=r"CHECK constraint title \(initcap\(name\) = name\).*engine=\"spark\""
    ):
        write(table, pa.table({"name": pa.array(["A"])}))


def test_a_constraint_with_functions_is_checked(table):
    handle = table.begin()
    properties = {"delta.constraints.upper": "upper(name) = name AND length(name) * 2 < 10"}
    table.publish(handle, plan_create(table.view(handle, task_id="create"), schema="name STRING", properties=properties))
    write(table, pa.table({"name": pa.array(["A", "ABCD"])}))
    for wrong in ("a", "ABCDE", None):
        with pytest.raises(ConstraintViolationException, match="upper"):
            write(table, pa.table({"name": pa.array(["A", wrong])}))


def test_modes(table):
    rows = pa.table({"id": pa.array(range(6)), "p": pa.array(list("aabbcc"))})
    write(table, rows, begin={"partition_by": ["p"]})
    write(table, rows.slice(0, 1), mode="overwrite", replace_where="p = 'a'")
    assert sorted(row["id"] for row in read(table)) == [0, 2, 3, 4, 5]
    write(table, pa.table({"id": pa.array([9]), "p": pa.array(["b"])}), mode="dynamic")
    assert sorted(row["id"] for row in read(table)) == [0, 4, 5, 9]
    with pytest.raises(
        ReplaceWhereMismatchException, match=r"does not satisfy replaceWhere .*the row has the values: {'p': 'b'} \(table"
    ):
        write(table, rows, mode="overwrite", replace_where="p = 'a'")
    says = r"replace_where \(id = 9\), which may select some of the rows of 1 of its files, .* on partition columns selects whole"
    with pytest.raises(DeltaUnsupportedOperationException, match=says):
        write(table, rows.slice(0, 1), mode="overwrite", replace_where="id = 9")
    with pytest.raises(DeltaUnsupportedOperationException, match="replace_on or replace_using"):
        write(table, rows, mode="overwrite", replace_using=["id"])
    write(table, rows.slice(0, 2), mode="overwrite")
    assert sorted(row["id"] for row in read(table)) == [0, 1]
    write(table, pa.table({"p": pa.array(["z"]), "other": pa.array(["x"])}), mode="overwrite", overwrite_schema=True)
    assert read(table) == [{"p": "z", "other": "x"}]
    write(table, pa.table({"z": pa.array([1])}), create="create_or_replace", properties={"delta.appendOnly": "false"})
    assert read(table) == [{"z": 1}]
    with pytest.raises(SchemaDriftException):
        write(table, pa.table({"z": pa.array([1], pa.int32())}), schema_policy="strict")


def test_write_options(table):
    rows = pa.table({"id": pa.array(range(25))})
    write(table, rows, options={"compression": "zstd", "maxRecordsPerFile": "10"})
    assert sorted(file["numRecords"] for file in stats(table)) == [5, 10, 10]
    for path in table.path.rglob("staged/**/*.parquet"):
        assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    with pytest.raises(DeltaIllegalArgumentException, match=r"write option parquet\.block\.size='1'"):
        write(table, rows, options={"parquet.block.size": "1"})


def test_memory_is_bounded_and_files_have_a_sensible_size(table, monkeypatch):
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 40_000)
    monkeypatch.setattr(files, "BUFFERED_BYTES", 100_000)
    monkeypatch.setattr(files, "FILE_BYTES", 150_000)
    alive: list[int] = []

    def batches():
        for number in range(60):
            alive.append(pa.total_allocated_bytes())
            ids = pa.array(range(number * 1000, number * 1000 + 1000))
            yield pa.record_batch({"id": ids, "p": pa.array([f"p{i % 3}" for i in range(1000)])})

    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    write(table, pa.RecordBatchReader.from_batches(schema, batches()), begin={"partition_by": ["p"]})
    assert max(alive) - alive[0] < 2_000_000
    found = read(table)
    assert sorted(row["id"] for row in found) == list(range(60_000))
    assert {row["p"] for row in found if row["id"] % 3 == 1} <= {"p0", "p1", "p2"}
    assert 3 <= len(stats(table)) < 20


def test_nan_that_comes_late_begins_a_file_without_bounds(table, monkeypatch):
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 1)
    parts = [[1.0, None], [2.0], [float("nan")], [3.0], [None]]
    batches = [pa.record_batch({"d": pa.array(part, pa.float64()), "i": pa.array(range(len(part)))}) for part in parts]
    write(table, pa.Table.from_batches(batches))
    assert len(read(table)) == 6
    bounded, unbounded = sorted(stats(table), key=lambda file: "d" not in file["minValues"])
    assert (bounded["numRecords"], bounded["minValues"]["d"], bounded["maxValues"]["d"]) == (3, 1.0, 2.0)
    assert bounded["nullCount"]["d"] == 1
    assert (unbounded["numRecords"], unbounded["minValues"], unbounded["nullCount"]) == (3, {"i": 0}, {"d": 1, "i": 0})


def test_the_range_of_numbers_is_audited(table):
    table.run(plan_create, schema="d DOUBLE, f FLOAT")
    handle = table.begin()
    staged = stage(table, handle, pa.table({"d": [1.0, 2.5], "f": pa.array([1.0, float("nan")], pa.float32())}))
    judged = AuditedTable(table.log(), handle, [staged])

    def check(column: str, most: float) -> AuditCheck:
        (found,) = statistics_checks(value_range={column: {"max": most}}).run(judged)
        return found

    assert [check("d", most).passed for most in (2.5, 2.4)] == [True, False]
    undecided = check("f", 9)
    assert not undecided.passed
    assert "have no least and no greatest value of column f" in undecided.message
    assert "if the file holds NaN, which is greater than all others" in undecided.message
    assert "delta.dataSkippingNumIndexedCols" not in undecided.message


def test_what_a_copy_says_of_nan_is_not_believed(table, tmp_path):
    """Arrow copies the metadata of a footer into files with other rows."""
    write(table, pa.table({"d": [1.0, 2.0]}))
    [original] = table.path.rglob("staged/**/*.parquet")
    copied = pq.read_table(original, partitioning=None)
    changed = pa.table({"d": [1.0, float("nan")]}, schema=copied.schema)
    assert b"airflow_delta.nan" in changed.schema.metadata
    pq.write_table(changed, tmp_path / "other.parquet")
    for path, most in ((original, {"d": 2.0}), (tmp_path / "other.parquet", {})):
        schema = parse_schema(table.log().update().metadata.schema_string)
        text = stats_from_footer(pq.read_metadata(path), schema, TableProperties({}), file=str(path))
        assert json.loads(text)["maxValues"] == most


def test_a_stage_without_rows(table):
    write(table, pa.table({"id": pa.array([1])}))
    result = write(table, pa.table({"id": pa.array([], pa.int64())}), mode="overwrite")
    assert result.num_records == 0
    assert read(table) == []


def test_a_failed_stage_leaves_nothing_that_a_reader_sees(table):
    write(table, pa.table({"id": pa.array([1])}))

    def batches():
        yield pa.record_batch({"id": pa.array([2])})
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write(table, pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64())]), batches()))
    assert read(table) == [{"id": 1}]
    assert len(list(table.path.rglob("staged/**/*.parquet"))) == 1


def test_a_stage_reads_its_table_and_what_earlier_stages_leave(table):
    rows = pa.table({"id": pa.array(range(4)), "p": pa.array(list("aabb"))})
    handle = table.begin()
    with pytest.raises(DeltaTableNotFoundException, match=r"table\.exists"):
        table_rows(table.view(handle))
    write(table, rows, begin={"partition_by": ["p"]})
    handle = table.begin()
    first = stage(table, handle, rows.slice(0, 1), mode="overwrite", replace_where="p = 'a'", task_id="first")
    view = table.view(handle, task_id="second", after=(first,))
    assert sorted(table_rows(view).to_table().column("id").to_pylist()) == [0, 2, 3]
    assert table_rows(view, "p = 'a'", columns=["id"]).to_table().to_pylist() == [{"id": 0}]
    second = stage(table, handle, pa.table({"id": pa.array([7]), "p": pa.array(["a"])}), task_id="second", after=(first,))
    table.publish(handle, first, second)
    assert sorted(row["id"] for row in read(table)) == [0, 2, 3, 7]


def test_nulls_inside_structs_that_may_not_be_null():
    fields = StructType((StructField("a", LONG, nullable=False),))
    field = StructField("s", ArrayType(fields))
    kind = pa.list_(pa.struct([("a", pa.int64())]))
    fine = pa.array([[{"a": 1}, None], None], kind)
    check_not_null(field, fine, table="t", version=1)
    with pytest.raises(InvariantViolationException, match=r"NOT NULL column s\[element\]\.a would get a null.*table t version 1"):
        check_not_null(field, pa.array([[{"a": None}]], kind), table="t", version=1)
    pairs = StructField("m", MapType(LONG, fields))
    wrong = pa.array([[(1, {"a": None})]], pa.map_(pa.int64(), pa.struct([("a", pa.int64())])))
    with pytest.raises(InvariantViolationException, match=r"m\[value\]\.a"):
        check_not_null(pairs, wrong, table="t", version=1)
