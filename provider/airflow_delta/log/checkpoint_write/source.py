"""The content of a checkpoint: the live files of a snapshot in order, unexpired tombstones and the non-file actions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_delta.log.checkpoint.checkpoint_schema import CheckpointSchema, partition_type, stats_type
from airflow_delta.log.checkpoint.file_columns import FILE_SCHEMA, from_actions, projected, to_columns
from airflow_delta.log.checkpoint.prefetch import prefetched
from airflow_delta.log.checkpoint.rows import AddRows, state_rows, tombstone_rows
from airflow_delta.log.checkpoint.sort import Buckets, PartitionOrder, PartitionTyper, merge_sorted
from airflow_delta.log.checkpoint.stats import parse_stats
from airflow_delta.log.features.protocol import features
from airflow_delta.log.features.stats_columns import indexed_leaves
from airflow_delta.log.replay.live_files import live_batches, live_rows, tombstone_batches
from airflow_delta.log.storage.progress import tracked

if TYPE_CHECKING:
    from airflow_delta.log.actions.reconciliation import TailFiles
    from airflow_delta.log.checkpoint.reader import CheckpointReader
    from airflow_delta.log.snapshot import Snapshot

BUCKET_ROWS = 20_000
TYPED_ROWS = 10_000
"""Files whose statistics are parsed at once: with more, allocating memory takes longer than parsing."""

# Columns that most tables leave empty -> the leaf of a checkpoint that is then null in all rows.
_OFTEN_EMPTY = {
    "tags": "add.tags.",
    "deletion_vector": "add.deletionVector.storageType",
    "base_row_id": "add.baseRowId",
    "default_row_commit_version": "add.defaultRowCommitVersion",
    "clustering_provider": "add.clusteringProvider",
}


class CheckpointSource:
    """The rows of a checkpoint, kind by kind.

    :param snapshot: the snapshot to write.
    :param reader: the checkpoint that the snapshot builds on, or ``None``.
    :param tail: the commits after that checkpoint, reconciled.
    """

    def __init__(self, snapshot: Snapshot, reader: CheckpointReader | None, tail: TailFiles) -> None:
        self._snapshot = snapshot
        self._reader = reader
        self._tail = tail
        partition_schema, properties = snapshot.partition_schema, snapshot.properties
        as_struct = properties.checkpoint_write_stats_as_struct
        indexed = indexed_leaves(snapshot.schema, snapshot.metadata.partition_columns, properties)
        self.schema = CheckpointSchema(
            stats_json=properties.checkpoint_write_stats_as_json,
            stats=stats_type(indexed, tight_bounds="deletionVectors" in features(snapshot.protocol)) if as_struct else None,
            partition=partition_type(partition_schema) if as_struct else None,
        )
        self._typer = PartitionTyper(partition_schema)

    # -- files ----------------------------------------------------------------------------------------------------------------

    def adds(self, *, in_order: bool = True) -> Iterator[pa.StructArray]:
        """Yield the live files.

        :param in_order: sorted by partition, where the table is partitioned.
        """
        rows = AddRows(self.schema, self._typer)
        if self._typer.names and in_order:
            batches = self._sorted(PartitionOrder.of(self._partition_values(), self._typer, BUCKET_ROWS))
        else:
            batches = self._files()
        for batch in batches:
            for start in range(0, batch.num_rows, TYPED_ROWS):
                yield rows.of(batch.slice(start, TYPED_ROWS))

    def _sorted(self, order: PartitionOrder) -> Iterator[pa.RecordBatch]:
        if self._reader is not None and order.follows(self._checkpoint_values(), self._typer):
            yield from merge_sorted(self._checkpoint_files(), self._tail_files(), order, self._typer)
            return
        buckets = Buckets(order, self._typer)
        for batch in tracked(prefetched(self._files()), f"Sorting the files of {self._snapshot.log.uri}", count=len):
            buckets.add(batch)
        yield from buckets.drain()

    def _checkpoint_values(self) -> Iterator[pa.RecordBatch]:
        if self._reader is not None:
            yield from live_batches(self._reader, self._tail, projected(["partition_values"]))

    def _partition_values(self) -> Iterator[pa.RecordBatch]:
        yield from self._checkpoint_values()
        if self._tail.adds:
            yield from_actions(self._tail.adds.values(), projected(["partition_values"]))

    def _files(self) -> Iterator[pa.RecordBatch]:
        yield from self._checkpoint_files()
        if self._tail.adds:
            yield self._tail_files()

    def _checkpoint_files(self) -> Iterator[pa.RecordBatch]:
        if self._reader is None:
            return
        for rows in live_rows(self._reader, self._tail, self._held.names, stats_parsed=self._carried is not None):
            batch = to_columns(rows, self._held)
            if self._carried is not None:
                batch = batch.append_column("stats_parsed", rows.column("stats_parsed").cast(self._carried))
            yield batch

    def _tail_files(self) -> pa.RecordBatch:
        batch = from_actions(self._tail.adds.values(), self._held)
        if self._carried is not None:
            batch = batch.append_column("stats_parsed", parse_stats(batch.column("stats"), self._carried))
        return batch

    @cached_property
    def _held(self) -> pa.Schema:
        """Return the columns of files to copy: all except those without any value."""
        empty = {name for name, leaf in _OFTEN_EMPTY.items() if not self._may_have(name, leaf)}
        return pa.schema([field for field in FILE_SCHEMA if field.name != "data_change" and field.name not in empty])

    def _may_have(self, name: str, leaf: str) -> bool:
        if any(getattr(add, name) is not None for add in self._tail.adds.values()):
            return True
        if self._reader is None:
            return False
        leaves = {path for part in self._reader.parts for path in part.leaves if ".".join(path).startswith(leaf)}
        return any(self._reader.may_have_values(found) for found in leaves)

    @cached_property
    def _carried(self) -> pa.StructType | None:
        """Return the type of the checkpoint's typed statistics if it is the one to be written, so that no JSON is parsed."""
        if self._reader is None or self.schema.stats is None:
            return None
        for part in self._reader.file_parts:
            if not part.has(("add", "stats_parsed")):
                return None
            fields = part.schema.field("add").type
            position = fields.get_field_index("stats_parsed")
            if position < 0 or not _same_shape(fields.field(position).type, self.schema.stats):
                return None
        return self.schema.stats

    # -- the rest -------------------------------------------------------------------------------------------------------------

    def removes(self) -> Iterator[pa.StructArray]:
        """Yield the tombstones that have not expired."""
        retained_after = int(time.time() * 1000) - self._snapshot.properties.deleted_file_retention
        for batch in tombstone_batches(self._reader, self._tail, retained_after=retained_after):
            yield tombstone_rows(batch)

    def state(self) -> Iterator[tuple[str, pa.StructArray]]:
        """Yield unexpired transactions, metadata, protocol and domains."""
        snapshot = self._snapshot
        yield from state_rows(
            snapshot.protocol, snapshot.metadata, snapshot.set_transactions.values(), snapshot.domain_metadata.values()
        )


def _same_shape(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell whether two types are equal except for nullability."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        return [f.name for f in found] == [f.name for f in wanted] and all(
            _same_shape(a.type, b.type) for a, b in zip(found, wanted, strict=True)
        )
    return bool(found == wanted)
