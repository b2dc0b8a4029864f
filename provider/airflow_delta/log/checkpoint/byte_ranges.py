"""Which bytes of a checkpoint file hold the columns to read, so that a store is asked for many of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    import pyarrow.parquet as pq

WINDOW = 32 << 20
"""Bytes of columns that are in memory at a time, besides the next as many that are being read."""

_REQUEST = 8 << 20

_GAP = 256 << 10
"""Bytes that are read for nothing rather than in a request of their own."""


def windows(
    footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yield row groups that are read together, with the ranges (start, length) of their columns.

    :param columns: dotted paths; a prefix selects everything below it.
    """
    schema = footer.schema
    wanted = [i for i in range(len(schema)) if _selected(schema.column(i).path, columns)]
    together: list[int] = []
    chunks: list[tuple[int, int]] = []
    for group in groups:
        found = [_chunk(footer, group, column) for column in wanted]
        if together and sum(length for _, length in (*chunks, *found)) > WINDOW:
            yield together, _joined(chunks)
            together, chunks = [], []
        together.append(group)
        chunks += found
    if together:
        yield together, _joined(chunks)


def _selected(path: str, columns: Sequence[str]) -> bool:
    return any(path == column or path.startswith(f"{column}.") for column in columns)


def _chunk(footer: pq.FileMetaData, group: int, column: int) -> tuple[int, int]:
    """Return where Arrow reads a column of a row group: from its dictionary, if that comes first."""
    chunk = footer.row_group(group).column(column)
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    return start, chunk.total_compressed_size


def _joined(chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges without overlaps that cover the chunks, neighbours in one request unless that gets too large."""
    joined: list[tuple[int, int]] = []
    for start, length in sorted(chunks):
        if joined:
            first, known = joined[-1]
            end = max(first + known, start + length)
            if start < first + known or (start - first - known <= _GAP and end - first <= _REQUEST):
                joined[-1] = first, end - first
                continue
        joined.append((start, length))
    return joined
