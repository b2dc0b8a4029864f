"""Spark on each store: every operation through the provider's own tasks, with the credentials of their connection alone.

After each task, delta-rs reads the table from the store, and delta-rs, DuckDB and Polars read a copy of it. DuckDB reads from
the store, too, if that is S3.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import obstore
import pytest

from airflow_delta.contract.changes import SetProperties
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator, DeltaUpdateOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.optimize import DeltaOptimizeOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from stores.servers import STORES
from stores.tables import Row, client, rows_of_copy, rows_on_store, rows_through_duckdb, run_task

NAME = "silver/flights 2013"


@dataclass
class Lake:
    """A bucket, the connection ``lake`` to it, and what the table in it should hold."""

    store: Any
    bucket: str
    copies: Path
    expected: dict[int, tuple[int, str]] = field(default_factory=dict)
    number: int = 0

    @property
    def objects(self) -> Any:
        return client(self.store.options, self.store.root(self.bucket))

    def write(self, function: Callable[..., Any], **options: Any) -> dict[str, Any]:
        """Start, stage what a function returns, and commit."""
        self.number += 1
        key, stage = f"key-{self.number}", f"stage-{self.number}"
        start = DeltaStartTransactionOperator(
            task_id="start", table=NAME, delta_conn_id="lake", transaction_key=key, partition_by=["p"]
        )
        handle = run_task(start)
        stage_rows = DeltaStagePySparkOperator(task_id=stage, transaction=handle, python_callable=function, **options)
        staged = run_task(stage_rows)
        commit = DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged, retries=0)
        return dict(run_task(commit, **{stage: "success"}))

    def alone(self, operator: type, **options: Any) -> dict[str, Any]:
        """Run an operation that is a transaction of its own."""
        self.number += 1
        key = {} if operator is DeltaVacuumOperator else {"transaction_key": f"key-{self.number}"}
        return dict(run_task(operator(task_id=f"task-{self.number}", table=NAME, delta_conn_id="lake", **key, **options)))

    def check(self, *, vectors: bool = False) -> None:
        """Compare the table with what it should hold, row by row."""
        expected: list[Row] = sorted((key, *row) for key, row in self.expected.items())
        self.number += 1
        assert rows_of_copy(self.copies / str(self.number), self.objects, NAME) == expected
        uri = f"{self.store.root(self.bucket)}/{NAME}"
        if vectors:  # delta-rs refuses those; DuckDB looks for them under a name that is encoded twice, where it has a space
            return
        assert rows_on_store(uri, self.store.options) == expected
        if "s3" in self.store.root(self.bucket):
            assert rows_through_duckdb(uri, self.store.options) == expected


@pytest.fixture(params=STORES)
def lake(request, stores, tmp_path, monkeypatch, spark, outside_of_the_task_runner) -> Lake:
    store = stores[request.param]
    bucket = store.container()
    connection = {"conn_type": "delta", **store.connection(root_of(store, bucket))}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return Lake(store, bucket, tmp_path)


def root_of(store: Any, bucket: str) -> str:
    """The spelling that a user of Spark has: ``s3a://``, ``abfs://``."""
    return f"{store.spark_root(bucket)}"


def appended(spark):
    return spark.sql("SELECT id, id AS v, concat('a b ', id % 3) AS p FROM range(60)")


def raised(table):
    from pyspark.sql import functions as f

    return table("p = 'a b 1'").withColumn("v", f.col("v") + 1000)


def test_every_operation(lake: Lake) -> None:
    assert DeltaHook("lake").test_connection()[0]
    assert lake.write(appended)["version"] == 0
    lake.expected = {key: (key, f"a b {key % 3}") for key in range(60)}
    lake.check()

    replaced = lake.write(raised, mode="overwrite", replace_where="p = 'a b 1'")
    assert (replaced["version"], replaced["numRecords"]) == (1, 20)
    lake.expected |= {key: (value + 1000, p) for key, (value, p) in lake.expected.items() if p == "a b 1"}
    lake.check()

    assert lake.alone(DeltaDeleteOperator, predicate="id < 10")["version"] == 2
    lake.expected = {key: row for key, row in lake.expected.items() if key >= 10}
    lake.check()

    assert lake.alone(DeltaUpdateOperator, set={"v": "v + 1"}, predicate="id % 10 = 5")["version"] == 3
    lake.expected |= {key: (value + 1, p) for key, (value, p) in lake.expected.items() if key % 10 == 5}
    lake.check()

    source = "SELECT id, -id AS v, 'a b 0' AS p FROM range(55, 65)"
    assert lake.alone(DeltaMergeOperator, source=source, condition="target.id = source.id")["version"] == 4
    lake.expected |= {key: (-key, "a b 0") for key in range(55, 65)}
    lake.check()

    optimized = lake.alone(DeltaOptimizeOperator)
    assert optimized["numRemovedFiles"] > optimized["numFiles"] > 0
    lake.check()

    vacuumed = lake.alone(DeltaVacuumOperator, retention_hours="0", retention_check=False)
    assert vacuumed["numFiles"] > 0
    live = deltalake.DeltaTable(f"{lake.store.root(lake.bucket)}/{NAME}", storage_options=lake.store.options).file_uris()
    assert len(data_files(lake)) == len(live) > 0
    lake.check()


def test_with_deletion_vectors(lake: Lake) -> None:
    lake.write(appended)
    lake.expected = {key: (key, f"a b {key % 3}") for key in range(60)}
    lake.alone(DeltaAlterTableOperator, changes=SetProperties({"delta.enableDeletionVectors": "true"}))

    lake.alone(DeltaDeleteOperator, predicate="id = 7")
    lake.alone(DeltaUpdateOperator, set={"v": "0"}, predicate="id = 8")
    source = "SELECT id, -id AS v, 'a b 0' AS p FROM range(58, 62)"
    lake.alone(DeltaMergeOperator, source=source, condition="target.id = source.id")
    del lake.expected[7]
    lake.expected[8] = (0, "a b 2")
    lake.expected |= {key: (-key, "a b 0") for key in range(58, 62)}
    assert b'"storageType":"u"' in b"".join(bytes(obstore.get(lake.objects, path).bytes()) for path in commits(lake))
    lake.check(vectors=True)

    lake.alone(DeltaOptimizeOperator, max_deleted_rows_ratio=0.0)
    lake.alone(DeltaVacuumOperator, retention_hours="0", retention_check=False)
    lake.check(vectors=True)


def commits(lake: Lake) -> list[str]:
    listed = obstore.list(lake.objects, f"{NAME}/_delta_log/")
    return [meta["path"] for page in listed for meta in page if meta["path"].endswith(".json")]


def data_files(lake: Lake) -> list[str]:
    listed = obstore.list(lake.objects, f"{NAME}/")
    paths = [meta["path"] for page in listed for meta in page if meta["path"].endswith(".parquet")]
    return [path for path in paths if "/_delta_log/" not in path]
