"""CONVERT TO DELTA: turn a directory of Parquet files into a table in place (Delta's ``ConvertToDeltaCommand``).

The Parquet files of a directory that becomes a table, and the partition values in their paths.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.files import STAGING_DIRECTORY, is_hidden
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    SchemaMismatchException,
    StagedFileException,
)
from airflow_delta.log.actions.actions import Action, AddFile, Metadata
from airflow_delta.log.data_files.footers import footers_progress, read_footers
from airflow_delta.log.features import column_mapping
from airflow_delta.log.schema.partition_values import parse_partition_directory
from airflow_delta.log.schema.types import StructType, to_json
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.footers import CONCURRENCY, FILES_AT_ONCE, check_each_column_once, readable_schema
from airflow_delta.table.files.inside_table import table_above
from airflow_delta.table.files.parquet_schema import MergedSchema, parse_partition_schema, with_partition_columns
from airflow_delta.table.files.partitions import partition_values, time_zone_of, url_encode
from airflow_delta.table.operations.statistics import collect_statistics
from airflow_delta.table.run import run_large
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from datetime import tzinfo

    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus
    from airflow_delta.log.storage.progress import Progress
    from airflow_delta.transaction import OptimisticTransaction


_STAGED = re.compile(rf"{STAGING_DIRECTORY}/[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}/")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def find_files(log: DeltaLog) -> list[FileStatus]:
    """Return the files to convert, sorted by path, without those that Spark ignores (``_*`` and ``.*``).

    :raises DeltaFileNotFoundException: if there are none (Delta: DELTA_EMPTY_DIRECTORY).
    :raises DeltaIllegalStateException: if files of an uncommitted transaction or of another table are among them, or the
        directory is one of another table.
    """
    if (outer := table_above(log.store, itself=False)) is not None:
        raise log.error(
            DeltaIllegalStateException,
            f"{log.uri} lies inside the Delta table {outer}, whose log alone says which of its files count: deleted rows "
            "and older versions of rows would appear. Read that table and append its rows, or copy its files elsewhere.",
        )
    found = []
    for status in tracked(log.store.list_recursive(""), f"Listing {log.uri}"):
        other, inner, _ = status.path.partition(f"/{LOG_DIRECTORY}/")
        if inner and not is_hidden(f"{other}/x"):
            raise log.error(
                DeltaIllegalStateException,
                f"{log.uri} holds another Delta table in {other}: deleted rows and older versions of rows would "
                "appear in this one. Move that table away, or read it and append its rows.",
            )
        if not is_hidden(status.path):
            found.append(status)
    found.sort(key=lambda status: status.path)
    if not found:
        raise log.error(
            DeltaFileNotFoundException, f"There are no Parquet files in {log.uri} to convert (DELTA_EMPTY_DIRECTORY)."
        )
    staged = next((status.path for status in found if _STAGED.match(status.path)), None)
    if staged is not None:
        raise log.error(
            DeltaIllegalStateException,
            f"{log.uri} holds {staged}, which a transaction staged but never committed: its rows would appear in the table. "
            f"Abort the transaction, or delete {'/'.join(staged.split('/')[:2])}.",
        )
    return found


def footers_of(log: DeltaLog, statuses: Sequence[FileStatus], concurrency: int, progress: Progress) -> list[pq.FileMetaData]:
    """Return the footers of files, in order.

    :raises DeltaAnalysisException: if a file is not Parquet.
    """
    try:
        return read_footers(log.store, statuses, concurrency, progress)
    except StagedFileException as error:
        raise log.error(
            DeltaAnalysisException,
            f"{error.message.removesuffix(' Run the stage that wrote it again.')} All files of the directory "
            "must be Parquet (DELTA_FAILED_READ_FILE_FOOTER): move this one away, or start its name with '_'.",
        ) from error


def values_of(path: str, columns: StructType, zone: tzinfo, *, table: str) -> dict[str, str | None]:
    """Return the partition values of a file, as the log has them.

    :param path: relative to the table, not URL-encoded.
    :param columns: partition columns, in the order of the directories.
    :param zone: time zone of timestamps without one.
    :raises DeltaAnalysisException: if the directories are of other columns, or a value is not of its column's type.
    """
    directories = _partition_directories(path)
    found = list(parse_partition_directory("/".join(directories)))
    if len(found) != len(columns):
        raise DeltaAnalysisException(
            f"{path} of {table} lies in directories of {len(found)} partition columns ({', '.join(found)}), expected "
            f"{len(columns)} ({', '.join(columns.names)}) (DELTA_UNEXPECTED_NUM_PARTITION_COLUMNS_FROM_FILE_NAME). Give the "
            "partition schema of the directories.",
            table=table,
        )
    for name, expected in zip(found, columns.names, strict=True):
        if name.lower() != expected.lower():
            raise DeltaAnalysisException(
                f"{path} of {table} lies in a directory of the partition column {name}, expected {expected} "
                "(DELTA_UNEXPECTED_PARTITION_COLUMN_FROM_FILE_NAME). Name the partition columns in the order of the directories.",
                table=table,
            )
    values = parse_partition_directory("/".join(directories))
    for name, field in zip(found, columns.fields, strict=True):
        if not _reads_alike(values[name], field.data_type.name):
            raise _no_value(path, name, str(values[name]), str(field.data_type), table)
    types = {field.name: field.data_type for field in columns.fields}
    try:
        return partition_values("/".join(directories), types, zone, table=table)
    except StagedFileException as error:
        raise DeltaAnalysisException(
            f"{path} of {table}: {error.message} (DELTA_FAILED_CAST_PARTITION_VALUE). Give the column a type that fits all "
            "of its directories, such as STRING.",
            table=table,
        ) from error


def _reads_alike(text: str | None, data_type: str) -> bool:
    """Return whether Spark would accept a text that Python does: not ``1_000`` or ``20200101``."""
    if text is None or data_type in ("string", "binary"):
        return True
    return _DATE.fullmatch(text) is not None if data_type == "date" else "_" not in text


def _no_value(path: str, name: str, text: str, data_type: str, table: str) -> DeltaAnalysisException:
    return DeltaAnalysisException(
        f"{path} of {table}: {text!r} is not a valid {data_type} for the partition column {name} "
        "(DELTA_FAILED_CAST_PARTITION_VALUE). Give the column a type that fits all of its directories, such as STRING.",
        table=table,
    )


def _partition_directories(path: str) -> list[str]:
    """Return the directories of the partition: the innermost consecutive ones (Delta's ``PartitionUtils.parsePartition``)."""
    found: list[str] = []
    for part in reversed(path.split("/")[:-1]):
        if "=" in part:
            found.insert(0, part)
        elif found:
            break
    return found


def convert_to_delta(
    log: DeltaLog,
    *,
    partition_schema: str | Mapping[str, str] | None = None,
    collect_stats: bool = True,
    properties: Mapping[str, str] | None = None,
    time_zone: str = "UTC",
    **options: Any,
) -> CommitResult:
    """Turn the Parquet files at a location into a Delta table. Only the first log entry is written; no file is moved.

    Schema and statistics come from the footers, read a few at a time. If there already is a table, nothing happens.

    :param log: of the directory.
    :param partition_schema: columns of the partition directories, in order: ``p STRING, q DATE``, Spark's JSON form, or
        SQL types by name. Required if there are such directories.
    :param collect_stats: collect statistics (Delta: without ``NO STATISTICS``).
    :param properties: properties of the table.
    :param time_zone: time zone of timestamps without one in directory names.
    :param options: identity and commit options of :func:`airflow_delta.table.run.run_large`.
    :returns: the commit; with ``attempts=0`` if there already was a table.
    """
    configuration = dict(properties or {})
    partitions = parse_partition_schema(partition_schema)
    zone = time_zone_of(time_zone)

    def operate(handle: TransactionHandle, txn: OptimisticTransaction) -> tuple[Sequence[Action], Operation] | None:
        if txn.read_version >= 0:
            return None
        files = _Files(log, partitions, zone)
        schema = files.schema()
        _check_mapping(log.uri, handle.configuration)
        txn.update_metadata_for_new_table(
            Metadata(
                id=str(uuid.uuid4()),
                schema_string=schema,
                partition_columns=list(partitions.names),
                configuration=dict(handle.configuration),
                created_time=int(time.time() * 1000),
            )
        )
        adds = list(files.adds(txn, collect_stats=collect_stats))
        metrics = {"numConvertedFiles": len(files.statuses)}
        return adds, Operation.convert(
            len(files.statuses), partitions.names, collect_stats=collect_stats, source_format="parquet", metrics=metrics
        )

    return run_large(log, operate, configuration=configuration, in_place=True, **options)


def _check_mapping(table: str, configuration: Mapping[str, str]) -> None:
    wanted = column_mapping.mode(configuration)
    if wanted != "none":
        raise DeltaIllegalArgumentException(
            f"{table} cannot be converted with column mapping mode {wanted!r}: the files use the columns' own names "
            "(DELTA_CONVERSION_UNSUPPORTED_COLUMN_MAPPING). Enable it afterwards with a table property.",
            table=table,
        )


class _Files:
    """The files of a directory, whose footers are read in parallel, and twice if there are too many to keep."""

    def __init__(self, log: DeltaLog, partitions: StructType, zone: tzinfo) -> None:
        self._log = log
        self._partitions = partitions
        self.statuses = find_files(log)
        # Before any footer is read: wrong directories fail at once.
        self._values = [values_of(status.path, partitions, zone, table=log.uri) for status in self.statuses]
        self._footers: list[pq.FileMetaData] | None = None

    def schema(self) -> str:
        """Return the schema of all files, including partition columns."""
        merged = MergedSchema(self._log.uri)
        for status, footer in self._with_footers():
            schema = readable_schema(footer, status.path, table=self._log.uri)
            try:
                check_each_column_once(schema, status.path)
            except SchemaMismatchException as error:
                raise self._log.error(
                    SchemaMismatchException,
                    f"{self._log.uri} cannot be converted: {error.message} (DELTA_DUPLICATE_COLUMNS_FOUND) Move the file out of "
                    "the directory, or write it again without one of them.",
                ) from error
            merged.add(schema, status.path)
        return to_json(with_partition_columns(merged.schema, self._partitions))

    def adds(self, txn: OptimisticTransaction, *, collect_stats: bool) -> Iterator[AddFile]:
        """Yield the files as actions; with statistics, files without rows are left out, as in Delta."""
        if not collect_stats:
            for status, values in zip(self.statuses, self._values, strict=True):
                yield self._add(status, values, None)
            return
        table = TableDefinition.of(txn.metadata, txn.protocol)
        schema = table.schema.without(self._partitions.names)
        tight = True if "deletionVectors" in table.features else None
        for (status, footer), values in zip(self._with_footers(), self._values, strict=True):
            if footer.num_rows:
                stats = collect_statistics(footer, schema, table.properties, file=status.path, tight_bounds=tight)
                yield self._add(status, values, stats)

    @staticmethod
    def _add(status: FileStatus, values: dict[str, str | None], stats: str | None) -> AddFile:
        return AddFile(
            path=url_encode(status.path),
            partition_values=values,
            size=status.size,
            modification_time=status.modification_time,
            data_change=True,
            stats=stats,
        )

    def _with_footers(self) -> Iterator[tuple[FileStatus, pq.FileMetaData]]:
        if self._footers is not None:
            yield from zip(self.statuses, self._footers, strict=True)
            return
        with footers_progress(self._log.store, len(self.statuses)) as progress:
            for start in range(0, len(self.statuses), FILES_AT_ONCE):
                some = self.statuses[start : start + FILES_AT_ONCE]
                footers = footers_of(self._log, some, CONCURRENCY, progress)
                if len(some) == len(self.statuses):
                    self._footers = footers
                yield from zip(some, footers, strict=True)
