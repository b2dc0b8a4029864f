"""MERGE into structs of tables with rules: each statement run by Delta Spark on one copy of a table and by us on another."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_delta.contract.merge import when_matched_delete, when_matched_update, when_not_matched_insert
from delta_spark.merge_cases import Case, compare, source, updated
from delta_spark.support import changes, delta_snapshot, sql_name
from support.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULED = """id BIGINT, s STRUCT<a: INT, b: INT NOT NULL> NOT NULL, d STRUCT<x: INT, `y z`: ARRAY<STRUCT<e: INT>>>,
    g INT GENERATED ALWAYS AS (s.a + 1), p STRUCT<n: INT>"""
RULED_PROPERTIES = {
    "delta.columnMapping.mode": "name",
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.constraints.small": "s.a < 100",
}

RULES = [
    updated("a generated column of a field", "5 AS f", {"s.a": "s.f", "p.n": "1"}),
    updated(
        "a field that breaks a constraint", "500 AS f", {"s.a": "s.f"}, error="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", ours="small"
    ),
    updated("a field whose null breaks a constraint", "1 AS f", {"s.a": "NULL"}, error="DELTA_VIOLATE_CONSTRAINT", ours="small"),
    updated(
        "a field that is NOT NULL",
        "1 AS f",
        {"s.b": "NULL"},
        error="DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
        ours="NOT NULL column s.b",
    ),
    updated(
        "a generated column that is wrong",
        "1 AS f",
        {"s.a": "5", "g": "7"},
        error="DELTA_VIOLATE_CONSTRAINT",
        ours="Generated column g",
    ),
    updated("a generated column that is right", "1 AS f", {"s.a": "5", "g": "6"}),
    updated("a new field beside a name with a space", "named_struct('x', 2, 'New', 3) AS d", {"d.new": "s.d.new"}, evolve=True),
    updated(
        "a new field in elements", "named_struct('y z', array(named_struct('f', 4))) AS d", {"d.`y z`": "s.d.`y z`"}, evolve=True
    ),
    Case(
        "a new struct and a field",
        source("named_struct('u', named_struct('v', 1L), 'w', 2) AS new, named_struct('q', 'x') AS p"),
        "WHEN MATCHED AND s.id = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET new.u = s.new.u, p.q = 'z' "
        "WHEN NOT MATCHED THEN INSERT (id, s, new) VALUES (s.id, named_struct('a', 1, 'b', 2), s.new)",
        [
            when_matched_delete("s.id = 0"),
            when_matched_update({"new.u": "s.new.u", "p.q": "'z'"}),
            when_not_matched_insert({"id": "s.id", "s": "named_struct('a', 1, 'b', 2)", "new": "s.new"}),
        ],
        evolve=True,
    ),
]
"""Column mapping, deletion vectors, change data, generated columns, and constraints on fields."""


@pytest.fixture(scope="module")
def ruled(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merge-structs") / "ruled"
    properties = ", ".join(f"'{key}'='{value}'" for key, value in RULED_PROPERTIES.items())
    delta.sql(f"CREATE TABLE {sql_name(path)} ({RULED}) USING DELTA TBLPROPERTIES ({properties})")
    delta.sql(
        f"INSERT INTO {sql_name(path)} (id, s, d, p) SELECT /*+ COALESCE(1) */ id, named_struct('a', CAST(id AS INT), 'b', 2), "
        "IF(id = 1, NULL, named_struct('x', 1, 'y z', array(named_struct('e', 9)))), "
        "IF(id = 2, NULL, named_struct('n', 3)) FROM range(6)"
    )
    return path


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_rules_of_the_table(delta: SparkSession, ruled: Path, tmp_path: Path, case: Case) -> None:
    theirs = Path(shutil.copytree(ruled, tmp_path / "theirs"))
    ours = Table(shutil.copytree(ruled, tmp_path / "ours"), delta)
    compare(delta, ours, theirs, case)
    assert mapped(delta, ours.path) == mapped(delta, theirs)
    if case.error is None:
        assert changes(delta, ours.path) == changes(delta, theirs)


def mapped(delta: SparkSession, path: Path) -> Any:
    """Return the schema with the ids of columns; names in files are random."""
    metadata = json.loads(delta_snapshot(delta, path).metadata().json())["metaData"]
    schema = re.sub(r'"delta.columnMapping.physicalName":"[^"]*"', '""', metadata["schemaString"])
    return schema, metadata["configuration"]


@pytest.mark.parametrize("value", ["s.v", "1", "s.s.a"])
def test_types_widen_where_a_clause_names_them(delta: SparkSession, tmp_path: Path, value: str) -> None:
    theirs = tmp_path / "theirs"
    delta.sql(
        f"CREATE TABLE {sql_name(theirs)} (id BIGINT, v INT, w INT, s STRUCT<a: SMALLINT, b: INT>) USING DELTA "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    delta.sql(f"INSERT INTO {sql_name(theirs)} SELECT id, 1, 2, named_struct('a', 3, 'b', 4) FROM range(3)")
    ours = Table(shutil.copytree(theirs, tmp_path / "ours"), delta)
    case = updated("", "5L AS v, 6L AS w, named_struct('a', 7, 'b', 8L) AS s", {"v": value, "s.a": value}, evolve=True)
    compare(delta, ours, theirs, case)
