"""Real Dag runs, as far as they go without a scheduler: run, cleared, and answered, in Airflow's own database."""

from __future__ import annotations

from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any

BUNDLE = "ui-runs"


class Runs:
    """Runs of the Dags beside this file.

    :param bundle: the Dag bundle that they belong to.
    """

    def __init__(self, bundle: str = BUNDLE) -> None:
        from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
        from airflow.models.dagbundle import DagBundleModel
        from airflow.utils.session import create_session

        with create_session() as session:
            session.merge(DagBundleModel(name=bundle))
        folder = Path(__file__).parent / "dags"
        self.bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name=bundle)
        if self.bag.import_errors:
            raise RuntimeError(str(self.bag.import_errors))
        sync_bag_to_db(self.bag, bundle, None)

    def run(self, dag_id: str, day: int, **conf: Any) -> str:
        """Run a Dag for a day and the one after it, and return the run's id."""
        from airflow.utils.session import create_session

        with create_session() as session:
            dag_run = self._create(dag_id, day, conf, session)
            self._go_on(dag_run, session)
            return str(dag_run.run_id)

    def begin(self, dag_id: str, day: int, **conf: Any) -> str:
        """Begin a run without waiting for anything: each sensor looks once. Return the run's id."""
        from airflow.utils.session import create_session

        with create_session() as session:
            run_id = str(self._create(dag_id, day, conf, session).run_id)
        self.look(dag_id, run_id)
        return run_id

    def look(self, dag_id: str, run_id: str) -> None:
        """Let the sensors of a run look once more, those in the mode ``reschedule``."""
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState

        with create_session() as session:
            dag_run = self._dag_run(dag_id, run_id, session)
            for ti in dag_run.get_task_instances(session=session):
                if ti.state not in (None, TaskInstanceState.UP_FOR_RESCHEDULE):
                    continue
                ti.try_number = 1
                ti.state = TaskInstanceState.SCHEDULED
                session.commit()
                _run_task(ti=ti, task=self.bag.dags[dag_id].task_dict[ti.task_id])
            session.expire_all()
            dag_run.update_state(session=session)

    def _create(self, dag_id: str, day: int, conf: Any, session: Any) -> Any:
        from airflow.models.dagrun import get_or_create_dagrun
        from airflow.utils.types import DagRunTriggeredByType

        date = datetime(2026, 3, day, tzinfo=UTC)
        return get_or_create_dagrun(
            dag=self._scheduler_dag(dag_id, session),
            run_id=f"manual__2026-03-{day:02}",
            logical_date=date,
            data_interval=(date, date.replace(day=day + 1)),
            run_after=date,
            start_date=datetime.now(UTC),
            conf=conf,
            triggered_by=DagRunTriggeredByType.TEST,
            triggering_user_name="nobody",
            session=session,
        )

    def clear(self, dag_id: str, run_id: str, *task_ids: str, go_on: bool = True, **conf: Any) -> None:
        """Clear tasks, all without any given, as Airflow does, and run what is to be run again."""
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session

        with create_session() as session:
            dag_run = self._dag_run(dag_id, run_id, session)
            dag_run.conf = conf
            found = [ti for ti in dag_run.get_task_instances(session=session) if ti.task_id in task_ids or not task_ids]
            clear_task_instances(found, session)
            if go_on:
                self._go_on(dag_run, session)

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, user: str) -> None:
        """Answer as a user, by the function behind Airflow's API, and go on."""
        from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
        from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
        from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.session import create_session

        who = SimpleAuthManagerUser(username=user, role="admin")
        payload, more = UpdateHITLDetailPayload(chosen_options=[option]), {}
        if "dag_bag" in signature(update_hitl_detail).parameters:  # since 3.4
            more["dag_bag"] = DBDagBag()
        with create_session() as session:
            update_hitl_detail(dag_id, run_id, task_id, payload, who, session, **more)
        with create_session() as session:
            self._go_on(self._dag_run(dag_id, run_id, session), session)

    def _dag_run(self, dag_id: str, run_id: str, session: Any) -> Any:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import select

        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        dag_run.dag = self._scheduler_dag(dag_id, session)
        return dag_run

    def _scheduler_dag(self, dag_id: str, session: Any) -> Any:
        """Return a Dag as the scheduler has it, with the deadlines that are in the database."""
        from airflow.models.serialized_dag import SerializedDagModel

        return SerializedDagModel.get(dag_id, session=session).dag

    def _go_on(self, dag_run: Any, session: Any) -> None:
        """Run what can run, until the run has ended or waits for somebody."""
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.state import DagRunState, TaskInstanceState

        from airflow_delta.airflow_internals.dag_runs import count_try

        dag = self.bag.dags[dag_run.dag_id]
        dag_run.state = DagRunState.RUNNING
        session.commit()
        while dag_run.state == DagRunState.RUNNING:
            session.expire_all()
            for ti in dag_run.update_state(session=session)[0]:
                count_try(ti)
                ti.state = TaskInstanceState.SCHEDULED
            session.commit()
            found = dag_run.get_task_instances(session=session)
            scheduled = [ti for ti in found if ti.state == TaskInstanceState.SCHEDULED]
            if not scheduled and any(ti.state == TaskInstanceState.AWAITING_INPUT for ti in found):
                return
            for ti in scheduled:
                _run_task(ti=ti, task=dag.task_dict[ti.task_id])
