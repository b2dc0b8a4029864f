"""Statistics from Parquet footers: they bound the data, contain only what is certain, and other engines prune by them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_delta.exceptions import StagedFileException
from airflow_delta.log.checkpoint.spark_schema import spark_schema
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import StructType, parse_schema, to_json
from airflow_delta.log.statistics.footers_to_stats import FooterStatistics, stats_from_footer, truncate_max, truncate_min
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.factory import store_for

MOMENT = dt.datetime(2024, 1, 1, 12, 0, 0, 123999, tzinfo=dt.UTC)
TABLE = pa.table(
    {
        "byte": pa.array([1, None, 3, -4], pa.int8()),
        "dec": pa.array(
            [Decimal("-12345678901234567.89"), Decimal("0.01"), None, Decimal("99999999999999999.99")], pa.decimal128(19, 2)
        ),
        "day": pa.array([dt.date(1969, 12, 31), dt.date(2024, 2, 29), None, None]),
        "at": pa.array([MOMENT, None, MOMENT, MOMENT], pa.timestamp("us", "UTC")),
        "local": pa.array([dt.datetime(1960, 1, 1, 0, 0, 0, 999999)] * 4, pa.timestamp("us")),
        "text": ["a" * 40, "é", None, "z" * 33],
        "zero": [0.0, -0.0, 1.5, 1.5],
        "flag": [True, None, False, True],
        "raw": [b"\xff", None, None, b"a"],
        "st": [{"inner": 1}, {"inner": None}, None, {"inner": 7}],
        "list": [[1], None, [], [2]],
        "empty": pa.array([None] * 4, pa.int64()),
    }
)


def schema_of(arrow: pa.Schema) -> StructType:
    return parse_schema(json.dumps(spark_schema(arrow)))


def statistics(path, table=TABLE, properties=None, **options):
    pq.write_table(table, path, **options)
    text = stats_from_footer(pq.read_metadata(path), schema_of(table.schema), TableProperties(properties or {}))
    return json.loads(text, parse_float=decimal.Decimal)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 1}, {"store_decimal_as_integer": True, "row_group_size": 3}])
def test_every_type_over_row_groups(tmp_path, options):
    found = statistics(tmp_path / "f.parquet", **options)
    assert found["numRecords"] == 4
    assert found["minValues"] == {
        "byte": -4,
        "dec": Decimal("-12345678901234567.89"),
        "day": "1969-12-31",
        "at": "2024-01-01T12:00:00.123Z",
        "local": "1960-01-01T00:00:00.999",
        "text": "a" * 32,
        "zero": 0,
        "st": {"inner": 1},
    }
    assert found["maxValues"] == {
        "byte": 3,
        "dec": Decimal("99999999999999999.99"),
        "day": "2024-02-29",
        "at": "2024-01-01T12:00:00.123Z",
        "local": "1960-01-01T00:00:00.999",
        "text": "é",
        "st": {"inner": 7},
    }
    expected = {
        "byte": 1,
        "dec": 1,
        "day": 2,
        "at": 1,
        "local": 0,
        "text": 1,
        "zero": 0,
        "flag": 1,
        "raw": 2,
        "st": {"inner": 2},
        "empty": 4,
    }
    assert found["nullCount"] == expected


def test_int96_has_null_counts_only(tmp_path):
    found = statistics(tmp_path / "f.parquet", TABLE.select(["at"]), use_deprecated_int96_timestamps=True)
    assert "at" not in found["minValues"]


def test_no_statistics_in_the_footer_means_no_claims(tmp_path):
    found = statistics(tmp_path / "f.parquet", write_statistics=False)
    assert found == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {}}


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"byte", "dec"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, set()),
        ({"delta.dataSkippingStatsColumns": "TEXT, st"}, {"text", "st"}),
    ],
)
def test_indexed_columns(tmp_path, properties, columns):
    found = statistics(tmp_path / "f.parquet", properties=properties)
    assert set(found.get("nullCount", ())) == columns
    assert found["numRecords"] == 4


def test_lists_and_maps_have_null_counts_where_the_footer_is_certain(tmp_path):
    """Below a list, the footer counts empty lists and null elements like null lists."""
    table = pa.table(
        {
            "full": [[1], [2, 3]],
            "holes": [[1], [None]],
            "empty": [[1], []],
            "pairs": pa.array([{"a": 1}, {"b": None}], pa.map_(pa.string(), pa.int32())),
            "deep": [{"list": [[1]]}, {"list": [[2], [3]]}],
        }
    )
    assert statistics(tmp_path / "f.parquet", table)["nullCount"] == {"full": 0, "pairs": 0, "deep": {"list": 0}}


def test_tight_bounds(tmp_path):
    pq.write_table(TABLE, tmp_path / "f.parquet")
    footer = pq.read_metadata(tmp_path / "f.parquet")
    schema = schema_of(TABLE.schema)
    assert "tightBounds" not in json.loads(stats_from_footer(footer, schema, TableProperties({})))
    assert json.loads(stats_from_footer(footer, schema, TableProperties({}), tight_bounds=True))["tightBounds"] is True


def test_string_prefix_length(tmp_path):
    found = statistics(
        tmp_path / "f.parquet", pa.table({"s": ["abcdef", "abcxyz"]}), {"delta.dataSkippingStringPrefixLength": "3"}
    )
    assert (found["minValues"]["s"], found["maxValues"]["s"]) == ("abc", "abc\x7f")


@given(st.text("a\x7fé\U0010ffff", max_size=12), st.integers(0, 6))
def test_cut_text_still_bounds(text, length):
    low, high = truncate_min(text, length), truncate_max(text, length)
    assert low is None or low.encode() <= text.encode()
    assert high is None or high.encode() >= text.encode()


# -- footers ------------------------------------------------------------------------------------------------------------------


def test_footers_are_read_by_ranges_in_order_also_long_ones(tmp_path):
    paths = [f"{n}.parquet" for n in (3, 1, 2)]
    for rows, path in enumerate(paths, 1):
        wide = pa.table({f"column_{c}_{'x' * 50}": ["v" * 50] * rows for c in range(600 if rows == 3 else 1)})
        pq.write_table(wide, tmp_path / path)
    store = store_for(str(tmp_path))
    footers = read_footers(store, [FileStatus(p, (tmp_path / p).stat().st_size, 0) for p in paths])
    assert [f.num_rows for f in footers] == [1, 2, 3]
    assert footers[2].serialized_size > 64 * 1024


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\xff" * 20 + b"\xff\xff\xff\x7fPAR1", b"PAR1garbage\x07\x00\x00\x00PAR1"]
)
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / "part-0.parquet").write_bytes(content)
    with pytest.raises(StagedFileException, match=r"part-0\.parquet"):
        read_footers(store_for(str(tmp_path)), [FileStatus("part-0.parquet", len(content), 0)])


def test_a_file_that_is_gone_or_shorter_than_listed_is_named(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for status in (FileStatus("gone.parquet", 100, 0), FileStatus("a.parquet", (tmp_path / "a.parquet").stat().st_size + 50, 0)):
        with pytest.raises(StagedFileException, match=status.path):
            read_footers(store_for(str(tmp_path)), [status])


# -- other engines ------------------------------------------------------------------------------------------------------------


def test_delta_rs_accepts_our_statistics_and_prunes_by_them(tmp_path):
    from deltalake import DeltaTable

    names = ["byte", "dec", "day", "at", "text", "st"]
    schema = schema_of(TABLE.select(names).schema)
    lines = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "x",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": to_json(schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    for n, rows in enumerate((TABLE.slice(0, 2), TABLE.slice(2, 2))):
        path = tmp_path / f"{n}.parquet"
        pq.write_table(rows.select(names), path)
        text = stats_from_footer(pq.read_metadata(path), schema, TableProperties({}))
        lines.append(
            {
                "add": {
                    "path": path.name,
                    "partitionValues": {},
                    "size": path.stat().st_size,
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": text,
                }
            }
        )
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, lines)))
    table = DeltaTable(str(tmp_path))
    actions = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    assert actions["min.byte"] == [1, -4]
    assert actions["null_count.text"] == [0, 1]
    dataset = table.to_pyarrow_dataset()
    import pyarrow.dataset as ds

    kept = [f.path for f in dataset.get_fragments(ds.field("byte") < 0)]
    assert [path.rpartition("/")[2] for path in kept] == ["1.parquet"]
    assert dataset.to_table().num_rows == 4


def test_files_of_delta_rs_are_bounded(tmp_path):
    from deltalake import write_deltalake

    data = TABLE.select(["byte", "dec", "day", "at", "text"])
    write_deltalake(str(tmp_path / "t"), data)
    (path,) = (tmp_path / "t").glob("*.parquet")
    found = json.loads(
        stats_from_footer(pq.read_metadata(path), schema_of(data.schema), TableProperties({})), parse_float=decimal.Decimal
    )
    assert (found["minValues"]["byte"], found["maxValues"]["byte"]) == (-4, 3)
    assert found["minValues"]["dec"] <= Decimal("-12345678901234567.89")
    assert found["maxValues"]["text"] >= "é"


@pytest.mark.spark
def test_files_of_spark_are_bounded_and_nan_shows(spark, tmp_path):
    rows = [(1, Decimal("1.10"), "a" * 50, MOMENT, 1.5, 1.5), (-2, Decimal("-7.25"), None, None, math.nan, -1.0)]
    frame = spark.createDataFrame(rows, "i int, n decimal(20,2), s string, at timestamp, nan double, x double").coalesce(1)
    frame.write.option("outputTimestampType", "TIMESTAMP_MICROS").parquet(str(tmp_path / "f"))
    (path,) = (tmp_path / "f").glob("*.parquet")
    schema = schema_of(pq.read_schema(path))
    found = json.loads(stats_from_footer(pq.read_metadata(path), schema, TableProperties({})), parse_float=decimal.Decimal)
    assert (found["minValues"]["i"], found["maxValues"]["i"]) == (-2, 1)
    assert (found["minValues"]["n"], found["maxValues"]["n"]) == (Decimal("-7.25"), Decimal("1.10"))
    assert found["maxValues"]["s"] >= "a" * 32
    assert (found["minValues"]["x"], found["maxValues"]["x"]) == (-1, Decimal("1.5"))
    assert "nan" not in found["maxValues"]
    assert found["nullCount"]["s"] == 1


DOTTED = pa.table(
    {
        "a.b": pa.array([1, 2], pa.int64()),
        "a": pa.array([{"b": 100, "c.d": 5, "c": {"d": None}}, {"b": 200, "c.d": 6, "c": {"d": 7}}]),
        "A.list.element": pa.array([7, 8], pa.int64()),
        "l": pa.array([[1], [2]]),
        "l.list.element": pa.array([10, None], pa.int64()),
        "`": pa.array([3, 3], pa.int64()),
    }
)


@pytest.mark.parametrize("names", [DOTTED.column_names, DOTTED.column_names[::-1]], ids=["first", "last"])
def test_a_name_with_a_dot_beside_a_struct(tmp_path, names):
    found = statistics(tmp_path / "f.parquet", DOTTED.select(names))
    assert found["minValues"] == {
        "a.b": 1,
        "a": {"b": 100, "c.d": 5, "c": {"d": 7}},
        "A.list.element": 7,
        "l.list.element": 10,
        "`": 3,
    }
    assert found["nullCount"] == {
        "a.b": 0,
        "a": {"b": 0, "c.d": 0, "c": {"d": 1}},
        "A.list.element": 0,
        "l": 0,
        "l.list.element": 1,
        "`": 0,
    }
    from airflow_delta.table.files.footer_statistics import bounds_of_column, footer_null_counts

    footer = pq.read_metadata(tmp_path / "f.parquet")
    assert bounds_of_column(footer, "a.b") == (1, 2)
    assert footer_null_counts(footer, ["a.b", "l.list.element", "`", "c.d"]) == {"a.b": 0, "l.list.element": 1, "`": 0, "c.d": -1}


@pytest.mark.parametrize("checkpoint", ["none", "delta-rs", "ours"])
def test_a_name_with_a_dot_prunes_by_itself(tmp_path, checkpoint):
    """Judged by delta-rs: neither statistics nor the bounds of a checkpoint are mistaken for those of the struct."""
    from deltalake import DeltaTable, write_deltalake

    from airflow_delta.log import DeltaLog

    for one in range(3):
        rows = pa.table({"a.b": pa.array([one], pa.int64()), "a": pa.array([{"b": 100 + one}]), "x": pa.array([one])})
        write_deltalake(tmp_path / "t", rows, mode="append", configuration={"delta.checkpoint.writeStatsAsStruct": "true"})
    table = DeltaTable(tmp_path / "t")
    if checkpoint == "delta-rs":
        table.create_checkpoint()
    log = DeltaLog.for_table(str(tmp_path / "t"))
    if checkpoint == "ours":
        log.checkpoint()
    snapshot = DeltaLog.for_table(str(tmp_path / "t")).snapshot
    for predicate, kept in (("`a.b` = 1", [1]), ("a.b = 101", [1]), ("`a.b` = 101", []), ("a.b = 1", []), ("`a.b` > 0", [1, 2])):
        paths = [file.path for file in snapshot.add_files(predicate)]
        found = sorted(row for path in paths for row in pq.read_table(tmp_path / "t" / path).column("x").to_pylist())
        assert found == kept, predicate


def test_files_of_different_schemas_one_after_the_other(tmp_path):
    """What is known of the last file is not said of one that only looks alike."""
    tables = [
        pa.table({"a": [{"x": 1}], "b": [{"x": 20}]}),
        pa.table({"b": [{"x": 2}], "a": [{"x": 30}]}),
        pa.table({"a": [{"x": 1}], "c": [{"x": 20}]}),
        pa.table({"a": pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), "b": [{"x": 20}]}),
        pa.table({"a": pa.array([{"x": "1"}]), "b": [{"x": 20}]}),
        pa.table({"A": [{"X": 1}], "b": [{"x": 20}]}),
        pa.table({"a": [[1]], "b": [{"x": 20}]}),
        pa.table({"a": [{"x": 1}], "b": [{"x": 20}]}),
    ]
    schema, properties = schema_of(tables[0].schema), TableProperties({})
    at_once = FooterStatistics(schema, properties)
    for number, table in enumerate([*tables, *reversed(tables)]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        footer = pq.read_metadata(path)
        assert at_once.of(footer, file=str(path)) == stats_from_footer(footer, schema, properties, file=str(path)), table.schema
