"""A second look at what Delta's rules call a conflict: by column bounds, and by the rows themselves.

The transaction is serialised after the winner if it would have read the same rows: no row that the winner added or removed
satisfies one of its reads, or rows only moved to other files. What it removes must still be there, and be its own to remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.contract.tags import DETECTION_TAG, RESOLVED_TAG
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG, AddFile
from airflow_delta.log.features.column_mapping import mode
from airflow_delta.log.schema.types import StructType
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction import heavy
from airflow_delta.transaction.conflict_detection import (
    DROPPED,
    KEYS,
    MOVED,
    ROWS,
    STATISTICS,
    ConflictDetection,
    in_ranges,
    resolved_text,
)
from airflow_delta.transaction.conflicts.added_files import AddedFiles, as_added
from airflow_delta.transaction.conflicts.dropped_bins import DroppedBins
from airflow_delta.transaction.conflicts.marked_rows import MarkedRows
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided, WinnersRows
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit, metadata_of
from airflow_delta.transaction.operation_kinds import COMPACTIONS
from airflow_delta.transaction.prepare.isolation import IsolationLevel

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action, RemoveFile
    from airflow_delta.transaction.conflicts.carried_rows import CarriedRows
    from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
    from airflow_delta.transaction.conflicts.own_rows import OwnRows
    from airflow_delta.transaction.conflicts.rearranged_rows import RearrangedRows
    from airflow_delta.transaction.reads.read_set import ReadPredicate
    from airflow_delta.transaction.reads.row_condition import RowCondition


@dataclass(slots=True)
class Resolution:
    """Decides by bounds and rows, for one transaction.

    :param level: ``statistics`` or ``rows``.
    :param reader: reads rows of winners' files.
    :ivar followed: files that hold rows of files that were read, after a winner has written them again.
    """

    current: CurrentTransaction
    level: ConflictDetection
    reader: WinnersRows
    followed: set[str] = field(default_factory=set)
    _marked: MarkedRows = field(init=False)
    _rearranged: RearrangedRows | None = None
    _dropped: DroppedBins | None = None
    _carried: CarriedRows | None = None
    _schemas: dict[str, StructType | None] = field(default_factory=dict)
    _reads: list[ReadPredicate] = field(default_factory=list)
    _usable: list[bool] = field(default_factory=list)
    _added: AddedFiles | None = None
    _how: dict[str, set[int]] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)
    """Those that may hold rows of files all of whose rows count as read."""

    def __post_init__(self) -> None:
        self._marked = MarkedRows(self.reader.store, self.reader, self.current.read_metadata)
        operation, reads = self.current.operation, self.current.reads
        if self.level == "rows" and operation in COMPACTIONS:
            parameters = self.current.commit_info.operation_parameters or {}
            ordered = any((parameters.get(name) or "[]") != "[]" for name in ("zOrderBy", "clusterBy"))
            self._dropped = DroppedBins(self.reader, operation, orders_rows=ordered)
        elif self.level == "rows" and reads.moved:
            self._dropped = DroppedBins(self.reader, operation, orders_rows=bool(reads.reordered), moved=reads.moved)

    def _carried_rows(self) -> CarriedRows:
        if self._carried is None:
            self._carried = heavy.CarriedRows(self.reader, self.current)
        return self._carried

    def look(self, actions: Iterable[Action]) -> None:
        """Take in the actions of the transaction, as winners left them."""
        listed = list(actions)
        if self._rearranged is None and any(isinstance(one, AddFile) and MOVED_ROWS_TAG in (one.tags or {}) for one in listed):
            store, moved = self.reader.store, self.current.reads.moved
            self._rearranged = heavy.RearrangedRows(store, self.reader, self.current.read_metadata, moved)
        for part in self._parts:
            part.look(listed)

    @property
    def _parts(self) -> list[OwnRows]:
        return [part for part in (self._marked, self._dropped, self._rearranged) if part is not None]

    def begin(self, winners: Sequence[WinningCommit]) -> None:
        """Begin a batch of winners."""
        self._reads = list(self.current.reads.predicates.values())
        for metadata in (self.current.read_metadata, self.current.metadata, *metadata_of(winners)):
            if metadata is not None and metadata.schema_string not in self._schemas:
                self._schemas[metadata.schema_string] = _parsed(metadata.schema_string)
        self._usable = [self._is_usable(read) for read in self._reads]
        self._added = AddedFiles(winners, self._reads, self._usable)

    def owns(self, path: str) -> bool:
        """Tell whether the transaction adds or removes a file."""
        return self._marked.owns(path) and path not in self.current.forgotten and not self._is_dropped(path)

    # -- added -----------------------------------------------------------------------------------------------------------------

    def added(self, winner: WinningCommit) -> None:
        """Decide on the files that a winner added.

        :raises Undecided: if the transaction may have to have read one of them.
        """
        if self.current.reads.all_rows:
            if not winner.only_moves_rows or self.current.reads.files_of_table:
                raise Undecided("it relies on the whole table")
            self._note(MOVED, winner)
            return
        if winner.only_moves_rows:
            self._note(MOVED, winner)
            return
        assert self._added is not None
        if not self._reads and not self.current.reads.has_files:
            raise Undecided("it did not record what it read")
        candidates = self._added.candidates(winner)
        if not candidates:
            self._note(STATISTICS, winner)
            return
        if self.level != "rows":
            raise Undecided("its column bounds leave open that rows were added which this transaction should have read")
        for file, reads in candidates:
            replaced = self.reader.removed_from(winner, file)
            if replaced is not None:  # it only lost rows
                self._note(ROWS, winner)
                continue
            if not self.reader.any_was_read(file, conditions := self._conditions(reads, "added")):
                self._note(KEYS, winner)
            elif not self._reads_as_before(winner):
                raise Undecided(f"a row of the file {file.path} that was added {_sure(conditions)} one that it should have read")

    # -- removed ---------------------------------------------------------------------------------------------------------------

    def removed(self, winner: WinningCommit, read: set[str], both: set[str]) -> None:
        """Decide on the files that a winner removed.

        :param read: those that the transaction read, also after a compaction.
        :param both: those that it removes, or adds again.
        :raises Undecided: if it removes a file that is gone, or may have read a row that is gone.
        """
        reads = self.current.reads
        removed = {file.path: file for file in winner.removed_files}
        if winner.only_moves_rows:
            if reads.files_of_table:
                raise Undecided("it relies on the files of the whole table")
            for path in sorted(both):
                self._meet(winner, removed[path])
            self._marked.check_vectors(self.current.metadata)
            self._follow(winner)
            return
        if reads.all_rows:
            raise Undecided("it relies on the whole table")
        for path in sorted(both):
            self._meet(winner, removed[path])
        moved = {path for path in both if not self._marked.marks(path)} | set(filter(self._is_dropped, read))
        for path in sorted(read - moved):
            self._was_not_read(winner, removed[path])
        self._check_beside(winner, [removed[path] for path in sorted(read & moved)])

    def _check_beside(self, winner: WinningCommit, moved: Sequence[RemoveFile]) -> None:
        """Decide on files whose rows the transaction moves, for what it has read of them besides."""
        if self.current.isolation_level is IsolationLevel.SNAPSHOT_ISOLATION:
            return
        for file in moved:
            if self._reads or self._was_read_whole(file.path):
                self._was_not_read(winner, file)

    def _meet(self, winner: WinningCommit, file: RemoveFile) -> None:
        """Go on after a winner that removes a file which the transaction removes, too.

        What it does to rows that this transaction only moves is taken along, or they are not moved. To move them, it read only
        where they go; what it read otherwise counts as of any file.
        """
        if self.level != "rows":
            how = "a compaction replaced the file {}, which this transaction rewrites or removes"
            raise Undecided((how if winner.only_moves_rows else "both change the file {}").format(file.path))
        try:
            self._first_for(winner, file.path).meet(winner, file, self.current.metadata)
            self._note(ROWS, winner)
        except Undecided as why:
            if self._dropped is None:
                raise
            try:
                self._dropped.meet(winner, file, self.current.metadata)
            except Undecided:
                raise why from None
            self._note(DROPPED, winner)

    def _first_for(self, winner: WinningCommit, path: str) -> OwnRows:
        rearranged = self._rearranged
        carries = rearranged is not None and not self._is_dropped(path) and rearranged.carries(winner, path)
        return rearranged if rearranged is not None and carries else self._marked

    def _is_dropped(self, path: str) -> bool:
        return self._dropped is not None and path in self._dropped.removes

    def _follow(self, winner: WinningCommit) -> None:
        added = {file.path for file in winner.added_files}
        if self._dropped is None or self.current.isolation_level is not IsolationLevel.SNAPSHOT_ISOLATION:
            self.followed |= added  # else it read rows only to move them, and leaves these to the winner
        if any(self._was_read_whole(file.path) for file in winner.removed_files):
            self._whole |= added
        self._note(MOVED, winner)

    def _was_read_whole(self, path: str) -> bool:
        """Tell whether every row of a file counts as read; not so where a compaction read it only to move its rows."""
        if path in self._whole:
            return True
        reads, bins = self.current.reads, self._dropped
        if not reads.read_whole(path):
            return False
        return bins is None or bool(reads.moved) or not bins.takes(path)  # reads that do not say so are those of the compaction

    def _was_not_read(self, winner: WinningCommit, file: RemoveFile) -> None:
        """Decide on the rows of one file that the transaction looked at.

        :raises Undecided: if it may have read one of the rows that are gone.
        """
        path = file.path
        if self._was_read_whole(path):
            raise Undecided(f"it relies on every row of the file {path}")
        reads = [read for read in self._reads if self._counts(read, file)]
        if path not in self.followed:  # a read that marks its rows has none in files without marks, and only those in others
            reads = [read for read in reads if not read.marked] if self.level == "rows" else reads
        if not reads:
            self._note(ROWS, winner)
            return
        conditions = self._conditions(reads, "removed")
        if file.partition_values is not None and not any(condition.may_hold([as_added(file)])[0] for condition in conditions):
            self._note(STATISTICS, winner)
            return
        if self.level != "rows":
            raise Undecided(f"the column bounds of the file {path} leave open that it read rows which are gone")
        added = winner.replaced.get(path)
        replaced = None if added is None else self.reader.removed_from(winner, added)
        if not self.reader.any_was_read(file, conditions, rows=None if replaced is None else replaced.rows):
            self._note(KEYS, winner)
        elif not self._reads_as_before(winner):
            raise Undecided(f"a row of the file {path} that is gone or changed {_sure(conditions)} one that it read")

    def _reads_as_before(self, winner: WinningCommit) -> bool:
        """Tell whether a winner wrote the rows that were read again as they were; then follow them to their new files."""
        if any(map(self.owns, winner.rewritten)) or not self._carried_rows().are_as_before(winner, self._reads, self._usable):
            return False
        self.followed.update(file.path for file in winner.added_files)
        self._note(ROWS, winner)
        return True

    def _counts(self, read: ReadPredicate, file: RemoveFile) -> bool:
        return file.partition_values is None or read.covers(file.partition_values)

    # -- conditions ------------------------------------------------------------------------------------------------------------

    def _conditions(self, reads: Sequence[ReadPredicate], what: str) -> list[RowCondition]:
        found = []
        for read in reads:
            index = next(i for i, known in enumerate(self._reads) if known is read)
            if read.rows is None or not self._usable[index]:
                raise Undecided(f"rows were {what} where it read all rows ({read.text})")
            found.append(read.rows)
        return found

    def _is_usable(self, read: ReadPredicate) -> bool:
        """Tell whether values in files mean what they meant to a read: no winner has changed its columns."""
        metadata = self.current.read_metadata
        if read.rows is None or metadata is None or mode(metadata.configuration) == "id":
            return False
        return all(schema is not None and read.rows.fits(schema) for schema in self._schemas.values())

    def _note(self, how: str, winner: WinningCommit) -> None:
        self._how.setdefault(how, set()).add(winner.version)

    def apply(self) -> None:
        """Update the transaction after a batch: its vectors, and the tags that say what was resolved how."""
        current = self.current
        for part in self._parts:
            part.apply(current)
        current.files_of_others = self._marked.files_of_others
        if self._how:
            current.add_tag(DETECTION_TAG, self.level)
            current.add_tag(RESOLVED_TAG, resolved_text({how: in_ranges(found) for how, found in self._how.items()}))


def _parsed(schema_string: str) -> StructType | None:
    try:
        return TableDefinition.of_rows(schema_string).schema
    except DeltaAnalysisException:
        return None


def _sure(conditions: Sequence[RowCondition]) -> str:
    return "is" if all(condition.is_exact for condition in conditions) else "may, as far as its condition can be evaluated, be"
