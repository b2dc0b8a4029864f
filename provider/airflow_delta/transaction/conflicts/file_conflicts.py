"""Files that winning commits added and removed: Delta's rules, and what the level of detection resolves of them.

Delta's rules decide by partition values and paths. What they call a conflict is looked at again, by column bounds and then by
rows, if the level says so; whatever cannot be decided stays a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    DeltaConcurrentModificationException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.transaction.conflicts.advice import keep_apart
from airflow_delta.transaction.conflicts.errors import BEGIN_AGAIN, conflict, partition_hint
from airflow_delta.transaction.conflicts.own_rows import RowsOfBoth
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided
from airflow_delta.transaction.conflicts.winning_commit import ADD_KEY, REMOVE_KEY, WinningCommit
from airflow_delta.transaction.prepare import row_tracking
from airflow_delta.transaction.prepare.isolation import IsolationLevel

if TYPE_CHECKING:
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction

BACKFILLS = (row_tracking.BACKFILL, row_tracking.UNBACKFILL)

PartitionValues = dict[str, str | None]


@dataclass(slots=True)
class FileConflicts:
    """Checks the files of winning commits against one transaction.

    :param resolution: looks again at what Delta's rules call a conflict; ``None`` at level ``delta``.
    """

    current: CurrentTransaction
    resolution: Resolution | None
    _batch: Sequence[WinningCommit] = ()
    _read_and_removed: set[str] | None = None
    _own_removes: dict[str, PartitionValues | None] = field(default_factory=dict)
    _has_metadata: bool = False
    _new: set[str] = field(default_factory=set)
    _spellings: dict[str, str] = field(default_factory=dict)

    def look(self, own_removes: dict[str, PartitionValues | None]) -> None:
        """Take in the actions of the transaction, as winners left them.

        :param own_removes: paths and partitions of the files that it removes.
        """
        self._own_removes = own_removes
        self._has_metadata = any(isinstance(action, Metadata) for action in self.current.own_actions)
        if self.resolution is not None:
            self.resolution.look(self.current.own_actions)

    def begin(self, winners: Sequence[WinningCommit]) -> None:
        """Begin a batch of winners, so that the files that were read are searched once for all of them."""
        self._batch = winners
        self._read_and_removed = None
        self._spell(winners)
        if self.resolution is not None:
            self.resolution.begin(winners)

    def _spell(self, winners: Sequence[WinningCommit]) -> None:
        """Have winners call files as this transaction does, so that paths can be compared."""
        current = self.current
        own = [action.path for action in current.own_actions if isinstance(action, AddFile | RemoveFile)]
        if not own and not current.reads.has_files:
            return
        touched = [winner for winner in winners if winner.may_hold(ADD_KEY) or winner.may_hold(REMOVE_KEY)]
        keys = {canonical_path(path) for winner in touched for path in winner.touched} - self._spellings.keys()
        self._spellings |= {key: path for path in own if (key := canonical_path(path)) in keys}
        self._spellings |= current.reads.spellings_of(keys)
        for winner in touched:
            winner.spell(self._spellings)

    def note_added(self, winner: WinningCommit) -> None:
        """Note the files that a checked winner added to the table."""
        if self.current.reads.has_scans and winner.may_hold(ADD_KEY):
            self._new |= {path for path, _values in winner.added} - {path for path, _values in winner.removed}

    # -- added -----------------------------------------------------------------------------------------------------------------

    def check_added(self, winner: WinningCommit) -> None:
        """Check the files that a winner added.

        :raises ConcurrentAppendException: if the transaction should have read one of them.
        """
        current = self.current
        if current.isolation_level is IsolationLevel.WRITE_SERIALIZABLE and not self._has_metadata and winner.is_blind_append:
            return
        if self.resolution is not None and not current.partition_columns:  # then it is asked for each file that was added
            added = (file.partition_values for file in winner.added_files)
        else:
            added = (values for _path, values in winner.added)
        partition = next(filter(self._should_have_read, added), None)
        if partition is None or winner.operation in BACKFILLS:
            return
        why = None
        if self.resolution is not None:
            try:
                self.resolution.added(winner)
                return
            except Undecided as undecided:
                why = str(undecided)
        hint = partition_hint(partition, current)
        where = f"the partition {hint}" if hint else "the table"
        raise self._conflict(
            ConcurrentAppendException,
            winner,
            f"Files were added to {where} by a concurrent update, and this transaction should have read them (it read "
            f"{current.reads.describe()})",
            why,
            partition,
        )

    def _should_have_read(self, partition_values: PartitionValues) -> bool:
        reads = self.current.reads
        if reads.whole_table or not self.current.partition_columns:
            return True
        return any(predicate.covers(partition_values) for predicate in reads.predicates.values())

    # -- removed ---------------------------------------------------------------------------------------------------------------

    def check_removed(self, winner: WinningCommit) -> None:
        """Check the files that a winner removed.

        :raises ConcurrentDeleteReadException: if the transaction read one of them.
        :raises ConcurrentDeleteDeleteException: if it removes one of them too.
        """
        removed = winner.removed
        if not removed:
            return
        values_of = dict(removed)
        read = self._read_files_removed_by_batch().intersection(values_of) - self.current.forgotten
        if self.current.reads.has_scans:
            read |= self._scanned(values_of)
        owns: Callable[[str], bool] = self._own_removes.__contains__
        if self.resolution is not None:
            read |= self.resolution.followed & values_of.keys()
            owns = self.resolution.owns
        both = set(filter(owns, values_of))
        if not read and not both and not self.current.reads.whole_table:
            return
        why = None
        if self.resolution is not None:
            try:
                self.resolution.removed(winner, read, both)
                return
            except RowsOfBoth as rows:
                raise self._rows_of_both(winner, values_of, rows) from None
            except Undecided as undecided:
                why = str(undecided)
        raise self._removed(winner, values_of, read, both, why)

    def _rows_of_both(
        self, winner: WinningCommit, values_of: dict[str, PartitionValues], rows: RowsOfBoth
    ) -> DeltaConcurrentModificationException:
        values = self._values_of(rows.path, values_of)
        hint = partition_hint(values, self.current)
        where = f" in the partition {hint}" if hint else ""
        return self._conflict(
            ConcurrentDeleteDeleteException,
            winner,
            f"{rows.number} of the rows of a file{where} that this transaction changes or deletes ({rows.path}) "
            f"{'was' if rows.number == 1 else 'were'} changed or deleted by a concurrent update",
            None,
            values,
        )

    def _removed(
        self, winner: WinningCommit, values_of: dict[str, PartitionValues], read: set[str], both: set[str], why: str | None
    ) -> DeltaConcurrentModificationException:
        if read or self.current.reads.whole_table:
            path = min(read) if read else None
            values = self._values_of(path, values_of) if path is not None else {}
            hint = partition_hint(values, self.current)
            what = (
                f"A file in the partition {hint} that this transaction read ({path}) was removed by a concurrent update"
                if hint
                else f"A file that this transaction read ({path or 'it read the whole table'}) was removed by a concurrent update"
            )
            return self._conflict(ConcurrentDeleteReadException, winner, what, why, values)
        path = min(both)
        values = self._values_of(path, values_of)
        hint = partition_hint(values, self.current)
        where = f" in the partition {hint}" if hint else ""
        return self._conflict(
            ConcurrentDeleteDeleteException,
            winner,
            f"A file{where} that this transaction removes ({path}) was removed by a concurrent update",
            why,
            values,
        )

    def _values_of(self, path: str, winners: dict[str, PartitionValues]) -> PartitionValues:
        """Return the partition of a file as this transaction knows it, else as the winner has it, which may be empty."""
        return self._own_removes.get(path) or winners[path]

    def _read_files_removed_by_batch(self) -> set[str]:
        if self._read_and_removed is None:
            paths = {path for winner in self._batch if winner.may_hold(REMOVE_KEY) for path, _values in winner.removed}
            self._read_and_removed = self.current.reads.read_among(list(paths))
        return self._read_and_removed

    def _scanned(self, removed: dict[str, PartitionValues]) -> set[str]:
        """Return the removed files that reads without recorded files have seen; files that winners added they have not."""
        reads, known = self.current.reads, removed.keys() - self._new - self.current.forgotten
        partitioned = bool(self.current.partition_columns)
        return {path for path in known if reads.scanned(removed[path], are_known=bool(removed[path]) or not partitioned)}

    def _conflict(
        self,
        kind: type[DeltaConcurrentModificationException],
        winner: WinningCommit,
        what: str,
        why: str | None,
        partition: PartitionValues,
    ) -> DeltaConcurrentModificationException:
        level = "delta" if self.resolution is None else self.resolution.level
        how = keep_apart(self.current, by_rows=level != "delta", has_read_rows=level == "rows")
        advice = f"{BEGIN_AGAIN}\n{how}"
        if why is not None:
            advice = f"Why the rows did not settle it: {why}.\n{advice}"
        return conflict(kind, winner, what, advice, current=self.current, partition=partition)
