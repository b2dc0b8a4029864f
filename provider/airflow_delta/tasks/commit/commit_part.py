"""The part of every task that commits: limits, metadata and hooks of the commit, and what Airflow learns about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_delta import engine, exceptions
from airflow_delta.assets.delta import delta_asset
from airflow_delta.assets.events import event_extra
from airflow_delta.contract.choices import CHECKPOINT
from airflow_delta.contract.kinds import COUNT, JSON_TEXT, SECONDS, TRUTH
from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.retry_policies import FINAL_ERRORS, REFUSALS
from airflow_delta.task_notes import FAILURE_KEY, failure_note, leave_note
from airflow_delta.tasks.airflow_tasks_test import warn_if_tested
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.checks.tags import outcomes_of
from airflow_delta.tasks.commit.conflict_detection import check_literal_level, detection_tags, resolved_lines
from airflow_delta.tasks.commit.races import watched_commit
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.identity import commit_tags
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.outlets import withdraw_default_outlets
from airflow_delta.tasks.partition_events import add_partition_events, event_keys, told_tag, with_keys
from airflow_delta.tasks.settlement import rule_of_commit
from airflow_delta.transaction.conflict_detection import LEVELS

if TYPE_CHECKING:
    from logging import Logger

    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult, StagedWrite
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.checks.evidence import Evidence
    from airflow_delta.transaction import CommitPolicy, PostCommitHook


__all__ = ["FINAL_ERRORS", "REFUSALS", "CommitPart"]

TableName = tuple[Any, str | None]
"""A table as a Dag names it, and its connection."""


class CommitParameters(Parameters):
    """Parameters of a task that commits.

    :param user_metadata: text for ``commitInfo.userMetadata``; a mapping or a list becomes JSON. (templated)
    :param max_commit_attempts: maximum number of attempts to put the log entry; default: that of ``CommitPolicy``. (templated)
    :param commit_timeout: longest time for the race for a version, a ``timedelta`` or seconds; default: that of ``CommitPolicy``.
        (templated)
    :param conflict_detection: how closely to look at what others committed since the version that was read: ``delta``, by
        partition values and file paths, as Delta; ``statistics``, also by the bounds of columns; ``rows`` (default), also by
        rows. (templated)
    :param checkpoint: ``inline`` writes a checkpoint after the commit if one is due, ``off`` leaves it to maintenance.
    :param post_commit_hooks: hooks to run after the commit, besides the table's own (checkpoint, checksum).
    :param fail_on_hook_error: fail the task if a hook fails. The commit stays either way.
    :param partition_events: emit an event with a partition key for each partition whose rows the commit has changed, besides the
        event of the table: ``True``, with the values of the partition columns (``eu|2026-11-25``); a column or a template
        (``{event_time:%Y-%m-%d}``); a function; or :class:`~airflow_delta.contract.partition_events.PartitionEvents`. Not for
        outlets that are aliases.
    """

    user_metadata: Any = parameter(default=None, templated=True, kind=JSON_TEXT)
    max_commit_attempts: int | str | None = parameter(default=None, templated=True, kind=COUNT)
    commit_timeout: timedelta | float | str | None = parameter(default=None, templated=True, kind=SECONDS)
    conflict_detection: str = parameter(default="rows", templated=True, choices=LEVELS)
    checkpoint: str = parameter(default="inline", choices=CHECKPOINT)
    post_commit_hooks: Sequence[PostCommitHook] = parameter(default=())
    fail_on_hook_error: bool = parameter(default=False, kind=TRUTH)
    partition_events: Any = parameter(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_literal_level(self.conflict_detection)
        PartitionEvents.of(self.partition_events)


class CommitPart(Part, CommitParameters):
    """The part of a task that commits."""

    clock: Stopwatch | None = None
    evidence: Evidence | None = None
    """Of the checks before the commit, for the lineage."""
    _log: DeltaLog | None = None
    _named: TableName | None = None

    def options(self, context: Context) -> dict[str, Any]:
        """Return ``policy``, ``tags``, ``user_metadata`` and ``hooks`` of the commit."""
        return {
            "policy": replace(self.policy(), intents=rule_of_commit(context)),
            "tags": self.tags(context),
            "user_metadata": self.user_metadata,
            "hooks": tuple(self.post_commit_hooks),
        }

    def tags(self, context: Context, outlets: Sequence[Any] | None = None) -> dict[str, str]:
        """Return the tags of the commit: its task, how closely it checks others' commits, whether it emits events by partition.

        :param outlets: those of the table, if the task commits to several.
        """
        told = told_tag(self.partition_events, self.task.outlets if outlets is None else outlets)
        return {**commit_tags(context), **detection_tags(self.conflict_detection), **told}

    def policy(self) -> CommitPolicy:
        """Return the limits of the commit."""
        limits: dict[str, Any] = {"max_attempts": self.max_commit_attempts, "total_timeout": self.commit_timeout}
        events = PartitionEvents.of(self.partition_events)
        return engine.CommitPolicy(
            cancelled=lambda: self.task.is_cancelled,
            check_actions=None if events is None else engine.check_partition_keys(events),
            checkpoint=self.checkpoint,  # type: ignore[arg-type]
            fail_on_hook_error=self.fail_on_hook_error,
            conflict_detection=self.conflict_detection,  # type: ignore[arg-type]
            **{name: value for name, value in limits.items() if value is not None},
        )

    @contextmanager
    def watched(self, context: Context, log: DeltaLog, named: TableName | None = None) -> Iterator[None]:
        """Count the conflicts of the commits in the block, log the races that they lose, and start the clock.

        A short form of an error is pushed as XCom :data:`~airflow_delta.task_notes.FAILURE_KEY`, and left in the task's state
        store at once: a restart ends the task without a failure.

        :param named: the table as the Dag names it.
        """
        warn_if_tested(self.task, log.uri, "change")
        self.about(log, named)
        self.clock = Stopwatch()
        try:
            with watched_commit(TaskMetrics(context["ti"]), self.task.log, log.uri):
                yield
        except exceptions.DeltaError as error:
            try:
                context["ti"].xcom_push(key=FAILURE_KEY, value=failure_note(error))
                leave_note(context, self.task, error)
            except Exception:  # the error itself decides about retries and restarts
                self.task.log.warning("Could not push the error for the table's page", exc_info=True)
            raise

    def about(self, log: DeltaLog, named: TableName | None = None) -> None:
        """Note which table the next result is about.

        :param named: the table as the Dag names it.
        """
        self._log = log
        self._named = named if named is not None and isinstance(named[0], str) and named[0].strip() else None

    def finish(self, context: Context, result: CommitResult, writes: Sequence[StagedWrite] = ()) -> dict[str, Any]:
        """Log and measure a commit, fill in the asset events of the outlets, and return the result as JSON.

        :param writes: the staged writes of the commit.
        """
        seconds = None if self.clock is None else self.clock.seconds
        self.note(result, writes, seconds=seconds)
        if not result.committed_nothing:
            TaskMetrics(context["ti"]).committed(result, seconds)
        self.emit(context, result)
        return result.to_dict()

    def note(self, result: CommitResult, writes: Sequence[StagedWrite] = (), *, seconds: float | None = None) -> None:
        """Log a commit and record it for the lineage."""
        _tell(self.task.log, result, seconds)
        if not result.committed_nothing:
            found = None if self.evidence is None else partial(outcomes_of, self.evidence, result.transaction_id)
            self.task.lineage.note_commit(self._log, result, writes, named=self._named, checks=found)

    def emit(self, context: Context, result: CommitResult) -> None:
        """Fill in the asset events of the outlets."""
        keys = event_keys(self.task, self._log, result)
        extra = with_keys(event_extra(result), keys)
        if result.committed_nothing:
            withdraw_default_outlets(self.task)
        for outlet in self.task.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(extra)
                add_partition_events(context, outlet, keys)
            elif isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(self._asset(result), extra=extra)

    def _asset(self, result: CommitResult) -> Asset:
        """Return the table's asset by the Dag's name for it, so that it equals a static outlet of that name."""
        if self._named is None or (self._log is not None and self._log.uri != result.table):
            return delta_asset(result.table)
        return delta_asset(*self._named)


def _tell(logger: Logger | Any, result: CommitResult, seconds: float | None) -> None:
    if result.committed_nothing:
        logger.info("%s of %s: nothing changed, nothing is committed.", result.operation, result.table)
        return
    if result.committed_before:
        logger.info(
            "Transaction %s: its commit is already version %s of %s; nothing is written again, the result is the same.",
            result.transaction_id,
            result.version,
            result.table,
        )
        _tell_resolved(logger, result)
        return
    logger.info(
        "Transaction %s: committed version %s of %s (%s): %s rows and %s bytes in %s files added, %s files removed; "
        "%s, %s attempts, %s concurrent versions checked%s.",
        result.transaction_id,
        result.version,
        result.table,
        result.operation,
        result.num_records,
        result.num_bytes,
        result.num_files,
        result.num_removed_files,
        read_version_name(result.read_version),
        result.attempts,
        result.versions_checked,
        "" if seconds is None else f", {seconds:.1f} s",
    )
    _tell_resolved(logger, result)


def _tell_resolved(logger: Logger | Any, result: CommitResult) -> None:
    for line in resolved_lines(result.resolved):
        logger.info("Transaction %s: %s", result.transaction_id, line)
