"""Metrics of transactions, stages and maintenance, sent through Airflow's Stats.

Their names start with ``delta.``; ``docs/observability.md`` lists them. Tags are those of the task instance (Dag and task id,
team), ``table``, and ``operation`` if it matters. Nothing here fails a task, and without metrics the calls do nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import AbortResult, CommitResult, StagedWrite, TransactionHandle
    from airflow_delta.table.state.optimize_result import OptimizeResult

logger = logging.getLogger(__name__)

_NO_TAG_CHARACTERS = lazy_pattern(r"[^A-Za-z0-9_./-]+")


class TaskMetrics:
    """Sends the metrics of one task instance.

    :param ti: the running task instance.
    """

    def __init__(self, ti: Any) -> None:
        tags = getattr(ti, "stats_tags", None)
        if not isinstance(tags, Mapping):
            tags = {"dag_id": getattr(ti, "dag_id", None), "task_id": getattr(ti, "task_id", None)}
        self._tags = {str(key): str(value) for key, value in tags.items() if value is not None}

    def count(self, name: str, value: int | None = 1, **tags: str | None) -> None:
        """Add to the counter ``delta.<name>``; ``None``, an unknown number, is ignored."""
        if value is not None:
            self._send("incr", name, value, tags)

    def timing(self, name: str, seconds: float | None, **tags: str | None) -> None:
        """Send a duration to the timer ``delta.<name>``."""
        if seconds is not None:
            self._send("timing", name, seconds * 1000, tags)

    def _send(self, how: str, name: str, value: float, tags: Mapping[str, str | None]) -> None:
        try:
            from airflow_delta.airflow_internals.tasks import send_metric

            more = {key: tag_value(text) for key, text in tags.items() if text}
            send_metric(how, f"delta.{name}", value, {**self._tags, **more})
        except Exception:
            logger.debug("Could not send the metric delta.%s", name, exc_info=True)

    # -- what the tasks report --------------------------------------------------------------------------------------------------

    def started(self, handle: TransactionHandle) -> None:
        """Count a transaction that begins, and one that finds its key committed."""
        self.count("start", 1, table=handle.table)
        if handle.committed is not None:
            self.count("start.found", 1, table=handle.table)

    def staged(self, staged: StagedWrite, table: str, seconds: float | None) -> None:
        """Send what a stage has written.

        :param seconds: duration of the stage, including Spark and footers.
        """
        tags = {"table": table, "operation": staged.operation, "mode": staged.mode}
        self.timing("stage.duration", seconds, **tags)
        self.count("stage.files", staged.num_files, **tags)
        self.count("stage.removed_files", staged.num_removed_files, **tags)
        self.count("stage.rows", staged.num_records, **tags)
        self.count("stage.bytes", staged.num_bytes, **tags)

    def committed(self, result: CommitResult, seconds: float | None = None) -> None:
        """Send the metrics of a commit; a commit found in the log is only counted as such.

        :param seconds: duration of the commit, from the check of the staged files to the durable entry.
        """
        tags = {"table": result.table, "operation": result.operation}
        if result.committed_before:
            self.count("commit.found", 1, **tags)
            return
        self.timing("commit.duration", seconds, **tags)
        self.count("commit.attempts", result.attempts, **tags)
        self.count("commit.versions_checked", result.versions_checked, **tags)
        self.count("commit.files", result.num_files, **tags)
        self.count("commit.removed_files", result.num_removed_files, **tags)
        self.count("commit.rows", result.num_records, **tags)
        self.count("commit.bytes", result.num_bytes, **tags)

    def conflict(self, table: str, kind: str) -> None:
        """Count a conflict by the class of its exception."""
        self.count("commit.conflict", table=table, kind=kind)

    def resolved(self, table: str, how: str, versions: int) -> None:
        """Count winning commits that conflict by Delta's rules, and turned out not to.

        :param how: what showed it, such as ``statistics``.
        """
        self.count("commit.resolved", versions, table=table, how=how)

    def aborted(self, result: AbortResult) -> None:
        """Count an abort by its outcome: ``committed`` (nothing to do), ``deleted`` or ``marked``."""
        self.count("abort", table=result.table, outcome=result.outcome)
        self.count("abort.files", result.num_deleted_files, table=result.table, outcome=result.outcome)

    def optimized(self, result: OptimizeResult, seconds: float) -> None:
        """Send what an OPTIMIZE or REORG outside a transaction has done, and each of its commits."""
        tags = {"table": result.table, "operation": result.operation}
        self.timing("optimize.duration", seconds, **tags)
        self.count("optimize.bins", result.num_bins, **tags)
        self.count("optimize.removed_files", result.metrics.get("numRemovedFiles", 0), **tags)
        self.count("optimize.added_files", result.metrics.get("numAddedFiles", 0), **tags)
        for commit in result.commits:
            self.committed(commit)

    def vacuumed(self, table: str, *, files: int, directories: int, size: int, seconds: float) -> None:
        """Send what a VACUUM has deleted."""
        self.timing("vacuum.duration", seconds, table=table)
        self.count("vacuum.files", files, table=table)
        self.count("vacuum.directories", directories, table=table)
        self.count("vacuum.bytes", size, table=table)


class Stopwatch:
    """Seconds since it was made, or since :meth:`restart`."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def restart(self) -> None:
        """Start at zero again."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Elapsed seconds."""
        return time.monotonic() - self._began


def tag_value(text: str) -> str:
    """Return a text as a tag value that every metrics system accepts: ``s3://lake/t`` becomes ``s3/lake/t``."""
    return _NO_TAG_CHARACTERS.sub("_", text.replace("://", "/"))
