"""What a task of a transaction works on: opened once, read once, and passed down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.reconciliation import FileKey, file_key
from airflow_delta.table.definition.staged_definition import written
from airflow_delta.table.stage.earlier_stages import definition_after, in_order, predicate_of, stage_id
from airflow_delta.table.stage.load import StageActions, load_actions
from airflow_delta.table.stage.staged_paths import check_paths
from airflow_delta.table.state.read_snapshot import check_handle, definition_read, snapshot_of_transaction
from airflow_delta.transaction.reads.partition_set import PartitionSet

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.log.table_definition import TableDefinition


class ReadVersion:
    """The version that a transaction reads, looked up on first use: an append never needs it."""

    def __init__(self, log: DeltaLog, handle: TransactionHandle, known: Snapshot | None = None) -> None:
        self._log = log
        self._handle = handle
        self._known = known

    @cached_property
    def definition(self) -> TableDefinition:
        """Return what the table is at that version; of a table that does not exist, what the transaction creates."""
        return definition_read(self._handle, lambda: self.snapshot)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Return the snapshot; raises as :func:`~airflow_delta.table.state.read_snapshot.snapshot_of_transaction` does."""
        return snapshot_of_transaction(self._log, self._handle) if self._known is None else self._known


def opened(log: DeltaLog, handle: TransactionHandle) -> ReadVersion:
    """Return the version that a transaction reads, once its log has confirmed what the handle says about the table.

    Every task calls this before it works on the table: the rules that rows must keep come from the log, not from XCom.
    """
    read = ReadVersion(log, handle)
    if handle.read_version >= 0 and handle.committed is None:  # otherwise nothing is staged
        check_handle(handle, read.snapshot)
    return read


@dataclass(frozen=True, kw_only=True)
class TransactionView:
    """A transaction as one of its tasks sees it.

    :param handle: as the start task returned it: whose transaction it is, and on which version of which table. What the table
        is, :attr:`definition` and :attr:`target` say.
    :param stages: with their actions, each after those that it was planned on top of. For a stage: those that it builds on;
        for audit and commit: all.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param given_target: replaces :attr:`target` where rows define the table.
    """

    log: DeltaLog
    handle: TransactionHandle
    read: ReadVersion
    stages: tuple[StageActions, ...] = ()
    spark_table_uri: str | None = None
    given_target: TableDefinition | None = None
    _seen: dict[str, TableDefinition] = field(default_factory=dict, init=False, repr=False, compare=False)
    _predicates: dict[tuple[str, str], Predicate] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def snapshot(self) -> Snapshot:
        """Return the version that the transaction reads; its version is -1 if there was no table."""
        return self.read.snapshot

    @property
    def definition(self) -> TableDefinition:
        """What the table is at the version that the transaction reads; of a new table, what the transaction creates."""
        return self.read.definition

    @cached_property
    def target(self) -> TableDefinition:
        """What the table is after the stages."""
        if self.given_target is not None:
            return self.given_target
        return definition_after(self.definition, self.stages, seed=self.handle.transaction_id)

    @property
    def schema(self) -> StructType:
        """The schema of :attr:`target`; empty while the columns are unknown."""
        return self.target.schema

    @property
    def exists(self) -> bool:
        """Whether there is a table, committed or staged."""
        return self.handle.read_version >= 0 or bool(self.stages)

    @cached_property
    def taken_back(self) -> frozenset[FileKey]:
        """Which files an earlier execution of the transaction has added that its commit removes: no stage sees their rows."""
        from airflow_delta.table.start.replaced_files import files_to_replace

        if self.handle.rerun_policy != "replace" or self.handle.read_version < 0:
            return frozenset()
        return frozenset(map(file_key, files_to_replace(self.log, self.snapshot, self.handle)))

    @property
    def is_append_only(self) -> bool:
        """Whether rows that are there must stay: as the commit sees it, which cannot lift ``delta.appendOnly`` for itself."""
        if self.handle.read_version < 0 or any(stage.write.definition for stage in self.stages):
            return False  # all rows are staged; CREATE OR REPLACE has looked at the table before
        return any(table.properties.append_only for table in (self.definition, self.target))

    def predicate(self, text: str) -> Predicate:
        """Return a predicate on the columns of :attr:`target`."""
        from airflow_delta.log.expressions.predicate import Predicate

        schema = self.schema if self.target.is_known else self.snapshot.schema
        if (known := self._predicates.get(("", text))) is None:
            known = Predicate.parse(
                text, schema, self.target.partition_columns, table=self.target.table, version=self.target.version
            )
            self._predicates["", text] = known
        return known

    # -- stages ---------------------------------------------------------------------------------------------------------------

    def seen_by(self, stage: StageActions) -> TableDefinition:
        """Return what the table was that a stage was planned on, whose columns its predicates name."""
        key = stage_id(stage.write)
        if key not in self._seen:
            self._seen[key] = definition_after(self.definition, self.before(stage), seed=self.handle.transaction_id)
        return self._seen[key]

    def before(self, stage: StageActions) -> list[StageActions]:
        """Return the stages that a stage was planned on top of."""
        known = self._positions
        return [self.stages[at] for at in sorted({known[earlier] for earlier in stage.write.after if earlier in known})]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {stage_id(stage.write): at for at, stage in enumerate(self.stages)}

    def predicate_of(self, stage: StageActions, text: str) -> Predicate:
        """Return a predicate of a staged write; it may name columns that this stage or an earlier one adds."""
        key = stage_id(stage.write), text
        if key not in self._predicates:
            self._predicates[key] = predicate_of(self.seen_by(stage), stage.write, text)
        return self._predicates[key]

    def gone(self, live: Iterable[AddFile], stage: StageActions) -> list[FileKey]:
        """Return which live files a stage removes: whole, or because it has rewritten their rows."""
        listed = {file_key(remove) for remove in stage.removes}
        selects = self._selection(stage)
        return [key for file in live if (key := file_key(file)) in listed or selects(file)]

    def live_files(self, files: Iterable[AddFile]) -> list[AddFile]:
        """Return the files of the table after the stages, as the commit leaves them.

        A stage removes files of the version that the transaction reads, and of the stages that it was planned on top of. What
        others staged beside it stays, in whatever order they are given.

        :param files: of the version that the transaction reads; may be a selection of them.
        """
        live = {key: file for file in files if (key := file_key(file)) not in self.taken_back}
        staged_by: dict[FileKey, str] = {}
        for stage in self.stages:
            seen = [file for key, file in live.items() if key not in staged_by or staged_by[key] in stage.write.after]
            for key in self.gone(seen, stage):
                del live[key]
            live.update((file_key(add), add) for add in stage.adds)
            staged_by.update((file_key(add), stage_id(stage.write)) for add in stage.adds)
        return list(live.values())

    def partitions_of(self, stage: StageActions) -> PartitionSet:
        """Return the partitions that a stage adds files to, which a dynamic overwrite replaces."""
        target = self.target
        if target.is_known:
            schema = target.schema
        else:
            schema = written(stage.write).schema if stage.write.schema_string else self.snapshot.schema
        return PartitionSet.of((add.partition_values for add in stage.adds), schema.select(target.partition_columns))

    def _selection(self, stage: StageActions) -> Callable[[AddFile], bool]:
        """Return a test for the files that a stage removes whole, beside those that it lists."""
        write = stage.write
        if write.mode == "dynamic":
            partitions = self.partitions_of(stage)
            return lambda file: partitions.matches_partition(file.partition_values)
        if write.mode != "overwrite":
            return lambda _file: False
        if write.replace_where is None:
            return lambda _file: True
        predicate = self.predicate_of(stage, write.replace_where)
        if not predicate.partition_only:
            return lambda _file: False
        return lambda file: predicate.selects_partition(file.partition_values)


def view_of(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite] = ()) -> TransactionView:
    """Return the view of a transaction with its stages loaded and checked."""
    read = opened(log, handle)
    view = TransactionView(log=log, handle=handle, read=read, stages=load_stages(log, handle, writes))
    check_paths(handle, view.stages, log.store, lambda: read.snapshot)
    return view


def load_stages(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> tuple[StageActions, ...]:
    """Return stages with their actions, each after those that it was planned on top of."""
    return tuple(in_order(handle, load_actions(log, handle, writes)))
