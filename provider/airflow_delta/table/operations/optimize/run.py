"""Run an OPTIMIZE or a REORG outside of a transaction: in batches, each committed without an identity, as in Delta.

Without a ``txn`` action the commit runs at snapshot isolation: it only conflicts with a removal of files that it rewrote.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_delta.contract.delta_names import COLUMN_MAPPING_MODE, ENABLE_ROW_TRACKING, ROW_TRACKING_PRESERVED
from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY, REQUEST_NAME, SCAN_DIRECTORY, transaction_directory
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    StagingException,
)
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.log.delta_log import DeltaLog
from airflow_delta.log.features.clustering import clustering_columns, logical_columns
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.table.abort import abort
from airflow_delta.table.operations.optimize.bins import Bin, RewriteSelection, batches_of
from airflow_delta.table.operations.optimize.collect import collect_actions, rewrite_metrics
from airflow_delta.table.operations.optimize.plan import PARALLEL, stage_of
from airflow_delta.table.stage.stage_view import StageView, open_stage
from airflow_delta.table.stage.view import TransactionView
from airflow_delta.table.start.begin import begin
from airflow_delta.table.state.commit_result import result_of_transaction
from airflow_delta.table.state.find_commit import newest_first
from airflow_delta.table.state.markers import fence
from airflow_delta.table.state.optimize_result import OptimizeResult
from airflow_delta.transaction import Operation, OptimisticTransaction
from airflow_delta.transaction.prepare.isolation import IsolationLevel

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action, Metadata
    from airflow_delta.log.schema.walk import Path
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.transaction import CommitPolicy, PostCommitHook


__all__ = ["OptimizeResult", "run_rewrite"]


logger = logging.getLogger(__name__)


def run_rewrite(
    log: DeltaLog,
    select: Callable[[TransactionView], RewriteSelection],
    on_spark: Callable[[StageRequest], StageReport],
    *,
    identity: Mapping[str, Any],
    batch_size: int | None = None,
    parallel: int = PARALLEL,
    spark_table_uri: str | None = None,
    policy: CommitPolicy | None = None,
    tags: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
    hooks: Sequence[PostCommitHook] = (),
    max_restarts: int = 0,
) -> OptimizeResult:
    """Select, rewrite and commit; if there is nothing to rewrite, nothing is committed.

    Bins whose files others have compacted meanwhile are left out, as are those whose files they have changed where rows cannot be
    followed, unless nothing else is left. A commit that conflicts otherwise is repeated unchanged as long as the table still has
    all the files that it rewrote.

    :param select: selects the files of the version that is read (``plan_optimize``, ``reorg``).
    :param on_spark: does the Spark part.
    :param identity: ``task_id``, ``map_index`` and ``attempt``, which separate the staged files.
    :param batch_size: bytes of input per commit; default: all in one. Commits are kept if a later batch fails.
    :param parallel: bins that Spark writes at a time.
    :param max_restarts: how often to start over on the newest version after a conflict. Commits before it are kept.
    :return: bins, batches and files that are not metrics are those of the last start.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises DeltaConcurrentModificationException: if others have changed files of every bin, and rows cannot be followed.
    :raises CommitStateUnknownException: if the store did not say whether the entry was written. Nothing is cleaned up.
    """
    if batch_size is not None and batch_size < 1:
        raise log.error(DeltaIllegalArgumentException, f"batch_size must be at least 1 byte, got {batch_size}")
    entries: list[_Entry] = []
    for restarts in count(1):
        # The key never reaches the log: an OPTIMIZE that runs again finds what is left to do.
        handle = begin(log, transaction_key=f"airflow-delta-optimize-{uuid.uuid4()}", create=False)
        first = open_stage(log, handle, **identity, spark_table_uri=spark_table_uri)
        rewrite = select(first)
        if rewrite.metadata is not None:
            first = replace(first, given_target=_target(first.definition, rewrite.metadata))
        batches = batches_of(rewrite.bins, batch_size) if rewrite.bins else []
        before = len(entries)
        try:
            _run_batches(first, rewrite, batches, on_spark, parallel, policy, tags, user_metadata, hooks, entries)
            break
        except _LostError as lost:
            if restarts > max_restarts:
                raise lost.conflict from lost.conflict.__cause__
            message = lost.conflict.message
            logger.info("Starting over on the newest version of %s (%s of %s): %s", log.uri, restarts, max_restarts, message)
    adds = [add for entry in entries for add in entry.adds]
    removes = [remove for entry in entries for remove in entry.removes]
    last = [remove for entry in entries[before:] for remove in entry.removes]
    commits = tuple(entry.result for entry in entries)
    return OptimizeResult(
        table=log.uri,
        operation=rewrite.operation,
        read_version=handle.read_version,
        version=commits[-1].version if commits else None,
        commits=commits,
        metrics=rewrite_metrics(adds, removes),
        num_partitions=len({tuple(sorted(partition_texts_of(members[0].partition_values).items())) for members in rewrite.bins}),
        num_bins=len(rewrite.bins),
        num_dropped_bins=_num_dropped(rewrite.bins, last),
        num_batches=len(batches),
        num_considered=rewrite.num_considered,
        num_skipped=rewrite.num_considered - len(last),
    )


def _run_batches(
    first: StageView,
    rewrite: RewriteSelection,
    batches: Sequence[Sequence[Bin]],
    on_spark: Callable[[StageRequest], StageReport],
    parallel: int,
    policy: CommitPolicy | None,
    tags: Mapping[str, str] | None,
    user_metadata: str | None,
    hooks: Sequence[PostCommitHook],
    entries: list[_Entry],
) -> None:
    """Rewrite the batches and commit each.

    :param entries: what was committed is appended.
    :raises _LostError: if a commit conflicts for good.
    """
    log = first.log
    for number, bins in enumerate(batches):
        stage = first if number == 0 else _another(first)
        logger.info("Batch %s of %s of %s on %s: %s bins.", number + 1, len(batches), rewrite.operation, log.uri, len(bins))
        try:
            work = stage_of(stage, replace(rewrite, bins=tuple(bins)), parallel=parallel)
            if isinstance(work, StagedWrite):
                raise log.error(StagingException, f"A batch of {rewrite.operation} has no files")
            request, arguments = work.request, OptimizeArguments.of(work.request)
            report = on_spark(request)
            adds, removes, _rows = collect_actions(stage.reported(request, report, arguments), request, report, arguments)
        except BaseException:
            _give_up(log, stage.handle)
            raise
        if not adds and rewrite.metadata is None:  # as in Delta: files without rows are left to DELETE
            _give_up(log, stage.handle)
            continue
        try:
            with fence(log, stage.handle, stage.own.attempt) as held:
                entry = _commit(stage, request, rewrite, adds, removes, held.policy(policy), tags, user_metadata, hooks)
                if isinstance(entry, _Entry):
                    held.version = entry.result.version
                else:
                    held.end_without_commit()
            if isinstance(entry, DeltaConcurrentModificationException):
                raise _LostError(entry)
        except CommitStateUnknownException:
            raise
        except Exception:  # only an Exception means that no put is under way
            _give_up(log, stage.handle)  # deletes nothing of a successful commit: the failure may have come after it
            raise
        if entry is None:
            logger.info("Others have compacted the files of batch %s of %s: nothing is left of it.", number + 1, len(batches))
            _give_up(log, stage.handle)
            continue
        _clean_up(stage, request)
        entries.append(entry)


def _num_dropped(bins: Sequence[Bin], removes: Sequence[RemoveFile]) -> int:
    """Return of how many bins with rows no file was removed by a commit."""
    removed = {remove.path for remove in removes}
    with_rows = [members for members in bins if any(live_records(file) != 0 for file in members)]
    return sum(removed.isdisjoint(file.path for file in members) for members in with_rows)


def _target(definition: TableDefinition, metadata: Metadata) -> TableDefinition:
    return replace(definition, schema_string=metadata.schema_string, configuration=metadata.properties)


def _another(stage: StageView) -> StageView:
    """Return a view of the same version for another commit, with its own transaction id and staging path."""
    transaction_id = str(uuid.uuid4())
    staging_path = f"{stage.log.uri}/{transaction_directory(transaction_id)}"
    return replace(stage, handle=replace(stage.handle, transaction_id=transaction_id, staging_path=staging_path))


class _LostError(Exception):
    """A commit that conflicts for good: what was rewritten is no longer what the table has."""

    def __init__(self, conflict: DeltaConcurrentModificationException) -> None:
        super().__init__(conflict.message)
        self.conflict = conflict


class _Entry(NamedTuple):
    """What was committed: winning commits may have changed it."""

    result: CommitResult
    adds: list[AddFile]
    removes: list[RemoveFile]


def _commit(
    stage: StageView,
    request: StageRequest,
    rewrite: RewriteSelection,
    adds: Sequence[AddFile],
    removes: Sequence[RemoveFile],
    policy: CommitPolicy,
    tags: Mapping[str, str] | None,
    user_metadata: str | None,
    hooks: Sequence[PostCommitHook],
) -> _Entry | DeltaConcurrentModificationException | None:
    """Commit, or return the conflict that keeps it from the log for good; ``None`` if nothing is left to commit."""
    log, handle, arguments = stage.log, stage.handle, OptimizeArguments.of(request)
    changed = rewrite.metadata
    metrics = rewrite_metrics(adds, removes)
    if changed is not None:
        copied = total(map(live_records, adds)) or 0
        metrics |= {"numRewrittenFiles": len(removes), "numOutputBytes": metrics["numAddedBytes"], "numCopiedRows": copied}
    operation = Operation(rewrite.operation, arguments.parameters, metrics)
    # A file that another commit appends has the names of the old metadata; below Serializable, a blind append would go unnoticed.
    level = None if changed is None else IsolationLevel.SERIALIZABLE
    read = snapshot = stage.snapshot
    now = int(time.time() * 1000)
    actions: list[Action] = [*adds, *(msgspec.structs.replace(remove, deletion_timestamp=now) for remove in removes)]
    while True:
        txn = OptimisticTransaction(
            log, snapshot, txn_id=handle.transaction_id, policy=policy, isolation_level=level, user_metadata=user_metadata
        )
        for hook in hooks:
            txn.register_post_commit_hook(hook)
        if changed is not None:
            txn.adopt_changes(changed, txn.protocol, rewrite.domains)
            txn.read_whole_table()
        txn.track_files_read([remove.path for remove in removes])
        txn.track_read_predicates(request.predicate or "true")
        try:
            version = txn.commit_if_needed(actions, operation, tags={**(tags or {}), **_feature_tags(txn, arguments)})
        except CommitStateUnknownException:
            raise
        except DeltaConcurrentModificationException as failure:
            snapshot = log.update()
            if _is_committed(log, txn):
                raise
            if changed is not None or not _still_valid(read, snapshot, removes, clusters=bool(arguments.cluster_by)):
                return failure
            logger.info(
                "Transaction %s: commit again on version %s of %s: %s",
                handle.transaction_id,
                snapshot.version,
                log.uri,
                failure.message,
            )
            continue
        if version is None:
            return None
        committed = [action for action in txn.committed_actions if isinstance(action, AddFile)]
        removed = [action for action in txn.committed_actions if isinstance(action, RemoveFile)]
        records = total(map(live_records, committed))
        result = result_of_transaction(txn, operation.name, committed, num_removed_files=len(removed), num_records=records)
        return _Entry(result, committed, removed)


def _is_committed(log: DeltaLog, txn: OptimisticTransaction) -> bool:
    """Return whether the log holds the commit; the transaction itself may not know."""
    if txn.committed:
        return True
    log.update()
    needle = json.dumps(txn.txn_id).encode()
    return any(needle in entry.data for entry in newest_first(log, txn.read_version + 1))


def _give_up(log: DeltaLog, handle: TransactionHandle) -> None:
    """Delete what was staged for a commit that is not in the log and not about to get there."""
    with contextlib.suppress(Exception):  # the error that led here says more; maintenance deletes what is left
        abort(log, handle)


def _still_valid(read: Snapshot, snapshot: Snapshot, removes: Sequence[RemoveFile], *, clusters: bool) -> bool:
    """Return whether the table still has every file that was rewritten, with the same rows, and can take the new files.

    :param clusters: the new files are clustered, and say by which columns.
    """
    before, now = read.metadata, snapshot.metadata
    columns = {name.lower() for name in before.partition_columns}

    def partitioning(of: Snapshot) -> list[tuple[str, str]]:
        return [(f.name, f.data_type.name) for f in of.schema.fields if f.name.lower() in columns]

    mode = COLUMN_MAPPING_MODE
    same_table = (
        before.id == now.id
        and list(before.partition_columns) == list(now.partition_columns)
        and partitioning(read) == partitioning(snapshot)
        and before.configuration.get(mode, "none") == now.configuration.get(mode, "none")
    )
    if not same_table or (clusters and _clustering(read) != _clustering(snapshot)):
        return False
    live = {file_key(file) for file in snapshot.add_files()}
    return all(file_key(remove) in live for remove in removes)


def _clustering(snapshot: Snapshot) -> list[Path]:
    return logical_columns(snapshot.schema, clustering_columns(snapshot.domain_metadata))


def _feature_tags(txn: OptimisticTransaction, arguments: OptimizeArguments) -> dict[str, str]:
    if txn.metadata.configuration.get(ENABLE_ROW_TRACKING, "false").lower() != "true":
        return {}
    return {ROW_TRACKING_PRESERVED: "true" if arguments.row_ids is not None else "false"}


def _clean_up(stage: StageView, request: StageRequest) -> None:
    """Delete what only the way to the commit needed."""
    store = stage.log.store
    with contextlib.suppress(Exception):  # the commit stands; maintenance deletes what is left
        if request.rewrite is not None and request.rewrite.deleted_rows is not None:
            store.delete_tree(f"{transaction_directory(stage.handle.transaction_id)}/{SCAN_DIRECTORY}")
        if store.head(f"{request.directory}/{REQUEST_NAME}") is not None:
            store.delete([f"{request.directory}/{REQUEST_NAME}"])
            store.delete_tree(f"{request.directory}/{REPORT_DIRECTORY}")
