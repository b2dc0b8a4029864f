"""Whether every task between start and commit has succeeded or was skipped, which the commit asks Airflow before it publishes.

A trigger rule looks only at the tasks right before a task. Of an audit that fails before a task that runs nevertheless
(``all_done``), the commit would not hear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.dag_rules.trigger_rules import AUTHORS_RISK
from airflow_delta.exceptions import (
    UpstreamFailedException,
)
from airflow_delta.tasks.dag_file import start_tasks
from airflow_delta.tasks.task_states import instances, name_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.contract.payloads import TransactionHandle

_LISTED = 5

_PASSED = ("success", "skipped")


def check_upstream(commit: BaseOperator, context: Context, handle: TransactionHandle, others: Sequence[str] = ()) -> None:
    """Refuse to publish if a task between start and commit failed, was not run because of that, or has not ended.

    Teardowns do not count, as for Airflow. If the commit itself names a trigger rule that accepts failures, they are only logged.

    :param others: the other tables that the commit publishes.
    :raises UpstreamFailedException: if there is such a task.
    """
    states = instances(context, tasks_between(commit, context))
    bad = [f"{name_of(*key)} ({state or 'not run yet'})" for key, state in sorted(states.items()) if state not in _PASSED]
    if not bad:
        return
    listed = f"{', '.join(bad[:_LISTED])}{', ...' if len(bad) > _LISTED else ''}"
    if commit.trigger_rule in AUTHORS_RISK:
        commit.log.warning(
            "Transaction %s: publishes although not every task since its start has succeeded, as trigger_rule=%r of %r asks: %s.",
            handle.transaction_id,
            commit.trigger_rule.value,
            commit.task_id,
            listed,
        )
        return
    with_others = f", with {len(others)} other tables," if others else ""
    raise handle.error(
        UpstreamFailedException,
        f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}){with_others} is "
        f"not published: between start and commit, not every task has succeeded: {listed}. See why, then clear the start task "
        f"with everything downstream. If a failure of these tasks is not to stop the commit, name trigger_rule='all_done' on "
        f"{commit.task_id!r} itself (commit_kwargs of its group); default_args do not decide that.",
    )


def tasks_between(commit: BaseOperator, context: Context) -> set[str]:
    """Return the tasks after the start task (if the Dag file shows it) and before the commit."""
    definition: Any = context["dag"].task_dict.get(commit.task_id)
    if definition is None:
        return set()
    before = {task.task_id for task in definition.get_flat_relatives(upstream=True) if not task.is_teardown}
    starts = start_tasks(commit, context) or ()
    return before if not starts else before & {each for start in starts for each in start.get_flat_relative_ids(upstream=False)}
