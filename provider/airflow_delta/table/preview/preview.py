"""Previews as a task hands them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import NO_TASK
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.table_preview import Preview, preview_table

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog

_WRITERS = {"table": preview_table, "changes": preview_changes}


def write_preview(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    only: str = "table",
    table_uri: str | None = None,
    task: str = NO_TASK,
    attempt: str | None = None,
) -> dict[str, Any]:
    """Write a preview and return what its readers need, as plain JSON.

    :param only: ``table``, the table as the commit leaves it, or ``changes``, the rows that it changes.
    :raises DeltaIllegalArgumentException: if it is neither.

    The other parameters and errors are those of :func:`~airflow_delta.table.preview.table_preview.preview_table` and
    :func:`~airflow_delta.table.preview.changes_preview.preview_changes`.
    """
    if only not in _WRITERS:
        raise handle.error(DeltaIllegalArgumentException, f"only must be one of {', '.join(_WRITERS)}, got {only!r}.")
    preview = _WRITERS[only](log, handle, staged, table_uri=table_uri, task=task, attempt=attempt)
    return _result(handle, only, preview.to_dict(), committed=False)


def published(handle: TransactionHandle, committed: CommitResult, *, only: str) -> dict[str, Any]:
    """Return the same for a transaction that is committed: nothing is left to preview, and its rows are in the table."""
    shown = only == "table"
    nothing = Preview(
        path=handle.table if shown else "",
        version=committed.version,
        base_version=None,
        num_files=0,
        num_added_files=0,
        num_removed_files=0,
        num_added_records=0,
        num_removed_records=0,
        changes=None if shown else {},
    )
    found = nothing.to_dict() if shown else {**nothing.to_dict(), "path": None, "version": None}
    return _result(handle, only, {**found, "numFiles": None}, committed=True)


def _result(handle: TransactionHandle, only: str, preview: Mapping[str, Any], *, committed: bool) -> dict[str, Any]:
    return {
        "transactionId": handle.transaction_id,
        "table": handle.table,
        "readVersion": handle.read_version,
        "alreadyCommitted": committed,
        "only": only,
        **preview,
    }
