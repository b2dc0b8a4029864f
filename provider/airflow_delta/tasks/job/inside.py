"""The author's tasks in the block of a job: what keeps them with the plan at hand, and what their logs say when they fail.

They are operators of other providers. Their logs end with what a service says of a job; why the job failed is in its report,
which the abort after it deletes. So the listener of the plugin reads the report in the failed task itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.exceptions import DeltaError, StagingException
from airflow_delta.tasks.dag_file import task_definition
from airflow_delta.tasks.job.plan import PLANNED
from airflow_delta.tasks.trust.handle import open_transaction

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.request import StageReport

logger = logging.getLogger(__name__)

PLAN_KEY = "delta_job_plan"
"""Key in a task's state store: the directory of the plan that the task has last begun to work on."""


def job_around(definition: Any) -> Any:
    """Return the job (:class:`~airflow_delta.job_groups.DeltaJobGroup`) in whose block a task is; ``None`` if in none.

    :param definition: the task in the Dag file.
    """
    group = getattr(definition, "task_group", None)
    while group is not None and not getattr(group, "holds_job", False):
        group = group.parent_group
    return None if group is None or definition in (group.plan, group.collect) else group


def forget_other_plan(context: Context) -> None:
    """Have a task that begins for another plan than before forget what it keeps in its state store.

    A durable operator keeps the id of its job there, across a clear, too: it would take the success of the job of the old plan
    for that of the new one, which would never run.
    """
    store: Any = context.get("task_state_store")
    directory = _planned(context, job_around(task_definition(context["task"], context)))
    if store is None or directory is None:
        return
    if (known := store.get(PLAN_KEY)) == directory:
        return
    if known is not None or int(context["ti"].try_number) > 1:
        store.clear()
    store.set(PLAN_KEY, directory)


def tell_of_job(context: Context) -> DeltaError | None:
    """Say in the log of a failed task what is known of its job; return the error of the job, if that failed.

    :return: ``None`` as :func:`error_of_job` does.
    """
    job = job_around(task_definition(context["task"], context))
    directory = _planned(context, job)
    if directory is None:
        return None
    try:
        left = _reports_left(context, job, directory)
    except StagingException as gone:  # its transaction has ended
        logger.warning("What the job reports cannot be read: %s", _first_line(gone))
        return None
    logger.info("::endgroup::")  # of Airflow, whose page shows the lines of a group only on a click
    error = _failure(left)
    if error is not None:
        logger.error("The job itself reports: %s", _first_line(error))
    elif left:
        logger.warning(
            "Although this task failed, a run of its job has staged everything for %s. Another try of this task finds that, and "
            "has nothing left to do; without one, nothing is published.",
            directory,
        )
    else:
        logger.warning("No run of the job has left a report for %s: see the service's own log of it.", directory)
    return error


def error_of_job(context: Context) -> DeltaError | None:
    """Return the typed error that the job of a failed task has left in its report.

    :return: ``None`` if the task is not in the block of a job, or none of its runs has left an error, or one has staged.
    """
    job = job_around(task_definition(context["task"], context))
    directory = _planned(context, job)
    return None if directory is None else _failure(_reports_left(context, job, directory))


def _failure(left: Sequence[StageReport | DeltaError]) -> DeltaError | None:
    errors = [each for each in left if isinstance(each, DeltaError)]
    return errors[-1] if errors and len(errors) == len(left) else None


def _first_line(error: DeltaError) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _planned(context: Context, job: Any) -> str | None:
    """Return the directory of the attempt that is planned for a job; ``None`` if none is, or there is no job."""
    if job is None:
        return None
    planned = context["task"].render_template(job.plan.output, context)
    directory = planned.get(PLANNED) if isinstance(planned, Mapping) else None
    return directory if isinstance(directory, str) else None


def _reports_left(context: Context, job: Any, directory: str) -> list[StageReport | DeltaError]:
    collect = job.collect
    names = ("transaction", "table", "delta_conn_id")
    given = {name: collect.render_template(getattr(collect, name), context) for name in names}
    log, handle = open_transaction(SimpleNamespace(task_id=context["ti"].task_id, changes_table=False, **given), context)
    request = engine.read_request(log, directory)
    if request.transaction_id != handle.transaction_id or request.directory != directory:
        raise handle.error(StagingException, f"The plan of the job, {directory}, is of transaction {request.transaction_id}.")
    return engine.reports_left(log, request)
