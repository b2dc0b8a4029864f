"""UniForm and IcebergCompat: Delta Spark refuses the same with the same error class; a table that has left them is like any."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from airflow_delta.contract.changes import AddColumns, Column, SetProperties
from airflow_delta.exceptions import DeltaError, DeltaUnsupportedTableFeatureException
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from delta_spark.support import delta_rows, sql_name
from support.table import Table
from support.tables import create_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS, MODE = "delta.universalFormat.enabledFormats", "delta.columnMapping.mode"
V1, V2, V3 = (f"delta.enableIcebergCompatV{version}" for version in (1, 2, 3))
VECTORS, TRACKING = "delta.enableDeletionVectors", "delta.enableRowTracking"


def listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def refusal(delta: SparkSession, statement: str) -> str:
    """Return the error class with which Delta Spark refuses a statement."""
    with pytest.raises(Exception, match=r"\[DELTA_") as raised:
        delta.sql(statement)
    found = re.search(r"\[(DELTA_[A-Z_]+(?:\.[A-Z_]+)?)\]", str(raised.value))
    assert found is not None
    return found[1]


def created(table: Table, columns: str, properties: Mapping[str, str], partition_by: list[str]) -> None:
    handle = table.begin()
    schema = StructType.fromDDL(columns).json()
    table.publish(
        handle, plan_create(table.view(handle, task_id="create"), schema=schema, properties=properties, partition_by=partition_by)
    )


@pytest.mark.parametrize(
    ("columns", "properties"),
    [
        ("a BIGINT", {FORMATS: "iceberg"}),
        ("a SHORT", {FORMATS: "hudi,iceberg"}),
        ("a BIGINT", {FORMATS: "hudi", VECTORS: "true"}),
        *[(f"a BIGINT, b {kind}", {FORMATS: "hudi"}) for kind in ("BYTE", "STRUCT<x: SHORT>", "MAP<STRING, TIMESTAMP_NTZ>")],
        ("a BIGINT, b VOID", {FORMATS: "hudi"}),
        ("a BIGINT", {V1: "true", V2: "true"}),
        ("a BIGINT", {V2: "true", MODE: "none"}),
        ("a BIGINT", {V3: "true", TRACKING: "false"}),
        ("a BIGINT", {V2: "true", VECTORS: "true"}),
        ("a BIGINT, b VOID", {V2: "true", VECTORS: "true"}),
        ("a BIGINT, b VARIANT", {V2: "true"}),
        ("a BIGINT, b STRUCT<x: ARRAY<INT>>", {V1: "true"}),
        ("a BIGINT, b ARRAY<VOID>", {V3: "true"}),
        ("a BIGINT, p DECIMAL(9, 2)", {V2: "true"}),
        ("a BIGINT, p DECIMAL(9, 2)", {V3: "true"}),
    ],
    ids=lambda value: value if isinstance(value, str) else listed(value),
)
def test_both_refuse_to_create(delta: SparkSession, tmp_path: Path, columns: str, properties: dict[str, str]) -> None:
    by = ["p"] if " p " in columns else []
    partitioned = "PARTITIONED BY (p)" if by else ""
    statement = f"CREATE TABLE {sql_name(tmp_path / 'theirs')} ({columns}) USING delta {partitioned}"
    theirs = refusal(delta, f"{statement} TBLPROPERTIES ({listed(properties)})")
    table = Table(tmp_path / "ours")
    with pytest.raises(DeltaError, match=rf"\({re.escape(theirs)}\)"):
        created(table, columns, properties, by)
    assert not (tmp_path / "ours" / "_delta_log").exists()


@pytest.mark.slow
def test_both_take_the_same_lists_of_formats(delta: SparkSession, tmp_path: Path) -> None:
    create_table(tmp_path / "table")
    table = Table(tmp_path / "table")
    for number, value in enumerate(["", ",", "iceberg,foo", " hudi", "HUDI", ",hudi", "hudi,hudi"]):
        statement = f"CREATE TABLE {sql_name(tmp_path / str(number))} (a BIGINT) USING delta"
        statement += f" TBLPROPERTIES ({listed({FORMATS: value})})"
        change = SetProperties({FORMATS: value})
        if not value.strip(","):
            delta.sql(statement)
            table.run(plan_alter, changes=[change])
            continue
        with pytest.raises(Exception, match="Must be a comma-separated list of formats"):
            delta.sql(statement)
        with pytest.raises(DeltaError, match="must be a list of hudi and iceberg"):
            table.run(plan_alter, changes=[change])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "given"),
    [
        ({}, {FORMATS: "iceberg"}),
        ({VECTORS: "true"}, {FORMATS: "hudi"}),
        ({FORMATS: "hudi"}, {VECTORS: "true"}),
        ({}, {V2: "true"}),
        ({}, {V1: "true", V3: "true", MODE: "name"}),
        ({VECTORS: "true"}, {V2: "true", MODE: "name", VECTORS: "false"}),
    ],
    ids=lambda value: listed(value) or "plain",
)
def test_both_refuse_to_alter(delta: SparkSession, tmp_path: Path, before: dict[str, str], given: dict[str, str]) -> None:
    theirs, ours = tmp_path / "theirs", Table(tmp_path / "ours")
    for path in (theirs, tmp_path / "ours"):
        delta.sql(f"CREATE TABLE {sql_name(path)} (a BIGINT) USING delta TBLPROPERTIES ({listed({'x': 'y'})})")
        if before:
            delta.sql(f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ({listed(before)})")
    error = refusal(delta, f"ALTER TABLE {sql_name(theirs)} SET TBLPROPERTIES ({listed(given)})")
    with pytest.raises(DeltaError, match=rf"\({re.escape(error)}\)"):
        ours.run(plan_alter, changes=[SetProperties(given)])
    if FORMATS in before:
        error = refusal(delta, f"ALTER TABLE {sql_name(theirs)} ADD COLUMNS (b SHORT)")
        with pytest.raises(DeltaError, match=rf"\({re.escape(error)}\)"):
            ours.run(plan_alter, changes=[AddColumns([Column("b", "SHORT")])])


@pytest.mark.parametrize(
    "properties",
    [pytest.param({FORMATS: "iceberg"}, marks=pytest.mark.slow), {FORMATS: "hudi", VECTORS: "true"}],
    ids=listed,
)
def test_neither_commits_to_a_table_that_breaks_a_rule(delta: SparkSession, tmp_path: Path, properties: dict[str, str]) -> None:
    """Some other writer made it. Whoever accepts it leaves Delta Spark a table that it cannot write."""
    create_table(tmp_path / "table", configuration=properties)
    table = Table(tmp_path / "table")
    error = refusal(delta, f"INSERT INTO {sql_name(table.path)} VALUES (1, 'p')")
    handle = table.begin()
    with pytest.raises(DeltaError, match=rf"\({error}\)"):
        table.publish(handle, table.stage_rows(handle, [1]))
    gone = {VECTORS: "false"} if VECTORS in properties else {FORMATS: ""}
    assert table.run(plan_alter, changes=[SetProperties(gone)]).version == 1
    delta.sql(f"INSERT INTO {sql_name(table.path)} VALUES (1, 'p')")


def test_iceberg_compat_is_left_through_delta_spark(delta: SparkSession, tmp_path: Path) -> None:
    """Switched off, it takes iceberg out of the formats, and the table is like any other with column mapping."""
    table = Table(tmp_path / "table", delta)
    name = sql_name(table.path)
    properties = {V2: "true", FORMATS: "iceberg"}
    delta.sql(f"CREATE TABLE {name} (a BIGINT, l ARRAY<INT>) USING delta TBLPROPERTIES ({listed(properties)})")
    delta.sql(f"INSERT INTO {name} VALUES (1, array(1, NULL))")
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=f"switches it off by SET TBLPROPERTIES .'{V2}' = 'false'"):
        table.begin()
    delta.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{V2}' = 'false')")
    assert FORMATS not in table.log().snapshot.metadata.configuration
    table.write("SELECT 2L AS a, array(3) AS l")
    table.run(plan_alter, changes=[AddColumns([Column("n", "ARRAY<STRING>")])])
    assert delta_rows(delta, table.path) == ["a=1, l=[1, None], n=None", "a=2, l=[3], n=None"]
    delta.sql(f"INSERT INTO {name} VALUES (3, NULL, array('x'))")
    fields = json.loads(table.log().snapshot.metadata.schema_string)["fields"]
    assert [field["metadata"]["delta.columnMapping.id"] for field in fields][:2] == [1, 2]


def element_ids(table: Table) -> list[int]:
    """Return the field ids of the elements of lists in the table's files, -1 where there is none."""
    files = [pq.ParquetFile(Path(table.path, path)).schema_arrow for path in sorted(table.live())]
    lists = [schema.field(number).type.value_field for schema in files for number in range(1, len(schema))]
    return [int((element.metadata or {}).get(b"PARQUET:field_id", -1)) for element in lists]


@pytest.mark.slow
def test_files_of_ours_are_made_fit_for_iceberg_by_reorg(delta: SparkSession, tmp_path: Path) -> None:
    """Delta Spark does not look at files when the property is set; whoever reads them as Iceberg would miss the elements."""
    table = Table(tmp_path / "table", delta)
    name = sql_name(table.path)
    table.write("SELECT 1L AS a, array(1, NULL) AS l", begin={"configuration": {MODE: "name"}})
    table.write(pa.table({"a": [2], "l": pa.array([[2]], pa.list_(pa.int32()))}))
    assert element_ids(table) == [-1, -1]
    delta.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{V2}' = 'true')")
    assert element_ids(table) == [-1, -1]
    delta.sql(f"REORG TABLE {name} APPLY (UPGRADE UNIFORM (ICEBERG_COMPAT_VERSION = 2))")
    assert set(element_ids(table)) == {3}
    assert delta_rows(delta, table.path) == ["a=1, l=[1, None]", "a=2, l=[2]"]
