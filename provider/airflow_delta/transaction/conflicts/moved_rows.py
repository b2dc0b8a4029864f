"""Where rows are that a compaction has moved, found again in three ways.

By the record that our compactions leave (:mod:`airflow_delta.log.actions.moved_rows`), by row id (Delta protocol, "Row
Tracking"), or by the content of the rows, if it is unique. None is believed unless every row is found exactly once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from airflow_delta.contract.delta_names import MATERIALIZED_ROW_ID
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.exceptions import DeltaError
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG
from airflow_delta.log.actions.moved_rows import read_moved_rows, size_of_moved_rows
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.features.column_mapping import mode
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.conflicts.row_contents import ROWS_BY_CONTENT, Row, contents
from airflow_delta.transaction.conflicts.rows_of_winners import (
    NOT_IN_PYTHON,
    Undecided,
    WinnersRows,
    first_line,
    positions,
)
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, Metadata, RemoveFile
    from airflow_delta.log.actions.moved_rows import MovedRows, RowSource
    from airflow_delta.log.data_files.data_file import DataFile

logger = logging.getLogger(__name__)

Found = list[tuple["AddFile", "BitMap64", int]]
"""Files, positions of the rows in them, and how many rows each file has."""


def rows_in(reader: WinnersRows, file: AddFile | RemoveFile) -> int:
    """Return how many rows a file has, by its statistics, else by its footer.

    :raises Undecided: if neither says.
    """
    known = num_records(file.stats)
    if known is not None:
        return known
    try:
        return reader.open(file).num_rows
    except (pa.ArrowException, OSError, DeltaError) as error:
        raise Undecided(f"the file {file.path} cannot be read ({first_line(error)})") from error


def _check_rows(file: AddFile, data: DataFile) -> None:
    """Check that the log says how many rows a file has: other rows of it would be lost or there twice.

    :raises Undecided: if it says another number.
    """
    known = num_records(file.stats)
    if known is not None and known != data.num_rows:
        raise Undecided(f"the file {file.path} has {data.num_rows} rows, not {known} as the log says")


def all_rows(number: int) -> BitMap64:
    """Return the positions of all rows of a file."""
    return BitMap64(range(number))


def find_moved(reader: WinnersRows, metadata: Metadata | None, file: AddFile, rows: BitMap64, added: Sequence[AddFile]) -> Found:
    """Return where rows of a file are now.

    :param metadata: of the table.
    :param file: the file that the compaction removed.
    :param rows: positions in it.
    :param added: the files that the compaction added.
    """
    place = partition_texts_of(file.partition_values)
    candidates = [other for other in added if partition_texts_of(other.partition_values) == place]
    if metadata is not None and row_tracking.has_row_tracking(metadata):  # which shows, too, that rows have kept their ids
        return _find_by_row_id(reader, metadata, file, rows, candidates)
    found = find_recorded(reader, file, rows, candidates)
    if found is not None:
        return found
    return _find_by_content(reader, metadata, file, rows, candidates)


# -- by the record ---------------------------------------------------------------------------------------------------------------


def find_source(reader: WinnersRows, file: AddFile | RemoveFile, added: Sequence[AddFile]) -> tuple[AddFile, RowSource] | None:
    """Return the new file that has a file's rows, and the record of them; ``None`` if no record is of any use.

    A record is used only if it fits: path, size and number of rows of both files.
    """
    for other in added:
        record = _record_of(reader, other)
        source = None if record is None else record.source(file.path)
        if record is not None and source is not None:
            fits = source.size == file.size and source.num_records == rows_in(reader, file)
            return (other, source) if fits and record.num_records == rows_in(reader, other) else None
    return None


def _record_of(reader: WinnersRows, file: AddFile) -> MovedRows | None:
    if MOVED_ROWS_TAG not in (file.tags or {}):
        return None
    if file.path not in reader.records:
        try:
            reader.count(size_of_moved_rows(file))
            reader.records[file.path] = read_moved_rows(reader.store, file)
        except (ValueError, DeltaError, OSError) as error:
            logger.info("The record of where rows of %s come from is not used: %s", file.path, first_line(error))
            reader.records[file.path] = None
    return reader.records[file.path]


def old_files_of(reader: WinnersRows, file: AddFile) -> set[str] | None:
    """Return the canonical paths of the files that a new file has the rows of; ``None`` if no record says so that fits."""
    try:
        record = _record_of(reader, file)
        if record is None or record.num_records != rows_in(reader, file):
            return None
    except Undecided:
        return None
    return {canonical_path(source.path) for source in record.sources}


def find_recorded(reader: WinnersRows, file: AddFile, rows: BitMap64, added: Sequence[AddFile]) -> Found | None:
    """Return where rows are by the record of a compaction; ``None`` if there is none that fits.

    :raises Undecided: if it says that a row was not copied.
    """
    found = find_source(reader, file, added)
    if found is None:
        return None
    other, source = found
    try:
        return [(other, source.moved(rows), rows_in(reader, other))]
    except ValueError as error:
        raise Undecided("its rows were moved to other files, and some were deleted before that") from error


# -- by row id -------------------------------------------------------------------------------------------------------------------


def _find_by_row_id(reader: WinnersRows, metadata: Metadata, file: AddFile, rows: BitMap64, added: Sequence[AddFile]) -> Found:
    column = metadata.configuration.get(MATERIALIZED_ROW_ID)
    try:
        ids = pa.concat_arrays([values for values, _start in _row_ids(reader, file, column, rows)])
        found, missing = [], set(ids.to_pylist())
        for other in added:
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
    found, dead = BitMap64(), reader.vector(file.deletion_vector)
    for values, start in _row_ids(reader, file, column, None):
        live = positions(pc.is_in(values, value_set=ids), start) - dead
        missing.difference_update(_taken(values, live, start).to_pylist())
        found |= live
    return found


def _row_ids(reader: WinnersRows, file: AddFile, column: str | None, rows: BitMap64 | None) -> list[tuple[pa.Array, int]]:
    """Return the row ids of each row group, and the position of its first row; with ``rows``, those rows' only."""
    if file.base_row_id is None:
        raise Undecided(f"its rows were moved, and the file {file.path} has no row ids")
    data = reader.open(file)
    _check_rows(file, data)
    names = [column] if column is not None and data.has(column) else []
    if column is not None and data.has(column) is None:
        raise Undecided(f"its rows were moved, and the row ids in {file.path} cannot be distinguished from another column")
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
    return values.take(array([row - start for row in rows], pa.int64()))


# -- by content ------------------------------------------------------------------------------------------------------------------

_WOULD_HELP = (
    "compactions by this provider record it (on tables with deletion vectors), as does row tracking (delta.enableRowTracking)"
)


def _find_by_content(
    reader: WinnersRows, metadata: Metadata | None, file: AddFile, rows: BitMap64, added: Sequence[AddFile]
) -> Found:
    """Return where rows are that the new files have as often as they were marked, in every column of the table."""
    if len(rows) > ROWS_BY_CONTENT:
        raise Undecided(
            f"its rows were moved to other files, more than {ROWS_BY_CONTENT} to be found by their content; {_WOULD_HELP}"
        )
    try:
        wanted = _Content.of(_columns(metadata))
        for _at, row in wanted.rows_of(reader, file, rows):
            wanted.counts[row] += 1
        wanted.is_known = True
        seen: Counter[Row] = Counter()
        found: Found = []
        for other in added:
            here = _like(reader, other, wanted, seen)
            if here:
                found.append((other, here, reader.open(other).num_rows))
    except Undecided as undecided:
        raise Undecided(f"its rows were moved to other files, and {undecided}; {_WOULD_HELP}") from undecided
    except (pa.ArrowException, OSError, DeltaError, *NOT_IN_PYTHON) as error:
        raise Undecided(
            f"its rows were moved to other files, and cannot be compared ({first_line(error)}); {_WOULD_HELP}"
        ) from error
    if seen != wanted.counts:
        raise Undecided(f"its rows were moved to other files, where their content is not found once; {_WOULD_HELP}")
    return found


def _columns(metadata: Metadata | None) -> list[str]:
    """Return the names that files have for the columns of the table."""
    if metadata is None or mode(metadata.configuration) == "id":
        raise Undecided("the table finds columns by field id")
    table = TableDefinition.of(metadata)
    partitions = {name.lower() for name in table.partition_columns}
    mapped = mode(metadata.configuration) == "name"
    stored = [field for field in table.schema.fields if field.name.lower() not in partitions]
    return [field.physical_name if mapped else field.name for field in stored]


def _like(reader: WinnersRows, file: AddFile, wanted: _Content, seen: Counter[Row]) -> BitMap64:
    """Return the live rows of a file that are among those wanted; counts what was seen."""
    live = all_rows(reader.open(file).num_rows) - reader.vector(file.deletion_vector)
    found = BitMap64()
    for at, row in wanted.rows_of(reader, file, live):
        if row in wanted.counts:
            found.add(at)
            seen[row] += 1
    return found


@dataclass(slots=True)
class _Content:
    """Rows that are looked for.

    :param names: of the columns, in files.
    :param counts: how often each row is there.
    :param values: of each column, in row groups of the old file.
    :param is_known: whether all rows are in ``values``, so that others need not be looked at.
    """

    names: Sequence[str]
    counts: Counter[Row]
    values: dict[str, list[pa.Array]]
    is_known: bool = False

    @classmethod
    def of(cls, names: Sequence[str]) -> _Content:
        return cls(names, Counter(), {name: [] for name in names})

    def rows_of(self, reader: WinnersRows, file: AddFile, rows: BitMap64) -> Iterator[tuple[int, Row]]:
        """Yield rows of a file, each as its columns that are not null; of a new file at least those that are wanted."""
        data: DataFile = reader.open(file)
        _check_rows(file, data)
        if rows and rows.max() >= data.num_rows:
            raise Undecided(f"the file {file.path} has only {data.num_rows} rows")
        for some in contents(reader, file, data, rows, self.names, self._among if self.is_known else None):
            if not self.is_known:
                for name in self.names:
                    self.values[name].append(some.columns.get(name, pa.nulls(len(some.positions))))
            yield from zip(some.positions, some.rows(), strict=True)

    def _among(self, name: str, column: pa.Array, start: int) -> BitMap64:
        """Return where values of a column are that may be those of a wanted row."""
        kind = column.type
        types = pa.types
        is_exact = types.is_integer(kind) or types.is_string(kind) or types.is_boolean(kind) or types.is_date32(kind)
        if is_exact and all(part.type in (kind, pa.null()) for part in self.values[name]):
            known = pa.concat_arrays([part.cast(kind) for part in self.values[name]])
            return positions(pc.is_in(column, value_set=known), start)
        return BitMap64(range(start, start + len(column)))
