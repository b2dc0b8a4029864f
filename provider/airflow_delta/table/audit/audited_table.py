"""The table before and after the commit of some stages, as the checks of an audit see it.

Checks by statistics (:mod:`airflow_delta.table.audit.limit_checks`) and in SQL judge the version that the transaction reads, not
what others commit until the transaction does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.compute as pc

from airflow_delta.contract.audit import BEFORE, STAGED
from airflow_delta.contract.payloads import ScanPlan, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import attempt_directory, holds_copies, transaction_directory
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.reconciliation import FileKey, file_key
from airflow_delta.log.statistics.row_counts import live_records, num_records
from airflow_delta.table.commit.commit import StagedCommit, staged_commit
from airflow_delta.table.commit.planned_commit import PlannedCommit, on_newest
from airflow_delta.table.stage.conflicts import check_stages
from airflow_delta.table.stage.data_change import REARRANGING
from airflow_delta.table.stage.scan import scan_of
from airflow_delta.table.stage.staged_writes import check_reported, parse_staged
from airflow_delta.table.stage.view import view_of

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


class AuditedTable:
    """The table before and after the commit of some stages, as far as a check asks for it.

    :ivar handle: of the transaction.
    :ivar target: what the table is as the stages leave it.
    :ivar writes: the staged writes.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, staged: Sequence[StagedWrite | Mapping[str, Any]]) -> None:
        """Load staged writes and find out what the commit would add.

        :raises MissingStageException: if no stage has reported.
        :raises StageConflictException: if the commit would refuse the staged writes; other errors are those of the commit.
        """
        self.log = log
        self.handle = handle
        self.writes = parse_staged(handle, staged)
        check_reported(handle, self.writes, {})
        self.view = view_of(log, handle, self.writes)
        check_stages(self.view)
        if len(self.view.stages) > 1 or handle.rerun_policy == "replace":  # a single stage cannot contradict itself
            self._commit.txn.prepare_commit(self._commit.actions, self._commit.operation)
        self.target = self.view.target

    @cached_property
    def _commit(self) -> StagedCommit:
        """What would be committed, put together as the commit does it."""
        return staged_commit(self.view)

    @cached_property
    def _newest(self) -> PlannedCommit | None:
        """What would be committed after the newest version, if others have committed since that which was read."""
        return on_newest(self.view)

    @property
    def snapshot(self) -> Snapshot:
        """Return the version before the commit: the newest one, or that which was read if the commit would conflict."""
        return self.view.snapshot if self._newest is None else self._newest.snapshot

    @property
    def version(self) -> int:
        """Return the version that the checks see before the commit; -1 if there is no table."""
        return self.handle.read_version if self._newest is None else self._newest.snapshot.version

    @cached_property
    def added(self) -> list[AddFile]:
        """Return the files that the commit adds."""
        return self._commit.replaced.adds if self._newest is None else self._newest.adds

    @cached_property
    def staged(self) -> list[AddFile]:
        """Return the files with rows that the stages bring.

        Left out are files with only copies of rows that stay (copies of another stage's rows count), files that only get another
        deletion vector, and rows of the version read that OPTIMIZE or REORG moved to other files. Rows of a write with
        ``data_change=False`` are judged like others: that they are unchanged is only a claim.
        """
        owners = {file_key(add): stage.write for stage in self.view.stages for add in stage.adds}
        staged = self._commit.replaced.adds
        return [add for add in staged if self._brings_rows(add, owners[file_key(add)])]

    def _brings_rows(self, add: AddFile, write: StagedWrite) -> bool:
        path = unquote(add.path)
        if not add.data_change and write.operation in REARRANGING:
            return False
        if not path.startswith(f"{transaction_directory(self.handle.transaction_id)}/"):
            return False
        directory = f"{attempt_directory(self.handle.transaction_id, write.stage, write.attempt)}/"
        copied = path.startswith(directory) and holds_copies(path.removeprefix(directory))
        return bool(write.after) or not copied

    @cached_property
    def removed(self) -> dict[FileKey, RemoveFile]:
        """Return the files that the commit removes, by key."""
        removes = self._commit.replaced.removes if self._newest is None else self._newest.removes
        return {file_key(file): file for file in removes}

    # -- rows -----------------------------------------------------------------------------------------------------------------

    @property
    def rows_staged(self) -> int | None:
        """Return how many rows the stages bring, by their totals; ``None`` if a stage does not know."""
        counts = [write.num_records for write in self.writes]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    @cached_property
    def rows_before(self) -> int | None:
        """Return how many rows :attr:`version` has; ``None`` if the statistics of a file lack the number."""
        if self.handle.read_version < 0:
            return 0
        files = self.snapshot.files(columns=("stats", "deletion_vector"))
        deleted = pc.sum(pc.struct_field(files.column("deletion_vector"), "cardinality")).as_py() or 0
        total = 0
        for text in files.column("stats").to_pylist():
            rows = num_records(text)
            if rows is None:
                return None
            total += rows
        return total - int(deleted)

    @cached_property
    def rows_after(self) -> int | None:
        """Return how many rows the table has after the commit; ``None`` if statistics lack the number."""
        before = self.rows_before
        changes = [*((live_records(file), 1) for file in self.added), *((live_records(f), -1) for f in self.removed.values())]
        if before is None or any(rows is None for rows, _ in changes):
            return None
        return before + sum((rows or 0) * sign for rows, sign in changes)

    # -- views ----------------------------------------------------------------------------------------------------------------

    def scan(self, name: str, *, spark_table_uri: str | None = None) -> ScanPlan:
        """Return the plan to read a view of :data:`~airflow_delta.contract.audit.VIEWS`."""
        view = replace(self.view, spark_table_uri=spark_table_uri)
        if name == STAGED:
            return scan_of(view, self.staged)
        files = self.snapshot.add_files() if self.handle.read_version >= 0 else []
        if name == BEFORE:  # of a table that does not exist yet: no rows, and the columns that it gets
            return scan_of(view, files, target=view.definition if self.handle.read_version >= 0 else self.target)
        kept = [file for file in files if file_key(file) not in self.removed]
        return scan_of(view, [*kept, *self.added])
