"""Rows of data files by their content, in a form that is equal only for the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyroaring import BitMap64

from airflow_delta.log.arrow.arrays import array
from airflow_delta.transaction.conflicts.rows_of_winners import Undecided

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile
    from airflow_delta.log.data_files.data_file import DataFile
    from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows

ROWS_BY_CONTENT = 10_000
"""Rows that are compared by their content, at most."""

Row = tuple[tuple[str, Any], ...]
"""The columns of a row that are not null, with their values."""

Narrow = Callable[[str, pa.Array, int], BitMap64]
"""Returns, for a column of a row group that begins at a position, the positions of the rows that are still of interest."""


class Contents(NamedTuple):
    """Some rows of a row group.

    :ivar columns: of those asked for, the ones that the file has.
    """

    positions: Sequence[int]
    columns: dict[str, pa.Array]

    def rows(self) -> Iterator[Row]:
        """Yield the rows."""
        values = [exact(column) for column in self.columns.values()]
        for row in zip(*values, strict=True) if values else [()] * len(self.positions):
            yield tuple((name, value) for name, value in zip(self.columns, row, strict=True) if value is not None)


def contents(
    reader: WinnersRows,
    file: AddFile | RemoveFile,
    data: DataFile,
    rows: BitMap64,
    names: Sequence[str],
    narrow: Narrow | None = None,
) -> Iterator[Contents]:
    """Yield rows of a file, row group by row group.

    :param data: the file, opened.
    :param rows: their positions.
    :param names: of the columns, in files.
    :param narrow: leaves some rows out after a look at a column, so that others need not be read.
    :raises Undecided: if a column cannot be compared.
    """
    if any(data.has(name) is None for name in names):
        raise Undecided(f"the file {file.path} has columns with fields, or times in an old calendar")
    there = [name for name in names if data.has(name)]
    for number, start, length in data.groups():
        here = rows & BitMap64(range(start, start + length))
        columns: dict[str, pa.Array] = {}
        for some in [there] if narrow is None else [[name] for name in there]:
            if not here:
                break
            columns.update(reader.columns(data, number, start, length, some).columns)
            if narrow is not None:
                (name,) = some
                here &= narrow(name, columns[name], start)
        if here:
            taken = array([row - start for row in here], pa.int64())
            yield Contents(list(here), {name: columns[name].take(taken) for name in there})


def exact(values: pa.Array) -> list[Any]:
    """Return values in a form that is equal only if they are the same: -0.0 is not 0.0, and NaN is NaN."""
    kind = values.type
    if pa.types.is_temporal(kind) and not pa.types.is_date32(kind):
        unit = str(kind)
        return [None if value is None else (unit, value) for value in values.cast(pa.int64()).to_pylist()]
    return [None if value is None else repr(value) for value in values.to_pylist()]
