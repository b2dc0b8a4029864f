"""Events by partition: which tasks could have them, and have no asset that Airflow could give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.sdk import Asset

from airflow_delta.dag_rules.arguments import UNKNOWN, argument, parent_defaults
from airflow_delta.dag_rules.wiring import role_of


def events_problem(events: Any, outlets: Any) -> str | None:
    """Return why no outlet can have events by partition: Airflow gives the events of an alias no keys of their own.

    :param events: ``partition_events`` of a task.
    """
    if events is None or events is False or any(isinstance(outlet, Asset) for outlet in outlets or ()):
        return None
    return (
        "it has partition_events, but no asset as outlet that could have them: a table with a templated name, or of a mapped "
        "task, has none by default, and Airflow gives the events of an AssetAlias no partition keys. Pass "
        "outlets=[delta_asset(...)]."
    )


def event_problems(task: Any) -> Iterator[str]:
    """Yield events by partition that the task's own arguments ask for, and that Airflow could not have."""
    events, role = argument(task, "partition_events"), role_of(task)
    if events is UNKNOWN or (role != "commit" and argument(task, "transaction") is not None):
        return  # a stage: its commit tells
    default = parent_defaults(task).get("partition_events")  # meant for tasks in general
    if events != default and (problem := events_problem(events, argument(task, "outlets") or ())) is not None:
        yield problem
