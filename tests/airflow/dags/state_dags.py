"""A transaction whose states somebody sets by hand while it runs; what they do comes with the run's ``conf``."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_delta import delta_transaction, staging_path
from airflow_delta.operators.alter import DeltaAlterTableOperator
from airflow_delta.operators.stage import DeltaStageFilesOperator

ROOT = os.environ["DELTA_EXAMPLES"]


def by_hand(what: str, dag_id: str, run_id: str) -> None:
    """Do what Airflow's API does when somebody sets a state."""
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed, set_dag_run_state_to_success, set_state
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        serialized = SerializedDagModel.get_dag(dag_id, session=session)
        if what == "run":
            set_dag_run_state_to_failed(dag=serialized, run_id=run_id, commit=True, session=session)
        elif what == "run success":
            set_dag_run_state_to_success(dag=serialized, run_id=run_id, commit=True, session=session)
        else:
            commit = serialized.get_task(what)
            set_state(tasks=[commit], run_id=run_id, state=TaskInstanceState.SUCCESS, commit=True, session=session)


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def states_by_hand():
    """One stage, and a task after it in which it happens."""
    with delta_transaction("txn", table=f"{ROOT}/states_by_hand") as txn:

        @task
        def write(transaction, ti=None):
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = staging_path(transaction, ti)
            os.makedirs(path.removeprefix("file://"))
            pq.write_table(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), f"{path.removeprefix('file://')}/part-0.parquet")
            return path

        @task
        def check(staged, *, dag_run=None):
            hand = (dag_run.conf or {}).get("hand")
            if hand == "skip":
                raise AirflowSkipException
            if hand in ("run", "run success", "txn.commit"):
                by_hand(hand, dag_run.dag_id, dag_run.run_id)
            if hand in ("run", "fail"):
                raise AirflowFailException("as a task that is killed")

        @task
        def parts(_checked, *, dag_run=None):
            return [] if (dag_run.conf or {}).get("hand") == "nothing" else [1]

        @task
        def look(part):
            return part

        @task.short_circuit
        def gate(_looked, *, dag_run=None):
            return (dag_run.conf or {}).get("hand") != "gate"

        stage = DeltaStageFilesOperator(task_id="stage", path=write(txn.transaction))
        gate(look.expand(part=parts(check(stage.output))))


@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False)
def tested():
    """A task that changes a table, for ``airflow tasks test``."""
    DeltaAlterTableOperator(
        task_id="alter",
        table=f"{ROOT}/tested",
        changes=[{"change": "SetProperties", "properties": {"of": "{{ run_id }}"}}],
    )


states_by_hand()
tested()
