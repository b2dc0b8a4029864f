"""Which files a set of staged writes removes, and what the transaction has thereby read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.commands.rerun import files_to_replace
from airflow_delta.commands.staged import StageActions
from airflow_delta.commands.table import parse_predicate
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import TransactionHandle

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import DeltaLog
    from airflow_delta.transaction import OptimisticTransaction

_Key = tuple[str, str | None]


@dataclass(slots=True)
class Replaced:
    """Files that a commit removes; a file that several whole overwrites select is removed once."""

    _by_key: dict[_Key, RemoveFile] = field(default_factory=dict)
    _rewritten_by: dict[str, str] = field(default_factory=dict)

    @property
    def removes(self) -> list[RemoveFile]:
        """Return the removes."""
        return list(self._by_key.values())

    def add_rewritten(self, stage: StageActions) -> None:
        """Add the files whose kept rows a stage has written again."""
        for remove in stage.removes:
            self._by_key[_key(remove)] = remove
            self._rewritten_by[remove.path] = stage.write.stage

    def add_whole(self, files: Iterable[AddFile], by: str, handle: TransactionHandle) -> None:
        """Add files that leave the table with all their rows.

        :raises StageConflictException: a stage has written some of their rows again.
        """
        for file in files:
            other = self._rewritten_by.get(file.path)
            if other is not None:
                raise StageConflictException(
                    f"{file.path} of table {handle.table} is rewritten by stage {other}, which keeps some of its rows, "
                    "and removed whole "
                    f"by {by} in the same transaction. Make their predicates disjoint.",
                    table=handle.table,
                    version=handle.read_version,
                )
            self._by_key.setdefault(_key(file), file.remove(0))


def find_replaced(
    log: DeltaLog, txn: OptimisticTransaction, handle: TransactionHandle, stages: Sequence[StageActions]
) -> Replaced:
    """Return what the stages remove, and record in the transaction what they and their tasks have read.

    :raises StageConflictException: two stages contradict each other.
    """
    replaced = Replaced()
    for stage in stages:
        replaced.add_rewritten(stage)
    for stage in stages:
        _record_reads(txn, stage)
        if txn.read_version < 0:
            if stage.write.mode != "append":
                txn.filter_files()
            continue
        files = _whole_files(log, txn, handle, stage)
        if files is not None:
            replaced.add_whole(files, f"stage {stage.write.stage}", handle)
    earlier = files_to_replace(log, txn.snapshot, handle)
    if earlier:
        txn.track_files_read([file.path for file in earlier])
        replaced.add_whole(earlier, "rerun_policy='replace'", handle)
    return replaced


def _record_reads(txn: OptimisticTransaction, stage: StageActions) -> None:
    reads = stage.write.reads
    if reads.whole_table:
        txn.filter_files()
        txn.read_whole_table()
    own = stage.write.replace_where if stage.write.mode == "overwrite" else None
    for predicate in reads.predicates:
        if predicate == own and stage.removes:
            txn.track_read_predicates(predicate)
        else:
            txn.filter_files(predicate)
    if reads.files:
        txn.track_files_read(reads.files)
    if reads.app_ids:
        txn.track_app_ids(*reads.app_ids)


def _whole_files(
    log: DeltaLog, txn: OptimisticTransaction, handle: TransactionHandle, stage: StageActions
) -> list[AddFile] | None:
    """Return the files that a stage removes whole, ``None`` when it removes none or lists its removes itself."""
    write = stage.write
    if write.mode == "append":
        return None
    if write.mode == "dynamic":
        return _actions(txn.filter_files_for_partitions(stage.adds))
    if write.replace_where is None:
        return _actions(txn.filter_files())
    predicate = parse_predicate(log, handle, write.replace_where)
    if not predicate.partition_only:
        txn.track_read_predicates(predicate)
        return None
    return _actions(txn.filter_files(predicate))


def _actions(files: pa.Table) -> list[AddFile]:
    from airflow_delta.log.files_columns import to_add_files

    return to_add_files(files)


def _key(action: AddFile | RemoveFile) -> _Key:
    return action.path, action.deletion_vector.unique_id if action.deletion_vector is not None else None
