"""A table on each store by its connection alone: worker and Spark get endpoint, credentials and JARs from there.

In a process of its own: the Spark of these tests is set up for all stores.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from stores.tables import rows_on_store

SCRIPT = """
import json, logging, os, sys
from types import SimpleNamespace
from airflow_delta.table.start.begin import begin
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.spark.session import TaskSession
from airflow_delta.spark.job import run_operation
from airflow_delta.spark.stage import stage_dataframe
from airflow_delta.contract.staging_directory import new_attempt

hook = DeltaHook("lake")
session = TaskSession(spark_packages="auto", config_kwargs=json.loads(os.environ["SPARK_SETTINGS"]))
session.task = SimpleNamespace(dag_id="d", task_id="t", log=logging.getLogger("t"), is_cancelled=False)


def stage_of(key):
    handle = begin(hook.get_log("t"), transaction_key=key, partition_by=["p"])
    return open_stage(hook.get_log("t"), handle, task_id="s", attempt=new_attempt())


def commit(stage, staged):
    return publish(hook.get_log("t"), stage.handle, [staged], attempt=new_attempt()).version


out = {"test": hook.test_connection()}
with session.session(hook.get_log("t")) as spark:
    stage = stage_of("a")
    request = plan_stage(stage)
    rows = spark.sql("SELECT id, concat('a b ', id % 3) AS p FROM range(100)")
    out["written"] = commit(stage, collect_stage(stage, request, stage_dataframe(spark, rows, request)))
    stage = stage_of("b")
    work = plan_delete(stage, predicate="id < 40")
    out["deleted"] = commit(stage, work.collect(work.request, run_operation(spark, work.request)))
print("RESULT " + json.dumps(out))
"""
SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # Azurite's: renaming a directory that another task has made already finds its marker twice.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}


@pytest.mark.parametrize("name", ["s3", "azure"])
def test_a_table_by_its_connection_alone(name: str, stores: Any, tmp_path: Path) -> None:
    store = stores[name]
    root = store.root(store.container())
    connection = {"conn_type": "delta", **store.connection(root)}
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK", "AWS", "AZURE"))}
    environment |= {
        "AIRFLOW_CONN_LAKE": json.dumps(connection),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "SPARK_SETTINGS": json.dumps(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).parents[2] / "provider"),
    }
    # Ivy's cache is not made for several writers.
    with (Path(tempfile.gettempdir()) / "airflow-delta-tests-ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    out = json.loads(line.removeprefix("RESULT "))
    assert out["test"][0], out["test"]
    assert "refuses to overwrite" in out["test"][1]
    assert (out["written"], out["deleted"]) == (0, 1)
    assert rows_on_store(f"{root}/t", store.options) == [(number, f"a b {number % 3}") for number in range(40, 100)]
