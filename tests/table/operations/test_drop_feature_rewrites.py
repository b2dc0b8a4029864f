"""Rewrites of DROP FEATURE on plain Spark: column mapping, deletion vectors, widened types; others commit meanwhile."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import ChangeColumn, ClusterBy, DropColumns, RenameColumn
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import ConcurrentAppendException, DeltaAnalysisException
from airflow_delta.spark.run_operation import run_operation
from airflow_delta.table.operations.drop_feature.run import drop_feature, remove_column_mapping
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from support.table import Table

pytestmark = pytest.mark.spark

MAPPED = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}


def identity() -> dict[str, Any]:
    return {"task_id": "drop", "map_index": -1, "attempt": new_attempt()}


def alter(table: Table, *changes: Any) -> None:
    handle = table.begin()
    table.publish(handle, plan_alter(table.view(handle), list(changes)))


def mapped(spark: Any, path: Path, *, partition_by: tuple[str, ...] = ("p",), **more: str) -> Table:
    """Renamed at two depths and partitioned, one column dropped, rows of one file deleted by a vector."""
    table = Table(path, spark)
    begin = {"configuration": {**MAPPED, **more}, "partition_by": list(partition_by)}
    table.write("SELECT 1 AS a, 'x y' AS p, named_struct('i', 1) AS s, 0 AS gone UNION ALL SELECT 2, 'x y', NULL, 0", begin=begin)
    table.write("SELECT 3 AS a, CAST(NULL AS STRING) AS p, named_struct('i', 3) AS s, 0 AS gone")
    alter(table, RenameColumn("a", "key"), RenameColumn("p", "part"), RenameColumn("s.i", "number"), DropColumns(["gone"]))
    table.run(plan_delete, predicate="key = 2")
    return table


ROWS = [(1, "x y", {"number": 1}), (3, None, {"number": 3})]


def rows(table: Table, version: int | None = None) -> list[Any]:
    """Return the rows as read in the worker: not every reader of the tests knows these features."""
    found = read_table(table.log(), version=version).to_table().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def test_plain_names(spark: Any, tmp_path: Path) -> None:
    table = mapped(spark, tmp_path / "table")
    before = table.versions()[-1]
    assert rows(table) == ROWS
    result = remove_column_mapping(table.log(), partial(run_operation, spark), identity=identity())
    assert (result.version, result.operation) == (before + 1, "REMOVE COLUMN MAPPING")
    info, actions = table.info(result.version), table.actions(result.version)
    assert info["isolationLevel"] == "Serializable"
    assert {key: info["operationMetrics"][key] for key in ("numRewrittenFiles", "numCopiedRows")} == {
        "numRewrittenFiles": "2",
        "numCopiedRows": "2",
    }
    assert {add["partitionValues"]["part"] for add in actions["add"]} == {"x y", None}
    assert all(add["partitionValues"].keys() == {"part"} for add in actions["add"])
    assert not any(add["dataChange"] for add in actions["add"])
    for add in actions["add"]:
        assert set(json.loads(add["stats"])["nullCount"]) == {"key", "s"}
        assert pq.read_schema(table.path / unquote(add["path"])).names == ["key", "s"]
    (metadata,) = actions["metaData"]
    assert {key: value for key, value in metadata["configuration"].items() if "olumnMapping" in key} == {
        "delta.columnMapping.mode": "none"
    }
    assert "delta.columnMapping" not in metadata["schemaString"]
    assert rows(table) == ROWS
    assert remove_column_mapping(table.log(), partial(run_operation, spark), identity=identity()).attempts == 0
    table.write("SELECT 4 AS key, 'z' AS part, named_struct('number', 4) AS s")
    assert len(rows(table)) == 3
    assert rows(table, before) == ROWS, "the versions before stay readable"


def test_dropped(spark: Any, tmp_path: Path) -> None:
    """Both features of the table, one after the other, down to a reader of version 1."""
    table = mapped(spark, tmp_path / "table", partition_by=())
    for feature in ("columnMapping", "deletionVectors"):
        drop_feature(table.log(), feature, partial(run_operation, spark), identity=identity())
    protocol = table.log().update().protocol
    assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
    assert "checkpointProtection" in (protocol.writer_features or ())
    assert "delta.columnMapping.mode" not in table.log().update().metadata.configuration
    assert table.rows() == rows(table) == ROWS


def test_an_append_comes_in_between(spark: Any, tmp_path: Path) -> None:
    """Its file has physical names: the rewrite starts over, or fails if it may not."""
    table = mapped(spark, tmp_path / "table")
    raced: list[int] = []

    def on_spark(request: Any) -> Any:
        if len(raced) < 1:
            raced.append(1)
            table.write("SELECT 9 AS key, 'n' AS part, named_struct('number', 9) AS s")
        return run_operation(spark, request)

    with pytest.raises(ConcurrentAppendException):
        remove_column_mapping(table.log(), on_spark, identity=identity(), max_restarts=0)
    assert len(rows(table)) == 3
    raced.clear()
    remove_column_mapping(table.log(), on_spark, identity=identity(), max_restarts=1)
    assert len(rows(table)) == 4
    assert [row[2] for row in rows(table) if row[0] == 9] == [{"number": 9}] * 2


def test_a_name_that_only_mapping_allows(spark: Any, tmp_path: Path) -> None:
    table = mapped(spark, tmp_path / "table")
    alter(table, RenameColumn("key", "`the key`"))
    before = table.versions()
    with pytest.raises(DeltaAnalysisException, match="the key"):
        remove_column_mapping(table.log(), partial(run_operation, spark), identity=identity())
    assert table.versions() == before


def test_clustering_columns_keep_their_place(spark: Any, tmp_path: Path) -> None:
    table = mapped(spark, tmp_path / "table", partition_by=())
    alter(table, ClusterBy(["key", "s.number"]))
    remove_column_mapping(table.log(), partial(run_operation, spark), identity=identity())
    domain = table.log().update().domain_metadata["delta.clustering"]
    assert json.loads(domain.configuration)["clusteringColumns"] == [["key"], ["s", "number"]]
    assert rows(table) == ROWS


def test_widened_types(spark: Any, tmp_path: Path) -> None:
    """Only the file with the narrower types is rewritten."""
    table = Table(tmp_path / "table", spark)
    begin = {"configuration": {"delta.enableTypeWidening": "true"}}
    table.write("SELECT 1 AS a, CAST(1.5 AS DECIMAL(5, 2)) AS d, array(1) AS l, named_struct('x', 1S) AS s", begin=begin)
    alter(
        table,
        ChangeColumn("a", "BIGINT"),
        ChangeColumn("d", "DECIMAL(7, 3)"),
        ChangeColumn("l.element", "BIGINT"),
        ChangeColumn("s.x", "INT"),
    )
    table.write("SELECT 2L AS a, CAST(2.5 AS DECIMAL(7, 3)) AS d, array(2L) AS l, named_struct('x', 2) AS s")
    before, kept = rows(table), {add["path"] for add in table.actions(2)["add"]}
    result = drop_feature(table.log(), "typeWidening", partial(run_operation, spark), identity=identity())
    names = [table.info(version)["operation"] for version in range(3, result.version + 1)]
    assert names == ["UNSET TBLPROPERTIES", "REORG", "DROP FEATURE", *["Empty Commit"] * 3, "DROP FEATURE"]
    assert len(table.actions(4)["remove"]) == 1
    assert kept < {file.path for file in table.log().update().add_files()}
    assert "delta.typeChanges" not in table.log().update().metadata.schema_string
    assert rows(table) == before
