"""What processes of Airflow that fork others import once, so that what they fork has it: for each Dag file, and for each task.

Only what a Dag file imports anyway, and what a start and a commit do: no PySpark, no Arrow, and no thread, which a fork
would not have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from importlib import import_module

from airflow_delta.get_provider_info import get_provider_info

logger = logging.getLogger(__name__)

OF_DAG_FILES = (
    "task_groups",
    "job_groups",
    "publication_groups",
    "retry_policies",
    "log.storage.factory",
    "log.storage.other_locations",
)
"""What Dag files import beside what the provider announces, and what checks their parameters."""
OF_TASKS = ("plugins.on_worker", "table.start.begin", "table.commit.publish", "transaction.delta_log")
"""What start and the commit of a blind append import beside it."""


def for_dag_files() -> None:
    """Import what Dag files import; never fails."""
    _load((*(f"airflow_delta.{name}" for name in OF_DAG_FILES), *_announced()))


def for_tasks() -> None:
    """Import what tasks import, with their Dag file; never fails."""
    for_dag_files()
    _load(f"airflow_delta.{name}" for name in OF_TASKS)


def _announced() -> Iterator[str]:
    """Yield the modules that a Dag file uses of those which the provider announces."""
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks"):
        for entry in info[kind]:
            yield from entry["python-modules"]
    for entry in info["task-decorators"]:
        yield entry["class-name"].rpartition(".")[0]
    for name in info["notifications"]:
        yield name.rpartition(".")[0]


def _load(names: Iterable[str]) -> None:
    for name in names:
        try:
            import_module(name)
        except Exception:  # whoever needs it says so with the Dag file or the task at hand
            logger.debug("Could not import %s in advance", name, exc_info=True)
