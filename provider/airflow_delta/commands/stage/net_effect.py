"""The net effect of staged writes on the table's files, and what the transaction has read for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.commands.begin.replace_rerun import files_to_replace
from airflow_delta.commands.stage.after import stage_id
from airflow_delta.commands.stage.data_change import check_dropped
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.commands.stage.read_keys import key_set
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import FileKey, file_key
from airflow_delta.staging.contract import StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction

_LISTS_FILES = ("append", "rewrite", "alter")
"""Modes that list all files that they remove."""


@dataclass(slots=True)
class NetEffect:
    """The files that a transaction removes and adds in the end.

    A file that several overwrites select is removed once. What one stage adds and a later one, planned on top of it, removes is
    neither added nor removed.
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
        """Return the files added by the stages that this one builds on."""
        return [add for key, add in self._adds.items() if self._added_by[key] in stage.write.after]

    def drop_staged(self, keys: Iterable[FileKey]) -> None:
        """Drop files that an earlier stage added; they never reach the log."""
        for key in keys:
            del self._adds[key]

    def add_stage(self, stage: StageActions) -> None:
        """Add the files that a stage adds and those that it lists as removed."""
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
        :raises StageConflictException: if another stage has rewritten some of their rows.
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


def find_replaced(view: TransactionView, txn: OptimisticTransaction) -> NetEffect:
    """Return what the stages add and remove, and record in the transaction what they and their tasks have read.

    :raises StageConflictException: if two stages contradict each other.
    """
    handle, replaced, defined = view.handle, NetEffect(), False
    whole: list[tuple[StageActions, list[AddFile]]] = []
    for stage in view.stages:
        before = replaced.staged_before(stage)
        if before:
            listed = {file_key(remove) for remove in stage.removes}
            dropped = set(view.gone(before, stage))
            check_dropped(handle, stage, [add for add in before if file_key(add) in dropped])
            replaced.drop_staged(dropped - listed)
        replaced.add_stage(stage)
        if defined:
            continue  # an earlier stage defines the table: nothing of the version that was read is left
        defined = bool(stage.write.definition)
        _record_reads(view, txn, stage)
        if txn.read_version < 0:
            if stage.write.mode not in _LISTS_FILES:
                txn.filter_files()
            continue
        files = _whole_files(view, txn, stage)
        if files is not None:
            whole.append((stage, files))
    for stage, files in whole:  # once the rewrites of all stages are known
        replaced.add_whole(files, stage.write, handle)
    earlier = files_to_replace(view.log, txn.snapshot, handle)
    if earlier:
        txn.track_files_read([file.path for file in earlier])
        replaced.add_whole(earlier, None, handle)
    return replaced


def _record_reads(view: TransactionView, txn: OptimisticTransaction, stage: StageActions) -> None:
    reads = stage.write.reads
    rewrites = stage.write.mode == "rewrite"
    if reads.whole_table:
        if not reads.selected:
            txn.filter_files(columns=["path"])
        txn.read_whole_table(rows=True, selected=reads.selected)
    own = stage.write.replace_where if stage.write.mode == "overwrite" else None
    for text in reads.predicates:
        predicate = view.predicate_of(stage, text)
        # A rewrite lists the files that it depends on; others that it looked at had no matching rows.
        if rewrites or (text == own and stage.removes):
            keys, marked, scanned = key_set(view, stage, text), text in reads.marked, text in reads.scanned
            txn.track_read_predicates(predicate, keys=keys, marked=marked, scanned=scanned)
        else:
            txn.filter_files(predicate, columns=["path"])
    if reads.files:
        txn.track_files_read(reads.files, whole=not (reads.predicates or reads.whole_table))
    if reads.app_ids:
        txn.track_app_ids(*reads.app_ids)


def _whole_files(view: TransactionView, txn: OptimisticTransaction, stage: StageActions) -> list[AddFile] | None:
    """Return the files that a stage removes whole; ``None`` if there are none, or it lists its removes itself."""
    write = stage.write
    if write.mode in _LISTS_FILES:
        return None
    from airflow_delta.log.checkpoint.file_columns import FILE_COLUMNS, to_add_files

    if write.mode == "dynamic":
        return to_add_files(txn.filter_files_for_partitions(stage.adds, columns=FILE_COLUMNS))
    if write.replace_where is None:
        return to_add_files(txn.filter_files(columns=FILE_COLUMNS))
    predicate = view.predicate_of(stage, write.replace_where)
    if not predicate.partition_only:
        txn.track_read_predicates(predicate)
        return None
    files = to_add_files(txn.filter_files(predicate, columns=FILE_COLUMNS))
    if not predicate.zone_dependent:
        return files
    # For files that need a time zone, Spark wrote the rows that stay; with change data, the stage lists the other files too.
    listed = {remove.path for remove in stage.removes}
    return [file for file in files if file.path not in listed and predicate.selects_partition(file.partition_values)]
