"""Go on with a Dag run, as the scheduler does."""

from __future__ import annotations

from typing import Any


def scheduler_dag(dag: Any) -> Any:
    """Return a Dag as the scheduler has it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def run_to_end(dag_run: Any, dag: Any, session: Any) -> None:
    """Run what can run of a Dag run, in this process, until it has ended."""
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.state import DagRunState, TaskInstanceState

    dag_run.state = DagRunState.RUNNING
    session.commit()
    while dag_run.state == DagRunState.RUNNING:
        session.expire_all()
        for ti in dag_run.update_state(session=session)[0]:
            ti.try_number += 1
            ti.state = TaskInstanceState.SCHEDULED
        session.commit()
        scheduled = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == TaskInstanceState.SCHEDULED]
        for ti in scheduled:
            _run_task(ti=ti, task=dag.task_dict[ti.task_id])
