"""Reading some columns of a data file, rows with their positions, and no more bytes than allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.log.storage.factory import sibling

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.data_files.opened import is_legacy


class FileRows(NamedTuple):
    """Rows of one row group.

    :param start: position of the first of them in the file.
    :param columns: those that were asked for and that the file has, by name.
    """

    start: int
    length: int
    columns: dict[str, pa.Array]


class DataFile:
    """A Parquet file of the table.

    :param path: as in the log.
    :param size: bytes.
    :raises FileNotFoundError: if it is gone.
    :raises pyarrow.ArrowException: if it is not Parquet. So do all methods if its content is damaged.
    """

    def __init__(self, store: LogStore, path: str, size: int | None) -> None:
        self.path = path
        plain = unquote(path)
        if plain.startswith(("/", "file:")) or "://" in plain:
            directory, _, plain = plain.rpartition("/")
            store = sibling(store, directory)
        self._file: pq.ParquetFile = pq.ParquetFile(store.open_input(plain, size), pre_buffer=False)
        self._metadata = self._file.metadata
        schema = self._metadata.schema
        self._leaves = {schema.column(i).path: i for i in range(len(schema))}
        self._is_legacy = is_legacy(self._metadata.metadata or {})

    @property
    def num_rows(self) -> int:
        """Number of rows, deleted ones included."""
        return int(self._metadata.num_rows)

    @property
    def names(self) -> list[str]:
        """Names of the top-level columns."""
        return list(self._file.schema_arrow.names)

    def has(self, name: str) -> bool | None:
        """Tell whether the file has a top-level column of a type without fields; ``None`` if that is not clear.

        Spark finds columns whatever the case of their names, and converts dates and times of before 1900 that are in the Julian
        calendar, which :meth:`read` does not.
        """
        if "." in name:
            return None
        if name in self._leaves:
            return None if self._is_legacy and pa.types.is_temporal(self._file.schema_arrow.field(name).type) else True
        return None if name.lower() in {known.lower() for known in self._file.schema_arrow.names} else False

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, first row and number of rows of each row group."""
        start = 0
        for number in range(self._metadata.num_row_groups):
            rows = self._metadata.row_group(number).num_rows
            yield number, start, rows
            start += rows

    def size_of(self, group: int, names: Sequence[str]) -> int:
        """Return the compressed bytes of columns in a row group."""
        columns = self._metadata.row_group(group)
        return sum(columns.column(self._leaves[name]).total_compressed_size for name in names)

    def bounds(self, group: int, name: str) -> tuple[Any, Any] | None:
        """Return least and greatest value of an integer or a date in a row group; ``None`` if the footer does not say."""
        statistics = self._metadata.row_group(group).column(self._leaves[name]).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        kind = self._metadata.schema.column(self._leaves[name]).logical_type
        if kind.type == "INT" and not json.loads(kind.to_json())["isSigned"]:  # Spark may read them as signed
            return None
        if statistics.physical_type not in ("INT32", "INT64") or statistics.logical_type.type not in ("NONE", "INT", "DATE"):
            return None
        try:
            return statistics.min, statistics.max
        except OverflowError:  # a date that Python cannot represent
            return None

    def read(self, group: int, start: int, length: int, names: Sequence[str]) -> FileRows:
        """Return columns of a row group, texts in Arrow's plain type: few kernels know views (``take`` does not)."""
        if not names:
            return FileRows(start, length, {})
        table = self._file.read_row_group(group, columns=list(names), use_threads=False)
        if table.num_rows != length:
            raise pa.ArrowInvalid(f"row group {group} has {table.num_rows:,} rows, its footer says {length:,}")
        return FileRows(start, length, {name: _plain_texts(table.column(name).combine_chunks()) for name in names})


_PLAIN_TYPES = {
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
}


def _plain_texts(values: pa.Array) -> pa.Array:
    """Return values whose writer noted another layout in the footer (``ARROW:schema``) as if it had not.

    :raises pyarrow.ArrowInvalid: if that takes more than 2 GiB.
    """
    if pa.types.is_dictionary(values.type):
        values = _plain_texts(values.dictionary).take(values.indices)
    return values.cast(_PLAIN_TYPES[values.type]) if values.type in _PLAIN_TYPES else values
