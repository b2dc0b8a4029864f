"""What a conflict tells the one who lost: what was read, what was committed, by whom, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.transaction.winning_commit import WinningCommit

BEGIN_AGAIN = (
    "What to do: begin a new transaction, which reads the latest version, and do its work again "
    "(in a Dag: clear the start task with everything after it)."
)

_AIRFLOW = (("dagId", "Dag"), ("runId", "run"), ("taskId", "task"), ("mapIndex", "map index"), ("tryNumber", "try"))


def partition_hint(partition_values: Mapping[str, str | None], partition_columns: Sequence[str]) -> str | None:
    """Return a partition as ``[col=value, ...]``, or ``None`` where there is nothing to tell."""
    if not partition_columns or not partition_values:
        return None
    return f"[{', '.join(f'{column}={partition_values.get(column)}' for column in partition_columns)}]"


def describe_winner(winner: WinningCommit) -> str:
    """Return who committed the winning version: operation, Dag run or engine, time."""
    info = winner.commit_info
    tags = info.get("tags")
    who = []
    if isinstance(tags, Mapping):
        who = [f"{label} {tags[f'airflow.{key}']}" for key, label in _AIRFLOW if tags.get(f"airflow.{key}") not in (None, "-1")]
    by = ", ".join(who) or str(info.get("engineInfo") or "an unnamed writer")
    timestamp = info.get("timestamp")
    when = ""
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        when = f" at {datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec='seconds')}"
    return f"version {winner.version} ({info.get('operation') or 'TRANSACTION'}), committed by {by}{when}"


def conflict(
    kind: type[DeltaConcurrentModificationException],
    winner: WinningCommit,
    what: str,
    advice: str = BEGIN_AGAIN,
    *,
    read_version: int,
    partition: str | None = None,
) -> DeltaConcurrentModificationException:
    """Return the exception for a logical conflict with ``winner``.

    :param what: one sentence without its end: what was committed that this transaction cannot be serialised with.
    """
    info: dict[str, Any] = winner.commit_info
    return kind(
        f"{what} on table {winner.table}: {describe_winner(winner)}. This transaction read version {read_version} and "
        f"committed nothing. {advice}",
        table=winner.table,
        winning_version=winner.version,
        winning_commit=info or None,
        partition=partition,
    )
