"""Checks of an audit that must hold in the version that is published, looked at in the loop of the commit.

A check holds for the version that it has read. Of what others commit after that, only rows that it would have read matter: its
reads are compared with winning commits as those of a transaction are, for this check alone. What the log alone answers is
computed again, from the rows that winners add and remove. Both cost what the winners cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_delta.contract.audit import RUN_AGAIN, HeldCheck
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    ConcurrentAppendException,
    DeltaAuditFailedException,
    DeltaConcurrentModificationException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import CommitInfo
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.audit import heavy
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import BEGIN_AGAIN
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
from airflow_delta.transaction.policy import CommitPolicy, ConflictOptions
from airflow_delta.transaction.prepare.isolation import IsolationLevel
from airflow_delta.transaction.reads.table_reads import TableReads

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
    from airflow_delta.exceptions import DeltaError
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action, AddFile
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.audit.audited_table import AuditedTable
    from airflow_delta.table.audit.held_keys import HeldKeys, Met
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit


def _task_of(check: HeldCheck) -> tuple[tuple[str, int], ...]:
    return ((check.task_id, check.map_index),) if check.task_id else ()


@dataclass(slots=True)
class _Reads:
    """The reads of a check, and what winners change of them."""

    check: HeldCheck
    checker: ConflictChecker


@dataclass(slots=True)
class _Rows:
    """The rows of a table as winners change them."""

    check: HeldCheck
    change: int = 0
    unknown: WinningCommit | None = None
    """A commit of which it is not known how many rows it changed."""


@dataclass
class HeldChecks:
    """What a commit asks about the commits of others that do not conflict with it.

    :param checks: those that hold for the version that was read, or a later one.
    :param staged: what is to be published.
    :param advice: what to do about a check that is outdated, for errors.
    """

    log: DeltaLog
    handle: TransactionHandle
    checks: Sequence[HeldCheck]
    staged: Sequence[StagedWrite] = ()
    advice: str = f"{RUN_AGAIN}."
    _rows: list[_Rows] = field(init=False)
    _added: dict[str, AddFile] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = [_Rows(check) for check in self.checks if check.ratios is not None]

    def __call__(self, winners: Sequence[WinningCommit], actions: Sequence[Action]) -> None:
        """Refuse to go on after winners that a check has not seen, and that may change its answer.

        :param winners: that were found together, in ascending order; each is given once. Of a transaction that read no table,
            the first one has created it.
        :param actions: of the commit, as the winners leave them.
        :raises ChecksOutdatedException: if a winner changes rows that a check has read.
        :raises ConcurrentAppendException: if a winner brings rows to a table that a check has taken for missing.
        :raises DeltaAuditFailedException: if a check does not hold after the winners.
        """
        for reads in self._reads:
            new = [winner for winner in winners if winner.version > reads.check.version]
            reads.checker.begin(new)
            for winner in new:
                try:
                    reads.checker.check_files(winner)
                except DeltaConcurrentModificationException as met:
                    raise self._outdated(reads.check, winner) from met
        if self._rows:
            for winner in winners:
                self._add_up(winner)
            for rows in self._rows:
                self._judge(rows, winners[-1].version)
        for keys in self._keys:
            found = keys.met(winners, actions)
            if found is not None:
                raise self._repeated(keys.check, found)

    def _add_up(self, winner: WinningCommit) -> None:
        """Note how many rows a winner has added and removed."""
        change = None if winner.only_moves_rows else self._change_of(winner)
        self._added |= {file.path: file for file in winner.added_files}
        for rows in self._rows:
            if winner.version <= rows.check.version or winner.only_moves_rows:
                continue
            if change is None:
                rows.unknown = winner
            else:
                rows.change += change

    def _change_of(self, winner: WinningCommit) -> int | None:
        """Return the rows that a winner adds less those that it removes; ``None`` if the log does not say.

        Few writers give the statistics of files that they remove. Those are looked up where the files were added.
        """
        added = [live_records(file) for file in winner.added_files]
        removed = {file.path: live_records(file) for file in winner.removed_files}
        if missing := {path for path, rows in removed.items() if rows is None}:
            before = {path: self._added[path] for path in missing & self._added.keys()}
            before |= self._snapshot.files_at(missing - before.keys())
            removed |= {path: live_records(file) for path, file in before.items()}
        counts = [*added, *removed.values()]
        return None if None in counts else sum(filter(None, added)) - sum(filter(None, removed.values()))

    def _outdated(self, check: HeldCheck, winner: WinningCommit) -> DeltaError:
        what = "the table" if check.whole_table else f"rows where {' or '.join(check.predicates)}"
        by = f"version {winner.version} ({winner.operation or 'unknown operation'})"
        return self._to_ask_again(check, winner, f"{by} has changed {what} since, which it has read")

    def _to_ask_again(self, check: HeldCheck, winner: WinningCommit, what: str) -> DeltaError:
        """Return the error for a check of which it is not known whether it holds.

        :param what: what has happened since, as the end of a sentence.
        """
        if self.handle.read_version < 0:  # an audit that ran again would not see it either
            return ConcurrentAppendException(
                f"{self._about(check)} holds for a table that did not exist, and {what}. {BEGIN_AGAIN}",
                table=self.handle.table,
                winning_version=winner.version,
                winning_commit=winner.commit_info,
            )
        return self.handle.error(
            ChecksOutdatedException,
            f"{self._about(check)} holds for version {check.version}, and {what}. {self.advice}".rstrip(),
            checks=_task_of(check),
        )

    def _repeated(self, check: HeldCheck, met: Met) -> DeltaError:
        by = f"version {met.winner.version} ({met.winner.operation or 'unknown operation'})"
        if not met.certain:
            return self._to_ask_again(check, met.winner, f"it is not certain that it does after {by}: {met.what}")
        return self.handle.error(
            DeltaAuditFailedException,
            f"{self._about(check)} holds for version {check.version}, not after {by}, which others have committed since, with "
            f"{met.what} that it stages as well. Clear the start task to stage again in a new transaction.",
            failed=(check.name,),
        )

    def _about(self, check: HeldCheck) -> str:
        return f"Transaction {self.handle.transaction_id} on table {self.handle.table} is not published: the check {check.name}"

    def _judge(self, rows: _Rows, version: int) -> None:
        check, about = rows.check, self._about(rows.check)
        if rows.unknown is not None:
            raise self._to_ask_again(
                check,
                rows.unknown,
                f"it is not known how many rows version {rows.unknown.version} has changed since: its files have no row counts "
                "(COMPUTE STATISTICS adds them)",
            )
        before, after = check.rows_before + rows.change, check.rows_after + rows.change
        if before <= 0 or check.ratios is None:
            return
        low, high = (None if text is None else Decimal(text) for text in check.ratios)
        ratio = Decimal(after) / before
        if (low is not None and ratio < low) or (high is not None and ratio > high):
            raise self.handle.error(
                DeltaAuditFailedException,
                f"{about} holds for version {check.version}, not after version {version}, which others have committed since: "
                f"{before} rows before the commit and {after} after it, {ratio:.4g} times as many. Clear the start task to stage "
                "again in a new transaction.",
                failed=(check.name,),
            )

    @cached_property
    def _reads(self) -> list[_Reads]:
        found = [check for check in self.checks if check.predicates or check.whole_table]
        return [_Reads(check, self._checker(check)) for check in found]

    @cached_property
    def _keys(self) -> list[HeldKeys]:
        return [heavy.HeldKeys(check, lambda: self._table) for check in self.checks if check.unique]

    @cached_property
    def _table(self) -> AuditedTable:
        return heavy.AuditedTable(self.log, self.handle, self.staged)

    @cached_property
    def _snapshot(self) -> Snapshot:
        return self.log.snapshot_at(max(self.handle.read_version, 0))  # somebody has created the table

    def _checker(self, check: HeldCheck) -> ConflictChecker:
        snapshot, recorder = self._snapshot, TableReads(self._snapshot)
        if check.whole_table:
            recorder.read_whole_table(rows=True)
        for predicate in check.predicates:
            recorder.track_read_predicates(predicate, scanned=True)
        current = CurrentTransaction(
            table=self.log.uri,
            read_version=snapshot.version,
            reads=recorder.recorded,
            metadata=snapshot.metadata,
            protocol=snapshot.protocol,
            partition_columns=snapshot.metadata.partition_columns,
            actions=(),
            is_blind_append=False,
            isolation_level=IsolationLevel.SERIALIZABLE,
            commit_info=CommitInfo(),
            operation="AUDIT",
            read_metadata=snapshot.metadata,
            read_protocol=snapshot.protocol,
            read_high_water_mark=lambda: 0,
            options=ConflictOptions(),
            snapshot_at=self.log.snapshot_at,
            validate=lambda _actions: None,
        )
        rows = WinnersRows(self.log.store, CommitPolicy().conflict_read_limit)
        return ConflictChecker(current, lambda _version: 0, Resolution(current, "rows", rows))
