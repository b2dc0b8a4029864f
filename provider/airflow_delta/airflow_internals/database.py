"""Airflow's metadata database, which the pages and the test kit read.

Waits for: a REST API that answers for many runs at once, with the earlier tries of tasks, the answers of people, and XComs of
several tasks. Airflow moves these tables without notice, so each is imported by itself, when a caller imports it from here: what
a page cannot read it leaves out, and says so.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sqlalchemy import and_, select

from airflow_delta.light_dataclasses import dataclass

_MODULES = {
    "AssetEvent": "airflow.models.asset",
    "AssetModel": "airflow.models.asset",
    "Connection": "airflow.models.connection",
    "DagModel": "airflow.models.dag",
    "DagRun": "airflow.models.dagrun",
    "Deadline": "airflow.models.deadline",
    "DeadlineAlert": "airflow.models.deadline_alert",
    "HITLDetail": "airflow.models.hitl",
    "Pool": "airflow.models.pool",
    "RenderedTaskInstanceFields": "airflow.models.renderedtifields",
    "SerializedDagModel": "airflow.models.serialized_dag",
    "TaskInstance": "airflow.models.taskinstance",
    "TaskOutletAssetReference": "airflow.models.asset",
    "TaskStateStoreModel": "airflow.models.task_state_store",
    "XComModel": "airflow.models.xcom",
    "create_session": "airflow.utils.session",
}


def __getattr__(name: str) -> Any:
    """Return what Airflow has under this name.

    :raises AttributeError: if this Airflow no longer has it; as an import it is an ``ImportError``.
    """
    if name not in _MODULES:
        raise AttributeError(name)
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ImportError as error:
        raise AttributeError(f"this Airflow has no {_MODULES[name]}.{name}") from error


@dataclass(frozen=True, slots=True)
class Tries:
    """Where Airflow keeps tries of task instances, and the answers of people to them.

    :param table: the table of the tries.
    :param id: column with the id of a try.
    :param answers: table of the answers.
    :param answered: column with the try that an answer is of.
    :param archived: the table also has the latest tries, and shows only these unless asked.
    """

    table: Any
    id: Any
    answers: Any
    answered: Any
    archived: bool = False

    def select(self, *columns: Any) -> Any:
        """Return a query of columns of these tries."""
        wanted = select(*columns)
        if not self.archived:
            return wanted
        return wanted.where(self.table.working_set.is_(None)).execution_options(include_all_attempts=True)


def latest_tries() -> Tries:
    """Return where the latest try of each task instance is."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance

    return Tries(TaskInstance, TaskInstance.id, HITLDetail, HITLDetail.ti_id)


def earlier_tries() -> Tries:
    """Return where the tries before the latest are: since 3.4, all tries are rows of one table."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance

    if hasattr(TaskInstance, "working_set"):
        return Tries(TaskInstance, TaskInstance.id, HITLDetail, HITLDetail.ti_id, archived=True)
    from airflow.models.hitl_history import HITLDetailHistory
    from airflow.models.taskinstancehistory import TaskInstanceHistory

    tries = TaskInstanceHistory
    return Tries(tries, tries.task_instance_id, HITLDetailHistory, HITLDetailHistory.ti_history_id)


def stored_map_index() -> Any:
    """Return the column of a task state's map index: since 3.4 it is an index of a region."""
    from airflow.models.task_state_store import TaskStateStoreModel

    column = getattr(TaskStateStoreModel, "map_index", None)
    return TaskStateStoreModel.region_index if column is None else column


def of_latest_tries(xcoms: Any) -> Any:
    """Return a query of XComs without those of earlier tries, which Airflow keeps since 3.4."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel

    tried = getattr(XComModel, "task_instance_id", None)
    return xcoms if tried is None else xcoms.join(TaskInstance, tried == TaskInstance.id)


def rendered_by(fields: Any, tries: Any) -> Any:
    """Return the condition by which rendered fields are those of a latest try: since 3.4, each try has its own."""
    tried = getattr(fields, "task_instance_id", None)
    if tried is not None:
        return tried == tries.id
    return and_(*(getattr(fields, name) == getattr(tries, name) for name in ("dag_id", "run_id", "task_id", "map_index")))


def make_database() -> None:
    """Make the tables of a new database, as ``airflow db migrate`` does."""
    from airflow.utils.db import initdb

    initdb()
