"""What the listener does in a worker's process: with the rooms of tasks, which other processes with plugins do not load."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.checks.seen import note_seen
from airflow_delta.tasks.ended import warn_of_abort
from airflow_delta.tasks.job.inside import forget_other_plan, tell_of_job

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)


def begins(context: Context, task: Any, *, is_own: bool) -> None:
    """Prepare a task that begins; never fails.

    :param is_own: the task is one of this provider.
    """
    try:
        forget_other_plan(context)
    except Exception:
        logger.warning("Could not look at what this task keeps of another plan of its job", exc_info=True)
    try:
        note_seen(context)
    except Exception:
        logger.warning("Could not note what this task has before it", exc_info=True)
    try:
        if int(context["ti"].try_number) > 1 and not is_own:
            warn_of_abort(task, context)
    except Exception:
        logger.debug("Could not look at the transaction of this task", exc_info=True)


def failed(context: Context, error: BaseException) -> BaseException:
    """Return why a task has failed: what its job reports, if there is one, else the error; never fails."""
    try:
        return tell_of_job(context) or error
    except Exception:
        logger.warning("Could not read what the job of this task reports", exc_info=True)
        return error
