"""Rows of a version, or of some of its files, as a stream of record batches.

Memory holds parts of a few row groups at a time, so callers may stop whenever they have enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_delta.contract.near_words import near_words
from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException, ReadLimitException
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors
from airflow_delta.log.data_files.batches import BATCH_ROWS
from airflow_delta.log.data_files.columns import arrow_field, fields_in_files
from airflow_delta.log.data_files.group_rows import RowSelection
from airflow_delta.log.data_files.page_sizes import MAX_FACTOR
from airflow_delta.log.data_files.reader import FileReader
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import StructField, StructType
from airflow_delta.log.statistics.row_counts import live_records, num_records
from airflow_delta.log.statistics.row_groups import groups_that_may_hold
from airflow_delta.log.storage.progress import Progress
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.read.read_ahead import Demand, in_turn
from airflow_delta.table.read.row_filter import check_decidable, selected

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from airflow_delta.log import AddFile, RemoveFile, Snapshot
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.log.data_files.group_rows import DataRowGroup
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.segment.commit_files import CommitFiles


ROWS_BYTES = 2 << 30
"""Memory of the rows that a read with a limit may return, whatever the size of the files."""

_VECTORS_AT_ONCE = 32

_MOST_WORKERS = 8  # row groups that are decoded at once
_BYTES_WAITING = 64 << 20  # of a row group, before they are taken
_GROUPS_WAITING = 16


class Rows:
    """A stream of record batches; it can be read once.

    :ivar schema: Arrow schema of the batches.
    :ivar demand: passed on to what reads the batches.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], demand: Demand | None = None) -> None:
        self.schema = schema
        self._batches = batches
        self.demand = demand or Demand()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def to_table(self) -> pa.Table:
        """Return all rows."""
        self.demand.everything = True
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as Arrow's own stream."""
        self.demand.everything = True
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def head(self, rows: int) -> pa.Table:
        """Return the first rows; files after them are not read."""
        found: list[pa.RecordBatch] = []
        for batch in self._batches if rows > 0 else ():
            found.append(batch.slice(0, rows))
            rows -= batch.num_rows
            if rows <= 0:
                break
        return pa.Table.from_batches(found, self.schema)


def snapshot_of(log: DeltaLog, version: int | None = None, timestamp: datetime | int | None = None) -> Snapshot:
    """Return the version to read; default: the latest.

    :raises DeltaIllegalArgumentException: if both a version and a time are given.
    :raises DeltaTableNotFoundException: if there is no table.
    :raises VersionNotFoundException: if the log does not hold the version yet, or no longer does.
    """
    if version is not None and timestamp is not None:
        raise log.error(DeltaIllegalArgumentException, f"Give version or timestamp of table {log.uri}, not both.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise log.error(DeltaIllegalArgumentException, f"version must be a whole number, 0 or more, got {version!r}.")
    snapshot = log.update()
    if snapshot.version < 0:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}, so there is nothing to read. Check the location, the connection, and that an "
            "earlier task has created it.",
        )
    if timestamp is not None:
        return log.snapshot_at_timestamp(timestamp)
    return snapshot if version is None else log.snapshot_at(version)


def read_table(
    log: DeltaLog,
    *,
    version: int | None = None,
    timestamp: datetime | int | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Rows:
    """Return the rows of a version.

    :param version: default: the latest.
    :param timestamp: instead of a version: the last one committed at this time or before (naive: UTC, or milliseconds).
    :param where: Spark SQL predicate.
    :param columns: names of columns, in the order wanted; default: all.
    :param limit: number of rows that may be returned; ``None`` for any.

    Also raises as :func:`snapshot_of` and :func:`worker_rows` do.
    """
    snapshot = snapshot_of(log, version, timestamp)
    predicate = None if where is None else parse_where(log, snapshot.version, snapshot.metadata, where)
    return rows_of_snapshot(snapshot, predicate=predicate, columns=columns, limit=limit)


def rows_of_snapshot(
    snapshot: Snapshot,
    *,
    predicate: Predicate | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Rows:
    """Return the rows of a snapshot; parameters and errors as for :func:`read_table`."""
    snapshot.check_readable()
    files = snapshot.add_files(predicate)
    log, metadata = snapshot.log, snapshot.metadata
    if limit is not None:
        # Files of which the predicate selects every row: their statistics are the answer.
        sure = [file for file in files if predicate is None or predicate.selects_partition(file.partition_values)]
        counts = [live_records(file) for file in sure]
        check_limit(log, snapshot.version, counts, limit, complete=len(sure) == len(files))
    rows = worker_rows(log, files, metadata=metadata, version=snapshot.version, predicate=predicate, columns=columns, limit=limit)
    return limited(rows, log, snapshot.version, limit)


def parse_where(log: CommitFiles, version: int, metadata: Metadata, where: str) -> Predicate:
    """Return a predicate that is evaluated here exactly."""
    schema = TableDefinition.of(metadata).schema
    predicate = Predicate.parse(where, schema, metadata.partition_columns, table=log.uri, version=version)
    check_decidable(predicate, log.uri, version)
    return predicate


def worker_rows(
    log: CommitFiles,
    files: Sequence[AddFile | RemoveFile],
    *,
    metadata: Metadata,
    version: int,
    predicate: Predicate | None = None,
    columns: Sequence[str] | None = None,
    deleted: bool = False,
    limit: int | None = None,
) -> Rows:
    """Return the rows of some files that their deletion vectors leave.

    Partition values come from the actions, never from directory names; columns that a file does not have are null. A partition
    value of type ``timestamp`` without a zone is in UTC.

    :param metadata: of the version whose columns to read, which is not checked to be readable here.
    :param version: for messages.
    :param predicate: from :func:`parse_where`; files are not skipped by it.
    :param columns: names of columns, in the order wanted; default: all.
    :param limit: number of rows that the caller takes, see :func:`limited`: not many more are decoded at once.
    :param deleted: return the rows that deletion vectors mark instead; files without one have none.
    """
    table = TableDefinition.of(metadata)
    schema, mode = table.schema, table.column_mapping
    wanted = wanted_fields(log, version, schema, columns)
    fields = [*wanted, *([] if predicate is None else _columns_of(predicate, schema, wanted))]
    target = pa.schema([arrow_field(field) for field in fields])
    size = BATCH_ROWS if limit is None else min(limit + 1, BATCH_ROWS)
    fields = fields_in_files(fields, mode)
    reader = FileReader(log.store, version, fields, target, metadata.partition_columns, by_id=mode == "id", most_rows=size)
    returned = pa.schema([target.field(i) for i in range(len(wanted))])
    demand = Demand()
    batches = _batches(log, files, reader, predicate, len(wanted), deleted, demand)
    return Rows(returned, batches if limit is None else _in_proportion(log, version, files, batches), demand)


def wanted_fields(log: CommitFiles, version: int, schema: StructType, columns: Sequence[str] | None) -> list[StructField]:
    """Return the fields of some columns, in their order.

    :raises DeltaIllegalArgumentException: if there is none, one occurs twice, or one does not exist.
    """
    if columns is None:
        return list(schema)
    where = f"of table {log.uri} version {version}"
    if isinstance(columns, str) or not columns:
        raise log.error(DeltaIllegalArgumentException, f"columns {where} must be a list of names, got {columns!r}.")
    found: dict[str, StructField] = {}
    for name in columns:
        field = schema.find(name)
        if field is None:
            near = near_words(name, schema.names, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise log.error(
                DeltaIllegalArgumentException,
                f"There is no column {name!r} in version {version} of table {log.uri}. {hint}The columns are "
                f"{', '.join(schema.names)}.",
                version=version,
            )
        if field.name in found:
            raise log.error(DeltaIllegalArgumentException, f"columns {where} names {field.name} twice.")
        found[field.name] = field
    return list(found.values())


def _columns_of(predicate: Predicate, schema: StructType, wanted: Sequence[StructField]) -> list[StructField]:
    names = dict.fromkeys(column.path[0] for column in predicate.columns)
    known = {field.name for field in wanted}
    return [field for field in schema if field.name in names and field.name not in known]


def _batches(
    log: CommitFiles,
    files: Sequence[AddFile | RemoveFile],
    reader: FileReader,
    predicate: Predicate | None,
    width: int,
    deleted: bool,
    demand: Demand,
) -> Iterator[pa.RecordBatch]:
    progress = Progress(f"Reading rows of {log.uri}", len(files))
    selection = None
    if predicate is not None:
        columns = frozenset(column.path[0] for column in predicate.columns)
        selection = RowSelection(columns, partial(selected, predicate), partial(groups_that_may_hold, predicate))

    def groups() -> Iterator[Iterator[DataRowGroup]]:
        for first in range(0, len(files), _VECTORS_AT_ONCE):
            some = files[first : first + _VECTORS_AT_ONCE]
            vectors = _vectors(log, some)
            for position, file in enumerate(progress.over(some)):
                yield reader.groups(file, vectors.get(position), deleted=deleted, selection=selection)

    def rows(group: DataRowGroup) -> Iterator[pa.RecordBatch]:
        decided = predicate is None or predicate.selects_partition(group.file.partition_values or {})
        for batch in reader.rows(group, None if decided else selection):
            if batch.num_rows:
                yield batch if batch.num_columns == width else batch.select(list(range(width)))

    if reader.most_rows < BATCH_ROWS:  # of which nobody takes many
        return chain.from_iterable(map(rows, chain.from_iterable(groups())))
    workers = max(2, min(pa.cpu_count(), _MOST_WORKERS))
    opened = in_turn(groups(), workers=workers, size=lambda _group: 1, most=_GROUPS_WAITING, demand=demand)
    return in_turn(map(rows, opened), workers=workers, size=lambda batch: batch.nbytes, most=_BYTES_WAITING, demand=demand)


def _in_proportion(
    log: CommitFiles, version: int, files: Sequence[AddFile | RemoveFile], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield batches until they take much more memory than the size of their files lets expect."""
    stored = sum(file.size or 0 for file in files)
    left = max(ROWS_BYTES, MAX_FACTOR * stored)
    for batch in batches:
        left -= batch.nbytes
        if left < 0:
            raise log.error(
                ReadLimitException,
                f"The read of table {log.uri} version {version} takes more than {max(ROWS_BYTES, MAX_FACTOR * stored) >> 20:,} "
                f"MiB of memory, from files of {stored:,} bytes ({files[0].path}, ...). Choose fewer rows with where=, leave "
                "columns out with columns=, or read it with Spark.",
                version=version,
            )
        yield batch


def _vectors(log: CommitFiles, files: Sequence[AddFile | RemoveFile]) -> dict[int, BitMap64]:
    """Return the rows that deletion vectors mark, by position of their file."""
    marked = [(position, file, file.deletion_vector) for position, file in enumerate(files) if file.deletion_vector is not None]
    if not marked:
        return {}
    bitmaps = read_deletion_vectors(
        log.store, [descriptor for _, _, descriptor in marked], [num_records(file.stats) for _, file, _ in marked]
    )
    return {position: bitmap for (position, _, _), bitmap in zip(marked, bitmaps, strict=True)}


def check_limit(log: CommitFiles, version: int, counts: Sequence[int | None], limit: int, *, complete: bool) -> None:
    """Refuse a read of more rows than the limit, as far as statistics show.

    :param counts: rows of files that are returned whole; ``None`` if unknown.
    :param complete: there are no other files.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise log.error(
            DeltaIllegalArgumentException, f"limit must be a whole number, 0 or more, or None, got {limit!r}. (table {log.uri})"
        )
    known = sum(count for count in counts if count is not None)
    if known > limit:
        exact = complete and None not in counts
        raise _too_many(log, version, f"{known:,}" if exact else f"at least {known:,}", limit)


def limited(rows: Rows, log: CommitFiles, version: int, limit: int | None) -> Rows:
    """Return rows that raise :class:`~airflow_delta.exceptions.ReadLimitException` instead of going beyond a limit."""

    def batches(most: int) -> Iterator[pa.RecordBatch]:
        found = 0
        for batch in rows:
            found += batch.num_rows
            if found > most:
                raise _too_many(log, version, f"more than {most:,}", most)
            yield batch

    return rows if limit is None else Rows(rows.schema, batches(limit), rows.demand)


def _too_many(log: CommitFiles, version: int, rows: str, limit: int) -> ReadLimitException:
    return log.error(
        ReadLimitException,
        f"The read of table {log.uri} version {version} would return {rows} rows, and limit is {limit:,}. Choose fewer with "
        "where=, or raise the limit with limit= (limit=None for any number), if the worker has the memory; Spark has none "
        'of these limits (df_type="spark").',
        version=version,
    )
