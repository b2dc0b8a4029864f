"""The points at which a test can have a task killed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airflow_delta.light_dataclasses import dataclass

BEFORE_EXECUTE = "before execute"

BEFORE_LOG_ENTRY = "before log entry"

AFTER_LOG_ENTRY = "after log entry"

BEFORE_RESULT = "before result"

POINTS = {
    BEFORE_EXECUTE: "the task has done nothing yet",
    BEFORE_LOG_ENTRY: "the task is about to put its entry into the table's log; its files are written",
    AFTER_LOG_ENTRY: "the table's log has the entry: the version is public, but Airflow does not know",
    BEFORE_RESULT: "the task has done everything; of a stage, all files are written. Its result is not in XCom",
}
"""The points by name: those of the log only come in tasks that commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill (SIGKILL) of a task's process at a point; made by :func:`killed_at`."""

    point: str
    task_id: str
    try_number: int = 1
    map_index: int = -1
    entry: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def killed_at(point: str, task_id: str, *, try_number: int = 1, map_index: int = -1, entry: int = 1) -> Kill:
    """Return a kill for the ``kill`` of a run: no ``finally``, no callback, no result, as when a machine dies.

    Airflow then does what it does with a lost task: retries it, if it has a retry left.

    :param point: one of :data:`POINTS`.
    :param task_id: id of the task, with its groups: ``orders.commit``.
    :param try_number: the try that is killed, from 1.
    :param map_index: instance of a mapped task.
    :param entry: at which of the log entries that the try puts, from 1: the commit of a publication puts several.
    :raises ValueError: if there is no such point.
    """
    if point not in POINTS:
        raise ValueError(f"There is no point {point!r}. Points are {', '.join(map(repr, POINTS))}.")
    return Kill(point=point, task_id=task_id, try_number=try_number, map_index=map_index, entry=entry)
