"""Which of Airflow's own processes this is, as far as it forks others."""

from __future__ import annotations

import sys
from typing import Any

from airflow.sdk import conf


def forks_dag_files(component: Any) -> bool:
    """Tell whether this is the Dag processor, which forks a process for each Dag file.

    Waits for: a component that says what it is in ``on_starting``. It is a job that has no type yet, so what tells is the runner
    that its command has imported. Without it the processes of Dag files import for themselves.

    :param component: what Airflow gives to the listener.
    """
    return _is_job(component) and "airflow.jobs.dag_processor_job_runner" in sys.modules


def forks_tasks(component: Any) -> bool:
    """Tell whether this is a scheduler with a LocalExecutor, whose workers fork a process for each task.

    Waits for: the same as ``forks_dag_files``. Without it tasks import for themselves.

    :param component: what Airflow gives to the listener.
    """
    is_scheduler = _is_job(component) and "airflow.jobs.scheduler_job_runner" in sys.modules
    return is_scheduler and "LocalExecutor" in conf.get("core", "executor", fallback="")


def _is_job(component: Any) -> bool:
    """Tell one of Airflow's own processes from a task that starts, for which Airflow calls the same hook.

    Waits for: the same as ``forks_dag_files``.
    """
    return type(component).__module__ == "airflow.jobs.job"
