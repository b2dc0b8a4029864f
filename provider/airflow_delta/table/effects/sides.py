"""The rows that a commit takes away, and those that it brings: two streams, whose columns have the names of after the commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.delta_names import CHANGE_TYPE
from airflow_delta.contract.schema import variant_columns
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, Metadata
from airflow_delta.log.arrow.arrays import array
from airflow_delta.log.arrow.values import rows_of
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.effects.compare import Stream, TooManyRowsError
from airflow_delta.table.effects.later_columns import under_later_names
from airflow_delta.table.read.read_table import worker_rows

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.changes.find import ChangedFiles
    from airflow_delta.table.effects.read_limits import ReadLimits


_BEFORE, _AFTER = ("delete", "update_preimage"), ("insert", "update_postimage")


@dataclass(frozen=True, slots=True)
class Side:
    """Rows before, or after: those of files, those that deletion vectors mark, and those of change data with some kinds.

    :param metadata: to read them with; ``None`` if there is no table.
    """

    log: DeltaLog
    version: int
    metadata: Metadata | None
    files: Sequence[AddFile]
    marked: Sequence[AddFile]
    changes: Sequence[AddFile] = ()
    kinds: Sequence[str] = ()

    @property
    def count(self) -> int | None:
        """Number of rows, ``None`` if statistics lack it."""
        marked = [None if file.deletion_vector is None else file.deletion_vector.cardinality for file in self.marked]
        return None if self.changes else total([*map(live_records, self.files), *marked])

    @property
    def columns(self) -> list[str]:
        return [] if self.metadata is None else list(TableDefinition.of(self.metadata).schema.names)

    @property
    def unread(self) -> list[str]:
        """Columns that are, or hold, variants, which only Spark reads: rows lack them here, so they cannot be compared."""
        return [] if self.metadata is None else variant_columns(TableDefinition.of(self.metadata).struct)

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.marked or self.changes)

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, without the columns that only Spark reads."""
        unread = self.unread
        shown = [name for name in self.columns if name not in unread]
        if self.metadata is None or not shown:
            return
        for files, deleted in ((self.files, False), (self.marked, True)):
            yield from worker_rows(self.log, files, metadata=self.metadata, version=self.version, columns=shown, deleted=deleted)
        for batch in change_rows(self.log, self.changes, self.metadata, self.version, columns=shown):
            yield _of_kinds(batch, self.kinds)

    @property
    def all_files(self) -> list[AddFile]:
        return [*self.files, *self.marked, *self.changes]

    def head(self, rows: int, bounds: ReadLimits | None) -> list[dict[str, Any]]:
        """Return the first rows; within bounds, of the smallest files."""
        found: list[dict[str, Any]] = []
        side = self
        if bounds is not None:
            side = replace(self, files=bounds.smallest(self.files), marked=bounds.smallest(self.marked))
        for batch in side() if rows else ():
            found += rows_of(batch.slice(0, rows - len(found)))
            if len(found) >= rows:
                break
        return found

    def kept(self, limit: int) -> Stream:
        """Return the rows from memory: they are few, and each pass over remote files takes a moment.

        :raises TooManyRowsError: if there are more than the limit.
        """
        batches: list[pa.RecordBatch] = []
        rows = 0
        for batch in self():
            rows += batch.num_rows
            if rows > limit:
                raise TooManyRowsError
            batches.append(batch)
        return lambda: iter(batches)


def sides(
    log: DeltaLog, files: ChangedFiles, before: Metadata | None, after: Metadata | None, versions: tuple[int, int]
) -> tuple[Side, Side]:
    """Return the rows before a commit, and those after it.

    :param versions: for messages.
    """
    if files.changes:  # their columns are those of after, also in rows of before
        before = after
    elif before is not None and after is not None:
        before = under_later_names(before, after)
    return (
        Side(log, versions[0], before, files.deletes, files.deleted_rows, files.changes, _BEFORE),
        Side(log, versions[1], after, files.inserts, files.inserted_rows, files.changes, _AFTER),
    )


def all_columns(before: Side, after: Side) -> list[str]:
    """Return the columns of both, each once."""
    return list(dict.fromkeys([*after.columns, *before.columns]))


def change_rows(
    log: DeltaLog, files: Sequence[AddFile], metadata: Metadata, version: int, *, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of change data files, with the kind of change in a column.

    :param metadata: of the table after the commit.
    :param columns: names of the table's columns to read; default: all.
    """
    if files:
        metadata = msgspec.structs.replace(metadata, schema_string=with_change_type(metadata.schema_string))
        shown = None if columns is None else [*columns, CHANGE_TYPE]
        yield from worker_rows(log, files, metadata=metadata, version=version, columns=shown)


def with_change_type(schema_string: str) -> str:
    """Return a schema with the column that tells the kind of change."""
    schema = json.loads(schema_string)
    column = {"name": CHANGE_TYPE, "type": "string", "nullable": True, "metadata": {}}
    return json.dumps({**schema, "fields": [*schema["fields"], column]})


def _of_kinds(batch: pa.RecordBatch, kinds: Sequence[str]) -> pa.RecordBatch:
    """Return the rows of change data that are of some kinds, without the column that says so."""
    wanted = pc.is_in(batch.column(CHANGE_TYPE), value_set=array(list(kinds), pa.string()))
    return batch.filter(wanted).drop_columns([CHANGE_TYPE])
