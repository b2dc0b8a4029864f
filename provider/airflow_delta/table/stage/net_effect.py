"""The net effect of staged writes on the table's files, and what the transaction has read for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import FileKey, file_key
from airflow_delta.table.stage.data_change import check_dropped
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.key_reads import key_set
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.whole_files import LISTS_FILES, whole_files
from airflow_delta.table.start.replaced_files import files_to_replace
from airflow_delta.transaction.operation_kinds import COMPACTIONS

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction


@dataclass(slots=True)
class NetEffect:
    """The files that a transaction removes and adds in the end.

    A file that several overwrites select is removed once. What one stage adds and a later one, planned on top of it, removes is
    neither added nor removed.
    """

    _removes: dict[FileKey, RemoveFile] = field(default_factory=dict)
    _adds: dict[FileKey, AddFile] = field(default_factory=dict)
    _keys_of: dict[str, list[FileKey]] = field(default_factory=dict)
    _rewritten_by: dict[str, StagedWrite] = field(default_factory=dict)
    _removed_by: dict[FileKey, str] = field(default_factory=dict)

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
        keys = [key for earlier in dict.fromkeys(stage.write.after) for key in self._keys_of.get(earlier, ())]
        return [self._adds[key] for key in keys if key in self._adds]

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
                self._removed_by[key] = stage_id(stage.write)
            if stage.adds:  # otherwise it keeps no rows
                self._rewritten_by[remove.path] = stage.write
        for add in stage.adds:
            self._adds[file_key(add)] = add
        self._keys_of[stage_id(stage.write)] = list(map(file_key, stage.adds))

    def add_whole(self, files: Iterable[AddFile], by: StagedWrite | None, handle: TransactionHandle) -> None:
        """Add files that leave the table with all their rows.

        :param by: the stage that removes them, ``None``: the rerun policy does.
        :raises StageConflictException: if another stage has rewritten some of their rows.
        """
        for file in files:
            if by is not None and self._removed_by.get(file_key(file)) in by.after:
                continue  # it was gone when the stage was planned
            other = self._rewritten_by.get(file.path)
            if other is not None and (by is None or stage_id(other) not in by.after):
                name, way = "rerun_policy='replace'", "Leave that to the stages: rerun_policy='append'"
                if by is not None:
                    name = f"stage {by.stage}"
                    way = "Make their predicates disjoint, or plan one on top of the other (after=)"
                raise handle.error(
                    StageConflictException,
                    f"{file.path} of table {handle.table} is rewritten by stage {other.stage}, which keeps some of its rows, "
                    f"and removed whole by {name} in the same transaction. {way}.",
                )
            if other is None:
                remove = file.remove(0, data_change=by is None or by.data_change)
                known = self._removes.setdefault(file_key(file), remove)
                if known.data_change != remove.data_change:
                    name = "rerun_policy='replace'" if by is None else f"stage {by.stage}"
                    raise handle.error(
                        StageConflictException,
                        f"{file.path} of table {handle.table} is replaced by {name} and by another stage of the same "
                        "transaction, and only one of them changes its rows (data_change). Put them into separate transactions.",
                    )


def find_replaced(view: TransactionView, txn: OptimisticTransaction) -> NetEffect:
    """Return what the stages add and remove, and record in the transaction what they and their tasks have read."""
    handle, replaced, defined = view.handle, NetEffect(), False
    reads = _Reads(view, txn)
    overwrites: list[StageActions] = []
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
        reads.record(stage)
        if stage.write.mode not in LISTS_FILES:
            overwrites.append(stage)
    reads.list_files()
    if txn.read_version < 0:
        if overwrites:
            txn.filter_files()
        overwrites = []
    whole = whole_files(view, txn, overwrites)
    added: set[tuple[int, bool, tuple[str, ...]]] = set()
    for stage in overwrites:  # once the rewrites of all stages are known
        files, write = whole.get(stage_id(stage.write), ()), stage.write
        same = id(files), write.data_change, tuple(write.after)
        if same not in added:  # parts of one overwrite may share their list
            added.add(same)
            replaced.add_whole(files, write, handle)
    earlier = files_to_replace(view.log, txn.snapshot, handle)
    if earlier:
        txn.track_files_read([file.path for file in earlier])
        replaced.add_whole(earlier, None, handle)
    return replaced


class _Reads:
    """Records in a transaction what stages and their tasks have read; files are listed once for all of them."""

    def __init__(self, view: TransactionView, txn: OptimisticTransaction) -> None:
        self._view = view
        self._txn = txn
        self._whole_table = False
        self._predicates: list[Predicate] = []

    def record(self, stage: StageActions) -> None:
        """Record what a stage has read."""
        txn, reads = self._txn, stage.write.reads
        if reads.whole_table:
            self._whole_table |= not reads.selected
            txn.read_whole_table(rows=True, selected=reads.selected)
        for text in reads.predicates:
            self._record_predicate(stage, text)
        moved = {remove.path for remove in stage.removes} if stage.write.operation in COMPACTIONS else set()
        if moved:
            parameters = stage.write.parameters
            ordered = stage.write.operation != "OPTIMIZE" or any(parameters.get(name) for name in ("zOrderBy", "clusterBy"))
            txn.track_files_moved(moved, reordered=ordered)
        files = [path for path in reads.files if path not in moved]
        if files:
            txn.track_files_read(files, whole=not (reads.predicates or reads.whole_table))
        if reads.app_ids:
            txn.track_app_ids(*reads.app_ids)

    def _record_predicate(self, stage: StageActions, text: str) -> None:
        view, txn, write = self._view, self._txn, stage.write
        predicate, own = view.predicate_of(stage, text), write.replace_where if write.mode == "overwrite" else None
        # A rewrite lists the files that it depends on; others that it looked at had no matching rows.
        if write.mode == "rewrite" or (text == own and stage.removes):
            keys, marked, scanned = key_set(view, stage, text), text in write.reads.marked, text in write.reads.scanned
            txn.track_read_predicates(predicate, keys=keys, marked=marked, scanned=scanned)
        elif predicate.data_part is None and txn.read_version >= 0:
            self._predicates.append(predicate)
        else:
            txn.filter_files(predicate, columns=["path"])

    def list_files(self) -> None:
        """List the files that are read by what stages have read the table by."""
        if self._whole_table:
            self._txn.filter_files(columns=["path"])
        if self._predicates:
            self._txn.filter_files_for_any(self._predicates, columns=["path"])
