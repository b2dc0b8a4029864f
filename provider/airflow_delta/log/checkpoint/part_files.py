"""Writing the Parquet files of a checkpoint to temporary files, cut into row groups and parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.log.checkpoint.part import CONSISTENT
from airflow_delta.log.statistics.columns import struct_leaf
from airflow_delta.log.statistics.credible import are_consistent

ROW_GROUP_ROWS = 20_000

# Columns with repeating values; for the others a dictionary costs time and saves nothing.
_DICTIONARY = ("add.partitionValues", "add.tags", "remove.partitionValues", "add.partitionValues_parsed")
# Leaves by which readers choose row groups, or which they skip when empty.
_MARKERS = (
    "txn.appId",
    "add.path",
    "add.tags.key_value.key",
    "add.deletionVector.storageType",
    "add.baseRowId",
    "add.defaultRowCommitVersion",
    "add.clusteringProvider",
    "remove.path",
    "remove.deletionVector.storageType",
    "metaData.id",
    "protocol.minReaderVersion",
    "domainMetadata.domain",
    "checkpointMetadata.version",
    "sidecar.path",
)
_BOUNDS = ("add.partitionValues_parsed.", "add.stats_parsed.minValues.", "add.stats_parsed.maxValues.")


class PartFiles:
    """The files of a checkpoint being written, each with a limited number of actions.

    :param schema: columns of the files.
    :param part_size: maximum number of actions in a file; ``None`` for no limit.
    :param new_file: makes a temporary file.
    """

    def __init__(self, schema: pa.Schema, part_size: int | None, new_file: Callable[[], BinaryIO]) -> None:
        self.part_size = part_size
        self._new_file = new_file
        self.rows = 0
        self._schema = schema
        self._files: list[BinaryIO] = []
        self._writer: pq.ParquetWriter | None = None
        self._part_rows = 0
        self._consistent = True
        self._pending: dict[str, list[pa.StructArray]] = {}
        self._pending_rows = 0
        paths = _leaf_paths(schema)
        self._statistics = [path for path in paths if path in _MARKERS or path.startswith(_BOUNDS)]
        self._dictionary = [path for path in paths if path.startswith(tuple(f"{name}." for name in _DICTIONARY))]

    def write(self, kind: str, rows: pa.StructArray) -> None:
        """Add rows of one kind, cut into row groups and those into files."""
        while len(rows):
            room = ROW_GROUP_ROWS - self._pending_rows
            if self.part_size is not None:
                room = min(room, self.part_size - self._part_rows - self._pending_rows)
            taken = rows.slice(0, room)
            self._pending.setdefault(kind, []).append(taken)
            self._consistent = self._consistent and _are_consistent(kind, taken)
            self._pending_rows += len(taken)
            rows = rows.slice(len(taken))
            full = self.part_size is not None and self._part_rows + self._pending_rows >= self.part_size
            if full or self._pending_rows >= ROW_GROUP_ROWS:
                self._flush()
            if full:
                self._finish_part()

    def finish(self) -> list[BinaryIO]:
        """Return the complete files, at least one, each positioned at its start."""
        self._flush()
        if not self._files:
            self._current()
        self._finish_part()
        for file in self._files:
            file.seek(0)
        return self._files

    def close(self) -> None:
        """Close all temporary files."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        for file in self._files:
            file.close()

    def _flush(self) -> None:
        if not self._pending_rows:
            return
        columns = []
        for field in self._schema:
            chunks = []
            for kind, arrays in self._pending.items():
                length = sum(len(array) for array in arrays)
                chunks += arrays if kind == field.name else [pa.nulls(length, field.type)]
            columns.append(pa.chunked_array(chunks, field.type))
        self._current().write_table(pa.table(columns, schema=self._schema), row_group_size=ROW_GROUP_ROWS)
        self._part_rows += self._pending_rows
        self.rows += self._pending_rows
        self._pending, self._pending_rows = {}, 0

    def _current(self) -> pq.ParquetWriter:
        if self._writer is None:
            file = self._new_file()
            self._files.append(file)
            self._writer = pq.ParquetWriter(
                file,
                self._schema,
                compression="snappy",
                use_dictionary=self._dictionary,
                write_statistics=self._statistics,
                store_schema=False,
                write_page_checksum=True,
            )
        return self._writer

    def _finish_part(self) -> None:
        if self._writer is not None:
            if self._consistent:
                self._writer.add_key_value_metadata({CONSISTENT: "true"})
            self._writer.close()
            self._writer = None
        self._part_rows, self._consistent = 0, True


def _are_consistent(kind: str, rows: pa.StructArray) -> bool:
    stats = struct_leaf(rows, ("stats_parsed",)) if kind == "add" else None
    return stats is None or are_consistent(stats)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema):
        pass
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(i).path for i in range(len(parquet))]
