"""Files listed in a JSON manifest itself, not in a sidecar, presented as one more Parquet file of the checkpoint."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.checkpoint.checkpoint_schema import REMOVE, CheckpointSchema
from airflow_delta.log.checkpoint.file_columns import FILE_SCHEMA, TOMBSTONE_SCHEMA, from_actions
from airflow_delta.log.checkpoint.part import CheckpointPart
from airflow_delta.log.checkpoint.rows import add_rows, tombstone_rows
from airflow_delta.log.storage.base import FileStatus, Ranges


class _InMemory:
    """A store with one file."""

    local_root = ""  # nothing to wait for

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any:  # noqa: ARG002 - only one
        return io.BytesIO(self._data)

    def read(self, path: str) -> bytes:  # noqa: ARG002 - there is only one
        return self._data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:  # noqa: ARG002 - there is only one
        return [self._data[start : start + length] for start, length in ranges]

    def head(self, path: str) -> FileStatus | None:
        return FileStatus(path, len(self._data), 0)


def inline_part(path: str, adds: Sequence[AddFile], removes: Sequence[RemoveFile], *, table: str, version: int) -> CheckpointPart:
    """Return the files and tombstones of a manifest as a checkpoint part.

    :param path: path of the manifest, for error messages.
    """
    add = CheckpointSchema(stats_json=True, stats=None, partition=None).add
    live = add_rows(from_actions(adds, FILE_SCHEMA), add)
    dead = tombstone_rows(from_actions(removes, TOMBSTONE_SCHEMA))
    content = pa.table(
        [pa.concat_arrays([live, pa.nulls(len(dead), add)]), pa.concat_arrays([pa.nulls(len(live), REMOVE), dead])],
        names=["add", "remove"],
    )
    sink = pa.BufferOutputStream()
    pq.write_table(content, sink)
    data = sink.getvalue().to_pybytes()
    return CheckpointPart(_InMemory(data), FileStatus(path, len(data), 0), table=table, version=version)
