"""What a failed task leaves for the pages: its error, which Airflow itself keeps in the log of the task only.

A listener of Airflow, called on the worker when a task has failed, or begins. It does something only in Dags with a
transaction, but for any of their tasks: an extraction, an audit of one's own, and an approval end one as well as a stage does.
Airflow calls it also when one of its own processes starts, for what these can import in advance.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_delta.airflow_internals.components import forks_dag_files, forks_tasks
from airflow_delta.airflow_internals.tasks import is_running_task
from airflow_delta.task_notes import leave_note

logger = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """Import what the forks of this process would each import anew; never fails."""
    try:
        if forks_dag_files(component):
            _preload().for_dag_files()
        elif forks_tasks(component):
            _preload().for_tasks()
    except Exception:
        logger.warning("Could not import in advance what Dag files and tasks need", exc_info=True)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:  # noqa: ARG001 - as Airflow calls it
    """Log what the job of the task reports, and leave the error in the task's state store; never fails."""
    # The API server and the scheduler report what they have marked as failed, without an error.
    if not is_running_task(task_instance) or not isinstance(error, BaseException):
        return
    try:
        if not _has_transaction(task_instance.task):
            return
        context = task_instance.get_template_context()
        error = _on_worker().failed(context, error)
        if task_instance.state == "failed":  # if Airflow retries it, it has already closed the state store of this try
            leave_note(context, task_instance.task, error)
    except Exception:
        logger.warning("Could not leave the error for the table's page", exc_info=True)


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:  # noqa: ARG001 - as Airflow calls it
    """Note what is before a task of a transaction, have one in a job forget another plan, and warn of an abort; never fails."""
    try:
        if is_running_task(task_instance) and _has_transaction(task_instance.task):
            task = task_instance.task
            _on_worker().begins(task_instance.get_template_context(), task, is_own=_is_own(task))
    except Exception:
        logger.warning("Could not look at what this task has before it", exc_info=True)


def _preload() -> Any:
    from airflow_delta.plugins import preload

    return preload


def _on_worker() -> Any:
    from airflow_delta.plugins import on_worker

    return on_worker


def _is_own(task: Any) -> bool:
    return (getattr(task, "operator_class", None) or type(task)).__module__.startswith("airflow_delta.")


def _has_transaction(task: Any) -> bool:
    """Return whether the Dag of a task writes to Delta tables by tasks of this provider."""
    dag = getattr(task, "dag", None)
    classes = (getattr(each, "operator_class", None) or type(each) for each in (dag.tasks if dag is not None else (task,)))
    return any(isinstance(cls, type) and cls.__module__.startswith("airflow_delta.") for cls in classes)
