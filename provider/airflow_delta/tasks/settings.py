"""What ``default_args`` do not decide about tasks that publish, and about what they hand to each other.

``default_args`` of a Dag, a task group or ``delta_transaction`` are meant for tasks in general. A trigger rule among them would
have a commit publish what an audit has refused; ``do_xcom_push=False`` would lose the handle and the staged writes; outlets would
emit events before anything is published. So these tasks have settings of their own, which only their own arguments change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import TriggerRule

from airflow_delta.dag_checks import HANDS_ON
from airflow_delta.dag_rules.arguments import parent_defaults

_WITHOUT_OUTLETS = ("start", "job", "audit", "audit_publication", "abort")

_CLEANS_UP = {"depends_on_past": False, "wait_for_downstream": False}
"""Whether leftovers of a run are deleted does not depend on other runs."""

_FIRST = "airflow_delta.plugins.priorities.EndsTransaction"
"""Weight rule of what ends a transaction, by its name: the scheduler alone loads it."""


def own_settings(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a task that are its own unless its author names others.

    Constructors give them to ``BaseOperator``: from ``default_args``, Airflow then fills in only what is still missing.

    :param given: its arguments; ``task_group`` is the group that it is in.
    """
    role = getattr(operator_class, "transaction_role", None)
    group = next(transaction_groups(given.get("task_group")), None)
    is_stage = role == "stage" and (group is not None or given.get("transaction") is not None)
    settings: dict[str, Any] = {}
    if role in HANDS_ON:
        settings["do_xcom_push"] = True
    if role in ("start", "commit", "abort") or (_publishes(operator_class) and not is_stage):
        settings["trigger_rule"] = TriggerRule.ALL_SUCCESS
    if role == "abort":
        settings |= _CLEANS_UP
    if role in ("commit", "abort") and not {"priority_weight", "weight_rule"} & {*given, *(given.get("default_args") or {})}:
        settings["weight_rule"] = _FIRST
    if role in _WITHOUT_OUTLETS or (is_stage and "outlets" not in getattr(group, "stage_kwargs", {})):
        settings["outlets"] = []
    return settings


def with_own_settings(operator_class: Any, made: Any, named: Mapping[str, Any]) -> Any:
    """Return what ``partial`` of an operator has made, with the settings that are its own.

    :param named: the arguments that the author gave it.
    """
    given = {**made.kwargs, "transaction": named.get("transaction")}
    made.kwargs.update({name: value for name, value in own_settings(operator_class, given).items() if name not in named})
    take_own_mode(operator_class, made.kwargs)
    return made


def take_own_mode(operator_class: Any, partial: dict[str, Any], **place: Any) -> None:
    """Give the arguments of a task to be mapped the ``mode`` of :func:`with_own_mode`.

    :param place: its ``dag`` and ``task_group``, if its arguments do not say.
    """
    found = with_own_mode(operator_class, {**partial, **place})
    partial.pop("mode", None)
    if "mode" in found:
        partial["mode"] = found["mode"]


SENSOR_MODES = ("poke", "reschedule")


def with_own_mode(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task with the ``mode`` that is meant for stages: sensors have a parameter of that name, too.

    So ``stage_kwargs`` pass it to stages alone, and a sensor's mode in ``default_args`` does not become the mode of a stage.

    :param given: its arguments, with those from ``default_args``; ``dag`` and ``task_group`` are where it is.
    """
    if not getattr(operator_class, "has_write_mode", False):
        return dict(given)
    mode, around = given.get("mode"), (given.get("task_group"), given.get("dag"))
    if mode in SENSOR_MODES and any(mode == (getattr(each, "default_args", None) or {}).get("mode") for each in around):
        mode = None
    if mode is not None:
        return dict(given)
    groups = transaction_groups(given.get("task_group"))
    mode = next((each.stage_kwargs["mode"] for each in groups if "mode" in each.stage_kwargs), None)
    found = {name: value for name, value in given.items() if name != "mode"}
    return found if mode is None else {**found, "mode": mode}


WATCHER_SETTINGS: Mapping[str, Any] = {
    "outlets": [],
    "inlets": [],
    "on_execute_callback": None,
    "on_success_callback": None,
    **_CLEANS_UP,
}
"""Settings of the task that fails the run if the abort task fails; with callbacks it would need a worker."""


def _publishes(operator_class: Any) -> bool:
    """Return whether a task that is not a stage commits what readers of the table see."""
    return bool(getattr(operator_class, "emits_table", False))


def transaction_groups(group: Any) -> Iterator[Any]:
    """Yield the groups of transactions that a task group is in, the nearest first; itself, if it is one."""
    while group is not None:
        if getattr(group, "holds_transaction", False):
            yield group
        group = group.parent_group


def withdraw_defaults_outlets(task: Any) -> None:
    """Take from a mapped stage the outlets that it has from ``default_args``: the commit emits."""
    outlets = task.partial_kwargs.get("outlets") if task.is_mapped else None
    if outlets and outlets == parent_defaults(task).get("outlets"):
        task.partial_kwargs["outlets"] = []
