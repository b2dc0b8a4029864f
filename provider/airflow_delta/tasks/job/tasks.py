"""The two tasks around a job, made of the operator whose Spark work it is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.job.audit import CollectsAudit, PlansAudit
from airflow_delta.tasks.job.collect import CollectsJob, DeltaCollectJobOperator
from airflow_delta.tasks.job.plan import PlansJob

if TYPE_CHECKING:
    from airflow_delta.tasks.base import DeltaOperator

_OF_EVERY_STAGE = ("transaction", "after", "delta_conn_id", "table")
"""Arguments that the task after the job needs of any operator."""


@functools.cache
def job_plan(operator_class: type[Any]) -> type[DeltaOperator]:
    """Return the class of the task before the job."""
    return _mixed(PlansAudit if _audits(operator_class) else PlansJob, operator_class)


@functools.cache
def job_collect(operator_class: type[Any]) -> type[DeltaOperator]:
    """Return the class of the task after the job."""
    if _audits(operator_class):
        return _mixed(CollectsAudit, operator_class)
    return _mixed(CollectsJob, operator_class) if _has_own_collect(operator_class) else DeltaCollectJobOperator


def collect_arguments(operator_class: type[Any], plan: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task after the job.

    :param plan: the task before it.
    :param given: arguments of the operator.
    """
    if _audits(operator_class):
        return {**given, "planned": plan.output, "planned_by": plan.task_id}
    whole = _has_own_collect(operator_class)
    own = given if whole else {name: value for name, value in given.items() if name in _OF_EVERY_STAGE}
    return {**own, "planned": plan.output}


def _audits(operator_class: type[Any]) -> bool:
    return getattr(operator_class, "transaction_role", None) == "audit"


def _has_own_collect(operator_class: type[Any]) -> bool:
    return hasattr(operator_class, "collect_job")


def _mixed(part: type[Any], operator_class: type[Any]) -> type[DeltaOperator]:
    return type(operator_class.__name__, (part, operator_class), {"__doc__": operator_class.__doc__, "__module__": __name__})
