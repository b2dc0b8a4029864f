"""The rows that a transaction marks in deletion vectors, carried along when winning commits mark others or move them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import ENABLE_DELETION_VECTORS
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.transaction import heavy
from airflow_delta.transaction.conflicts.own_rows import OwnRows, RowsOfBoth, check_spelling
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided, WinnersRows
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from airflow_delta.log.actions.actions import DeletionVectorDescriptor, Metadata
    from airflow_delta.log.storage.base import LogStore

INLINE_BYTES = 512
"""Bytes up to which vectors are stored in the log itself."""

_NAME_LENGTH = 20  # of a vector's file, encoded
_METRICS = {
    "numDeletionVectorsAdded": "added",
    "numDeletionVectorsRemoved": "removed",
    "numDeletionVectorsUpdated": "updated",
    "numRemovedFiles": "gone",
    "numRemovedBytes": "bytes",
    "numTargetDeletionVectorsAdded": "added",
    "numTargetDeletionVectorsRemoved": "removed",
    "numTargetDeletionVectorsUpdated": "updated",
    "numTargetFilesRemoved": "gone",
    "numTargetBytesRemoved": "bytes",
}
_METRICS_OF_UPDATE = {**_METRICS, "numRemovedFiles": "touched"}
"""Delta counts every file that an UPDATE touches as removed."""


def takes_vectors(metadata: Metadata | None) -> bool:
    """Return whether a table's writers mark deleted rows in deletion vectors."""
    return metadata is not None and metadata.configuration.get(ENABLE_DELETION_VECTORS, "false").lower() == "true"


@dataclass(slots=True)
class _Marks:
    """What the transaction marks in one file.

    :param rows: positions that it marks.
    :param others: positions that others have marked.
    :param file: the file as the last winner that touched it left it; at first, as it was read.
    :param stats: statistics of the file with a vector.
    :param remove: the transaction's action that removes the file.
    :param records: rows of the file, as the transaction has found them itself, not as a winner counts them; infinite if unknown.
    """

    rows: BitMap64
    others: BitMap64
    file: AddFile
    stats: str | None
    remove: RemoveFile
    records: float
    is_new: bool = False
    """Whether others have touched the file since it was read."""
    is_whole: bool = False
    """Whether some of the rows are those of a file that the transaction removes or rewrites whole."""

    @property
    def marked(self) -> BitMap64:
        """All rows that are marked in the end."""
        return self.rows | self.others

    @property
    def stays(self) -> bool:
        """Whether a row is left; without one, the file is removed."""
        return len(self.marked) < self.records

    @property
    def effect(self) -> Counter[str]:
        """What metrics count of it."""
        had, stays = bool(self.others), self.stays
        return Counter(
            added=stays, removed=had, updated=stays and had, gone=not stays, bytes=0 if stays else self.file.size, touched=1
        )


@dataclass(slots=True)
class MarkedRows(OwnRows):
    """The deletion vectors of a transaction.

    :param metadata: of the version that was read.
    """

    store: LogStore
    reader: WinnersRows
    metadata: Metadata | None
    _adds: dict[str, AddFile] = field(default_factory=dict)
    _removes: dict[str, RemoveFile] = field(default_factory=dict)
    _added: set[str] = field(default_factory=set)
    _marks: dict[str, _Marks] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _directory: str | None = None
    _changed: bool = False
    _counted: Counter[str] = field(default_factory=Counter)
    """What the metrics of the operation say of the files in ``_marks``, and of those that were there before them."""

    def look(self, actions: Iterable[Action]) -> None:
        """Take in the actions of the transaction, as winners left them."""
        listed = list(actions)
        self._removes = {action.path: action for action in listed if isinstance(action, RemoveFile)}
        self._added = {action.path for action in listed if isinstance(action, AddFile)}
        self._adds = {
            action.path: action
            for action in listed
            if isinstance(action, AddFile) and action.deletion_vector is not None and action.path in self._removes
        }
        for file in self._adds.values():
            vector = file.deletion_vector
            if self._directory is None and vector is not None and vector.storage_type == "u":
                self._directory = vector.path_or_inline_dv[:-_NAME_LENGTH]

    def owns(self, path: str) -> bool:
        """Tell whether the transaction adds or removes a file; files of the table may be among those that it adds."""
        return path in self._marks or (path not in self._gone and (path in self._removes or path in self._added))

    def marks(self, path: str) -> bool:
        """Tell whether the transaction marks rows of a file, and keeps the file."""
        return path in self._marks or (path in self._adds and path not in self._gone)

    @property
    def files_of_others(self) -> set[str]:
        """Files whose row ids and versions winning commits have set."""
        return {path for path, marks in self._marks.items() if marks.is_new}

    def meet(self, winner: WinningCommit, file: RemoveFile, after: Metadata) -> None:  # noqa: ARG002
        """Go on from a winner's vector on a file, or find the rows that it moved.

        :raises RowsOfBoth: if both mark some rows.
        :raises Undecided: if the transaction marks no rows of the file, and the winner changes some.
        """
        path, added = file.path, winner.replaced.get(file.path)
        if not winner.only_moves_rows and not self.marks(path):
            raise Undecided(
                f"this transaction rewrites or removes the whole file {path} (deletion vectors would leave it in place)"
            )
        check_spelling(winner, path)
        lost = None if added is None else self.reader.removed_from(winner, added)
        if winner.only_moves_rows and (lost is None or lost.rows):
            self._move(path, winner)
            return
        if added is None or lost is None:
            raise Undecided(f"the whole file {path} was rewritten or removed; deletion vectors would have left it in place")
        both = self.unite(added, lost.vector, lost.rows)
        if both:
            raise RowsOfBoth(path, both)

    def unite(self, file: AddFile, others: BitMap64, marked: BitMap64) -> int:
        """Go on from a winner's vector on a file that the transaction marks, or removes; return how many rows both mark.

        :param file: with the winner's vector.
        :param others: the rows of that vector.
        :param marked: those of them that the winner itself has marked.
        :raises Undecided: if a vector of the transaction cannot be read, or the winner replaced another one than there was.
        """
        marks = self._marks_of(file.path)
        if others - marked != marks.others:
            raise Undecided(f"the deletion vector of the file {file.path} that it replaced is not the one that the file had")
        both = len(marks.rows & marked)
        if not both:
            marks.file, marks.others, marks.is_new, self._changed = file, others, True, True
        return both

    def _move(self, path: str, winner: WinningCommit) -> None:
        """Find the rows that the transaction marks in a file that a winner compacted, or all rows of one that it removes.

        :raises Undecided: if that cannot be done.
        """
        marks = self._marks_of(path)
        try:
            found = heavy.find_moved(self.reader, self.metadata, marks.file, marks.rows, winner.added_files) if marks.rows else []
        except Undecided as why:
            if takes_vectors(self.metadata):
                raise
            raise Undecided(  # what else would help to find them helps nobody here
                "its rows were moved to other files, where only deletion vectors could mark them (delta.enableDeletionVectors)"
            ) from why
        del self._marks[path]  # the file may be among those that were added, with some of its rows
        self._gone.add(path)
        self._changed = True
        for file, rows, records in found:
            known = self._marks.get(file.path)
            if known is not None:
                known.rows |= rows
                known.is_whole |= marks.is_whole
                continue
            others, counted = self.reader.vector(file.deletion_vector), file.stats
            if num_records(counted) is None:  # which a file with a vector must say
                counted = f'{{"numRecords":{records}}}'
            stats = with_wide_bounds(counted, file.deletion_vector)
            self._marks[file.path] = _Marks(
                rows, others, file, stats, marks.remove, records, is_new=True, is_whole=marks.is_whole
            )

    def check_vectors(self, after: Metadata) -> None:
        """Check that the table takes the vectors that moved rows need.

        :param after: the table's metadata after the transaction.
        :raises Undecided: if it has no deletion vectors, and rows of a file that others wrote would have to be marked.
        """
        if takes_vectors(self.metadata) and takes_vectors(after):
            return
        needed = min(
            (path for path, marks in self._marks.items() if marks.is_new and marks.is_whole and marks.stays), default=None
        )
        if needed is not None:
            raise Undecided(
                f"its rows were moved to the file {needed}, where only deletion vectors could mark them "
                "(delta.enableDeletionVectors)"
            )

    def applied(self, actions: Sequence[Action]) -> list[Action] | None:
        """Return the actions with vectors that mark what winners and the transaction mark; ``None`` if nothing has changed.

        Vectors are written to a new file beside those of the transaction.
        """
        if not self._changed:
            return None
        self._changed = False
        changed = {path: marks for path, marks in self._marks.items() if marks.is_new}
        stay = {path: marks.marked for path, marks in changed.items() if marks.stays}
        vectors = dict(zip(stay, self._written(list(stay.values())), strict=True))
        result = [action for action in actions if not self._is_replaced(action, changed)]
        for path, marks in changed.items():
            file = self._with_row_ids(marks.file)
            changes = marks.remove.data_change
            result.append(file.remove(marks.remove.deletion_timestamp or 0, data_change=changes))
            if path in vectors:
                vector = vectors[path]
                result.append(msgspec.structs.replace(file, data_change=changes, deletion_vector=vector, stats=marks.stats))
        return result

    def counted(self, actions: Sequence[Action], metrics: Mapping[str, str] | None) -> dict[str, str] | None:  # noqa: ARG002
        """Return the metrics of the operation with the vectors and files as they are now; ``None``: they are right."""
        now: Counter[str] = Counter()
        for marks in self._marks.values():
            now.update(marks.effect)
        before, self._counted = self._counted, now
        if metrics is None or now == before:
            return None
        kinds = _METRICS_OF_UPDATE if "numUpdatedRows" in metrics else _METRICS
        counts = {name: int(metrics[name]) + now[kind] - before[kind] for name, kind in kinds.items() if name in metrics}
        return {**metrics, **{name: str(count) for name, count in counts.items()}}

    def _is_replaced(self, action: Action, changed: Mapping[str, _Marks]) -> bool:
        return isinstance(action, AddFile | RemoveFile) and (action.path in changed or action.path in self._gone)

    def _written(self, vectors: Sequence[BitMap64]) -> list[DeletionVectorDescriptor]:
        if self._directory is None:  # as those of the transaction
            inline = [inline_deletion_vector(rows) for rows in vectors]
            if all(vector.size_in_bytes <= INLINE_BYTES for vector in inline):
                return inline
        return write_deletion_vectors(self.store, self._directory or "", vectors) if vectors else []

    def _with_row_ids(self, file: AddFile) -> AddFile:
        """Return a file with the row ids that a winning backfill may have given it."""
        known = self._adds.get(file.path, file)
        return msgspec.structs.replace(
            file,
            base_row_id=known.base_row_id if file.base_row_id is None else file.base_row_id,
            default_row_commit_version=(
                known.default_row_commit_version if file.default_row_commit_version is None else file.default_row_commit_version
            ),
        )

    def _marks_of(self, path: str) -> _Marks:
        return self._of(path) if self.marks(path) else self._whole(path)

    def _whole(self, path: str) -> _Marks:
        """Return a file that the transaction removes, as one of which it marks every row."""
        if path in self._added or path not in self._removes:
            raise Undecided(f"a compaction replaced the file {path}, which this transaction adds")
        remove = self._removes[path]
        if not remove.data_change:
            raise Undecided(f"a compaction replaced the file {path}, which this transaction compacts")
        records = num_records(remove.stats)
        if records is None:
            records = heavy.rows_in(self.reader, remove)
        before = self.reader.vector(remove.deletion_vector, records)
        read = msgspec.structs.replace(
            remove.as_add(),
            base_row_id=remove.base_row_id,
            default_row_commit_version=remove.default_row_commit_version,
        )
        marks = _Marks(heavy.all_rows(records) - before, before, read, remove.stats, remove, records, is_whole=True)
        self._marks[path] = marks
        self._counted.update(marks.effect)
        return marks

    def _of(self, path: str) -> _Marks:
        if path not in self._marks:
            add, remove = self._adds[path], self._removes[path]
            records = num_records(add.stats)
            before = self.reader.vector(remove.deletion_vector, records)
            after = self.reader.vector(add.deletion_vector, records)
            if before - after:
                raise Undecided(f"this transaction brings rows of the file {path} back, which a winning commit has changed")
            read = msgspec.structs.replace(add, deletion_vector=remove.deletion_vector)
            self._marks[path] = marks = _Marks(
                after - before, before, read, add.stats, remove, float("inf") if records is None else records
            )
            self._counted.update(marks.effect)
        return self._marks[path]
