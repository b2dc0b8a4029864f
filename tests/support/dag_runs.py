"""A Dag run: gone on with as the scheduler does, and what the database has of it afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock


@contextmanager
def only_its_file(dag: Any) -> Iterator[None]:
    """Let ``dag.test()`` parse the file of the Dag alone, not its whole bundle: with fifty Dags that takes longer than their run.

    Not where the run needs other Dags in the database.
    """
    from airflow.dag_processing import dagbag

    class OneFile(dagbag.BundleDagBag):
        def collect_dags(self, dag_folder: Any = None, *arguments: Any, **options: Any) -> None:
            if Path(dag.fileloc).is_relative_to(self.dag_folder):
                super().collect_dags(dag.fileloc, *arguments, **options)

    with mock.patch.object(dagbag, "BundleDagBag", OneFile):
        yield


def scheduler_dag(dag: Any) -> Any:
    """Return a Dag as the scheduler has it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def run_to_end(dag_run: Any, dag: Any, session: Any) -> None:
    """Run what can run of a Dag run, in this process, until it has ended."""
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.state import DagRunState, TaskInstanceState

    from airflow_delta.airflow_internals.dag_runs import count_try

    dag_run.state = DagRunState.RUNNING
    session.commit()
    while dag_run.state == DagRunState.RUNNING:
        session.expire_all()
        for ti in dag_run.update_state(session=session)[0]:
            count_try(ti)
            ti.state = TaskInstanceState.SCHEDULED
        session.commit()
        scheduled = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == TaskInstanceState.SCHEDULED]
        for ti in scheduled:
            _run_task(ti=ti, task=dag.task_dict[ti.task_id])


@contextmanager
def answer_when_asked(dag_id: str, choice: str | None, *, by: str) -> Iterator[None]:
    """Answer the human-in-the-loop task of a Dag's run as Airflow's REST API does, or with ``None`` as its timeout does."""
    ended = threading.Event()

    def answer() -> None:
        from sqlalchemy.exc import OperationalError

        # As long as it asks: what the run writes of the task at that moment can undo the first answer.
        while not ended.wait(0.2):
            with suppress(OperationalError):  # SQLite, while the run writes
                _answer(dag_id, choice, by)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _answer(dag_id: str, choice: str | None, by: str) -> None:
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.trigger import handle_event_submit
    from airflow.sdk.timezone import utcnow
    from airflow.triggers.base import TriggerEvent
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        asked = select(TaskInstance).where(TaskInstance.dag_id == dag_id, TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
        ti = session.scalar(asked)
        if ti is None:
            return
        payload: dict[str, Any] = {"error": "too late", "error_type": "timeout"}
        if choice is not None:
            detail = session.scalar(select(HITLDetail).where(HITLDetail.ti_id == ti.id))
            detail.responded_by = {"id": by, "name": by}
            detail.responded_at, detail.chosen_options, detail.params_input = utcnow(), [choice], {}
            payload = detail.as_resume_event_payload()
        handle_event_submit(TriggerEvent(payload), task_instance=ti, session=session)


class Run:
    """A finished Dag run: states, XComs and asset events, read from the database."""

    def __init__(self, dag_run) -> None:
        from airflow.utils.session import create_session

        self.dag_id, self.run_id, self.state = dag_run.dag_id, dag_run.run_id, str(getattr(dag_run.state, "value", dag_run.state))
        with create_session() as session:
            found = session.merge(dag_run).get_task_instances(session=session)
            self.tasks = {(ti.task_id, ti.map_index): (str(ti.state), ti.try_number) for ti in found}

    def state_of(self, task_id: str, map_index: int = -1) -> str:
        return self.tasks[task_id, map_index][0]

    def tries_of(self, task_id: str, map_index: int = -1) -> int:
        return self.tasks[task_id, map_index][1]

    def xcom(self, task_id: str, map_index: int = -1):
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        from airflow_delta.airflow_internals.database import of_latest_tries

        with create_session() as session:
            row = session.scalar(
                of_latest_tries(select(XComModel)).where(
                    XComModel.dag_id == self.dag_id,
                    XComModel.run_id == self.run_id,
                    XComModel.task_id == task_id,
                    XComModel.map_index == map_index,
                    XComModel.key == "return_value",
                )
            )
            return None if row is None else XComModel.deserialize_value(row)

    def events(self) -> list[tuple[str, dict]]:
        """URI of the asset and extra of the events of this run, oldest first."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            rows = session.execute(
                select(AssetModel.uri, AssetEvent.extra)
                .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
                .where(AssetEvent.source_dag_id == self.dag_id, AssetEvent.source_run_id == self.run_id)
                .order_by(AssetEvent.id)
            )
            return [(uri, dict(extra)) for uri, extra in rows]
