"""Writing classic checkpoints: sorted by partition, in small row groups, streamed (protocol, "Checkpoints"; Delta's Checkpoints).

Sorted by partition and with ``partitionValues_parsed``, the footer tells readers which row groups a partition is in.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log.checkpoint_prefetch import prefetched
from airflow_delta.log.checkpoint_source import CheckpointSource
from airflow_delta.log.file_names import LAST_CHECKPOINT, checkpoint_file, checkpoint_parts
from airflow_delta.log.files import count_files
from airflow_delta.log.last_checkpoint import read_last_checkpoint
from airflow_delta.log.snapshot_state import Totals

if TYPE_CHECKING:
    from airflow_delta.log.checkpoint_reader import CheckpointReader
    from airflow_delta.log.files_tail import TailFiles
    from airflow_delta.log.snapshot import Snapshot

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 20_000

# Columns whose values repeat; for the others a dictionary costs time and saves nothing.
_DICTIONARY = ("add.partitionValues", "add.tags", "remove.partitionValues", "add.partitionValues_parsed")
# Leaves that readers choose row groups by.
_MARKERS = (
    "txn.appId",
    "add.path",
    "add.deletionVector.storageType",
    "remove.path",
    "remove.deletionVector.storageType",
    "metaData.id",
    "protocol.minReaderVersion",
    "domainMetadata.domain",
)
_BOUNDS = ("add.partitionValues_parsed.", "add.stats_parsed.minValues.", "add.stats_parsed.maxValues.")


class LastCheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was written; the content of ``_last_checkpoint`` (Delta's LastCheckpointInfo).

    :param size: number of actions.
    :param parts: number of files of a multi-part checkpoint.
    :param size_in_bytes: of all files.
    """

    version: int
    size: int
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


def write_checkpoint(snapshot: Snapshot, *, part_size: int | None = None) -> LastCheckpointInfo:
    """Write a classic checkpoint of a snapshot and point ``_last_checkpoint`` to it.

    Expired tombstones and transactions are left out. Memory does not grow with the table beyond the compressed rows.

    :param part_size: most actions in a file; one file when neither this nor ``delta.checkpoint.partSize`` is set.
    :raises DeltaIllegalStateException: the files that were read are not as many as the log says the table has.
    :raises DeltaIllegalArgumentException: ``part_size`` is not positive.
    """
    size = part_size if part_size is not None else snapshot.properties.checkpoint_part_size
    if size is not None and size < 1:
        raise DeltaIllegalArgumentException(f"A checkpoint part holds at least one action, got {size}", table=snapshot.log.uri)
    return snapshot.read_with_checkpoint(lambda reader, tail: _Writing(snapshot, reader, tail, size).run())


class _Writing:
    """One run: the rows go to temporary files, and those to the log when all is written and counted."""

    def __init__(self, snapshot: Snapshot, reader: CheckpointReader | None, tail: TailFiles, part_size: int | None) -> None:
        self._snapshot, self._reader, self._tail = snapshot, reader, tail
        self._source = CheckpointSource(snapshot, reader, tail)
        self._schema = self._source.schema
        self._parts = _Parts(self._schema.arrow, part_size)

    def run(self) -> LastCheckpointInfo:
        snapshot, parts = self._snapshot, self._parts
        with contextlib.closing(parts):
            adds = 0
            for rows in prefetched(self._source.adds()):
                adds += len(rows)
                parts.write("add", rows)
            self._check(adds)
            for rows in self._source.removes():
                parts.write("remove", rows)
            for kind, rows in self._source.state():
                parts.write(kind, rows)
            files = parts.finish()
            several = self._parts.part_size is not None
            names = checkpoint_parts(snapshot.version, len(files)) if several else [checkpoint_file(snapshot.version)]
            total = 0
            for name, file in zip(names, files, strict=True):
                data = file.read()
                total += len(data)
                snapshot.log.store.put(name, data)
                file.close()
        info = LastCheckpointInfo(
            version=snapshot.version,
            size=parts.rows,
            parts=len(files) if several else None,
            size_in_bytes=total,
            num_of_add_files=adds,
        )
        _point_to(snapshot, info)
        return info

    def _check(self, adds: int) -> None:
        snapshot = self._snapshot
        known = snapshot.derived_totals()
        if known is None or known.num_files == adds:
            return
        # Sums over commits go wrong where a commit adds a file again; only counting the files decides.
        counted, size = count_files(self._reader, self._tail)
        if counted != adds:
            raise DeltaIllegalStateException(
                f"The checkpoint of version {snapshot.version} of table {snapshot.log.uri} would hold {adds} files, but the "
                f"table has {counted}. Nothing was written; readers use the commits. A defect of this provider: report it.",
                table=snapshot.log.uri,
                version=snapshot.version,
            )
        logger.warning(
            "Table %s, version %s: checksum and commits say that there are %s files, there are %s; the checkpoint holds these",
            snapshot.log.uri,
            snapshot.version,
            known.num_files,
            adds,
        )
        snapshot.set_totals(Totals(counted, size))


def _point_to(snapshot: Snapshot, info: LastCheckpointInfo) -> None:
    known = read_last_checkpoint(snapshot.log.store)
    if known is not None and known.version > info.version:
        return  # a checkpoint of an older version: the hint stays with the newest
    snapshot.log.store.put(LAST_CHECKPOINT, msgspec.json.encode(info))


class _Parts:
    """The files of a checkpoint while they are written, each limited to a number of actions."""

    def __init__(self, schema: pa.Schema, part_size: int | None) -> None:
        self.part_size = part_size
        self.rows = 0
        self._schema = schema
        self._files: list[BinaryIO] = []
        self._writer: pq.ParquetWriter | None = None
        self._part_rows = 0
        self._pending: dict[str, list[pa.StructArray]] = {}
        self._pending_rows = 0
        paths = _leaf_paths(schema)
        self._statistics = [path for path in paths if path in _MARKERS or path.startswith(_BOUNDS)]
        self._dictionary = [path for path in paths if path.startswith(tuple(f"{name}." for name in _DICTIONARY))]

    def write(self, kind: str, rows: pa.StructArray) -> None:
        """Add rows of one kind; they are cut into row groups, and those into files."""
        while len(rows):
            room = ROW_GROUP_ROWS - self._pending_rows
            if self.part_size is not None:
                room = min(room, self.part_size - self._part_rows - self._pending_rows)
            taken = rows.slice(0, room)
            self._pending.setdefault(kind, []).append(taken)
            self._pending_rows += len(taken)
            rows = rows.slice(len(taken))
            full = self.part_size is not None and self._part_rows + self._pending_rows >= self.part_size
            if full or self._pending_rows >= ROW_GROUP_ROWS:
                self._flush()
            if full:
                self._finish_part()

    def finish(self) -> list[BinaryIO]:
        """Return the complete files, to be read from their beginning."""
        self._flush()
        self._finish_part()
        for file in self._files:
            file.seek(0)
        return self._files

    def close(self) -> None:
        """Let go of all temporary files."""
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
            chunks, at = [], 0
            for kind, arrays in self._pending.items():
                length = sum(len(array) for array in arrays)
                chunks += arrays if kind == field.name else [pa.nulls(length, field.type)]
                at += length
            columns.append(pa.chunked_array(chunks, field.type))
        table = pa.table(columns, schema=self._schema).combine_chunks()
        self._current().write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._part_rows += self._pending_rows
        self.rows += self._pending_rows
        self._pending, self._pending_rows = {}, 0

    def _current(self) -> pq.ParquetWriter:
        if self._writer is None:
            file = tempfile.TemporaryFile(prefix="delta-checkpoint-")  # noqa: SIM115 - closed in close()
            self._files.append(file)
            self._writer = pq.ParquetWriter(
                file,
                self._schema,
                compression="snappy",
                use_dictionary=self._dictionary,
                write_statistics=self._statistics,
                store_schema=False,
            )
        return self._writer

    def _finish_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._part_rows = 0


def _leaf_paths(schema: pa.Schema) -> list[str]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema):
        pass
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(i).path for i in range(len(parquet))]
