"""Dags without Spark: a plain task writes Parquet under the staging path, ``DeltaStageFilesOperator`` stages it."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import AssetAlias, dag, task, task_group
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import delta_transaction, staging_path
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaTruncateOperator
from airflow_delta.operators.restore import DeltaRestoreOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator

ROOT = os.environ["DELTA_EXAMPLES"]
AT_ONCE = {"retries": 1, "retry_delay": timedelta(0)}


def write_parquet(handle: dict, directory: str, values: list[int]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(handle["stagingPath"].removeprefix("file://"), directory)
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64())}), f"{path}/part-0.parquet")
    return directory


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, params={"policy": "skip", "key": None})
def rerun():
    """The same key again, under each policy."""
    with delta_transaction(
        "txn",
        table=ROOT + "/rerun_{{ params.policy }}",
        transaction_key="{{ params.key }}",
        rerun_policy="{{ params.policy }}",
        outlets=[AssetAlias("rerun")],
    ) as txn:

        @task
        def write(handle):
            return write_parquet(handle, "rows", [1, 2, 3])

        DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))


class KilledOnce:
    """Fails after ``execute`` of the first try, when the log entry is written: what a kill before the report looks like."""

    def __call__(self, context, result):
        if context["ti"].try_number == 1:
            raise RuntimeError(f"killed after version {result['version']} was written")


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def killed_commit():
    """The commit task dies after the put; its retry finds its own commit."""
    with delta_transaction("txn", table=f"{ROOT}/killed_commit", commit_kwargs={**AT_ONCE, "post_execute": KilledOnce()}) as txn:

        @task
        def write(handle):
            return write_parquet(handle, "rows", [1, 2, 3])

        DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, user_defined_macros={"staging_path": staging_path})
def killed_job():
    """The job dies after it has written; each of its tries has a directory of its own."""
    with delta_transaction("txn", table=f"{ROOT}/killed_job"):

        @task(**AT_ONCE)
        def write(path, again, ti=None):
            assert again == path
            write_parquet({"stagingPath": path}, f"{ti.try_number}", [1, 2, 3])
            if ti.try_number == 1:
                raise RuntimeError("killed after its files were written")

        path = "{{ staging_path(ti.xcom_pull('txn.start'), ti) }}"
        job = write(path, again=path)
        DeltaStageFilesOperator(task_id="stage", path=job["staging_path"])


def killed_after_commit(context, result):
    """Fail after ``execute`` in the tries that the run names, when the log entry is written."""
    if context["ti"].try_number in context["dag_run"].conf["killed"]:
        raise RuntimeError(f"killed after version {result['version']} was written")


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def killed_alone():
    """Operations that are transactions of their own, staged and not: each try would be one more version."""
    common = {
        "table": ROOT + "/killed_alone_{{ dag_run.conf['policy'] }}",
        "rerun_policy": "{{ dag_run.conf['policy'] }}",
        "post_execute": killed_after_commit,
        **AT_ONCE,
    }
    changes = [{"change": "SetProperties", "properties": {"delta.appendOnly": "false"}}]
    altered = DeltaAlterTableOperator(task_id="altered", changes=changes, **common)
    restored = DeltaRestoreOperator(task_id="restored", version=0, **common)
    altered >> restored


def skip_the_second(context):
    if context["ti"].map_index == 1:
        raise AirflowSkipException("no rows today")


def mapped(allow_skipped: bool):
    commit_kwargs = {"trigger_rule": "none_failed", "allow_skipped": allow_skipped, **AT_ONCE}
    with delta_transaction("txn", table=f"{ROOT}/mapped_{allow_skipped}", commit_kwargs=commit_kwargs) as txn:

        @task
        def write(handle, number):
            return write_parquet(handle, f"rows{number}", [number])

        paths = write.partial(handle=txn.transaction).expand(number=[1, 2, 3])
        DeltaStageFilesOperator.partial(task_id="stage", pre_execute=skip_the_second).expand(path=paths)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def missing_member():
    """A mapped stage loses a member, and the commit's trigger rule lets it run nevertheless."""
    mapped(allow_skipped=False)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def skipped_member():
    """The same, and the author allows it."""
    mapped(allow_skipped=True)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def conflict():
    """Another writer deletes what an overwrite read, after the stage and before the commit."""
    with delta_transaction("txn", table=f"{ROOT}/conflict", commit_kwargs={"retries": 3, "retry_delay": timedelta(0)}) as txn:

        @task
        def write(handle):
            return write_parquet(handle, "rows", [7])

        stage = DeltaStageFilesOperator(task_id="stage", mode="overwrite", path=write(txn.transaction))

        @task
        def somebody_else(handle):
            import deltalake

            deltalake.DeltaTable(handle["table"].removeprefix("file://")).delete()

        stage >> somebody_else(txn.transaction)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def per_region():
    """A whole transaction inside a mapped task group: one for each map index, each with its own key."""

    @task_group
    def region(name):
        with delta_transaction("txn", table=name) as txn:

            @task
            def write(handle):
                return write_parquet(handle, "rows", [1])

            DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))

    region.expand(name=[f"{ROOT}/region_a", f"{ROOT}/region_b"])


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def changing():
    """What is mapped and what is skipped comes with the run, and may be another in the next try of it."""
    start = DeltaStartTransactionOperator(task_id="start", table=f"{ROOT}/changing", rerun_policy="append")

    @task
    def paths(handle, dag_run=None):
        return [write_parquet(handle, f"rows{number}", [number]) for number in dag_run.conf["numbers"]]

    @task_group
    def part(path):
        @task
        def write_more(handle, path):
            return write_parquet(handle, f"more/{path}", [int(path.removeprefix("rows")) + 100])

        DeltaStageFilesOperator(task_id="stage", transaction=start.output, path=write_more(start.output, path))

    @task.branch
    def choose(dag_run=None):
        return [task_id for task_id in ("write_extra", "emptied") if dag_run.conf[task_id]]

    @task
    def write_extra(handle):
        return write_parquet(handle, "extra", [1000])

    given = paths(start.output)
    staged = DeltaStageFilesOperator.partial(task_id="stage", transaction=start.output).expand(path=given)
    more = write_extra(start.output)
    extra = DeltaStageFilesOperator(task_id="extra", transaction=start.output, path=more)
    part.expand(path=given)
    stages = [staged.output, extra.output, start.dag.task_dict["part.stage"].output]
    emptied = DeltaTruncateOperator(
        task_id="emptied",
        transaction=start.output,
        after=stages,
        trigger_rule="none_failed",
    )
    choose() >> [more, emptied]
    audit = DeltaAuditOperator(
        task_id="audit",
        transaction=start.output,
        staged=stages,
        max_rows="{{ dag_run.conf['max_rows'] }}",
        trigger_rule="none_failed",
    )
    commit = DeltaCommitOperator(
        task_id="commit",
        transaction=start.output,
        staged=[*stages, emptied.output],
        allow_skipped=True,
        trigger_rule="none_failed",
        retries=0,
    )
    audit >> commit


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def each():
    """A transaction, and an operation, for each value of a list that comes with the run."""

    @task
    def numbers(dag_run=None):
        return dag_run.conf["numbers"]

    @task
    def changes(dag_run=None):
        return [[{"change": "SetProperties", "properties": {"of": str(number)}}] for number in dag_run.conf["numbers"]]

    @task_group
    def load(number):
        with delta_transaction("txn", table=f"{ROOT}/each") as txn:

            @task
            def write(handle, number):
                return write_parquet(handle, "rows", [number])

            DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction, number))

    load.expand(number=numbers())
    DeltaAlterTableOperator.partial(task_id="altered", table=f"{ROOT}/each_altered", max_active_tis_per_dagrun=1).expand(
        changes=changes()
    )


rerun()
killed_commit()
killed_job()
missing_member()
skipped_member()
conflict()
per_region()
changing()
killed_alone()
each()


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def cut_short():
    """Rows are written, and nobody commits or aborts."""
    start = DeltaStartTransactionOperator(task_id="start", table="{{ dag_run.conf['table'] }}")

    @task
    def write(handle):
        write_parquet(handle, "rows", [1])

    write(start.output)


cut_short()
