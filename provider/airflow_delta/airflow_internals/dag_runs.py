"""Dag runs without a scheduler, for the test kit: what ``dag.test()`` is made of.

Waits for: a ``dag.test()`` that goes on with a run whose process was killed, clears tasks of one that has ended, and takes the
answers of people.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.dagrun import get_or_create_dagrun
from airflow.models.taskinstance import clear_task_instances
from airflow.models.trigger import handle_event_submit
from airflow.sdk.definitions.dag import _run_task
from airflow.sdk.execution_time.xcom import XCom
from airflow.sdk.timezone import coerce_datetime, utcnow
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TriggerEvent
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from airflow_delta.airflow_internals.database import DagRun, HITLDetail, XComModel, create_session, of_latest_tries

__all__ = [
    "DagRun",
    "answer_task",
    "clear",
    "count_try",
    "create_session",
    "load_dags",
    "new_run",
    "next_try",
    "returned",
    "run_task",
    "scheduler_dag",
]


def load_dags(file: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the Dags of a file, and its import errors; without errors, Airflow's database has the Dags then."""
    manager: Any = DagBundlesManager()  # type: ignore[no-untyped-call]
    with create_session() as session:
        manager.sync_bundles_to_db(session=session)
    (bundle,) = manager.get_all_dag_bundles()
    bundle.initialize()
    bag = BundleDagBag(dag_folder=file, bundle_path=Path(bundle.path), bundle_name=bundle.name, safe_mode=False)
    if not bag.import_errors:
        sync_bag_to_db(bag, bundle.name, bundle.version)
    return dict(bag.dags), dict(bag.import_errors)


def scheduler_dag(dag: Any) -> Any:
    """Return a Dag as the scheduler has it."""
    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def new_run(dag: Any, logical_date: datetime, conf: dict[str, Any], session: Any) -> Any:
    """Make a manual run of a date, with the data interval that its timetable gives it."""
    moment = coerce_datetime(logical_date)  # timetables need pendulum's methods
    interval = coerce_to_core_timetable(dag.timetable).infer_manual_data_interval(run_after=moment)
    return get_or_create_dagrun(
        dag=scheduler_dag(dag),
        run_id=f"manual__{logical_date.isoformat()}",
        logical_date=logical_date,
        data_interval=interval,
        run_after=logical_date,
        conf=conf,
        triggered_by=DagRunTriggeredByType.TEST,
        triggering_user_name="test",
        start_date=logical_date,
        session=session,
    )


def clear(instances: list[Any], session: Any) -> None:
    """Clear task instances, as the button in the UI does."""
    clear_task_instances(instances, session)


def count_try(instance: Any) -> None:
    """Count the try that a task instance is scheduled for; since 3.4, whatever asks for another try has counted it."""
    if hasattr(type(instance), "working_set"):
        instance.try_number = max(instance.try_number, 1)
    elif instance.state != "up_for_reschedule":
        instance.try_number += 1


def next_try(instance: Any, session: Any) -> Any:
    """Return the next try of a task instance whose try has ended, which is kept as history; since 3.4 another row."""
    following = instance.prepare_db_for_next_try(session)
    return instance if following is None else following


def run_task(instance: Any, task: Any) -> None:
    """Run a scheduled task instance in this process; a deferred one with its trigger."""
    _run_task(ti=instance, task=task, run_triggerer=True)


def answer_task(instance: Any, choice: str, session: Any) -> list[str] | None:
    """Answer a human-in-the-loop task, as Airflow's REST API does.

    :return: what it offers, if that is not among it; nothing is answered then.
    """
    detail: Any = session.scalar(select(HITLDetail).where(HITLDetail.ti_id == instance.id))
    if choice not in detail.options:
        return list(detail.options)
    detail.responded_by = {"id": "tester", "name": "tester"}
    detail.responded_at, detail.chosen_options, detail.params_input = utcnow(), [choice], {}
    event = TriggerEvent(detail.as_resume_event_payload())  # type: ignore[no-untyped-call]
    handle_event_submit(event, task_instance=instance, session=session)
    session.commit()
    return None


def returned(dag_run: Any, session: Any) -> dict[tuple[str, int], Any]:
    """Return what the tasks of a run returned, by task id and map index, as other tasks get it from the XCom backend."""
    found = session.scalars(
        of_latest_tries(select(XComModel)).where(
            XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key == "return_value"
        )
    )
    return {(row.task_id, row.map_index): None if row.value is None else _handed_on(row) for row in found}


def _handed_on(row: Any) -> Any:
    try:
        return XCom.deserialize_value(row)
    except Exception:  # noqa: BLE001 - of a class that this Airflow does not read again, or a value that its backend has lost
        return row.value
