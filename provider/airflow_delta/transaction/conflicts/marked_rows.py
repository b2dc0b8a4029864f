"""The rows that a transaction marks in deletion vectors, carried along when winning commits mark others or move them.

Rows that a compaction moved, found again by row id (Delta protocol, "Row Tracking").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.files import partition_texts_of
from airflow_delta.exceptions import DeltaError
from airflow_delta.log.actions.actions import Action, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, write_deletion_vectors
from airflow_delta.log.statistics.statistics import num_records, with_wide_bounds
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided, WinnersRows, first_line, positions
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

    from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, Metadata
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows


_MATERIALIZED = "delta.rowTracking.materializedRowIdColumnName"


def find_moved(
    reader: WinnersRows, metadata: Metadata | None, file: AddFile, rows: BitMap64, added: Sequence[AddFile]
) -> list[tuple[AddFile, BitMap64, int]]:
    """Return where rows of a file are now: files, positions, and how many rows each file has.

    :param metadata: of the table.
    :param file: the file that the compaction removed.
    :param rows: positions in it.
    :param added: the files that the compaction added.
    :raises Undecided: if the table has no row tracking, or not every row is found, or a file cannot be read within the limit.
    """
    import pyarrow as pa

    if metadata is None or not row_tracking.has_row_tracking(metadata):
        raise Undecided(
            "its rows were moved to other files, and without row tracking (delta.enableRowTracking) nothing says where"
        )
    column = metadata.configuration.get(_MATERIALIZED)
    try:
        ids = pa.concat_arrays([values for values, _start in _row_ids(reader, file, column, rows)])
        found, missing = [], set(ids.to_pylist())
        place = partition_texts_of(file.partition_values)
        for other in added:
            if partition_texts_of(other.partition_values) == place:
                here = _positions(reader, other, column, ids, missing)
                if here:
                    found.append((other, here, reader.open(other).num_rows))
    except (pa.ArrowException, OSError, DeltaError) as error:
        raise Undecided(f"its rows were moved to other files, and the row ids cannot be read ({first_line(error)})") from error
    if missing or sum(len(here) for _other, here, _records in found) != len(rows):
        raise Undecided("its rows were moved to other files, and not every row id is found there once")
    return found


def _positions(reader: WinnersRows, file: AddFile, column: str | None, ids: pa.Array, missing: set[int]) -> BitMap64:
    """Return where live rows with some ids are in a file.

    :param missing: ids that have not been found yet.
    """
    import pyarrow.compute as pc
    from pyroaring import BitMap64

    found, dead = BitMap64(), reader.vector(file.deletion_vector)
    for values, start in _row_ids(reader, file, column, None):
        live = positions(pc.is_in(values, value_set=ids), start) - dead
        missing.difference_update(_taken(values, live, start).to_pylist())
        found |= live
    return found


def _row_ids(reader: WinnersRows, file: AddFile, column: str | None, rows: BitMap64 | None) -> list[tuple[pa.Array, int]]:
    """Return the row ids of each row group, and the position of its first row; with ``rows``, those rows' only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_delta.log.arrow.arrays import array

    if file.base_row_id is None:
        raise Undecided(f"its rows were moved, and the file {file.path} has no row ids")
    data = reader.open(file)
    names = [column] if column is not None and data.has(column) else []
    if column is not None and data.has(column) is None:
        raise Undecided(f"its rows were moved, and the row ids in {file.path} cannot be told from another column")
    found = []
    for number, start, length in data.groups():
        if rows is not None and not rows.range_cardinality(start, start + length):
            continue
        values = array(range(file.base_row_id + start, file.base_row_id + start + length), pa.int64())
        if names:
            stored = reader.columns(data, number, start, length, names).columns[names[0]]
            values = pc.coalesce(stored.cast(pa.int64()), values)
        if rows is not None:
            values = _taken(values, [row for row in rows if start <= row < start + length], start)
        found.append((values, start))
    return found


def _taken(values: pa.Array, rows: Iterable[int], start: int) -> pa.Array:
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import array

    return values.take(array([row - start for row in rows], pa.int64()))


_INLINE_BYTES = 512
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
class MarkedRows:
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

    def meet(self, file: AddFile, others: BitMap64, marked: BitMap64) -> int:
        """Go on from a winner's vector on a file that the transaction marks; return how many rows both mark.

        :param file: with the winner's vector.
        :param others: the rows of that vector.
        :param marked: those of them that the winner itself has marked.
        :raises Undecided: if a vector of the transaction cannot be read, or the winner replaced another one than there was.
        """
        marks = self._of(file.path)
        if others - marked != marks.others:
            raise Undecided(f"the deletion vector of the file {file.path} that it replaced is not the one that the file had")
        both = len(marks.rows & marked)
        if not both:
            marks.file, marks.others, marks.is_new, self._changed = file, others, True, True
        return both

    def move(self, path: str, winner: WinningCommit) -> None:
        """Find the rows that the transaction marks in a file that a winner compacted.

        :raises Undecided: if that cannot be done.
        """
        marks = self._of(path)
        found = find_moved(self.reader, self.metadata, marks.file, marks.rows, winner.added_files)
        del self._marks[path]  # the file may be among those that were added, with some of its rows
        self._gone.add(path)
        self._changed = True
        for file, rows, records in found:
            known = self._marks.get(file.path)
            if known is not None:
                known.rows |= rows
                continue
            others, stats = self.reader.vector(file.deletion_vector), with_wide_bounds(file.stats, file.deletion_vector)
            self._marks[file.path] = _Marks(rows, others, file, stats, marks.remove, records, is_new=True)

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
            result.append(file.remove(marks.remove.deletion_timestamp or 0, data_change=marks.remove.data_change))
            if path in vectors:
                vector = vectors[path]
                result.append(msgspec.structs.replace(file, data_change=True, deletion_vector=vector, stats=marks.stats))
        return result

    def counted(self, metrics: Mapping[str, str] | None) -> dict[str, str] | None:
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
            if all(vector.size_in_bytes <= _INLINE_BYTES for vector in inline):
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
