"""What ``default_args`` do not decide about tasks that publish, and about what they hand to each other.

``default_args`` of a Dag, a task group or ``delta_transaction`` are meant for tasks in general. A trigger rule among them would
have a commit publish what an audit has refused; ``do_xcom_push=False`` would lose the handle and the staged writes; outlets would
emit events before anything is published. So these tasks have settings of their own, which only their own arguments change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.definitions.mappedoperator import OperatorPartial

AUTHORS_RISK = frozenset(
    TriggerRule(rule) for rule in ("all_done", "all_done_min_one_success", "all_done_setup_success", "all_failed", "none_skipped")
)
"""Trigger rules that, named on a commit, say that it publishes although a task before it has failed."""

_NO_WAIT = frozenset(TriggerRule(rule) for rule in ("always", "one_success", "one_failed", "one_done"))
"""Trigger rules that do not wait for every task before."""

_HANDS_ON = {
    "start": "the handle, which every stage and the commit need",
    "stage": "its staged write, which the commit publishes",
    "commit": "its result, by which the abort task knows that it is published",
}

_CLEANS_UP = {"depends_on_past": False, "wait_for_downstream": False}
"""Whether leftovers of a run are deleted does not depend on other runs."""


class OwnDefaults(BaseOperator):
    """Base of the tasks with settings that ``default_args`` do not change, mapped or not.

    Their constructors give ``BaseOperator`` what :func:`own_settings` returns: Airflow then fills in only what is still missing.
    """

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:  # type: ignore[override]
        """Return a task to be mapped; ``default_args`` change its own settings no more than those of any other."""
        made = super().partial(**kwargs)
        given = {**made.kwargs, "transaction": kwargs.get("transaction")}
        made.kwargs.update({name: value for name, value in own_settings(cls, given).items() if name not in kwargs})
        return made


def own_settings(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a task that are its own unless its author names others.

    :param given: its arguments; ``task_group`` is the group that it is in.
    """
    role = getattr(operator_class, "transaction_role", None)
    group = next(_transaction_groups(given.get("task_group")), None)
    is_stage = role == "stage" and (group is not None or given.get("transaction") is not None)
    settings: dict[str, Any] = {}
    if role in _HANDS_ON:
        settings["do_xcom_push"] = True
    if role in ("start", "commit", "abort") or (_publishes(operator_class) and not is_stage):
        settings["trigger_rule"] = TriggerRule.ALL_SUCCESS
    if role == "abort":
        settings |= _CLEANS_UP
    if role in ("start", "audit", "abort") or (is_stage and "outlets" not in getattr(group, "stage_kwargs", {})):
        settings["outlets"] = []
    return settings


WATCHER_SETTINGS: Mapping[str, Any] = {"outlets": [], **_CLEANS_UP}
"""Settings of the task that fails the run if the abort task fails; the group sets its trigger rule."""


def _publishes(operator_class: Any) -> bool:
    """Return whether a task that is no stage commits what readers of the table see."""
    return bool(getattr(operator_class, "emits_table", False))


def _transaction_groups(group: Any) -> Iterator[Any]:
    while group is not None:
        if getattr(group, "holds_transaction", False):
            yield group
        group = group.parent_group


def setting_problems(task: Any) -> Iterator[str]:
    """Yield the settings of a task, as its author names them, with which its transaction does not work."""
    operator_class = getattr(task, "operator_class", None) or type(task)
    role = getattr(operator_class, "transaction_role", None)
    in_transaction = role in ("start", "commit") or _setting(task, "transaction") is not None
    if role in _HANDS_ON and in_transaction and _setting(task, "do_xcom_push") is False:
        yield (
            f"do_xcom_push=False, but {'a' if role == 'stage' else 'the'} {role} task hands on {_HANDS_ON[role]}, as XCom. "
            "Leave do_xcom_push out."
        )
    rule = _setting(task, "trigger_rule")
    if role == "commit" and rule in _NO_WAIT:
        yield (
            f"trigger_rule={TriggerRule(rule).value!r} does not wait for every task before the commit: it would race its "
            "audits, and chance would decide whether rows that they refuse are published. If stages may be skipped (with "
            "allow_skipped=True), use 'none_failed' or 'none_failed_min_one_success'; to publish whatever other tasks say, "
            "'all_done'."
        )
    # Airflow maps a decorated function without asking its operator.
    if task.is_mapped and _publishes(operator_class) and not in_transaction:
        default = _parent_defaults(task).get("trigger_rule", TriggerRule.ALL_SUCCESS)
        if default != TriggerRule.ALL_SUCCESS and rule == default:
            yield (
                f"trigger_rule={TriggerRule(rule).value!r} comes from default_args, and the task commits to a table. Whether it "
                "does so although a task before it failed is not left to defaults: take trigger_rule out of them, and name it on "
                "the tasks that need it."
            )


def withdraw_defaults_outlets(task: Any) -> None:
    """Take from a mapped stage the outlets that it has from ``default_args``: the commit emits."""
    outlets = task.partial_kwargs.get("outlets") if task.is_mapped else None
    if outlets and outlets == _parent_defaults(task).get("outlets"):
        task.partial_kwargs["outlets"] = []


def _parent_defaults(task: Any) -> dict[str, Any]:
    """Return the ``default_args`` of the Dag and of the group of a task."""
    dag, group = task.get_dag(), task.task_group
    return {**(dag.default_args if dag is not None else {}), **((group.default_args or {}) if group is not None else {})}


def _setting(task: Any, name: str) -> Any:
    return task.partial_kwargs.get(name) if task.is_mapped else getattr(task, name, None)
