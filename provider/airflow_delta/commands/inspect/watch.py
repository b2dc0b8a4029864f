"""Which commits somebody waits for, and the first of them after a version: what a sensor pokes and a trigger polls for.

A table is watched by its log alone: each look reads the commits that are new since the last one, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.commands.inspect.observe import CommitSummary, Observation, observe, observe_after
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate

_CHUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitConditions:
    """What a commit has to be like.

    :param operations: one of Delta's operations, such as ``WRITE`` or ``MERGE``; empty: any.
    :param partitions: Spark SQL text over partition columns: the commit touched a partition that may satisfy it.
    :param data_change_only: only commits that changed rows; OPTIMIZE, ALTER TABLE and the like do not count.
    """

    operations: tuple[str, ...] = ()
    partitions: str | None = None
    data_change_only: bool = True

    def bind(self, log: DeltaLog) -> BoundConditions:
        """Return the conditions for a table, as its schema is now.

        :raises PredicateException: ``partitions`` does not parse or names an unknown column.
        :raises DeltaIllegalArgumentException: it is about columns that are no partition columns.
        """
        return BoundConditions(
            frozenset(operation.casefold() for operation in self.operations), self._predicate(log), self.data_change_only
        )

    def _predicate(self, log: DeltaLog) -> Predicate | None:
        if self.partitions is None or not self.partitions.strip():
            return None
        from airflow_delta.log.expressions.predicate import Predicate

        metadata = log.snapshot.metadata
        predicate = Predicate.parse(self.partitions, log.snapshot.schema, metadata.partition_columns)
        if not predicate.partition_only:
            by = ", ".join(metadata.partition_columns) or "none"
            raise DeltaIllegalArgumentException(
                f"The predicate {self.partitions!r} cannot be decided by the partitions of table {log.uri} alone (partition "
                f"columns: {by}). A commit tells which partitions it touched, not which rows; those a scan downstream can tell.",
                table=log.uri,
            )
        return predicate


class BoundConditions(NamedTuple):
    """Conditions for one table."""

    operations: frozenset[str]
    partitions: Predicate | None
    data_change_only: bool

    def matches(self, observation: Observation) -> bool:
        """Tell whether a commit is like this; one that does not say which partition a file was in may have touched any."""
        summary = observation.summary
        if self.data_change_only and not summary.data_change:
            return False
        if self.operations and (summary.operation or "").casefold() not in self.operations:
            return False
        return self.partitions is None or any(self._may_match(self.partitions, values) for values in observation.partitions)

    @staticmethod
    def _may_match(predicate: Predicate, values: Mapping[str, str | None] | None) -> bool:
        # A commit from before the table was partitioned anew has other columns, or values of another type.
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
    :param table_id: the table that was seen; another one at the same place begins anew. ``None``: there was none yet.
    """

    version: int
    table_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, as it goes to Airflow's state stores."""
        return {"version": self.version, "table_id": self.table_id}

    @classmethod
    def from_dict(cls, value: Any) -> Watermark | None:
        """Return what :meth:`to_dict` made, ``None`` for anything else."""
        if not isinstance(value, dict) or not isinstance(value.get("version"), int):
            return None
        table_id = value.get("table_id")
        return cls(value["version"], table_id if isinstance(table_id, str) else None)


class Match(NamedTuple):
    """A commit that was waited for, and the latest version when it was found."""

    summary: CommitSummary
    observed_version: int
    table: str
    table_id: str


def watermark_now(log: DeltaLog) -> Watermark:
    """Return the watermark of the table as it is: only later commits are new."""
    snapshot = log.update()
    return Watermark(snapshot.version, snapshot.metadata.id) if snapshot.version >= 0 else Watermark(-1)


def check_table_exists(log: DeltaLog) -> None:
    """Refuse to wait for a table that is not there.

    :raises DeltaTableNotFoundException: there is none.
    """
    if log.update().version < 0:
        raise DeltaTableNotFoundException(
            f"There is no table at {log.uri}. Create it first, or wait for it with fail_if_missing=False.", table=log.uri
        )


def version_reached(log: DeltaLog, version: int) -> Match | None:
    """Return what a version did, as soon as the table has it.

    :raises VersionNotFoundException: the table is past it, and its commit was cleaned up.
    """
    snapshot = log.update()
    if snapshot.version < version:
        return None
    return Match(observe(log, version).summary, snapshot.version, log.uri, snapshot.metadata.id)


def matches_after(log: DeltaLog, watermark: Watermark, conditions: CommitConditions) -> Iterator[tuple[Match | None, Watermark]]:
    """Yield the commits after a watermark that match, oldest first, each with the watermark that is due once it is dealt with.

    A pair without a match says that the commits up to its watermark were looked at in vain. A table that was replaced by another
    one since (deleted and created anew) is new as a whole.

    :raises VersionNotFoundException: commits since the watermark were cleaned up before anybody looked at them.
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
    """Return the first commit after a watermark that matches, ``None`` while there is none, and how far the table was seen.

    :raises VersionNotFoundException: commits since the watermark were cleaned up before anybody looked at them.
    """
    for match, seen in matches_after(log, watermark, conditions):
        if match is not None:
            return match, seen
        watermark = seen
    return None, watermark


def _gone(log: DeltaLog, seen: int, error: VersionNotFoundException) -> VersionNotFoundException:
    begins = f"the log begins at version {error.earliest}" if error.earliest is not None else "the log holds no commit any more"
    return VersionNotFoundException(
        f"The commits of table {log.uri} after version {seen} were cleaned up before they were looked at ({begins}, the latest "
        f"is {error.latest}): whether one of them was waited for cannot be told. Give after_version a later version, or keep the "
        "log longer with the table property delta.logRetentionDuration.",
        earliest=error.earliest,
        latest=error.latest,
        table=log.uri,
        version=seen + 1,
    )
