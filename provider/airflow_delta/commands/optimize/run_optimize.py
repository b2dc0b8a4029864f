"""Run an OPTIMIZE or a REORG on its own: batch after batch, each committed without an identity, as Delta does.

Without a ``txn`` action the commit runs at snapshot isolation: what others add does not matter, and of what they remove only the
files that were rewritten.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.commands.begin.begin import begin
from airflow_delta.commands.begin.read_snapshot import read_snapshot
from airflow_delta.commands.files.row_counts import live_records, total
from airflow_delta.commands.optimize.bins import Rewrite, batches_of
from airflow_delta.commands.optimize.collect_optimize import collect_actions, rewrite_metrics
from airflow_delta.commands.optimize.plan_optimize import PARALLEL, stage_of
from airflow_delta.commands.outcome.commit_result import result_of_transaction
from airflow_delta.commands.outcome.find_commit import newest_first
from airflow_delta.commands.outcome.markers import fence
from airflow_delta.commands.publish.abort import abort
from airflow_delta.commands.publish.compaction_request import OptimizeResult
from airflow_delta.commands.publish.feature_actions import ROW_TRACKING_PRESERVED
from airflow_delta.commands.stage.after import file_key
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    StagingException,
)
from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import REPORT_DIRECTORY, REQUEST_NAME, SCAN_DIRECTORY, transaction_directory
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog, Snapshot
    from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile
    from airflow_delta.transaction import CommitPolicy, OptimisticTransaction, PostCommitHook

__all__ = ["OptimizeResult", "run_rewrite"]

logger = logging.getLogger(__name__)


def run_rewrite(
    log: DeltaLog,
    select: Callable[[DeltaLog, TransactionHandle], Rewrite],
    work: Callable[[StageRequest], StageReport],
    *,
    identity: Mapping[str, Any],
    batch_size: int | None = None,
    parallel: int = PARALLEL,
    spark_table_uri: str | None = None,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
) -> OptimizeResult:
    """Select, rewrite and commit; nothing is committed where there is nothing to rewrite.

    A commit that conflicts is tried again as it is, for as long as the table still has all the files that it has rewritten.

    :param select: selects the files at the version that is read (``plan_optimize``, ``reorg``).
    :param work: does the Spark part.
    :param identity: ``task_id``, ``map_index`` and ``attempt``, which the staged files are kept apart by.
    :param batch_size: bytes of input that are committed at a time; default: all in one commit. What is committed stays when a
        later batch fails.
    :param parallel: bins that Spark writes at a time.
    :raises DeltaTableNotFoundException: there is no table.
    :raises DeltaConcurrentModificationException: another commit has removed a file that was rewritten, or its rows.
    :raises CommitStateUnknownException: the store did not say whether the entry was written. Nothing is cleaned up.
    """
    if batch_size is not None and batch_size < 1:
        raise DeltaIllegalArgumentException(f"batch_size must be at least 1 byte, got {batch_size}", table=log.uri)
    # The key never gets into the log: an OPTIMIZE that runs again finds what is left to do.
    handle = begin(log, transaction_key=f"airflow-delta-optimize-{uuid.uuid4()}", create=False)
    rewrite = select(log, handle)
    commits: list[CommitResult] = []
    all_adds: list[AddFile] = []
    all_removes: list[RemoveFile] = []
    batches = batches_of(rewrite.bins, batch_size) if rewrite.bins else []
    for number, bins in enumerate(batches):
        own = handle if number == 0 else _another(log, handle)
        logger.info("Batch %s of %s of %s on %s: %s bins.", number + 1, len(batches), rewrite.operation, log.uri, len(bins))
        try:
            request = stage_of(
                log, own, replace(rewrite, bins=bins), identity, parallel=parallel, spark_table_uri=spark_table_uri
            )
            if isinstance(request, StagedWrite):
                raise StagingException(f"A batch of {rewrite.operation} has no files", table=log.uri)
            adds, removes, _rows = collect_actions(log, own, request, work(request))
        except BaseException:
            _give_up(log, own)
            raise
        if not adds:  # as Delta does: what has no rows left is for DELETE to remove
            _give_up(log, own)
            continue
        try:
            with fence(log, own, str(identity["attempt"])) as held:
                result = _commit(log, own, request, adds, removes, held.policy(policy), tags, user_metadata, hooks)
                held.version = result.version
        except CommitStateUnknownException:
            raise
        except Exception:  # nothing but an Exception says that no put is under way
            _give_up(log, own)  # deletes nothing of a commit that stands: what failed may have come after it
            raise
        commits.append(result)
        all_adds += adds
        all_removes += removes
        _clean_up(log, own, request)
    return OptimizeResult(
        table=log.uri,
        operation=rewrite.operation,
        read_version=handle.read_version,
        version=commits[-1].version if commits else None,
        commits=tuple(commits),
        metrics=rewrite_metrics(all_adds, all_removes),
        num_partitions=len({tuple(sorted(members[0].partition_values.items())) for members in rewrite.bins}),
        num_bins=len(rewrite.bins),
        num_batches=len(batches),
        num_considered=rewrite.num_considered,
        num_skipped=rewrite.num_considered - len(all_removes),
    )


def _another(log: DeltaLog, handle: TransactionHandle) -> TransactionHandle:
    """Return a handle on the same version for one more commit: with a name of its own for the log and for the staged files."""
    transaction_id = str(uuid.uuid4())
    return replace(handle, transaction_id=transaction_id, staging_path=f"{log.uri}/{transaction_directory(transaction_id)}")


def _commit(
    log: DeltaLog,
    handle: TransactionHandle,
    request: StageRequest,
    adds: Sequence[AddFile],
    removes: Sequence[RemoveFile],
    policy: CommitPolicy,
    tags: Mapping[str, str] | None,
    user_metadata: str | None,
    hooks: Sequence[PostCommitHook],
) -> CommitResult:
    from airflow_delta.transaction import OptimisticTransaction

    operation = _operation(request, adds, removes)
    read = snapshot = read_snapshot(log, handle)
    now = int(time.time() * 1000)
    actions: list[Action] = [*adds, *(msgspec.structs.replace(remove, deletion_timestamp=now) for remove in removes)]
    while True:
        txn = OptimisticTransaction(log, snapshot, txn_id=handle.transaction_id, policy=policy, user_metadata=user_metadata)
        for hook in hooks:
            txn.register_post_commit_hook(hook)
        txn.track_files_read([remove.path for remove in removes])
        txn.track_read_predicates(request.predicate or "true")
        try:
            txn.commit(actions, operation, tags={**(tags or {}), **_feature_tags(txn, request)})
        except CommitStateUnknownException:
            raise
        except DeltaConcurrentModificationException as failure:
            snapshot = log.update()
            if _is_committed(log, txn) or not _still_valid(read, snapshot, removes):
                raise
            logger.info(
                "Transaction %s: commit again on version %s of %s: %s",
                handle.transaction_id,
                snapshot.version,
                log.uri,
                failure.message,
            )
            continue
        return result_of_transaction(
            txn, operation.name, adds, num_removed_files=len(removes), num_records=total(map(live_records, adds))
        )


def _is_committed(log: DeltaLog, txn: OptimisticTransaction) -> bool:
    """Tell whether the log holds the commit; the transaction itself may not have come to know of it."""
    if txn.committed:
        return True
    log.update()
    needle = json.dumps(txn.txn_id).encode()
    return any(needle in entry.data for entry in newest_first(log, txn.read_version + 1))


def _give_up(log: DeltaLog, handle: TransactionHandle) -> None:
    """Delete what was staged for a commit that is not in the log, and that nobody is about to put there."""
    with contextlib.suppress(Exception):  # the error that led here says more; maintenance deletes what is left
        abort(log, handle)


def _operation(request: StageRequest, adds: Sequence[AddFile], removes: Sequence[RemoveFile]) -> Any:
    from airflow_delta.transaction import Operation

    return Operation(request.operation, dict(request.arguments["parameters"]), rewrite_metrics(adds, removes))


def _still_valid(read: Snapshot, snapshot: Snapshot, removes: Sequence[RemoveFile]) -> bool:
    """Tell whether the table still has every file that was rewritten, with the same rows, and takes the new ones as they are."""
    before, now = read.metadata, snapshot.metadata
    columns = {name.lower() for name in before.partition_columns}

    def partitioning(of: Snapshot) -> list[tuple[str, str]]:
        return [(f.name, f.data_type.name) for f in of.schema.fields if f.name.lower() in columns]

    mode = "delta.columnMapping.mode"
    same_table = (
        before.id == now.id
        and list(before.partition_columns) == list(now.partition_columns)
        and partitioning(read) == partitioning(snapshot)
        and before.configuration.get(mode, "none") == now.configuration.get(mode, "none")
    )
    if not same_table:
        return False
    live = {file_key(file) for file in snapshot.add_files()}
    return all(file_key(remove) in live for remove in removes)


def _feature_tags(txn: OptimisticTransaction, request: StageRequest) -> dict[str, str]:
    if txn.metadata.configuration.get("delta.enableRowTracking", "false").lower() != "true":
        return {}
    return {ROW_TRACKING_PRESERVED: "true" if request.arguments.get("rowIds") is not None else "false"}


def _clean_up(log: DeltaLog, handle: TransactionHandle, request: StageRequest) -> None:
    """Delete what only the way to the commit needed."""
    with contextlib.suppress(Exception):  # the commit stands; maintenance deletes what is left
        if request.rewrite is not None and request.rewrite.deleted_rows is not None:
            log.store.delete_tree(f"{transaction_directory(handle.transaction_id)}/{SCAN_DIRECTORY}")
        if log.store.head(f"{request.directory}/{REQUEST_NAME}") is not None:
            log.store.delete([f"{request.directory}/{REQUEST_NAME}"])
            log.store.delete_tree(f"{request.directory}/{REPORT_DIRECTORY}")
