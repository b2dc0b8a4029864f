"""The Parquet files of a directory that becomes a table: the paths that are read, and the partition values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY, is_hidden
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalStateException,
    StagedFileException,
)
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.schema.partition_directories import parse_partition_directory
from airflow_delta.log.schema.types import StructType
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.progress import tracked
from airflow_delta.table.files.inside_table import table_above
from airflow_delta.table.files.partitions import partition_values

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus
    from airflow_delta.log.storage.progress import Progress

_STAGED = lazy_pattern(rf"{STAGING_DIRECTORY}/[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}/")

_DATE = lazy_pattern(r"\d{4}-\d{2}-\d{2}", re.ASCII)


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
