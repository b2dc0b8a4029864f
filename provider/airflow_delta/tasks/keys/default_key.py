"""The transaction key of a run whose author gives none: Dag, group or task, run, and the mapped value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.identity import map_index
from airflow_delta.tasks.keys.mapped_value import instance_name

if TYPE_CHECKING:
    from airflow.sdk import Context


def default_transaction_key(context: Context) -> str:
    """Return the default transaction key: Dag id, group id, run id, and the mapped value.

    The group is that of ``delta_transaction``, whose start task is ``<group id>.start``; any other start task counts by its own
    id, since a task group may hold several. Without mapping the key ends in ``-1``.
    """
    ti = context["ti"]
    name = "-1"
    if map_index(ti) >= 0:
        name = instance_name(context)
    return _key(ti, name)


def default_key_prefix(dag_id: str, start_task_id: str, run_id: str) -> str:
    """Return the prefix of all default keys of a start task in one run."""
    return f"{dag_id}/{start_task_id.removesuffix('.start')}/{run_id}/"


def former_keys(context: Context, key: str | None) -> tuple[str, ...]:
    """Return the default keys, by map index, that earlier versions of this provider gave to mapped instances.

    :param key: the author's key.
    """
    ti = context["ti"]
    return () if key is not None or map_index(ti) < 0 else tuple(_key(ti, str(index)) for index in {0, map_index(ti)})


def _key(ti: Any, name: str) -> str:
    return default_key_prefix(ti.dag_id, ti.task_id, ti.run_id) + name
