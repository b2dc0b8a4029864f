"""The rows that winning commits added or removed, read as far as it takes to tell whether a transaction had read one of them."""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.exceptions import DeltaError
from airflow_delta.log import heavy
from airflow_delta.log.actions.deletion_vectors import read_deletion_vector
from airflow_delta.log.expressions import ast
from airflow_delta.log.replay.row_groups import Range, may_hold
from airflow_delta.log.schema.partition_values import parse_partition_value, possible_instants
from airflow_delta.log.schema.types import INTEGRAL, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

    from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, RemoveFile
    from airflow_delta.log.actions.moved_rows import MovedRows
    from airflow_delta.log.data_files.data_file import DataFile, FileRows
    from airflow_delta.log.storage.base import LogStore
    from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
    from airflow_delta.transaction.reads.row_condition import RowCondition

_KEPT_VECTORS = 32
_KEPT_OPEN = 256

NOT_IN_PYTHON = (ArithmeticError, TypeError, ValueError)
"""What values of a file raise that Python cannot represent: dates after the year 9999, text that is not UTF-8."""


class Undecided(Exception):
    """Whether rows conflict cannot be determined; the message gives the reason, as the end of a sentence."""


class ReplacedVector(NamedTuple):
    """A file with another vector.

    :param rows: positions that were marked.
    :param vector: all positions that are marked now.
    """

    rows: BitMap64
    vector: BitMap64


class WinnersRows:
    """Reads rows of winning commits.

    :param limit: bytes of columns that may be read in all.
    :ivar records: where the rows of files of compactions come from, as far as it was asked for; ``None`` if nothing says it.
    """

    def __init__(self, store: LogStore, limit: int) -> None:
        self.store = store
        self._limit = limit
        self._read = 0
        self._vectors: dict[str, BitMap64] = {}
        self.records: dict[str, MovedRows | None] = {}
        self._winner: WinningCommit | None = None
        self._lost: dict[str, ReplacedVector | None] = {}
        """What files have lost to the winner that was asked about last."""

    def vector(self, descriptor: DeletionVectorDescriptor | None, num_records: int | None = None) -> BitMap64:
        """Return the rows that a deletion vector marks; none if there is no vector. Callers do not change them.

        :raises Undecided: if it cannot be read.
        """
        from pyroaring import BitMap64

        if descriptor is None:
            return BitMap64()
        known = self._vectors.get(descriptor.unique_id)  # what one winner writes the next one removes
        if known is not None:
            return known
        if descriptor.storage_type != "i":
            self.count(descriptor.size_in_bytes)
        try:
            found = read_deletion_vector(self.store, descriptor, num_records=num_records)
        except (DeltaError, OSError) as error:
            raise Undecided(f"a deletion vector of a winning commit cannot be read ({first_line(error)})") from error
        if len(self._vectors) >= _KEPT_VECTORS:
            del self._vectors[next(iter(self._vectors))]
        self._vectors[descriptor.unique_id] = found
        return found

    def removed_from(self, winner: WinningCommit, file: AddFile) -> ReplacedVector | None:
        """Return which rows a file lost that a winner removed and added again; ``None`` if it was not, or got rows back."""
        if file.path not in winner.replaced:
            return None
        if winner is not self._winner:
            self._winner, self._lost = winner, {}
        if file.path not in self._lost:
            self._lost[file.path] = self._compared(winner, file)
        return self._lost[file.path]

    def _compared(self, winner: WinningCommit, file: AddFile) -> ReplacedVector | None:
        before = next(removed.deletion_vector for removed in winner.removed_files if removed.path == file.path)
        old, new = self.vector(before), self.vector(file.deletion_vector)
        return None if old - new else ReplacedVector(new - old, new)

    def any_was_read(
        self, file: AddFile | RemoveFile, conditions: Sequence[RowCondition], *, rows: BitMap64 | None = None
    ) -> bool:
        """Tell whether one of a file's rows may satisfy one of some conditions.

        :param rows: positions of the rows that count; ``None``: all that its deletion vector leaves.
        :raises Undecided: if the file cannot be read, or only beyond the limit.
        """
        import pyarrow as pa

        try:
            dead = self.vector(file.deletion_vector) if rows is None and file.deletion_vector is not None else None
            data = self.open(file)
            return any(
                _any(condition, group, values, rows, dead)
                for group, values, condition in self._groups(file, data, conditions, rows)
            )
        except FileNotFoundError as error:
            raise Undecided(f"the file {file.path} of a winning commit is gone") from error
        except (pa.ArrowException, OSError, DeltaError, *NOT_IN_PYTHON) as error:
            raise Undecided(f"the file {file.path} of a winning commit cannot be read ({first_line(error)})") from error

    def selected(self, file: AddFile | RemoveFile, data: DataFile, conditions: Sequence[RowCondition]) -> BitMap64:
        """Return the positions of the live rows that may satisfy one of some conditions.

        :param data: the file, opened.
        """
        from pyroaring import BitMap64

        found = BitMap64()
        for group, values, condition in self._groups(file, data, conditions, None):
            found |= positions(condition.may_select(values, group.length), group.start)
        return found - self.vector(file.deletion_vector)

    def open(self, file: AddFile | RemoveFile) -> DataFile:
        """Open a data file.

        :raises FileNotFoundError: if it is gone.
        """
        from airflow_delta.log.data_files.data_file import DataFile

        return DataFile(self.store, file.path, file.size)

    def columns(self, file: DataFile, group: int, start: int, length: int, names: Sequence[str]) -> FileRows:
        """Return columns of a row group."""
        self.count(file.size_of(group, names))
        return file.read(group, start, length, names)

    def count(self, size: int) -> None:
        """Count bytes that are about to be read.

        :raises Undecided: if that exceeds the limit.
        """
        if self._read + size > self._limit:
            raise Undecided(
                f"that would take reading more than {self._limit} bytes of what the winning commits wrote (conflict_read_limit)"
            )
        self._read += size

    def _groups(
        self, file: AddFile | RemoveFile, data: DataFile, conditions: Sequence[RowCondition], rows: BitMap64 | None
    ) -> Iterator[tuple[FileRows, _Values, RowCondition]]:
        for number, start, length in data.groups():
            if rows is not None and not rows.range_cardinality(start, start + length):
                continue
            left = [c for c in conditions if may_hold(c.expression, _ranges(data, number))]
            wanted = dict.fromkeys(column for condition in left for column in condition.columns if not column.is_partition)
            names = dict.fromkeys(column.physical_path[0] for column in wanted if data.has(column.physical_path[0]))
            if not left:
                continue
            group = self.columns(data, number, start, length, list(names))
            values = _Values(file, data, group)
            for condition in left:
                yield group, values, condition


class SharedRows(WinnersRows):
    """Reads rows for several transactions that are checked one after the other, each once as long as they are few enough to keep.

    :param limit: for each transaction, and for what is kept.
    """

    def __init__(self, store: LogStore, limit: int) -> None:
        super().__init__(store, limit)
        self._opened: dict[str, DataFile] = {}
        self._columns: dict[tuple[str, int, tuple[str, ...]], FileRows] = {}
        self._kept = 0

    def begin(self) -> None:
        """Begin with another transaction."""
        self._read = 0

    def open(self, file: AddFile | RemoveFile) -> DataFile:
        """Open a data file, or return it opened."""
        found = self._opened.get(file.path)
        if found is None:
            found = super().open(file)
            if len(self._opened) < _KEPT_OPEN:
                self._opened[file.path] = found
        return found

    def columns(self, file: DataFile, group: int, start: int, length: int, names: Sequence[str]) -> FileRows:
        """Return columns of a row group, as they were read before."""
        key = file.path, group, tuple(names)
        found = self._columns.get(key)
        if found is None:
            found = super().columns(file, group, start, length, names)
            size = sum(column.nbytes for column in found.columns.values())
            if self._kept + size <= self._limit:
                self._columns[key] = found
                self._kept += size
        return found


class _Values:
    """The values of columns in one row group."""

    def __init__(self, file: AddFile | RemoveFile, data: DataFile, group: FileRows) -> None:
        self._file = file
        self._data = data
        self._group = group
        self._known: dict[ast.ColumnReference, pa.Array | None] = {}

    def __call__(self, column: ast.ColumnReference) -> pa.Array | None:
        if column not in self._known:
            self._known[column] = self._values(column)
        return self._known[column]

    def _values(self, column: ast.ColumnReference) -> pa.Array | None:
        import pyarrow as pa

        if len(column.physical_path) != 1:
            return None
        name = column.physical_path[0]
        if column.is_partition:
            return self._partition(column, name)
        values = self._group.columns.get(name)
        if values is not None:
            return heavy.comparable(values, column.data_type)
        return pa.nulls(self._group.length, _arrow(column)) if self._data.has(name) is False else None

    def _partition(self, column: ast.ColumnReference, name: str) -> pa.Array | None:
        import pyarrow as pa

        from airflow_delta.log.arrow.arrays import repeated

        texts = self._file.partition_values
        if texts is None or name not in texts:
            return None
        if possible_instants(texts[name], column.data_type) is not None:
            return None
        value: Any = parse_partition_value(texts[name], column.data_type)
        if value is None:
            return pa.nulls(self._group.length, _arrow(column))
        return heavy.comparable(repeated(value, self._group.length, _arrow(column)), column.data_type)


def _arrow(column: ast.ColumnReference) -> pa.DataType:
    return arrow_type(column.data_type)


def _any(condition: RowCondition, group: FileRows, values: _Values, rows: BitMap64 | None, dead: BitMap64 | None) -> bool:
    selected = positions(condition.may_select(values, group.length), group.start)
    if rows is not None:
        return bool(selected & rows)
    return bool(selected - dead if dead is not None else selected)


def positions(mask: pa.BooleanArray, start: int) -> BitMap64:
    """Return the positions in the file of the rows of a row group that a mask selects.

    :param start: position of the first row of the group.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyroaring import BitMap64

    from airflow_delta.log.arrow.arrays import scalar

    found = pc.indices_nonzero(mask)
    if not len(found):
        return BitMap64()
    numbers = pc.add(found.cast(pa.uint64()), scalar(start, pa.uint64()))
    return BitMap64(array("Q", numbers.buffers()[1].to_pybytes()[: 8 * len(numbers)]))


def _ranges(data: DataFile, group: int) -> Any:
    def of(column: ast.ColumnReference) -> Range | None:
        if column.is_partition or len(column.physical_path) != 1 or not data.has(column.physical_path[0]):
            return None
        bounds = data.bounds(group, column.physical_path[0])
        return None if bounds is None or not _comparable(bounds, column) else Range(*bounds)

    return of


def _comparable(bounds: tuple[Any, Any], column: ast.ColumnReference) -> bool:
    kind = dt.date if column.data_type.name == "date" else int if column.data_type.name in INTEGRAL else None
    return kind is not None and all(type(bound) is kind for bound in bounds)


def first_line(error: Exception) -> str:
    """Return the first line of an error, as the end of a sentence."""
    text = str(error)
    return text.splitlines()[0][:300] if text else type(error).__name__
