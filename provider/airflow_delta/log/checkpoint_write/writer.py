"""Writing checkpoints, classic and V2: sorted by partition, in small row groups, streamed (protocol, "Checkpoints").

As files are sorted by partition and have ``partitionValues_parsed``, readers find the row groups of a partition by the footer.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log.checkpoint.last_checkpoint import (
    LastCheckpointInfo,
    encode_last_checkpoint,
    read_last_checkpoint,
    short_schema,
)
from airflow_delta.log.checkpoint.manifest import SidecarFile
from airflow_delta.log.checkpoint.part_files import PartFiles
from airflow_delta.log.checkpoint.prefetch import prefetched
from airflow_delta.log.checkpoint.spark_schema import spark_schema
from airflow_delta.log.checkpoint_write.source import CheckpointSource
from airflow_delta.log.checkpoint_write.v2 import SIDECAR_ACTIONS, uses_v2, write_manifest
from airflow_delta.log.checksum.totals import Totals
from airflow_delta.log.features.protocol import check_can_write
from airflow_delta.log.replay.counts import count_files
from airflow_delta.log.storage.file_names import (
    LAST_CHECKPOINT,
    SIDECAR_DIRECTORY,
    checkpoint_file,
    checkpoint_parts,
    sidecar_file,
    version_prefix,
)
from airflow_delta.log.storage.progress import tracked

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.actions.reconciliation import TailFiles
    from airflow_delta.log.checkpoint.reader import CheckpointReader
    from airflow_delta.log.snapshot import Snapshot

logger = logging.getLogger(__name__)

_PUTS_AT_ONCE = 4


def write_checkpoint(snapshot: Snapshot, *, part_size: int | None = None, parquet_manifest: bool = False) -> LastCheckpointInfo:
    """Write a checkpoint of a snapshot and update ``_last_checkpoint``.

    It is a V2 checkpoint if ``delta.checkpointPolicy`` says so and the protocol has the feature, else a classic one. Expired
    tombstones and transactions are left out. Memory grows with the table only by the compressed rows.

    :param part_size: maximum number of actions in a file; by default ``delta.checkpoint.partSize``, and if that is not set,
        50,000 in a sidecar of a V2 checkpoint, and a single file for a classic one.
    :param parquet_manifest: write the manifest of a V2 checkpoint as Parquet instead of JSON.
    :raises DeltaIllegalStateException: if the number of files that were read is not the number in the log.
    :raises DeltaIllegalArgumentException: if ``part_size`` is not positive.
    :raises DeltaUnsupportedTableFeatureException: if the version has a feature that this provider does not write: the checkpoint
        would lack what the feature adds to the log.
    :raises InvalidProtocolVersionException: if the version needs a newer writer version.
    """
    size = part_size if part_size is not None else snapshot.properties.checkpoint_part_size
    if size is not None and size < 1:
        raise snapshot.error(DeltaIllegalArgumentException, f"A checkpoint part needs at least one action, got {size}")
    # Check this version itself: it may have features that a later version dropped.
    check_can_write(snapshot.protocol, snapshot.metadata, snapshot.log.uri, snapshot.version, provided=snapshot.log.provided)

    def write(reader: CheckpointReader | None, tail: TailFiles) -> LastCheckpointInfo:
        writing = _Writing(snapshot, reader, tail)
        return writing.v2(size or SIDECAR_ACTIONS, parquet_manifest) if uses_v2(snapshot) else writing.classic(size)

    info = snapshot.read_with_checkpoint(write)
    _point_to(snapshot, info)
    return info


class _Writing:
    """One checkpoint being written: rows go to temporary files, which go to the log once they are complete and counted."""

    def __init__(self, snapshot: Snapshot, reader: CheckpointReader | None, tail: TailFiles) -> None:
        self._snapshot, self._reader, self._tail = snapshot, reader, tail
        self._source = CheckpointSource(snapshot, reader, tail)
        self._schema = self._source.schema

    def _part_files(self, schema: pa.Schema, part_size: int | None) -> PartFiles:
        return PartFiles(schema, part_size, self._snapshot.log.store.scratch_file)

    def classic(self, part_size: int | None) -> LastCheckpointInfo:
        version = self._snapshot.version
        with contextlib.closing(self._part_files(self._schema.classic, part_size)) as parts:
            adds = self._write_files(parts)
            for kind, rows in self._source.state():
                parts.write(kind, rows)
            files = parts.finish()
            several = len(files) > 1
            names = checkpoint_parts(version, len(files)) if several else [checkpoint_file(version)]
            size = sum(self._put_all(names, files))
        return LastCheckpointInfo(
            version=version,
            size=parts.rows,
            parts=len(files) if several else None,
            size_in_bytes=size,
            num_of_add_files=adds,
            checkpoint_schema=short_schema(spark_schema(self._schema.classic)),
        )

    def v2(self, part_size: int, parquet_manifest: bool) -> LastCheckpointInfo:
        snapshot, sidecars = self._snapshot, []
        with contextlib.closing(self._part_files(self._schema.files, part_size)) as parts:
            adds = self._write_files(parts)
            files = parts.finish()
            names = [sidecar_file(snapshot.version, n, len(files), str(uuid.uuid4())) for n in range(1, len(files) + 1)]
            sizes = self._put_all(names, files)
            times = self._times(names)
            for path, size in zip(names, sizes, strict=True):
                sidecars.append(SidecarFile(path=path.rpartition("/")[2], size_in_bytes=size, modification_time=times[path]))
        manifest = write_manifest(
            snapshot, sidecars, schema=self._schema, actions=parts.rows, adds=adds, as_parquet=parquet_manifest
        )
        return LastCheckpointInfo(
            version=snapshot.version,
            size=parts.rows + manifest.actions,
            size_in_bytes=manifest.hint.size_in_bytes + sum(sidecar.size_in_bytes for sidecar in sidecars),
            num_of_add_files=adds,
            checkpoint_schema=manifest.schema,
            v2_checkpoint=manifest.hint,
        )

    def _write_files(self, parts: PartFiles) -> int:
        adds = 0
        known = self._snapshot.derived_totals()
        total = known.num_files if known is not None else None
        written = prefetched(self._source.adds())
        for rows in tracked(written, f"Writing the checkpoint of {self._snapshot.log.uri}", total, count=len):
            adds += len(rows)
            parts.write("add", rows)
        self._check(adds)
        for rows in self._source.removes():
            parts.write("remove", rows)
        return adds

    def _put_all(self, names: Sequence[str], files: Sequence[BinaryIO]) -> list[int]:
        """Put files, some at a time on an object store, and return their sizes."""
        what = f"Storing the checkpoint of {self._snapshot.log.uri}"
        if len(names) == 1 or self._snapshot.log.store.local_root is not None:
            return list(tracked(map(self._put, names, files), what, len(names), "parts"))
        with ThreadPoolExecutor(_PUTS_AT_ONCE, thread_name_prefix="delta-checkpoint") as pool:
            return list(tracked(pool.map(self._put, names, files), what, len(names), "parts"))

    def _times(self, names: Sequence[str]) -> dict[str, int]:
        """Return the modification times of sidecars that were just written."""
        prefix = version_prefix(self._snapshot.version)
        listed = self._snapshot.log.store.list_from(SIDECAR_DIRECTORY, prefix)
        times = {status.path: status.modification_time for status in listed}
        return {name: times.get(name, 0) for name in names}

    def _put(self, path: str, file: BinaryIO) -> int:
        size = file.seek(0, 2)
        file.seek(0)
        self._snapshot.log.store.put_file(path, file)
        file.close()
        return size

    def _check(self, adds: int) -> None:
        snapshot = self._snapshot
        known = snapshot.derived_totals()
        if known is None or known.num_files == adds:
            return
        # Sums over commits are wrong if a commit adds a file again; only counting the files decides.
        counted, size = count_files(self._reader, self._tail)
        if counted != adds:
            raise snapshot.error(
                DeltaIllegalStateException,
                f"The checkpoint of version {snapshot.version} of table {snapshot.log.uri} would hold {adds} files, but the "
                f"table has {counted} (DELTA_CHECKPOINT_SNAPSHOT_MISMATCH). Nothing was written; readers use the commits. This "
                "is a bug in this provider: please report it.",
            )
        logger.warning(
            "Table %s, version %s: checksum and commits add up to %s files, but there are %s; the checkpoint holds these",
            snapshot.log.uri,
            snapshot.version,
            known.num_files,
            adds,
        )
        snapshot.set_totals(Totals(counted, size))


def _point_to(snapshot: Snapshot, info: LastCheckpointInfo) -> None:
    known = read_last_checkpoint(snapshot.log.store)
    if known is not None and known.version > info.version:
        return  # an older checkpoint: the hint names the newest one
    snapshot.log.store.put(LAST_CHECKPOINT, encode_last_checkpoint(info))
