"""The maintenance of a table in one run: checkpoint, OPTIMIZE, VACUUM, log cleanup. A failed step does not stop the others.

The order matters. The checkpoint comes first: later steps read a short log, and the cleanup needs it. OPTIMIZE precedes VACUUM,
although what it replaces is kept for the retention. The log cleanup comes last: VACUUM asks the log what was removed when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.optimize_result import OptimizeResult

logger = logging.getLogger(__name__)

CHECKPOINT, OPTIMIZE, VACUUM, LOG_CLEANUP = "checkpoint", "optimize", "vacuum", "log_cleanup"
STEPS = (CHECKPOINT, OPTIMIZE, VACUUM, LOG_CLEANUP)
"""In the order in which they run."""

DONE, NOTHING, FAILED, CANCELLED = "done", "nothing", "failed", "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did.

    :param status: ``done``, ``nothing`` (there was nothing to do), ``failed`` or ``cancelled`` (not started).
    :param details: numbers and versions, by their names in XCom.
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

    :param version_before: version of the table before; ``None`` if it could not be read.
    :param version_after: version after the last step; ``None`` if it could not be read.
    """

    table: str
    version_before: int | None = None
    version_after: int | None = None
    steps: tuple[StepReport, ...] = ()

    @property
    def errors(self) -> list[Exception]:
        """Why steps failed, in order."""
        return [step.error for step in self.steps if step.error is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for XCom."""
        return {
            "table": self.table,
            "versionBefore": self.version_before,
            "versionAfter": self.version_after,
            "steps": [step.to_dict() for step in self.steps],
        }


def ordered_steps(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the steps in the order in which they run, each once.

    :raises DeltaIllegalArgumentException: if a step is unknown, or none is given.
    """
    if unknown := [step for step in steps if step not in STEPS]:
        raise DeltaIllegalArgumentException(
            f"Unknown maintenance steps: {', '.join(map(repr, unknown))}. Known are {', '.join(map(repr, STEPS))}."
        )
    if not steps:
        raise DeltaIllegalArgumentException(f"No maintenance step is given. Known are {', '.join(map(repr, STEPS))}.")
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
    """Run the maintenance of one table.

    :param steps: some of :data:`STEPS`, in any order.
    :param min_commits: commits since the last checkpoint after which to write another one; default:
        ``delta.checkpointInterval``.
    :param optimize: runs the OPTIMIZE, which needs Spark.
    :param vacuum: parameters of :func:`airflow_delta.table.operations.vacuum.run.vacuum`.
    :param max_paths: how many paths of deleted files to report.
    :param cancelled: called before every step; true skips the rest.
    :param on_step: called after every step.
    :raises DeltaIllegalArgumentException: if a step is unknown.
    :raises DeltaTableNotFoundException: if there is no table.
    """
    wanted = ordered_steps(steps)
    before = log.update()
    if before.version < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}, so there is nothing to maintain.")
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
    """Return the latest version, ``None`` if it cannot be read: the steps are reported anyway."""
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
    """Write a checkpoint of the latest version if enough commits have come since the last one."""
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
        raise log.error(
            DeltaIllegalArgumentException, f"The OPTIMIZE of {log.uri} needs Spark, but no function was given to run it."
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
    from airflow_delta.table.operations.vacuum.run import vacuum

    result = vacuum(log, **options).to_dict(max_paths=max_paths)
    del result["table"]
    return (DONE if result["numFiles"] or result["numDirectories"] else NOTHING), result


def _clean_up(log: DeltaLog, max_paths: int) -> tuple[str, dict[str, Any]]:
    """Delete log files that are older than ``delta.logRetentionDuration`` and no longer needed."""
    from airflow_delta.log.cleanup import clean_up_expired_logs

    snapshot = log.update()
    if not snapshot.properties.enable_expired_log_cleanup:
        return NOTHING, {"numFiles": 0, "reason": "delta.enableExpiredLogCleanup is false"}
    paths = clean_up_expired_logs(snapshot)
    details = {"numFiles": len(paths), "paths": paths[:max_paths]}
    return (DONE if paths else NOTHING), details
