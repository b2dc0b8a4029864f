"""Checks read what is staged as a Delta table, before it is published."""

from __future__ import annotations

import json
import os
from datetime import datetime

from airflow.sdk import dag, task
from deltalake import DeltaTable, QueryBuilder

from airflow_delta import delta_transaction
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]


@task
def write(handle, dag_run=None):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), "rows")
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": dag_run.conf.get("ids", [3, 4])}), f"{path}/part-0.parquet")
    return "rows"


@task
def write_to(handle, name, number):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), name)
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": [number]}), f"{path}/part-0.parquet")
    return name


@task
def check(preview, changes):
    def query(found, sql):
        return QueryBuilder().register("t", DeltaTable(found["path"], version=found["version"])).execute(sql).read_all()

    rows = query(preview, "SELECT id FROM t ORDER BY id")["id"].to_pylist()
    if changes["path"] is not None:
        assert query(changes, "SELECT count(*) AS n FROM t WHERE _change_type = 'insert'")["n"].to_pylist() == [2]
    if 13 in rows:
        raise ValueError("13 may not be published")
    return rows


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def seen_before():
    with delta_transaction("txn", table=f"{ROOT}/seen", preview=True, keep_preview=1) as txn:
        DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))
        check(txn.preview, DeltaPreviewOperator(task_id="changes", only="changes").output)


def look(context):
    """Leave what somebody finds who looks after the commit has failed, and before the abort."""
    if context["ti"].task_id == "txn.commit":
        preview = context["ti"].xcom_pull(task_ids="txn.preview")
        with open(f"{ROOT}/collides/staged/{preview['transactionId']}/_preview/_conflict.json") as file:
            found = json.load(file)
        rows = QueryBuilder().register("t", DeltaTable(preview["path"])).execute("SELECT id FROM t ORDER BY id").read_all()
        with open(f"{ROOT}/looked.json", "w") as file:
            json.dump({"conflict": found, "rows": rows["id"].to_pylist()}, file)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, default_args={"on_failure_callback": look})
def collides():
    with delta_transaction("txn", table=f"{ROOT}/collides", preview=True) as txn:
        DeltaStageFilesOperator(task_id="stage", mode="overwrite", path=write(txn.transaction))

        @task
        def meanwhile(preview):
            DeltaTable(preview["table"].removeprefix("file://")).delete("id = 1")

        meanwhile(txn.preview)


@task
def ids(preview):
    table = DeltaTable(preview["path"], version=preview["version"])
    return QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()["id"].to_pylist()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def by_stage():
    """Each gate looks at what its own stage brings, after all previews are written."""
    with delta_transaction("txn", table=f"{ROOT}/by_stage") as txn:
        stages = []
        for number, name in enumerate(("first", "second"), 1):
            rows = write_to.override(task_id=f"rows_of_{name}")(txn.transaction, name, number)
            stages.append(DeltaStageFilesOperator(task_id=name, path=rows).output)
        first = DeltaPreviewOperator(task_id="of_first", staged=stages[0])
        second = DeltaPreviewOperator(task_id="of_second", staged=stages[1])
        each = DeltaPreviewOperator.partial(task_id="each", only="changes").expand(staged=stages)
        gates = [
            ids.override(task_id="ids_of_first")(first.output),
            ids.override(task_id="ids_of_second")(second.output),
            ids.override(task_id="ids_of_each").expand(preview=each.output),
        ]
        for gate in gates:
            [first, second, each] >> gate


seen_before()
by_stage()
collides()
