"""Dags whose runs end in every way that a night may have in store; the run's ``conf`` says in which."""

from __future__ import annotations

import os

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import dag, task, task_group
from airflow.sdk.exceptions import AirflowFailException

from airflow_delta import delta_transaction
from airflow_delta.assets.delta import delta_asset
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator
from ui.staged import MANUAL, write_parquet

ROOT = os.environ["UI_TABLES"]


def conf(context) -> dict:
    return context["dag_run"].conf or {}


def nightly(dag_id: str, table: str, *, approved: bool = False, key: str | None = None) -> None:
    @dag(dag_id, schedule=None, **MANUAL)
    def night():
        @task
        def extract(**context):
            if conf(context).get("fault") == "extract":
                raise ConnectionError("The source did not answer.")

        extracted = extract()
        with delta_transaction(
            "txn",
            table=f"{ROOT}/{table}",
            transaction_key=key,
            rerun_policy="{{ dag_run.conf.get('policy', 'skip') }}",
            isolation_level="{{ dag_run.conf.level }}",
        ) as txn:

            @task(retries=1, retry_delay=0.0)
            def write(handle, **context):
                if conf(context).get("fault") == "write":
                    raise ValueError("<b>17 rows</b> have no customer\nand the rest is long.")
                return write_parquet(handle, f"rows-{context['ti'].try_number}", 10)

            stage = DeltaStageFilesOperator(task_id="stage", mode="{{ dag_run.conf.mode }}", path=write(txn.transaction))
            audit = DeltaAuditOperator(task_id="audit", min_rows="{{ dag_run.conf.least }}")
            extracted >> stage >> audit

            @task
            def meanwhile(handle, **context):
                if conf(context).get("fault") == "conflict":
                    import deltalake

                    deltalake.DeltaTable(handle["table"].removeprefix("file://")).delete()
                if conf(context).get("fault") == "by hand":
                    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
                    from airflow.models.serialized_dag import SerializedDagModel
                    from airflow.utils.session import create_session

                    with create_session() as session:
                        dag_id, run_id = context["ti"].dag_id, context["ti"].run_id
                        serialized = SerializedDagModel.get_dag(dag_id, session=session)
                        set_dag_run_state_to_failed(dag=serialized, run_id=run_id, commit=True, session=session)
                    raise AirflowFailException("as a task that is killed")

            audit >> meanwhile(txn.transaction)
            if approved:
                audit >> ApprovalOperator(task_id="approve", subject="Publish?")

    night()


nightly("night", "nights")
nightly("first_night", "unborn")
nightly("reviewed_night", "nights", approved=True)
nightly("hidden_night", "secret")
nightly("approved_night", "approvals", approved=True)
nightly("keyed_night", "keyed", key="{{ dag_run.conf.key }}")


@dag(schedule=None, **MANUAL)
def mapped_night():
    """Three instances of one transaction; each has its own table if the run says so."""

    @task_group
    def load(number):
        with delta_transaction("txn", table=f"{ROOT}/mapped", transaction_key="{{ run_id }}/{{ ti.map_index }}") as txn:

            @task
            def write(handle, number, **context):
                if conf(context).get("broken") == number:
                    raise ValueError(f"Number {number} is broken.")
                return write_parquet(handle, f"rows-{number}", number)

            DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction, number))

    load.expand(number=[1, 2, 3])


@dag(schedule=None, **MANUAL)
def two_tables():
    """Two transactions in one run; that of the second table fails."""
    for name in ("left", "right"):
        with delta_transaction(name, table=f"{ROOT}/{name}") as txn:

            @task
            def write(handle, name):
                if name == "right":
                    raise ValueError("The right one is wrong.")
                return write_parquet(handle, "rows", 5)

            DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction, name))


@dag(schedule=None, **MANUAL)
def quiet_night():
    """Nothing to do, before the transaction or in it."""

    @task.short_circuit
    def before(**context):
        return conf(context)["skip"] != "before"

    with delta_transaction("txn", table=f"{ROOT}/quiet") as txn:

        @task.short_circuit
        def inside():
            return False

        DeltaStageFilesOperator(task_id="stage", path=inside())
    before() >> txn.start


@dag(schedule=None, **MANUAL)
def purge():
    """A task that is a transaction by itself."""
    DeltaDeleteOperator(
        task_id="purge", table=f"{ROOT}/left", predicate="{{ dag_run.conf.predicate }}", outlets=[delta_asset(f"{ROOT}/left")]
    )


mapped_night()
two_tables()
quiet_night()
purge()
