"""``airflow tasks test``: one task runs for real, outside of the scheduler."""

from __future__ import annotations

import os
import sys
from typing import Any

TEST_MODE = "AIRFLOW_TEST_MODE"
"""Environment variable that ``airflow tasks test`` sets. ``dag.test()`` does not: it runs a whole Dag, and keeps the run."""


def _is_tested() -> bool:
    # Airflow 3.3.1 sets the variable only with --env-vars; the task runs in the process of the command.
    return os.environ.get(TEST_MODE) == "True" or sys.argv[1:3] == ["tasks", "test"]


def warn_if_tested(task: Any, table: str, what: str) -> None:
    """Log a warning if ``airflow tasks test`` runs a task that changes a table.

    :param what: what the task is about to do.
    """
    if _is_tested():
        task.log.warning(
            "`airflow tasks test` does not test, it runs %s: it is about to %s %s, for every reader, and records no state of the "
            "task. To try a Dag out, point its connection at a scratch location and use dag.test().",
            task.task_id,
            what,
            table,
        )
