"""Waiting for commits: the first one after a version that matches conditions, for sensors and triggers.

A table is watched through its log alone: each look reads only the commits since the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.table.observe.commit_summary import CommitSummary, Observation, observe, observe_after

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

_CHUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitConditions:
    """Conditions on a commit.

    :param operations: one of Delta's operations, such as ``WRITE`` or ``MERGE``; empty: any.
    :param partitions: Spark SQL over partition columns: the commit touched a partition that may satisfy it.
    :param data_change_only: only commits that changed rows; OPTIMIZE, ALTER TABLE and the like do not count.
    """

    operations: tuple[str, ...] = ()
    partitions: str | None = None
    data_change_only: bool = True

    def bind(self, log: DeltaLog) -> BoundConditions:
        """Return the conditions for a table with its current schema."""
        return BoundConditions(
            frozenset(operation.casefold() for operation in self.operations), self._predicate(log), self.data_change_only
        )

    def _predicate(self, log: DeltaLog) -> Predicate | None:
        if self.partitions is None or not self.partitions.strip():
            return None
        metadata = log.snapshot.metadata
        predicate = Predicate.parse(self.partitions, log.snapshot.schema, metadata.partition_columns)
        if not predicate.partition_only:
            by = ", ".join(metadata.partition_columns) or "none"
            raise log.error(
                DeltaIllegalArgumentException,
                f"The predicate {self.partitions!r} cannot be decided by the partitions of table {log.uri} alone (partition "
                f"columns: {by}). A commit tells which partitions it touched, but not which rows; a scan downstream can.",
            )
        return predicate


class BoundConditions(NamedTuple):
    """Conditions for one table."""

    operations: frozenset[str]
    partitions: Predicate | None
    data_change_only: bool

    def matches(self, observation: Observation) -> bool:
        """Return whether a commit matches; if it does not tell the partition of a file, it may have touched any."""
        summary = observation.summary
        if self.data_change_only and not summary.data_change:
            return False
        if self.operations and (summary.operation or "").casefold() not in self.operations:
            return False
        return self.partitions is None or any(self._may_match(self.partitions, values) for values in observation.partitions)

    @staticmethod
    def _may_match(predicate: Predicate, values: Mapping[str, str | None] | None) -> bool:
        # A commit from before repartitioning has other columns, or values of another type.
        if values is None or any(column.physical_path[0] not in values for column in predicate.columns):
            return True
        try:
            return predicate.matches_partition(values)
        except DeltaAnalysisException:
            return True


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a table has been seen.

    :param version: commits after it are new; -1: all of them.
    :param table_id: the table that was seen; another one at the same place starts over. ``None``: there was no table.
    """

    version: int
    table_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for Airflow's state stores."""
        return {"version": self.version, "table_id": self.table_id}

    @classmethod
    def from_dict(cls, value: Any) -> Watermark | None:
        """Return what :meth:`to_dict` made, ``None`` for anything else."""
        if not isinstance(value, dict) or not isinstance(value.get("version"), int):
            return None
        table_id = value.get("table_id")
        return cls(value["version"], table_id if isinstance(table_id, str) else None)


class Match(NamedTuple):
    """A matching commit, and the latest version when it was found."""

    summary: CommitSummary
    observed_version: int
    table: str
    table_id: str


def watermark_now(log: DeltaLog) -> Watermark:
    """Return the watermark of the table now: only later commits are new."""
    log.update()
    return watermark_read(log)


def watermark_read(log: DeltaLog) -> Watermark:
    """Return the watermark of the table as it was last read."""
    snapshot = log.snapshot
    return Watermark(snapshot.version, snapshot.metadata.id) if snapshot.version >= 0 else Watermark(-1)


def check_not_gone(log: DeltaLog, seen: Watermark) -> None:
    """Check that a table that was seen was still there when it was last read: nobody may ever create it again.

    :raises DeltaTableNotFoundException: if it is gone.
    """
    if seen.table_id is not None and log.snapshot.version < 0:
        raise log.error(
            DeltaTableNotFoundException,
            f"Table {log.uri} (id {seen.table_id}) was there at version {seen.version} and is gone: its log holds no commits. "
            "Restore or create it again, or stop watching it.",
        )


def check_table_exists(log: DeltaLog) -> None:
    """Refuse to wait for a table that does not exist.

    :raises DeltaTableNotFoundException: if there is no table.
    """
    if log.update().version < 0:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no table at {log.uri}. Create it first, or wait for it with fail_if_missing=False.",
        )


def version_reached(log: DeltaLog, version: int) -> Match | None:
    """Return what a version did, ``None`` until the table has it."""
    snapshot = log.update()
    if snapshot.version < version:
        return None
    return Match(observe(log, version).summary, snapshot.version, log.uri, snapshot.metadata.id)


def matches_after(log: DeltaLog, watermark: Watermark, conditions: CommitConditions) -> Iterator[tuple[Match | None, Watermark]]:
    """Yield the matching commits after a watermark, oldest first, each with the watermark to keep once it is handled.

    A pair without a match means that the commits up to its watermark do not match. A table that was deleted and created again
    since is entirely new.

    :raises VersionNotFoundException: if commits since the watermark were cleaned up unseen.
    """
    snapshot = log.update()
    if snapshot.version < 0:
        return
    table_id, seen = snapshot.metadata.id, watermark.version
    if watermark.table_id not in (None, table_id):
        seen = -1
    if seen >= snapshot.version:
        return
    bound = conditions.bind(log)
    while seen < snapshot.version:
        try:
            observations = observe_after(log, seen, limit=min(_CHUNK, snapshot.version - seen))
        except VersionNotFoundException as error:
            raise _gone(log, seen, error) from error
        if not observations:
            return
        for observation in observations:
            seen = observation.summary.version
            if bound.matches(observation):
                yield Match(observation.summary, snapshot.version, log.uri, table_id), Watermark(seen, table_id)
        yield None, Watermark(seen, table_id)


def first_match(log: DeltaLog, watermark: Watermark, conditions: CommitConditions) -> tuple[Match | None, Watermark]:
    """Return the first matching commit after a watermark, if there is one, and how far the table was seen."""
    for match, seen in matches_after(log, watermark, conditions):
        if match is not None:
            return match, seen
        watermark = seen
    return None, watermark


def _gone(log: DeltaLog, seen: int, error: VersionNotFoundException) -> VersionNotFoundException:
    begins = f"the log begins at version {error.earliest}" if error.earliest is not None else "the log holds no commits"
    return log.error(
        VersionNotFoundException,
        f"The commits of table {log.uri} after version {seen} were cleaned up unseen ({begins}, the latest "
        f"is {error.latest}): it cannot be known whether one of them matched. Give after_version a later version, or keep the "
        "log longer with the table property delta.logRetentionDuration.",
        earliest=error.earliest,
        latest=error.latest,
        version=seen + 1,
    )
