"""Row tracking for a table with files: all get row ids, then readers may rely on them (Delta's ``RowTrackingBackfill``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.compute as pc

from airflow_delta.contract.delta_names import ENABLE_ROW_TRACKING
from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import (
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
)
from airflow_delta.log.actions.actions import Action, AddFile, Protocol
from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files
from airflow_delta.log.features.protocol import upgraded
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.table.operations.statistics import with_new_statistics
from airflow_delta.table.state.commit_result import result_of_nothing, result_of_transaction
from airflow_delta.transaction import Operation, OptimisticTransaction
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

logger = logging.getLogger(__name__)

MAX_FILES = 22_000
"""Files of a commit that assigns row ids, or takes them away, as in Delta."""

_NO_END = 3
"""Once this many times the table's files have got ids, another writer must be adding files without."""


def enable_row_tracking(
    log: DeltaLog,
    *,
    max_files: int = MAX_FILES,
    max_restarts: int = 3,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
) -> CommitResult:
    """Give row ids to the files of a table, and switch row tracking on.

    As in Delta, in commits of three kinds: the table feature, from which on every writer assigns ids; ids for the files without,
    ``max_files`` at a time; the table property. Each starts from the newest version and looks for what is left, so a run that was
    cut off is taken up by the next one. Files that others remove or change meanwhile are left to them. No commit has a ``txn``
    action, which would raise it to the table's isolation level.

    :param max_files: of one commit.
    :param max_restarts: how often in a row to start over when another commit conflicts.
    :returns: the last commit; with ``attempts=0`` and the version that was read if there was nothing to do.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaIllegalArgumentException: if row tracking is suspended (``delta.rowTrackingSuspended``), or ``max_files`` is not
        positive.
    :raises DeltaIllegalStateException: if another writer goes on adding files without row ids.
    :raises StagedFileException: if a file without a row count is gone, or is not a Parquet file.
    :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
    """
    if max_files < 1:
        raise DeltaIllegalArgumentException(f"max_files must be positive, not {max_files}.")
    result: CommitResult | None = None
    restarts = batches = filled = most = 0
    while True:
        snapshot = log.update()
        _check(log, snapshot)
        txn = OptimisticTransaction(log, snapshot, policy=policy)
        for hook in hooks:
            txn.register_post_commit_hook(hook)
        adds, left = _without_ids(snapshot, max_files) if row_tracking.is_supported(snapshot.protocol) else ([], 0)
        most = max(most, left)
        if filled >= _NO_END * most and adds and filled:
            raise log.error(
                DeltaIllegalStateException,
                f"{filled} files of table {log.uri} have got row ids, and version {snapshot.version} has {left} files without: "
                "another writer ignores the table feature rowTracking. Stop it, then run this again.",
            )
        step = _next_step(txn, adds, batches)
        if step is None:
            return result_of_nothing(txn) if result is None else result
        actions, operation, own_tags = step
        try:
            txn.commit(actions, operation, tags={**(tags or {}), **own_tags}, user_metadata=user_metadata)
        except DeltaConcurrentModificationException as conflict:
            if restarts >= max_restarts:
                raise
            restarts += 1
            logger.info("%s of %s again (%s of %s): %s", operation.name, log.uri, restarts, max_restarts, conflict.message)
            continue
        restarts = 0
        result = result_of_transaction(txn, operation.name, adds, num_records=0)
        if adds:
            batches, filled = batches + 1, filled + len(adds)
            logger.info("Version %s of %s: row ids for %s of %s files.", result.version, log.uri, len(adds), left)


def _check(log: DeltaLog, snapshot: Snapshot) -> None:
    if snapshot.version < 0:
        raise log.error(DeltaTableNotFoundException, f"There is no Delta table at {log.uri}.")
    if row_tracking.is_suspended(snapshot.metadata):
        raise log.error(
            DeltaIllegalArgumentException,
            f"Row tracking of table {log.uri} version {snapshot.version} is suspended (delta.rowTrackingSuspended=true), so it "
            "cannot be enabled (DELTA_ROW_TRACKING_ILLEGAL_PROPERTY_COMBINATION). Unset that property first.",
        )


def _next_step(
    txn: OptimisticTransaction, adds: Sequence[AddFile], batches: int
) -> tuple[Sequence[Action], Operation, dict[str, Any]] | None:
    """Return what to commit next, with its tags; ``None`` if nothing is left.

    Without the feature, files that others add meanwhile would get no ids; with the property, readers rely on them.
    """
    snapshot = txn.snapshot
    if not row_tracking.is_supported(snapshot.protocol):
        protocol = _with_row_tracking(snapshot.protocol)
        txn.adopt_changes(None, protocol)
        return [], Operation("UPGRADE PROTOCOL", {"newProtocol": msgspec.to_builtins(protocol)}), {}
    if adds:
        txn.track_files_read([add.path for add in adds])  # it is not a blind append
        return adds, Operation(row_tracking.BACKFILL, {"batchId": str(batches)}), {}
    if row_tracking.has_row_tracking(snapshot.metadata):
        return None
    metadata = snapshot.metadata
    txn.update_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, ENABLE_ROW_TRACKING: "true"}))
    return [], Operation.set_table_properties({ENABLE_ROW_TRACKING: "true"}), {row_tracking.ENABLEMENT_ONLY_TAG: "true"}


def _with_row_tracking(protocol: Protocol) -> Protocol:
    features = [row_tracking.FEATURE, "domainMetadata"]
    return upgraded(protocol, Protocol(min_reader_version=1, min_writer_version=7, writer_features=features))


def _without_ids(snapshot: Snapshot, max_files: int) -> tuple[list[AddFile], int]:
    """Return the first files without row ids, as a commit that assigns them adds them again, and how many there are.

    Ids are counted by ``numRecords``: files without get it from their footers.
    """
    files = snapshot.files(columns=FILE_COLUMNS)
    missing = pc.or_(pc.is_null(files["base_row_id"]), pc.is_null(files["default_row_commit_version"]))
    left = files.filter(missing)
    adds = [msgspec.structs.replace(add, data_change=False) for add in to_add_files(left.slice(0, max_files))]
    uncounted = [add for add in adds if num_records(add.stats) is None]
    counted = {add.path: add for add in with_new_statistics(snapshot, uncounted, only_missing=True)}
    return [counted.get(add.path, add) for add in adds], left.num_rows
