"""A MERGE whose source has other structs and types than the table, by the worker as on Spark: rows, schema, changes, errors."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.exceptions import DeltaError, DeltaUnsupportedOperationException
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.slow import slow_except
from support.table import Table, WorkerTable

pytestmark = pytest.mark.spark

TABLE = (
    "SELECT id, CAST(id AS INT) AS v, CAST(id AS SMALLINT) AS w, DATE'2026-01-01' AS day, CAST(id AS DECIMAL(5,2)) AS d, "
    "IF(id % 4 = 0, NULL, named_struct('a', CAST(id AS INT), 'b', 'x', 'n', IF(id % 3 = 0, NULL, "
    "named_struct('x', 1S, 'y', 0.5D)))) AS s, "
    "array(named_struct('u', CAST(id AS INT), 'w', 'l'), NULL) AS l, map('k', named_struct('c', CAST(id AS INT))) AS m, "
    "IF(id % 2 = 0, 'even', 'odd') AS p FROM range(8)"
)
SOURCES: dict[str, tuple[str, ...]] = {
    "v": (
        "CAST(id AS INT)",
        "id",
        "CAST(id AS BYTE)",
        "CAST(id AS STRING)",
        "id * 1.5D",
        "id + 3000000000L",
        "NULL",
        "'x'",
        "true",
    ),
    "w": ("CAST(id AS SMALLINT)", "CAST(id AS INT)", "id", "id + 40000", "CAST(id AS DOUBLE)", "1.50"),
    "day": ("DATE'2026-02-03'", "TIMESTAMP_NTZ'2026-02-03 04:05:06'", "'2026-02-03'"),
    "d": ("CAST(1.25 AS DECIMAL(5,2))", "CAST(1.255 AS DECIMAL(10,4))", "7", "id", "'1.25'", "12345.6", "CAST(1.5 AS FLOAT)"),
    "s": (
        "named_struct('a', 1, 'b', 'y', 'n', named_struct('x', 2S, 'y', 1.5D))",
        "named_struct('b', 'z')",
        "named_struct('A', 5L, 'b', 6, 'new', 7)",
        "IF(id % 2 = 0, NULL, named_struct('n', named_struct('y', 2.5D, 'z', true)))",
        "named_struct('n', IF(id = 3, NULL, named_struct('x', 3)), 'a', CAST(NULL AS INT))",
        "CAST(NULL AS STRUCT<a: INT>)",
        "named_struct('a', '8', 'b', 'y')",
        "named_struct('a', id * 1000000000)",
        "'s'",
    ),
    "l": (
        "array(named_struct('u', 1, 'w', 'y'))",
        "array(named_struct('u', id), NULL)",
        "IF(id = 5, NULL, array(named_struct('w', 'y', 'u', 2, 'k', array(1))))",
        "CAST(array() AS ARRAY<STRUCT<u: TINYINT>>)",
        "array(1)",
    ),
    "m": (
        "map('k', named_struct('c', 1))",
        "map('k', named_struct('c', id, 'e', 'f'))",
        "IF(id = 2, NULL, map('k', named_struct('e', 1)))",
        "map('k', CAST(NULL AS STRUCT<c: SMALLINT>))",
    ),
    "p": ("'even'", "'new'", "CAST(id AS STRING)"),
    "e": ("true", "named_struct('q', 1, 'r', array(named_struct('t', 1.5)))", "map(1, 2L)", "DATE'2026-01-01'"),
}
SETS: tuple[dict[str, str], ...] = (
    {"s.a": "source.id", "v": "source.v"},
    {"s.n.y": "source.id * 0.5D", "s.b": "CAST(source.id AS STRING)"},
    {"s": "source.s", "l": "source.l"},
    {"s.n": "source.s.n", "e": "source.e"},
    {"s.new": "source.id", "d": "source.d"},
    {"m": "source.m", "day": "source.day", "w": "source.w"},
    {"e.q": "source.id", "v": "5L"},
    {"s": "named_struct('b', 'only')"},
    {"l": "array(named_struct('w', 'x', 'u', source.v))"},
)
PROPERTIES = {
    "delta.columnMapping.mode": ("none", "name"),
    "delta.enableDeletionVectors": ("true", "false"),
    "delta.enableChangeDataFeed": ("true", "false"),
    "delta.enableTypeWidening": ("true", "false"),
    "delta.enableRowTracking": ("true", "false"),
}


def random_source(draw: random.Random, *, whole: bool) -> str:
    """Return SQL of rows of which some match: with a value of its own for each column, mostly one of the table's type."""
    columns = ["id"]
    for name, values in SOURCES.items():
        if draw.random() < (0.95 if whole else 0.8) and (name != "e" or draw.random() < 0.4):
            columns.append(f"{values[0] if draw.random() < 0.5 else draw.choice(values)} AS {name}")
    return f"SELECT {', '.join(columns)} FROM range({draw.randint(0, 6)}, {draw.randint(7, 11)}, 2, 1)"


def random_clauses(draw: random.Random) -> list[dict[str, Any]]:
    clauses: list[dict[str, Any]] = [when_matched_delete("source.id = 4")] if draw.random() < 0.3 else []
    clauses.append(when_matched_update(None if draw.random() < 0.5 else draw.choice(SETS)))
    if draw.random() < 0.7:
        clauses.append(
            when_not_matched_insert(None if draw.random() < 0.6 else {"id": "source.id", "s": "source.s", "v": "source.v"})
        )
    if draw.random() < 0.2:
        clauses.append(when_not_matched_by_source_update({"v": "target.v + 1"}, "target.id > 4"))
    return clauses


def schema_of(table: Table) -> Any:
    """Return the schema with the ids of columns; names in files are random."""
    text = table.log().update().metadata.schema_string
    return json.loads(re.sub(r'"delta.columnMapping.physicalName":"[^"]*"', '"physical":""', text))


def seen(table: Table) -> Any:
    rows = read_table(table.log()).to_table()
    properties = table.log().update().metadata.configuration
    found: list[Any] = [schema_of(table), readers._comparable(rows.to_pylist())]
    if properties.get("delta.enableChangeDataFeed") == "true":
        changes = (
            read_changes(table.log(), starting_version=table.log().update().version)
            .to_table()
            .drop_columns(["_commit_timestamp"])
        )
        found.append(readers._comparable(changes.to_pylist()))
    return found


def merged(table: Table, source: Any, arguments: dict[str, Any]) -> Any:
    try:
        table.run(plan_merge, source=source, condition="target.id = source.id", **arguments)
    except DeltaError as error:
        return error
    return seen(table)


@pytest.mark.parametrize("seed", slow_except(range(16), *range(2)))
def test_structs_and_types_of_a_source(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    configuration = {name: draw.choice(values) for name, values in PROPERTIES.items()}
    first = Table(tmp_path / "first", spark)
    partitions = draw.choice([("p",), (), ("v",), ("w", "p"), ("day",), ("d",)])
    first.write(f"SELECT * FROM ({TABLE}) LIMIT 0", begin={"partition_by": partitions, "configuration": configuration})
    for half in ("id < 4", "id >= 4"):
        first.write(f"SELECT * FROM ({TABLE}) WHERE {half}")
    refused = 0
    for number in range(5):
        clauses, evolves = random_clauses(draw), draw.random() < 0.6
        source = random_source(draw, whole=any(clause["set"] is None for clause in clauses if clause["action"] != "delete"))
        here, there = WorkerTable(tmp_path / f"worker{number}"), Table(tmp_path / f"spark{number}", spark)
        for table in (here, there):
            table.copy_from(first)
        arguments = {"clauses": clauses, "merge_schema": evolves}
        told = f"{source}\n{clauses}\n{evolves} {configuration}"
        spark.sql(source).write.parquet(str(tmp_path / f"source{number}"))  # whose columns are nullable to both
        rows = pq.read_table(tmp_path / f"source{number}")
        source = f"SELECT * FROM parquet.`{tmp_path}/source{number}`"
        worker = merged(here, rows, arguments)
        if isinstance(worker, DeltaUnsupportedOperationException):
            assert 'Use engine="spark"' in worker.message, told
            refused += 1
            continue
        spark_says = merged(there, source, arguments)
        if isinstance(worker, DeltaError) or isinstance(spark_says, DeltaError):
            assert type(worker) is type(spark_says), f"{told}\n{worker}\n{spark_says}"
        else:
            assert worker == spark_says, told
    assert refused < 3


WIDENED = {
    "integer": ("CAST(id AS INT)", "id + 3000000000L"),
    "byte": ("CAST(id AS TINYINT)", "CAST(id + 300 AS SMALLINT)"),
    "float": ("CAST(id * 0.1 AS FLOAT)", "id * 0.3D"),
    "decimal": ("CAST(id AS DECIMAL(5,2))", "CAST(id AS DECIMAL(10,4))"),
    "date": ("DATE'2026-01-01' + CAST(id AS INT)", "TIMESTAMP_NTZ'2026-02-03 04:05:06'"),
}
"""Values of a partition column, and wider ones of a source."""


@pytest.mark.parametrize("vectors", ["true", "false"], ids=["deletion vectors", "copy on write"])
@pytest.mark.parametrize("kind", slow_except(WIDENED, "integer", "date"))
def test_a_partition_column_gets_a_wider_type(spark: Any, tmp_path: Path, kind: str, vectors: str) -> None:
    old, new = WIDENED[kind]
    configuration = {
        "delta.enableTypeWidening": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": vectors,
        "delta.feature.timestampNtz": "supported",
    }
    here, there = WorkerTable(tmp_path / "worker"), Table(tmp_path / "spark", spark)
    values = f"SELECT id, IF(id = 3, NULL, {old}) AS p, id % 2 = 0 AS q, 'old' AS v FROM range(8)"
    there.write(f"SELECT * FROM ({values}) LIMIT 0", begin={"partition_by": ("p", "q"), "configuration": configuration})
    there.write(f"SELECT id, IF(id > 3, NULL, p) AS p, q, v FROM ({values})")
    here.copy_from(there)
    spark.sql(f"SELECT id, {new} AS p, id % 2 = 1 AS q, 'new' AS v FROM range(5, 10, 1, 1)").write.parquet(
        str(tmp_path / "source")
    )
    arguments = {
        "clauses": [
            when_matched_delete("source.id = 7"),
            when_matched_update({"v": "source.v", "p": "source.p"}, "source.id = 6"),
            when_matched_update({"v": "source.v"}),
            when_not_matched_by_source_update({"v": "'alone'"}, "target.id = 2"),
            when_not_matched_insert(),
        ],
        "merge_schema": True,
    }
    worker = merged(here, pq.read_table(tmp_path / "source"), arguments)
    by_spark = merged(there, f"SELECT * FROM parquet.`{tmp_path}/source`", arguments)
    assert not isinstance(by_spark, DeltaError), by_spark
    assert worker == by_spark
    assert partitions(here) == partitions(there)


def partitions(table: Table) -> list[str]:
    """Return the texts of the partition values of the live files."""
    files = table.log().update().files(columns=["partition_values"])
    return sorted({str(sorted(values)) for values in files["partition_values"].to_pylist()})
