"""What a conflict error says: what was read, what was committed, by whom, and what to do now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_delta.contract.delta_names import COLUMN_MAPPING_MODE
from airflow_delta.contract.tags import DAG_ID_TAG, MAP_INDEX_TAG, RUN_ID_TAG, TASK_ID_TAG, TRY_NUMBER_TAG
from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.log.features.column_mapping import physical_partition_columns
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction

BEGIN_AGAIN = (
    "What to do: start a new transaction, which reads the latest version, and redo its work. In a Dag: clear the start task with "
    "everything after it, or let the commit do so with on_conflict='restart'; a task that is a transaction of its own starts "
    "over when it is retried or cleared, or by itself with max_restarts."
)

_NULL = "null"
_WRITER = ((DAG_ID_TAG, "Dag"), (RUN_ID_TAG, "run"), (TASK_ID_TAG, "task"), (MAP_INDEX_TAG, "map index"), (TRY_NUMBER_TAG, "try"))

E = TypeVar("E", bound=DeltaConcurrentModificationException)


def named_partition(values: Mapping[str, str | None] | None, current: CurrentTransaction) -> dict[str, str | None]:
    """Return a partition by logical column names; empty if unknown.

    :param values: by physical name, as in actions; some writers leave them out of a remove.
    """
    if not current.partition_columns or not values:
        return {}
    physical = list(current.partition_columns)
    metadata = current.read_metadata
    if metadata is not None and metadata.configuration.get(COLUMN_MAPPING_MODE, "none").lower() != "none":
        physical = physical_partition_columns(metadata)
    return {logical: values.get(name) for logical, name in zip(current.partition_columns, physical, strict=True)}


def partition_hint(values: Mapping[str, str | None] | None, current: CurrentTransaction) -> str | None:
    """Return a partition as ``[col=value, ...]``, or ``None`` if unknown."""
    return _hint(named_partition(values, current))


def _hint(named: Mapping[str, str | None]) -> str | None:
    if not named:
        return None
    return f"[{', '.join(f'{column}={_NULL if value is None else value}' for column, value in named.items())}]"


def describe_winner(winner: WinningCommit) -> str:
    """Return who committed the winning version: operation, Dag run or engine, time, and user metadata."""
    info = winner.commit_info
    tags = info.get("tags")
    who = []
    if isinstance(tags, Mapping):
        who = [f"{label} {tags[tag]}" for tag, label in _WRITER if tags.get(tag) not in (None, "-1")]
    engine = info.get("engineInfo")
    by = ", ".join(who) or str(engine or "an unnamed writer")
    timestamp = info.get("timestamp")
    when = ""
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        when = f" at {datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec='seconds')}"
    noted = info.get("userMetadata")
    note = f" with {engine}" if who and engine else ""
    note += f", user metadata {noted!r}" if isinstance(noted, str) and noted else ""
    return f"version {winner.version} ({info.get('operation') or 'TRANSACTION'}), committed by {by}{when}{note}"


def creator_of(log: DeltaLog) -> tuple[str, dict[str, Any] | None]:
    """Return who created a table: in words, and the ``commitInfo`` of version 0."""
    file = log.read_next_commit(0)
    if file is None:  # cleaned up since
        return "version 0", None
    winner = WinningCommit(file, table=log.uri)
    return describe_winner(winner), winner.commit_info or None


def conflict(
    kind: type[E],
    winner: WinningCommit,
    what: str,
    advice: str = BEGIN_AGAIN,
    *,
    current: CurrentTransaction,
    partition: Mapping[str, str | None] | None = None,
) -> E:
    """Return the exception for a logical conflict with ``winner``.

    :param what: sentence without its full stop: what was committed that this transaction cannot be serialised with.
    :param partition: of the conflicting file, by physical name.
    """
    info: dict[str, Any] = winner.commit_info
    named = named_partition(partition, current)
    read = current.reads.describe()
    of_that = "" if read == "nothing" or read in what else f" ({read})"
    return kind(
        f"{what} on table {winner.table}: {describe_winner(winner)}. This transaction ({current.operation or 'TRANSACTION'}) "
        f"read version {current.read_version}{of_that} and committed nothing.\n{advice}",
        table=winner.table,
        winning_version=winner.version,
        winning_commit=info or None,
        partition=_hint(named),
        partition_values=named or None,
        table_name=current.metadata.name or f"delta.`{current.table}`",
    )
