"""Whether a branch has left out the stage of a job: the task that plans it was skipped, and did not skip by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule

from airflow_delta.airflow_internals.tasks import is_skipped_by, skip_key
from airflow_delta.tasks.dag_file import argument_of, referenced_tasks, task_definition
from airflow_delta.tasks.job.plan import STAGED, UNASKED
from airflow_delta.tasks.task_states import instances

if TYPE_CHECKING:
    from airflow.sdk import Context


def is_left_out(context: Context, planned: Any) -> bool:
    """Return whether the task that plans was skipped from outside in this run; its XComs are of an earlier try then, if any.

    It skips by itself, so that the job is skipped, too, when nothing is left to do; then it leaves the staged write, or that
    an audit has no query.

    :param planned: what it has left.
    """
    definition = task_definition(context["task"], context)
    plans = referenced_tasks(argument_of(definition, "planned", None)) if definition is not None else []
    if not plans or "skipped" not in instances(context, {plans[0].task_id}).values():
        return False
    if not isinstance(planned, Mapping) or not {STAGED, UNASKED} & planned.keys():
        return True
    return _is_skipped_before(context, plans[0])


def _is_skipped_before(context: Context, plan: Any) -> bool:
    """Return whether a task right before the one that plans has skipped it, or was skipped itself."""
    before = plan.upstream_task_ids
    if plan.trigger_rule == TriggerRule.ALL_SUCCESS and "skipped" in instances(context, before).values():
        return True
    said = (each for name in before for each in context["ti"].xcom_pull(task_ids=[name], key=skip_key()) or ())
    return any(is_skipped_by(each, plan.task_id) for each in said)
