"""Runs one transaction of a row history: plans it on the version that it reads, and commits it as the tasks of a Dag do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaConcurrentModificationException,
    DeltaFileNotFoundException,
    StageConflictException,
    StagedFileException,
)
from airflow_delta.log import AddFile, DeltaLog, RemoveFile, SetTransaction, Snapshot
from airflow_delta.log.actions.reconciliation import file_key
from airflow_delta.table.commit.features import feature_tags
from airflow_delta.table.commit.operation import operation_of
from airflow_delta.table.operations.restore import restore_actions
from airflow_delta.table.operations.statistics import recomputed
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import find_replaced
from airflow_delta.table.stage.view import ReadVersion, TransactionView
from airflow_delta.table.state.read_snapshot import table_fields
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, TransactionObserver
from faults.rows.files import ARROW, HistoryTable
from faults.rows.model import Append, Delete, Optimize, Restate, Restore, Step, Vacuum
from faults.rows.plans import Planner
from faults.rows.setting import Setting
from faults.rows.values import TYPES

GONE = (DeltaFileNotFoundException, StagedFileException)
"""Errors of operations that need files which VACUUM has deleted."""
PRESERVED = "delta.rowTracking.preserved"
MAX_RESTARTS = 3
"""Of COMPUTE STATS."""


@dataclass
class Result:
    """How a transaction ended.

    :param version: what it committed, ``None`` if it was refused.
    :param resolved: how conflicts by Delta's rules turned out not to be any, to versions.
    :param error: name of the exception that refused it.
    :param winner: the version that it lost to.
    :param stages: what was staged.
    """

    read: int
    version: int | None = None
    resolved: dict[str, str] = field(default_factory=dict)
    error: str = ""
    message: str = ""
    winner: int | None = None
    stages: list[StageActions] = field(default_factory=list)


class Interrupted(TransactionObserver):
    """Runs something right before each of the first puts.

    :param works: for the first put, the second, ...
    """

    def __init__(self, works: list[Callable[[], None]]) -> None:
        self._works = works

    def before_put(self, _version: int, _attempt: int) -> None:
        if self._works:
            self._works.pop(0)()


def run(table: HistoryTable, log: DeltaLog, step: Step, name: str, latest: int, inside: list[Callable[[], None]]) -> Result:
    """Run a transaction.

    :param name: of the transaction.
    :param latest: version of the table.
    :param inside: run before its puts.
    """
    read = max(latest - step.lag, 0)
    if isinstance(step.operation, Vacuum):
        table.vacuum()
        return Result(read)
    if step.rust:
        run_rust(table, step)
        return Result(read, latest + 1 if (table.path / "_delta_log" / f"{latest + 1:020d}.json").exists() else None)
    snapshot = log.update() if read == latest else log.snapshot_at(read)
    begin = partial(
        OptimisticTransaction,
        log,
        txn_id=str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        policy=policy_of(table.setting, step),
        isolation_level=step.level,
        observer=Interrupted(inside),
    )
    result = Result(read)
    txn = begin(snapshot)
    try:
        for start in count():
            try:
                result.version = _commit(table, log, snapshot, txn, step, result.stages)
                break
            except DeltaConcurrentModificationException:
                again = log.update()
                if not _starts_over(step, result.stages, again, start):
                    raise
                txn = begin(again)
    except DeltaConcurrentModificationException as error:
        result.error, result.message, result.winner = type(error).__name__, error.message, error.winning_version
    except (StageConflictException, *GONE):
        return result
    result.resolved = {} if txn.outcome is None else dict(txn.outcome.resolved)
    return result


def _starts_over(step: Step, stages: Sequence[StageActions], snapshot: Snapshot, times: int) -> bool:
    """Tell whether an operation that is a transaction of its own commits again after a conflict.

    COMPUTE STATS reads the newest version, three times at most; OPTIMIZE commits what it has as long as all its files are there.
    """
    if isinstance(step.operation, Restate):
        return times < MAX_RESTARTS
    if not isinstance(step.operation, Optimize) or not _is_alone(step.operation, stages):
        return False
    live = {file_key(file) for file in snapshot.add_files()}
    return all(file_key(remove) in live for remove in stages[0].removes)


def _is_alone(optimize: Optimize, stages: Sequence[StageActions]) -> bool:
    return not optimize.staged and len(stages) == 1


def policy_of(setting: Setting, step: Step) -> CommitPolicy:
    return CommitPolicy(
        conflict_detection=step.detection,  # type: ignore[arg-type]
        conflict_read_limit=step.limit,
        max_wait=0.0,
        total_timeout=60.0,
        commit_lock=False,
        checkpoint="inline" if setting.interval else "off",
        checksum=bool(setting.interval),
        fail_on_hook_error=True,
    )


def _commit(
    table: HistoryTable, log: DeltaLog, snapshot: Snapshot, txn: OptimisticTransaction, step: Step, stages: list[StageActions]
) -> int | None:
    operation = step.operation
    if isinstance(operation, Restate):
        return txn.commit_if_needed(recomputed(txn, None), Operation.compute_stats(["true"]))
    if isinstance(operation, Restore):
        found = restore_actions(log, txn, version=max(snapshot.version - operation.back, 0))
        if found is None or not operation.plain:
            return None if found is None else txn.commit_large(*found)
        again = OptimisticTransaction(log, snapshot, txn_id=txn.txn_id, policy=txn.policy)
        again.filter_files()
        again.read_whole_table()
        return again.commit([action for action in found[0] if isinstance(action, AddFile | RemoveFile)], found[1])
    handle = handle_of(table, log, snapshot, txn, step)
    if not stages:
        stages += Planner(table, log, snapshot, handle, step).plan()
    removed = [remove.path for stage in stages for remove in stage.removes]
    if len(set(removed)) < len(removed):  # the commit refuses that before anything else
        return None
    if isinstance(operation, Optimize) and _is_alone(operation, stages):
        return _optimize(table, txn, stages[0], operation)
    view = TransactionView(log=log, handle=handle, read=ReadVersion(log, handle, snapshot), stages=tuple(stages))
    txn.txn_version(handle.app_id)
    replaced = find_replaced(view, txn)
    key = SetTransaction(app_id=handle.app_id, version=handle.txn_version, last_updated=1)
    tags = feature_tags(txn, view.stages)
    return txn.commit([key, *replaced.adds, *replaced.removes], operation_of(txn.metadata, view.stages, replaced), tags=tags)


def _optimize(table: HistoryTable, txn: OptimisticTransaction, stage: StageActions, operation: Optimize) -> int | None:
    """Commit as ``table/operations/optimize/run.py`` does."""
    txn.track_files_read([remove.path for remove in stage.removes])
    txn.track_read_predicates("true")
    tags = {PRESERVED: str(operation.keeps_ids).lower()} if table.setting.tracked and table.setting.has_ids else {}
    return txn.commit_if_needed([*stage.adds, *stage.removes], Operation.optimize(), tags=tags)


def handle_of(
    table: HistoryTable, log: DeltaLog, snapshot: Snapshot, txn: OptimisticTransaction, step: Step
) -> TransactionHandle:
    return TransactionHandle(
        transaction_id=txn.txn_id,
        table=log.uri,
        read_version=snapshot.version,
        **table_fields(snapshot),
        staging_path=f"{log.uri}/staged/{txn.txn_id}",
        app_id=txn.txn_id,
        txn_version=1,
        isolation_level=step.level or table.setting.level,
    )


def run_rust(table: HistoryTable, step: Step) -> None:
    """Run a transaction with delta-rs, on the latest version."""
    uri, operation = str(table.path), step.operation
    if isinstance(operation, Append):
        columns = zip(*operation.rows, strict=True)
        pairs = zip(TYPES.items(), columns, strict=True)
        data = pa.table({name: pa.array(values, ARROW[kind]) for (name, kind), values in pairs})
        write_deltalake(uri, data, mode="append", partition_by=table.partition_by or None)
    elif isinstance(operation, Delete):
        DeltaTable(uri).delete(None if operation.where is None else str(operation.where))
    else:
        DeltaTable(uri).optimize.compact()
