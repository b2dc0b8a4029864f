"""The Dags whose runs live through :mod:`faults.life.tries`, and the job that stands for Spark."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, XComArg, task_group

from airflow_delta import delta_transaction
from airflow_delta.contract.request import StageReport
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.work import StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

POLICIES = ("skip", "replace", "append", "fail")
PARTS = ("1", "2")
CONNECTION = "life"
SLICE = "p = '1'"

TABLE = {"table": "t", "delta_conn_id": CONNECTION, "partition_by": "p", "outlets": []}
LAST = {"allow_skipped": True, "trigger_rule": "none_failed"}


def connect(base: Path) -> None:
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = json.dumps({"conn_type": "delta", "host": str(base)})


class JobStage(StageOperator, StageWorkParameters, WriteParameters):
    """A stage between whose plan and collection a job writes, as Spark does for ``@task.delta_stage``."""

    job: Any = None  # from the request to the report

    def plan_stage(self, stage: Any) -> Any:
        return WriteOptions.of(self).plan(stage)

    def work(self, stage: Any, request: Any) -> Any:
        return request, self.job(request)


def write_rows(directory: Path, rows: dict[int, str], *, column: str | None = None) -> None:
    """Write rows (a partition by id) as a job does: a file for each partition."""
    for part in sorted(set(rows.values())):
        ids = [row for row, of in rows.items() if of == part]
        columns = {"id": pa.array(ids, pa.int64())} | ({column: pa.array(ids, pa.int64())} if column else {})
        folder = directory / f"p={part}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / "part-0.parquet")


def report_of(request: Any, rows: dict[int, str], table: Path) -> StageReport:
    """Write the rows that a request asks for and report them.

    :param table: what the job takes for the table's place.
    """
    root = table / request.directory
    write_rows(root / "data", rows)
    (root / "data").mkdir(parents=True, exist_ok=True)
    files = list((root / "data").rglob("*.parquet"))
    written = {"numFiles": len(files), "numRows": len(rows), "numBytes": sum(file.stat().st_size for file in files)}
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("id", "long"), ("p", "string"))]
    return StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=("data",),
        path=str(root),
        written={"data": written},
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=("p",),
    )


@cache
def dags() -> dict[str, DAG]:
    """Return the Dags by id; made once, as their table's place comes from the connection.

    ``load_*``: a mapped stage and one that a branch may skip. ``slot_*``: a key of its own that runs share, and a stage that
    overwrites a partition. ``each_*``: a transaction for each value. ``wide_*``: a stage that adds a column. ``ops_*``:
    operations that are their own transactions.
    """
    found = {}
    for policy in POLICIES:
        with DAG(f"load_{policy}", schedule=None) as dag:
            values, choose = EmptyOperator(task_id="values"), EmptyOperator(task_id="choose")
            with delta_transaction("txn", **TABLE, rerun_policy=policy, commit_kwargs=LAST):
                DeltaStageFilesOperator.partial(task_id="part").expand(path=XComArg(values))
                choose >> DeltaStageFilesOperator(task_id="extra", path="_")
        found[dag.dag_id] = dag
        key = {"rerun_policy": policy, "transaction_key": "slot-{{ run_id[-1] }}"}
        with DAG(f"slot_{policy}", schedule=None) as dag, delta_transaction("txn", **TABLE, **key):
            JobStage(task_id="slice", mode="overwrite", replace_where=SLICE)
        found[dag.dag_id] = dag
        with DAG(f"each_{policy}", schedule=None) as dag:

            @task_group
            def each(value: Any, policy: str = policy) -> None:
                with delta_transaction("txn", **TABLE, rerun_policy=policy):
                    DeltaStageFilesOperator(task_id="one", path="_")

            each.expand(value=XComArg(EmptyOperator(task_id="values")))
        found[dag.dag_id] = dag
        with DAG(f"wide_{policy}", schedule=None) as dag, delta_transaction("txn", **TABLE, rerun_policy=policy):
            DeltaStageFilesOperator(task_id="wide", path="_", merge_schema=True)
        found[dag.dag_id] = dag
        with DAG(f"ops_{policy}", schedule=None) as dag:
            common = {"table": "t", "delta_conn_id": CONNECTION, "rerun_policy": policy}
            DeltaRestoreOperator(task_id="restore", **common) >> DeltaDeleteOperator(task_id="delete", predicate=SLICE, **common)
        found[dag.dag_id] = dag
    return found
