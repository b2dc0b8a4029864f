"""The two tasks around a job, made of the operator whose Spark work it is."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.job.audit import CollectsAudit, PlansAudit
from airflow_delta.tasks.job.collect import CollectsJob
from airflow_delta.tasks.job.plan import PlansJob

if TYPE_CHECKING:
    from airflow_delta.tasks.base import DeltaOperator


@functools.cache
def job_plan(operator_class: type[Any]) -> type[DeltaOperator]:
    """Return the class of the task before the job."""
    return _mixed(PlansAudit if audits(operator_class) else PlansJob, operator_class)


@functools.cache
def job_collect(operator_class: type[Any]) -> type[DeltaOperator]:
    """Return the class of the task after the job; its parameters are those of the operator, ``planned``, and of an audit
    ``planned_by``.
    """
    return _mixed(CollectsAudit if audits(operator_class) else CollectsJob, operator_class)


def audits(operator_class: type[Any]) -> bool:
    """Return whether an operator checks a transaction."""
    return getattr(operator_class, "transaction_role", None) == "audit"


def _mixed(part: type[Any], operator_class: type[Any]) -> type[DeltaOperator]:
    return type(operator_class.__name__, (part, operator_class), {"__doc__": operator_class.__doc__, "__module__": __name__})
