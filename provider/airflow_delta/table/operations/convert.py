"""CONVERT TO DELTA: turn a directory of Parquet files into a table in place (Delta's ``ConvertToDeltaCommand``)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException
from airflow_delta.log.actions.actions import Action, AddFile, Metadata
from airflow_delta.log.data_files.footers import footers_progress
from airflow_delta.log.features import column_mapping
from airflow_delta.log.schema.types import StructType, to_json
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.finished_schema import check_each_column_once
from airflow_delta.table.files.footers import CONCURRENCY, FILES_AT_ONCE
from airflow_delta.table.files.merged_schema import MergedSchema, parse_partition_schema, with_partition_columns
from airflow_delta.table.files.parquet_schema import readable_schema
from airflow_delta.table.files.partitions import time_zone_of, url_encode
from airflow_delta.table.operations.convert_files import find_files, footers_of, values_of
from airflow_delta.table.operations.statistics import collect_statistics
from airflow_delta.table.run import run_large
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus
    from airflow_delta.transaction import OptimisticTransaction


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
