"""Files that another job finished: each is Parquet, or has a name that readers ignore."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_delta.commands.files.adds import CONCURRENCY, is_unfinished, unfinished
from airflow_delta.exceptions import DeltaIllegalArgumentException, StagedFileException, StagingException
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.staging.contract import TransactionHandle
from airflow_delta.staging.paths import is_hidden, transaction_directory

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus

_SUCCESS = "_SUCCESS"
"""Marker of Hadoop's committers: the job has ended, with or without rows."""

_ATTEMPT = re.compile(r"[^/]+/\d+-[0-9a-f]{8}/[0-9a-f]{8}(-[^/]*)?/")
_LISTED = 10


def find_finished_files(
    log: DeltaLog, handle: TransactionHandle, directory: str
) -> tuple[list[FileStatus], list[pq.FileMetaData]]:
    """Return the Parquet files under a directory, sorted by path, with their footers.

    :param directory: relative to the table root.
    :raises DeltaIllegalArgumentException: if the directory is the staging path itself, which all tries of all stages share.
    :raises StagedFileException: if there are no files, a job has not ended, a file is neither Parquet nor hidden, or they
        belong to a Delta table.
    :raises StagingException: if an attempt of a stage of this transaction wrote there.
    """
    from airflow_delta.log.statistics.footers import try_footers

    root = transaction_directory(handle.transaction_id)
    if directory == root:
        raise DeltaIllegalArgumentException(
            f"Finished files need a path below the staging path {handle.staging_path} of table {handle.table}: the staging path "
            "itself also holds files of failed tries and other stages. Have the job write to staging_path(transaction, ti), "
            "and pass the same as path=.",
            table=handle.table,
            version=handle.read_version,
        )
    statuses, ended = [], False
    for status in log.store.list_recursive(directory):
        relative = status.path.removeprefix(f"{directory}/")
        if is_unfinished(relative):
            raise unfinished(log, directory, relative)
        if LOG_DIRECTORY in relative.split("/")[:-1]:
            raise StagedFileException(
                f"{log.uri.rstrip('/')}/{directory} is itself a Delta table: its deleted rows and older "
                f"versions of rows would appear in {handle.table}. Have the job write plain Parquet, or read that table in "
                "@task.delta_stage.",
                table=handle.table,
                version=handle.read_version,
            )
        if is_hidden(relative):
            ended = ended or status.name == _SUCCESS
            continue
        if _ATTEMPT.match(status.path.removeprefix(f"{root}/")):
            raise StagingException(
                f"{status.path} of table {handle.table} was staged by another stage of transaction {handle.transaction_id}. Have "
                "the job write to its own directory (staging_path), and pass that as path.",
                table=handle.table,
                version=handle.read_version,
            )
        statuses.append(status)
    if not statuses and not ended:
        raise StagedFileException(
            f"{log.uri.rstrip('/')}/{directory} is missing or empty, which is not the same as no rows. Check that the job "
            "wrote there. To stage no rows, write a Parquet file without rows, or the marker _SUCCESS.",
            table=handle.table,
            version=handle.read_version,
        )
    statuses.sort(key=lambda status: status.path)
    footers, broken = [], []
    for status, footer in zip(statuses, try_footers(log.store, statuses, CONCURRENCY), strict=True):
        if isinstance(footer, str):
            broken.append(f"{status.path.removeprefix(f'{directory}/')} ({footer})")
        else:
            footers.append(footer)
    if broken:
        more = f" and {len(broken) - _LISTED} more" if len(broken) > _LISTED else ""
        raise StagedFileException(
            f"{len(broken)} of {len(statuses)} files in {directory} of table {log.uri} are not Parquet: "
            f"{', '.join(broken[:_LISTED])}{more}. Nothing was staged. Write them again, or let the names of files without data "
            "begin with '_' or '.'.",
            table=handle.table,
            version=handle.read_version,
        )
    return statuses, footers
