"""Which files a set of staged writes removes, and what the transaction has thereby read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.commands.begin.replace_rerun import files_to_replace
from airflow_delta.commands.stage.after import FileKey, file_key, gone, handle_of_stage, predicate_of, stage_id
from airflow_delta.commands.stage.data_change import check_dropped
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.transaction import OptimisticTransaction

_LISTS_FILES = ("append", "rewrite", "alter")
"""Modes that remove no more than the files that are among their actions."""


@dataclass(slots=True)
class Replaced:
    """What a transaction does to the table's files: those that it removes, and those that it adds in the end.

    A file that several whole overwrites select is removed once. What one stage adds and a later one, planned on top of it,
    removes again is neither added nor removed.
    """

    _removes: dict[FileKey, RemoveFile] = field(default_factory=dict)
    _adds: dict[FileKey, AddFile] = field(default_factory=dict)
    _added_by: dict[FileKey, str] = field(default_factory=dict)
    _rewritten_by: dict[str, StagedWrite] = field(default_factory=dict)

    @property
    def removes(self) -> list[RemoveFile]:
        """Return the removes."""
        return list(self._removes.values())

    @property
    def adds(self) -> list[AddFile]:
        """Return the adds."""
        return list(self._adds.values())

    def staged_before(self, stage: StageActions) -> list[AddFile]:
        """Return the files that the stages have added on top of which this one was planned."""
        return [add for key, add in self._adds.items() if self._added_by[key] in stage.write.after]

    def drop_staged(self, keys: Iterable[FileKey]) -> None:
        """Drop files that an earlier stage added: they never get into the log."""
        for key in keys:
            del self._adds[key]

    def add_stage(self, stage: StageActions) -> None:
        """Add the files that a stage has added, and those whose kept rows it has written again."""
        for remove in stage.removes:
            key = file_key(remove)
            if key in self._adds:
                self.drop_staged([key])
            else:
                self._removes[key] = remove
            self._rewritten_by[remove.path] = stage.write
        for add in stage.adds:
            self._adds[file_key(add)] = add
            self._added_by[file_key(add)] = stage_id(stage.write)

    def add_whole(self, files: Iterable[AddFile], by: StagedWrite | None, handle: TransactionHandle) -> None:
        """Add files that leave the table with all their rows.

        :param by: the stage that removes them, ``None``: the rerun policy does.
        :raises StageConflictException: another stage has written some of their rows again.
        """
        for file in files:
            other = self._rewritten_by.get(file.path)
            if other is not None and (by is None or stage_id(other) not in by.after):
                name = "rerun_policy='replace'" if by is None else f"stage {by.stage}"
                raise StageConflictException(
                    f"{file.path} of table {handle.table} is rewritten by stage {other.stage}, which keeps some of its rows, "
                    f"and removed whole by {name} in the same transaction. Make their predicates disjoint, or plan one on top of "
                    "the other (after=).",
                    table=handle.table,
                    version=handle.read_version,
                )
            if other is None:
                remove = file.remove(0, data_change=by is None or by.data_change)
                known = self._removes.setdefault(file_key(file), remove)
                if known.data_change != remove.data_change:
                    name = "rerun_policy='replace'" if by is None else f"stage {by.stage}"
                    raise StageConflictException(
                        f"{file.path} of table {handle.table} is replaced by {name} and by another stage of the same "
                        "transaction, and only one of them changes its rows (data_change). Put them into separate transactions.",
                        table=handle.table,
                        version=handle.read_version,
                    )


def find_replaced(
    log: DeltaLog, txn: OptimisticTransaction, handle: TransactionHandle, stages: Sequence[StageActions]
) -> Replaced:
    """Return what the stages add and remove, and record in the transaction what they and their tasks have read.

    :param stages: in the order of :func:`airflow_delta.commands.stage.after.in_order`.
    :raises StageConflictException: two stages contradict each other.
    """
    replaced, defined = Replaced(), False
    whole: list[tuple[StageActions, list[AddFile]]] = []
    for stage in stages:
        known = handle_of_stage(handle, stage, stages)
        before = replaced.staged_before(stage)
        if before:
            listed = {file_key(remove) for remove in stage.removes}
            dropped = set(gone(known, before, stage))
            check_dropped(handle, stage, [add for add in before if file_key(add) in dropped])
            replaced.drop_staged(dropped - listed)
        replaced.add_stage(stage)
        if defined:
            continue  # its table is the one that an earlier stage has defined: nothing of the version that was read is left
        defined = bool(stage.write.definition)
        _record_reads(txn, known, stage)
        if txn.read_version < 0:
            if stage.write.mode not in _LISTS_FILES:
                txn.filter_files()
            continue
        files = _whole_files(txn, known, stage)
        if files is not None:
            whole.append((stage, files))
    for stage, files in whole:  # when it is known what every stage rewrites
        replaced.add_whole(files, stage.write, handle)
    earlier = files_to_replace(log, txn.snapshot, handle)
    if earlier:
        txn.track_files_read([file.path for file in earlier])
        replaced.add_whole(earlier, None, handle)
    return replaced


def _record_reads(txn: OptimisticTransaction, handle: TransactionHandle, stage: StageActions) -> None:
    reads = stage.write.reads
    if reads.whole_table:
        txn.filter_files(columns=["path"])
        txn.read_whole_table()
    rewrites = stage.write.mode == "rewrite"
    own = stage.write.replace_where if stage.write.mode == "overwrite" else None
    for predicate in reads.predicates:
        # A rewrite lists the files that it depends on; it may have looked at others, which held nothing for it.
        if rewrites or (predicate == own and stage.removes):
            txn.track_read_predicates(predicate_of(handle, stage.write, predicate))
        else:
            txn.filter_files(predicate_of(handle, stage.write, predicate), columns=["path"])
    if reads.files:
        txn.track_files_read(reads.files)
    if reads.app_ids:
        txn.track_app_ids(*reads.app_ids)


def _whole_files(txn: OptimisticTransaction, handle: TransactionHandle, stage: StageActions) -> list[AddFile] | None:
    """Return the files that a stage removes whole, ``None`` when it removes none or lists its removes itself."""
    write = stage.write
    if write.mode in _LISTS_FILES:
        return None
    from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files

    if write.mode == "dynamic":
        return to_add_files(txn.filter_files_for_partitions(stage.adds, columns=FILE_COLUMNS))
    if write.replace_where is None:
        return to_add_files(txn.filter_files(columns=FILE_COLUMNS))
    predicate = predicate_of(handle, write, write.replace_where)
    if not predicate.partition_only:
        txn.track_read_predicates(predicate)
        return None
    files = to_add_files(txn.filter_files(predicate, columns=FILE_COLUMNS))
    if not predicate.zone_dependent:
        return files
    # Of files that need a time zone, Spark has written the rows that stay; with change data, the stage lists the others as well.
    listed = {remove.path for remove in stage.removes}
    return [file for file in files if file.path not in listed and predicate.selects_partition(file.partition_values)]
