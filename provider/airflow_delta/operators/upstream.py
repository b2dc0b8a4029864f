"""What the commit asks Airflow before it publishes: whether every task between start and commit has succeeded or was skipped.

A trigger rule looks only at the tasks right before a task. Of an audit that fails before a task that runs nevertheless
(``all_done``), the commit would not hear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import UpstreamFailedException
from airflow_delta.operators.expected_stages import instances, name_of
from airflow_delta.operators.origin import start_tasks
from airflow_delta.operators.task_defaults import AUTHORS_RISK
from airflow_delta.read_versions import read_version_name

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.staging.contract import TransactionHandle

_LISTED = 5

_PASSED = ("success", "skipped")


def check_upstream(commit: BaseOperator, context: Context, handle: TransactionHandle) -> None:
    """Refuse to publish if a task between start and commit failed, was not run because of that, or has not ended.

    Teardowns do not count, as for Airflow. If the commit itself names a trigger rule that accepts failures, they are only logged.

    :raises UpstreamFailedException: if there is such a task.
    """
    states = instances(context, _between(commit, context))
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
    raise UpstreamFailedException(
        f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) is not "
        f"published: between start and commit, not every task has succeeded: {listed}. See why, then clear the start task with "
        f"everything downstream. If a failure of these tasks is not to stop the commit, name trigger_rule='all_done' on "
        f"{commit.task_id!r} itself (commit_kwargs of delta_transaction); default_args do not decide that.",
        table=handle.table,
        version=handle.read_version,
    )


def _between(commit: BaseOperator, context: Context) -> set[str]:
    """Return the tasks after the start task (if the Dag file shows it) and before the commit."""
    definition: Any = context["dag"].task_dict.get(commit.task_id)
    if definition is None:
        return set()
    before = {task.task_id for task in definition.get_flat_relatives(upstream=True) if not task.is_teardown}
    starts = start_tasks(commit, context) or ()
    return before if not starts else before & {each for start in starts for each in start.get_flat_relative_ids(upstream=False)}
