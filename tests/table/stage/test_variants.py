"""Variant columns without Spark: one column of a table, a group in its files; what is refused, and what it says.

Files are PyArrow's, in the form of Spark's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import AddColumns, ClusterBy, Column, SetProperties
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.schema import casts_variants, variant_columns, written_schema
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaUnsupportedOperationException,
    DeltaUnsupportedTableFeatureException,
    InvariantViolationException,
    SchemaMismatchException,
    StagedFileException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint.stats import format_stats
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.publication import Member, PublicationOptions, publish_tables
from airflow_delta.table.effects.diff import published_diff
from airflow_delta.table.effects.report import diff_to_dict, summary
from airflow_delta.table.files.adds import DataFiles, Footers, find_data_files, shredded, variant_paths
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.optimize.options import z_order_columns
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from support.actions import column, schema
from support.table import Table

NOTE = "org.apache.spark.sql.parquet.row.metadata"
GROUP = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
SHREDDED = pa.struct(
    [pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary()), pa.field("typed_value", pa.int64())]
)
ONE = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x01", "typed_value": None}
COLUMNS = schema(column("id", "long"), column("v", "variant"))


def variants(*values: Any, kind: pa.StructType = GROUP) -> pa.Array:
    """Return variants as in files: the number 1, or null."""
    names = [field.name for field in kind]
    return pa.array([None if value is None else {name: ONE[name] for name in names} for value in values], kind)


def job(handle: TransactionHandle, *, noted: str | None = COLUMNS, path: str = "out", **columns: Any) -> str:
    """Write a file as a Spark job does, or as another one that leaves no note in it."""
    directory = Path(handle.staging_path) / path
    directory.mkdir(parents=True)
    rows = pa.table(
        {name: pa.array(values, pa.int64()) if isinstance(values, list) else values for name, values in columns.items()}
    )
    pq.write_table(rows if noted is None else rows.replace_schema_metadata({NOTE: noted}), directory / "0.parquet")
    return path


def planned(table: Table, plan: Any, *given: Any, **options: Any) -> StagedWrite:
    handle = table.begin()
    staged = plan(table.view(handle, task_id="define"), *given, **options)
    table.publish(handle, staged)
    return StagedWrite.from_dict(json.loads(json.dumps(staged.to_dict())))


@pytest.fixture
def written(table: Table) -> Table:
    """A table with a variant column, and files of another job."""
    handle = table.begin(schema=COLUMNS)
    path = job(handle, id=[1, 2, 3], v=variants(1, None, 1))
    table.publish(handle, table.stage_files(handle, path=path))
    return table


def test_a_variant_is_one_column_of_which_nulls_are_counted(written: Table) -> None:
    protocol = written.actions(0)["protocol"][0]
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (3, 7)
    assert protocol["readerFeatures"] == ["variantType"]
    assert "variantType" in protocol["writerFeatures"]
    (added,) = written.actions(0)["add"]
    stats = json.loads(added["stats"])
    assert stats == {"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": 3}, "nullCount": {"id": 0, "v": 1}}
    written.log().checkpoint()
    assert json.loads(next(iter(written.log().snapshot.add_files())).stats) == stats


def test_the_older_table_gets_the_feature_with_the_column(table: Table) -> None:
    handle = table.begin(schema=schema(column("id", "long")))
    table.publish(handle, table.stage_files(handle, path=job(handle, noted=None, id=[1])))
    assert table.actions(0)["protocol"][0]["minReaderVersion"] == 1
    planned(table, plan_alter, [AddColumns([Column("s", "STRUCT<v: VARIANT>"), Column("v", "VARIANT")])])
    assert table.actions(1)["protocol"][0]["readerFeatures"] == ["variantType"]
    handle = table.begin()
    with pytest.raises(SchemaMismatchException, match=r"v: expected variant, got bigint|column v"):
        table.stage_files(handle, path=job(handle, noted=None, id=[1], v=[1]))


def test_files_bring_a_new_variant_column(table: Table) -> None:
    handle = table.begin()
    table.publish(handle, table.stage_files(handle, path=job(handle, noted=None, id=[1])))
    handle = table.begin()
    table.publish(handle, table.stage_files(handle, path=job(handle, id=[2], v=variants(1)), merge_schema=True))
    assert table.log().snapshot.schema == parse_schema(COLUMNS)
    assert table.actions(1)["protocol"][0]["readerFeatures"] == ["variantType"]


def test_shredded_files_are_refused(written: Table) -> None:
    handle = written.begin()
    path = job(handle, id=[1], v=variants(1, kind=SHREDDED))
    with pytest.raises(DeltaAnalysisException, match=r"column v is a shredded variant\. .*writeShredding\.enabled to false"):
        written.stage_files(handle, path=path)
    # What Spark itself wrote for a stage is looked at too: an option or a setting may have got in between.
    known = written.view(handle).target
    directory = f"{handle.staging_path.removeprefix(written.uri + '/')}/{path}"
    into, log = DataFiles(), written.log()
    with pytest.raises(StagedFileException, match=r"stores column v as a shredded variant\. .*Nothing was committed"):
        Footers(log, known, known, "UTC").collect(directory, into, find_data_files(log, directory))
    assert not into.adds


def test_variants_of_another_writer_are_not_taken_for_structs(table: Table) -> None:
    """DuckDB shreds them, and leaves no note of a schema."""
    handle = table.begin()
    directory = Path(handle.staging_path) / "out"
    directory.mkdir(parents=True)
    duckdb.sql(f"COPY (SELECT 1::BIGINT AS id, 5::VARIANT AS v) TO '{directory}/0.parquet' (FORMAT parquet)")
    says = "it has variants, and no note of Spark's|does not know the type of one of its columns"  # an old PyArrow
    with pytest.raises((DeltaAnalysisException, StagedFileException), match=rf"0\.parquet .*({says})"):
        table.stage_files(handle, path="out")


def test_where_variants_are_in_files(tmp_path: Path) -> None:
    inner = pa.struct([("w", SHREDDED)])
    rows = pa.table(
        {
            "plain": pa.array([{"value": b"", "typed_value": 1}]),  # a struct that has the name for something of its own
            "s": pa.array([{"w": ONE}], inner),
            "l": pa.array([[{"w": ONE}]], pa.list_(pa.field("element", inner))),
            "m": pa.array([[("k", ONE)]], pa.map_(pa.string(), SHREDDED)),
        }
    )
    pq.write_table(rows, tmp_path / "f.parquet")
    footer = pq.read_metadata(tmp_path / "f.parquet")
    struct = {"type": "struct", "fields": [column("w", "variant")]}
    kinds = {
        "s": (struct, ("s", "w")),
        "l": ({"type": "array", "elementType": struct, "containsNull": True}, ("l", "element", "w")),
        "m": ({"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}, ("m", "value")),
    }
    for name, (kind, path) in kinds.items():
        paths = variant_paths(parse_schema(schema(column(name, kind))), mapped=False)
        assert paths == [path]
        assert shredded(footer, paths) == ".".join(path)
        assert variant_columns(json.loads(schema(column("id", "long"), column(name, kind)))) == [name]
    mapped = {**column("new name", "variant"), "metadata": {"delta.columnMapping.physicalName": "col-1"}}
    assert variant_paths(parse_schema(schema(mapped)), mapped=True) == [("col-1",)]
    assert shredded(footer, [("plain",)]) == "plain"
    assert shredded(footer, []) is None


def test_a_note_of_spark_that_does_not_fit_makes_no_variant(written: Table) -> None:
    handle = written.begin()
    other = pa.array([{"metadata": b"", "values": b""}])
    with pytest.raises(SchemaMismatchException, match="column v"):
        written.stage_files(handle, path=job(handle, id=[1], v=other))
    with pytest.raises(SchemaMismatchException, match="column v"):
        written.stage_files(handle, path=job(handle, path="more", noted=None, id=[1], v=variants(1)))


def test_nulls_of_a_column_that_is_not_null(table: Table) -> None:
    handle = table.begin(schema=schema(column("id", "long"), column("v", "variant", False)))
    table.publish(handle, table.stage_files(handle, path=job(handle, id=[1], v=variants(1))))
    handle = table.begin()
    with pytest.raises(InvariantViolationException, match="NOT NULL column v"):
        table.stage_files(handle, path=job(handle, id=[1, 2], v=variants(1, None)))


@pytest.mark.parametrize("rows", [{"id": [1], "v": ['{"a": 1}']}, {"id": [1]}])
def test_a_stage_without_spark_says_how_spark_makes_variants(written: Table, rows: Any) -> None:
    handle = written.begin()
    with pytest.raises(
        DeltaUnsupportedOperationException,
        match=r'has the variant column v\. Use engine="spark"\. .*parse_json\(column\) of JSON text',
    ):
        written.stage(handle, pa.table(rows))
    written.publish(handle, written.stage(handle, pa.table(rows), mode="overwrite", overwrite_schema=True))
    assert written.log().snapshot.schema.names == tuple(rows)


def test_the_worker_does_not_read_variants(written: Table) -> None:
    with pytest.raises(DeltaUnsupportedOperationException, match="Column v cannot be read without Spark: its type variant"):
        read_table(written.log())
    with pytest.raises(DeltaUnsupportedOperationException, match="Column v cannot be read without Spark"):
        read_table(written.log(), columns=["id"], where="v IS NULL")
    assert read_table(written.log(), columns=["id"], where="id > 1").to_table().to_pylist() == [{"id": 2}, {"id": 3}]


def test_diffs_leave_variants_out(written: Table) -> None:
    """A row may differ in its variant alone, so none is said to be a copy."""
    diff = published_diff(written.log(), 0)
    assert (diff.exact, diff.added, diff.removed, diff.unread) == (True, 3, 0, ("v",))
    assert diff.added_rows == [{"id": 1}, {"id": 2}, {"id": 3}]
    handle = written.begin()
    staged = written.stage_files(handle, path=job(handle, id=[1, 2], v=variants(1, 1)), mode="overwrite")
    with pytest.raises(
        DeltaUnsupportedOperationException, match=r"only Spark reads variants \(column v\)\. Preview the whole table"
    ):
        preview_changes(written.log(), handle, [staged])
    written.publish(handle, staged)
    diff = published_diff(written.log(), keys=["id"])
    assert (diff.exact, diff.added, diff.removed, diff.changed, diff.added_rows) == (False, 2, 3, None, [])
    assert summary(diff) == (
        "Compared with version 0: at most 2 rows added and at most 3 rows removed. Rows with variants (v) are not compared: "
        "those that are only copied to another file are counted as well."
    )
    assert "v" not in diff_to_dict(diff)


def test_a_table_of_variants_alone(table: Table) -> None:
    handle = table.begin(schema=schema(column("v", "variant")))
    path = job(handle, noted=schema(column("v", "variant")), v=variants(1, None))
    table.publish(handle, table.stage_files(handle, path=path))
    diff = published_diff(table.log())
    assert (diff.exact, diff.added, diff.added_rows) == (True, 2, [])


def test_clones(written: Table, tmp_path: Path) -> None:
    shallow, deep = Table(tmp_path / "shallow"), Table(tmp_path / "deep")
    for target in (shallow, deep):
        clone_table(target.log(), written.log(), transaction_key="1", attempt="1-test", deep=target is deep)
    handle = written.begin()
    written.publish(handle, written.stage_files(handle, path=job(handle, id=[4], v=variants(1))))
    clone_table(deep.log(), written.log(), transaction_key="2", attempt="1-test", deep=True)
    for target, ids in ((shallow, [1, 2, 3]), (deep, [1, 2, 3, 4])):
        assert target.actions(0)["protocol"][0]["readerFeatures"] == ["variantType"]
        assert target.log().update().schema == parse_schema(COLUMNS)
        assert sorted(row["id"] for row in read_table(target.log(), columns=["id"]).to_table().to_pylist()) == ids
        nulls = [json.loads(file.stats)["nullCount"] for file in target.log().update().add_files()]
        assert {"id": 0, "v": 1} in nulls


def test_a_publication_with_another_table(written: Table, tmp_path: Path) -> None:
    other = Table(tmp_path / "other")
    members = []
    for table, columns in ((written, {"id": [4], "v": variants(None)}), (other, {"v": variants(1, None)})):
        handle = table.begin(transaction_key="k")
        noted = COLUMNS if table is written else schema(column("v", "variant"))
        staged = table.stage_files(handle, path=job(handle, noted=noted, **columns))
        members.append(Member(log=table.log(), handle=handle, staged=[staged]))
    published = publish_tables(members, attempt=new_attempt(), options=PublicationOptions(), open_table=DeltaLog.for_table)
    assert published.outcome == "published"
    (added,) = other.log().update().add_files()
    assert json.loads(added.stats) == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"v": 1}}
    assert read_table(written.log(), columns=["id"], where="id = 4").to_table().num_rows == 1


def test_a_variant_is_no_key_of_anything(written: Table, tmp_path: Path) -> None:
    new = Table(tmp_path / "new")
    for options, says in (
        ({"partition_by": ["v"]}, "DELTA_INVALID_PARTITION_COLUMN_TYPE|cannot be a partition column"),
        ({"cluster_by": ["v"]}, "v.*variant"),
    ):
        with pytest.raises(DeltaAnalysisException, match=says):
            planned(new, plan_create, schema="id BIGINT, v VARIANT", **options)
    with pytest.raises(DeltaAnalysisException, match="DELTA_CLUSTERING_COLUMNS_DATATYPE_NOT_SUPPORTED"):
        planned(written, plan_alter, [ClusterBy(["v"])])
    with pytest.raises(DeltaAnalysisException, match="column v is of type variant, which has no bounds"):
        z_order_columns(written.view(written.begin()), ["v"])
    with pytest.raises(DeltaAnalysisException, match="DELTA_UNSUPPORTED_DATA_TYPE_IN_GENERATED_COLUMN"):
        planned(new, plan_create, schema="t STRING, v VARIANT GENERATED ALWAYS AS (parse_json(t))")
    planned(new, plan_create, schema="id BIGINT, v VARIANT, s STRUCT<w: VARIANT>, l ARRAY<VARIANT>")
    assert new.actions(0)["protocol"][0]["readerFeatures"] == ["variantType"]


def test_shredding_is_refused_where_it_is_switched_on(written: Table, tmp_path: Path) -> None:
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="writes variants whole, not shredded"):
        planned(
            Table(tmp_path / "new"), plan_create, schema="v VARIANT, id INT", properties={"delta.enableVariantShredding": "true"}
        )
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=r"set delta\.enableVariantShredding to false"):
        planned(written, plan_alter, [SetProperties({"delta.enableVariantShredding": "true"})])
    other = Table(tmp_path / "listed")  # and not in use
    asked = {"delta.feature.variantShredding-preview": "supported"}
    planned(other, plan_create, schema="v VARIANT, id INT", properties=asked)
    assert "variantShredding-preview" in other.actions(0)["protocol"][0]["readerFeatures"]


@pytest.mark.parametrize(
    ("given", "target", "says"),
    [
        ("string", "variant", r"expected variant, got string\. Spark makes variants: parse_json"),
        ("long", "variant", r"CAST\(column AS VARIANT\) of any other value"),
        ("variant", "string", r"expected string, got variant\. .*CAST\(x AS STRING\)"),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_no_cast_makes_a_variant(given: str, target: str, says: str, exact: bool) -> None:
    data, known = (json.loads(schema(column("x", kind))) for kind in (given, target))
    with pytest.raises(SchemaMismatchException, match=says):
        written_schema(data, known, merge=True, table_name="t", version=3, exact=exact)


def test_where_a_merge_with_new_columns_casts() -> None:
    """As in Delta, it does so where functions do: a variant is text, and nothing is a variant."""
    for given, target in (("string", "variant"), ("long", "variant"), ("variant", "long"), ("variant", "binary")):
        data, known = (json.loads(schema(column("x", kind))) for kind in (given, target))
        with pytest.raises(SchemaMismatchException, match="column x: expected"):
            written_schema(data, known, merge=True, table_name="t", version=3, implicit=True)
    data, known = (json.loads(schema(column("x", kind))) for kind in ("variant", "string"))
    assert written_schema(data, known, merge=True, table_name="t", version=3, implicit=True) == known


ARRAY, VARIANTS = ({"type": "array", "elementType": kind, "containsNull": True} for kind in ("long", "variant"))
MAP = {"type": "map", "keyType": "string", "valueType": ARRAY, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("given", "target", "casts"),
    [
        ("string", "variant", True),
        ("decimal(3,1)", "variant", True),
        (ARRAY, "variant", True),
        ({"type": "array", "elementType": ARRAY, "containsNull": True}, "variant", True),
        ({"type": "array", "elementType": MAP, "containsNull": True}, "variant", False),
        ({"type": "array", "elementType": "void", "containsNull": True}, "variant", False),
        (MAP, "variant", False),
        (json.loads(COLUMNS), "variant", False),
        ("interval day", "variant", False),
        ("variant", "date", True),
        ("variant", json.loads(COLUMNS), True),
        ("variant", MAP, True),
        ("variant", {**MAP, "keyType": "long"}, False),
        ("variant", {"type": "array", "elementType": {**MAP, "keyType": "long"}, "containsNull": True}, False),
        ("string", "date", False),
        (ARRAY, VARIANTS, False),  # whose elements are cast
    ],
)
def test_what_an_update_casts(given: Any, target: Any, casts: bool) -> None:
    assert casts_variants(given, target) is casts


def test_which_new_columns_may_be_variants() -> None:
    data = json.loads(schema(column("v", "variant"), column("id", "long")))
    assert written_schema(data, None, merge=False, table_name="t", version=-1) == data
    with pytest.raises(SchemaMismatchException, match="column v has the type variant, which cannot partition a table"):
        written_schema(data, None, merge=False, table_name="t", version=-1, partition_columns=["v"])
    void = json.loads(schema(column("v", "void")))
    known = json.loads(schema(column("v", "variant")))
    assert written_schema(void, known, merge=False, table_name="t", version=1, rules=TableRules()) == known


def test_bounds_of_shredded_variants_are_left_out_where_only_typed_ones_are(tmp_path: Path) -> None:
    """Delta Spark's checkpoints have them as variants; in JSON they are text of another form."""
    bound = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    bounds = pa.struct([("id", pa.int64()), ("v", bound)])
    parsed = pa.array(
        [{"numRecords": 1, "minValues": {"id": 1, "v": {"metadata": b"\x01", "value": b"\x02"}}, "nullCount": {"v": 0}}],
        pa.struct([("numRecords", pa.int64()), ("minValues", bounds), ("nullCount", pa.struct([("v", pa.int64())]))]),
    )
    assert [json.loads(text) for text in format_stats(parsed).to_pylist()] == [
        {"numRecords": 1, "minValues": {"id": 1}, "nullCount": {"v": 0}}
    ]
