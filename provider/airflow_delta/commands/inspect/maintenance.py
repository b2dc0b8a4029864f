"""The maintenance of a table as one run: checkpoint, OPTIMIZE, VACUUM, cleanup of the log. A step that fails stops no other.

The order matters. A checkpoint first: the steps after it then read a short log, and the cleanup has where to cut it off. OPTIMIZE
before VACUUM, though what it replaces is kept until its retention is over. The cleanup of the log last: VACUUM asks the log what
was removed when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException, DeltaTableNotFoundException

if TYPE_CHECKING:
    from airflow_delta.commands.publish.compaction_request import OptimizeResult
    from airflow_delta.log import DeltaLog

logger = logging.getLogger(__name__)

CHECKPOINT, OPTIMIZE, VACUUM, LOG_CLEANUP = "checkpoint", "optimize", "vacuum", "log_cleanup"
STEPS = (CHECKPOINT, OPTIMIZE, VACUUM, LOG_CLEANUP)
"""In the order in which they are done."""

DONE, NOTHING, FAILED, CANCELLED = "done", "nothing", "failed", "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did.

    :param status: ``done``, ``nothing`` (there was nothing to do), ``failed`` or ``cancelled`` (not begun).
    :param details: numbers and versions, by the names that they have in XCom.
    :param error: why it failed.
    """

    step: str
    status: str
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        failure: dict[str, Any] = {}
        if self.error is not None:
            message = self.error.message if isinstance(self.error, DeltaError) else str(self.error)
            failure = {"error": type(self.error).__name__, "message": message}
        return {"step": self.step, "status": self.status, "seconds": round(self.seconds, 3), **self.details, **failure}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """What the maintenance of one table did.

    :param version_before: version that the table had; ``None`` when that could not be read.
    :param version_after: version after the last step; ``None`` when that could not be read.
    """

    table: str
    version_before: int | None = None
    version_after: int | None = None
    steps: tuple[StepReport, ...] = ()

    @property
    def errors(self) -> list[Exception]:
        """Why steps failed, in their order."""
        return [step.error for step in self.steps if step.error is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON for XCom."""
        return {
            "table": self.table,
            "versionBefore": self.version_before,
            "versionAfter": self.version_after,
            "steps": [step.to_dict() for step in self.steps],
        }


def ordered_steps(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the steps in the order in which they are done, each once.

    :raises DeltaIllegalArgumentException: one is unknown, or there is none.
    """
    if unknown := [step for step in steps if step not in STEPS]:
        raise DeltaIllegalArgumentException(
            f"Unknown steps of maintenance: {', '.join(map(repr, unknown))}. There are {', '.join(map(repr, STEPS))}."
        )
    if not steps:
        raise DeltaIllegalArgumentException(f"No step of maintenance is given. There are {', '.join(map(repr, STEPS))}.")
    return tuple(step for step in STEPS if step in steps)


def maintain(
    log: DeltaLog,
    steps: Sequence[str],
    *,
    min_commits: int | None = None,
    optimize: Callable[[DeltaLog], OptimizeResult] | None = None,
    vacuum: Mapping[str, Any] | None = None,
    max_paths: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
    on_step: Callable[[str, StepReport], None] = lambda _table, _report: None,
) -> TableReport:
    """Do the maintenance of one table.

    :param steps: some of :data:`STEPS`, in any order.
    :param min_commits: commits after the last checkpoint from which on another one is written; default:
        ``delta.checkpointInterval``.
    :param optimize: does the OPTIMIZE, which needs Spark.
    :param vacuum: parameters of :func:`airflow_delta.commands.vacuum.run_vacuum.vacuum`.
    :param max_paths: how many paths the reports of deleted files name.
    :param cancelled: asked before every step; true: the rest is left out.
    :param on_step: is told of every step when it is over.
    :raises DeltaIllegalArgumentException: a step is unknown.
    :raises DeltaTableNotFoundException: there is no table.
    """
    wanted = ordered_steps(steps)
    before = log.update()
    if before.version < 0:
        raise DeltaTableNotFoundException(
            f"There is no Delta table at {log.uri}, so there is nothing to maintain.", table=log.uri
        )
    work: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
        CHECKPOINT: lambda: _checkpoint(log, min_commits),
        OPTIMIZE: lambda: _optimize(log, optimize),
        VACUUM: lambda: _vacuum(log, vacuum or {}, max_paths),
        LOG_CLEANUP: lambda: _clean_up(log, max_paths),
    }
    reports = []
    for step in wanted:
        report = StepReport(step=step, status=CANCELLED) if cancelled() else _run(log, step, work[step])
        reports.append(report)
        on_step(log.uri, report)
    return TableReport(table=log.uri, version_before=before.version, version_after=_latest(log), steps=tuple(reports))


def _latest(log: DeltaLog) -> int | None:
    """Return the latest version; what was done is reported also when that cannot be read."""
    try:
        return log.update().version
    except Exception:
        logger.warning("The version of %s after its maintenance could not be read", log.uri, exc_info=True)
        return None


def _run(log: DeltaLog, step: str, work: Callable[[], tuple[str, dict[str, Any]]]) -> StepReport:
    began = time.monotonic()
    try:
        status, details = work()
    except Exception as error:
        logger.warning("The step %s of the maintenance of %s failed", step, log.uri, exc_info=True)
        return StepReport(step=step, status=FAILED, seconds=time.monotonic() - began, error=error)
    return StepReport(step=step, status=status, seconds=time.monotonic() - began, details=details)


def _checkpoint(log: DeltaLog, min_commits: int | None) -> tuple[str, dict[str, Any]]:
    """Write a checkpoint of the latest version when enough commits have come since the last one."""
    snapshot = log.update()
    last = snapshot.segment.checkpoint
    behind = snapshot.version - (last.version if last is not None else -1)
    due = snapshot.properties.checkpoint_interval if min_commits is None else max(min_commits, 1)
    details: dict[str, Any] = {"lastCheckpoint": None if last is None else last.version, "commitsSince": behind}
    if behind < due:
        return NOTHING, {**details, "dueAfter": due}
    log.checkpoint(snapshot)
    return DONE, {**details, "checkpoint": snapshot.version}


def _optimize(log: DeltaLog, optimize: Callable[[DeltaLog], OptimizeResult] | None) -> tuple[str, dict[str, Any]]:
    if optimize is None:
        raise DeltaIllegalArgumentException(
            f"The OPTIMIZE of {log.uri} needs Spark, and nothing was given to do it.", table=log.uri
        )
    result = optimize(log)
    details = {
        "version": result.version,
        "numBins": result.num_bins,
        "numCommits": len(result.commits),
        "numRemovedFiles": result.metrics.get("numRemovedFiles", 0),
        "numAddedFiles": result.metrics.get("numAddedFiles", 0),
        "numRemovedBytes": result.metrics.get("numRemovedBytes", 0),
        "numAddedBytes": result.metrics.get("numAddedBytes", 0),
        "numConsideredFiles": result.num_considered,
    }
    return (DONE if result.commits else NOTHING), details


def _vacuum(log: DeltaLog, options: Mapping[str, Any], max_paths: int) -> tuple[str, dict[str, Any]]:
    from airflow_delta.commands.vacuum.run_vacuum import vacuum

    result = vacuum(log, **options).to_dict(max_paths=max_paths)
    del result["table"]
    return (DONE if result["numFiles"] or result["numDirectories"] else NOTHING), result


def _clean_up(log: DeltaLog, max_paths: int) -> tuple[str, dict[str, Any]]:
    """Delete what of the log is older than ``delta.logRetentionDuration`` and that no version still needs."""
    from airflow_delta.log.cleanup import clean_up_expired_logs

    snapshot = log.update()
    if not snapshot.properties.enable_expired_log_cleanup:
        return NOTHING, {"numFiles": 0, "reason": "delta.enableExpiredLogCleanup is false"}
    paths = clean_up_expired_logs(snapshot)
    details = {"numFiles": len(paths), "paths": paths[:max_paths]}
    return (DONE if paths else NOTHING), details
