"""Rows that a compaction moved, found again by row id (Delta protocol, "Row Tracking")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaError
from airflow_delta.staging.partition_texts import partition_texts_of
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided, WinnersRows, first_line, positions
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    import pyarrow as pa
    from pyroaring import BitMap64

    from airflow_delta.log.actions.actions import AddFile, Metadata

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
