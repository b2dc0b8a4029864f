"""A Dag run that goes on one task at a time, as a test says: in between, tasks are cleared and marked as in the UI."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.utils.state import DagRunState, TaskInstanceState

from support.dag_runs import Run, scheduler_dag

_LAST = datetime(2026, 3, 1, tzinfo=UTC)
_made = 0


class SteppedRun:
    """A new run of a Dag, in Airflow's database; the scheduler's own rules say what is ready to run.

    :param conf: of the run.
    """

    def __init__(self, dag: Any, **conf: Any) -> None:
        from airflow_delta.airflow_internals.dag_runs import new_run

        global _made
        _made += 1
        self.dag, self.dag_id = dag, dag.dag_id
        _sync(dag)
        with self._session() as session:
            self.run_id = new_run(dag, _LAST + timedelta(days=_made), conf, session).run_id

    # -- what is there

    def states(self) -> dict[tuple[str, int], str | None]:
        """Return the state of each task instance."""
        with self._run() as (run, session):
            return {(ti.task_id, ti.map_index): ti.state and str(ti.state) for ti in run.get_task_instances(session=session)}

    def state_of(self, task_id: str, map_index: int = -1) -> str | None:
        return self.states()[task_id, map_index]

    def result(self) -> Run:
        """Return the run as it is now."""
        with self._run() as (run, _):
            return Run(run)

    def xcom(self, task_id: str, map_index: int = -1) -> Any:
        return self.result().xcom(task_id, map_index)

    def ready(self) -> list[tuple[str, int]]:
        """Return the task instances that the scheduler would run now; empty: the run has ended."""
        deadline, before = time.monotonic() + 30, None
        while True:
            with self._run() as (run, session):
                if run.state in ("success", "failed"):
                    return []
                run.state = DagRunState.RUNNING
                session.flush()
                if ready := sorted((ti.task_id, ti.map_index) for ti in run.update_state(session=session)[0]):
                    return ready
            # What has failed or was skipped reaches one task after the other.
            if (after := self.states()) == before:
                assert time.monotonic() < deadline, after
                time.sleep(0.1)  # until a retry is due
            before = after

    # -- what happens

    def run_task(self, task_id: str, map_index: int = -1) -> None:
        """Run a task that is ready, with its trigger if it is deferred."""
        from airflow.sdk.definitions.dag import _run_task

        from airflow_delta.airflow_internals.dag_runs import count_try

        with self._run() as (run, session):
            found = run.get_task_instances(session=session)
            (ti,) = [ti for ti in found if (ti.task_id, ti.map_index) == (task_id, map_index)]
            count_try(ti)
            ti.state = TaskInstanceState.SCHEDULED
            session.commit()
            _run_task(ti=ti, task=self.dag.task_dict[task_id], run_triggerer=True)

    def run(self, *, until: str | None = None) -> SteppedRun:
        """Run what is ready until the run has ended, or only a task and what waits for it are left."""
        while ready := [each for each in self.ready() if each[0] != until]:
            for each in ready:
                self.run_task(*each)
        return self

    def clear(self, *task_ids: str, downstream: bool = False) -> SteppedRun:
        """Clear tasks, and with ``downstream`` those after them, as the UI does."""
        from airflow_delta.airflow_internals.dag_runs import clear

        chosen = set(task_ids)
        if downstream:
            chosen |= {name for task_id in task_ids for name in self.dag.task_dict[task_id].get_flat_relative_ids(upstream=False)}
        with self._run() as (run, session):
            clear([ti for ti in run.get_task_instances(session=session) if ti.task_id in chosen], session)
        return self

    def mark(self, task_id: str, state: str) -> SteppedRun:
        """Set the state of a task, as the UI does: what failed after it is cleared."""
        with self._run() as (run, session):
            scheduler_dag(self.dag).set_task_instance_state(
                task_id=task_id, run_id=self.run_id, state=TaskInstanceState(state), session=session
            )
            if run.state in ("success", "failed"):
                run.state = DagRunState.QUEUED
        return self

    @contextmanager
    def _session(self) -> Iterator[Any]:
        from airflow.utils.session import create_session

        with create_session() as session:
            yield session

    @contextmanager
    def _run(self) -> Iterator[tuple[Any, Any]]:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import select

        with self._session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == self.dag_id, DagRun.run_id == self.run_id))
            run.dag = scheduler_dag(self.dag)
            yield run, session


_synced: set[str] = set()


def _sync(dag: Any) -> None:
    """Have Airflow's database know the Dags of a file."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    if dag.fileloc in _synced:
        return
    _synced.add(dag.fileloc)
    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = [each for each in manager.get_all_dag_bundles() if Path(dag.fileloc).is_relative_to(each.path)]
    bundle.initialize()
    bag = BundleDagBag(dag_folder=dag.fileloc, bundle_path=bundle.path, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, bundle.version)
