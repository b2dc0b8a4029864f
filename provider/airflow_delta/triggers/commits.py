"""The commits that a sensor or a trigger waits for: their conditions, and what is returned of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.assets.events import dedupe_key

if TYPE_CHECKING:
    from airflow_delta.table.observe.watch import CommitConditions, Match


def operation_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the operations in an argument that is one name or several."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())


def commit_conditions(operation: str | Sequence[str] | None, partitions: str | None, data_change_only: bool) -> CommitConditions:
    """Return the conditions for the arguments of the sensor or the trigger."""
    names = operation_names(operation)
    return engine.CommitConditions(operations=names, partitions=partitions or None, data_change_only=data_change_only)


def commit_report(match: Match) -> dict[str, Any]:
    """Return what a sensor returns for a commit, as plain JSON."""
    return {
        **match.summary.to_dict(),
        "observed_version": match.observed_version,
        "table": match.table,
        "table_identity": match.table_id,
        "dedupe_key": dedupe_key(match.table_id, match.summary.version),
    }
