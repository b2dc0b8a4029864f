"""Whether a transaction may still commit after others have taken the versions it wanted (Delta's ``ConflictChecker``).

Each winning commit is checked once, in ascending order; the first check that fails decides the exception. The cost grows with the
winning commits, not with the table. What winners require (row ids, timestamps, adopted metadata) is folded into the transaction,
and its actions are updated once for all winners found together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_delta.contract.delta_names import ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import (
    DeltaIllegalStateException,
)
from airflow_delta.log.actions.actions import AddFile, DomainMetadata, Metadata, Protocol, RemoveFile
from airflow_delta.log.actions.decode import timestamp_of_info
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.transaction.conflicts.app_ids import check_winner_app_ids
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.domains import check_winner_domains
from airflow_delta.transaction.conflicts.file_conflicts import BACKFILLS, FileConflicts
from airflow_delta.transaction.conflicts.metadata import check_winner_metadata
from airflow_delta.transaction.conflicts.protocol import check_own_drop, check_protocol, provided
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.winning_commit import (
    ADD_KEY,
    DOMAIN_KEY,
    METADATA_KEY,
    PROTOCOL_KEY,
    REMOVE_KEY,
    TXN_KEY,
    WinningCommit,
)
from airflow_delta.transaction.operation_kinds import COMPACTIONS
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking
from airflow_delta.transaction.prepare.isolation import IsolationLevel

__all__ = ["ConflictChecker", "CurrentTransaction"]


class ConflictChecker:
    """Checks winning commits against one transaction.

    :param modification_time: returns the time of a winner's file in milliseconds, for a winner without a timestamp of its own.
    :param resolution: decides by bounds and rows what partition values and paths leave as a conflict; ``None``: they decide.
    """

    def __init__(
        self, current: CurrentTransaction, modification_time: Callable[[int], int], resolution: Resolution | None = None
    ) -> None:
        self.current = current
        self._modification_time = modification_time
        self._resolution = resolution
        self._files = FileConflicts(current, resolution)
        self._is_backfill = current.operation in BACKFILLS
        self._had_files = any(isinstance(action, AddFile | RemoveFile) for action in current.own_actions)
        self._checks_adds = (
            not current.is_blind_append
            and not self._is_backfill
            and current.isolation_level is not IsolationLevel.SNAPSHOT_ISOLATION
        )
        self._look_at_actions()

    def _look_at_actions(self) -> None:
        actions = self._seen = self.current.own_actions
        self._has_metadata = any(isinstance(action, Metadata) for action in actions)
        self._has_protocol = any(isinstance(action, Protocol) for action in actions)
        removes = {action.path: action.partition_values for action in actions if isinstance(action, RemoveFile)}
        self._files.look(removes)
        reads = self.current.reads
        self._checks_removes = reads.has_files or reads.whole_table or bool(removes)

    def begin(self, winners: Sequence[WinningCommit]) -> None:
        """Begin a batch of winners, so that the files that were read are searched once for all of them."""
        self._files.begin(winners)

    def check(self, winner: WinningCommit) -> None:
        """Check one winning commit of the batch; call once for each, in ascending order."""
        changes_table = winner.may_hold(PROTOCOL_KEY) | winner.may_hold(METADATA_KEY)
        if changes_table:
            check_protocol(self.current, winner, has_protocol=self._has_protocol)
        if self._has_protocol:
            check_own_drop(self.current, winner)
        if changes_table:
            check_winner_metadata(self.current, winner, has_metadata=self._has_metadata)
        if winner.may_hold(DOMAIN_KEY):
            check_winner_domains(self.current, winner)
        if (self.current.reads.app_ids or self.current.reads.app_id_rules) and winner.may_hold(TXN_KEY):
            check_winner_app_ids(self.current, winner)
        if row_tracking.is_supported(self.current.protocol):
            self._fold_row_tracking(winner)
        self.check_files(winner)
        if in_commit_timestamps.uses_in_commit_timestamps(self.current.metadata):
            self._fold_timestamp(winner)
        if changes_table and (winner.protocol is not None or winner.metadata):
            # The provider must still be able to write the table with what was adopted.
            table_protocol.check_can_write(
                self.current.protocol, self.current.metadata, winner.table, winner.version, provided=provided(self.current)
            )
        if self.current.own_actions is not self._seen:
            self._look_at_actions()

    def check_files(self, winner: WinningCommit) -> None:
        """Check only the files of a winner of the batch: stages of the same transaction have nothing else."""
        if self._checks_adds and winner.may_hold(ADD_KEY):
            self._files.check_added(winner)
        if self._checks_removes and winner.may_hold(REMOVE_KEY):
            self._files.check_removed(winner)
        self._files.note_added(winner)

    def rebase(self, version: int) -> bool:
        """Update the transaction after a batch of winners; tell whether its log entry has changed.

        :param version: version that it tries next.
        """
        current = self.current
        seen, info = current.actions, current.commit_info
        if self._resolution is not None:
            self._resolution.apply()
            self._look_at_actions()
        changed = current.rebase(version) or current.commit_info is not info
        if current.actions is not seen:
            current.validate(current.actions)
        return changed

    @property
    def has_nothing_left(self) -> bool:
        """Whether a compaction has left out every file, so that there is nothing to commit."""
        moved = self.current.operation in COMPACTIONS and self._had_files
        return moved and all(isinstance(action, DomainMetadata) for action in self.current.own_actions)

    # -- what is folded into the transaction -----------------------------------------------------------------------------------

    def _fold_row_tracking(self, winner: WinningCommit) -> None:
        current = self.current
        if current.operation == row_tracking.BACKFILL:
            touched = winner.touched
            if touched:
                current.replace_actions(row_tracking.without_touched(current.own_actions, touched, table=current.table))
                current.forgotten |= touched
        if winner.operation == row_tracking.BACKFILL:
            if current.operation == row_tracking.UNBACKFILL:
                raise winner.error(
                    DeltaIllegalStateException,
                    f"Row tracking is being enabled and dropped on table {current.table} at the same time: version "
                    f"{winner.version} is a {row_tracking.BACKFILL} (DELTA_ROW_TRACKING_BACKFILL_RUNNING_CONCURRENTLY_WITH_"
                    "UNBACKFILL). Drop the feature again once that is done.",
                )
            backfilled: dict[str, AddFile] = {file.path: file for file in winner.added_files}
            current.replace_actions(row_tracking.with_backfilled(current.own_actions, backfilled))
        elif current.operation == row_tracking.UNBACKFILL:
            current.replace_actions(row_tracking.unbackfilled(current.own_actions, winner.added_files, winner.touched))
            current.forgotten |= winner.touched
        if winner.may_hold(DOMAIN_KEY):
            for domain in winner.domain_metadata:
                if domain.domain == ROW_TRACKING_DOMAIN:
                    current.winning_high_water_mark = row_tracking.mark_of(domain, table=current.table)

    def _fold_timestamp(self, winner: WinningCommit) -> None:
        current = self.current
        winning = winner.in_commit_timestamp
        if winning is None and in_commit_timestamps.uses_in_commit_timestamps(current.read_metadata):
            winning = timestamp_of_info(winner.version, winner.commit_info or None, table=winner.table)  # which refuses
        if winning is None:
            winning = winner.modification_time
        if winning is None:
            winning = self._modification_time(winner.version)
        own = current.in_commit_timestamp
        if own is None:  # a winner has enabled timestamps
            own = current.commit_info.timestamp or 0
        current.in_commit_timestamp = in_commit_timestamps.rebase_timestamp(own, winning)
