"""``airflow tasks test``: one task runs for real, outside of the scheduler."""

from __future__ import annotations

import os
from typing import Any

TEST_MODE = "AIRFLOW_TEST_MODE"
"""Environment variable that ``airflow tasks test`` sets. ``dag.test()`` does not: it runs a whole Dag, and keeps the run."""


def warn_if_tested(task: Any, table: str, what: str) -> None:
    """Log a warning if ``airflow tasks test`` runs a task that changes a table.

    :param what: what the task is about to do.
    """
    if os.environ.get(TEST_MODE) == "True":
        task.log.warning(
            "`airflow tasks test` does not test, it runs %s: it is about to %s %s, for every reader, and records no state of the "
            "task. To try a Dag out, point its connection at a scratch location and use dag.test().",
            task.task_id,
            what,
            table,
        )
