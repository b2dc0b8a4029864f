"""Files that another job finished: each is Parquet, or has a name that readers ignore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.char_lengths import length_problems
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.staging_directory import is_hidden, transaction_directory
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import DeltaIllegalArgumentException, StagedFileException, StagingException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.table.files.adds import CONCURRENCY, is_unfinished, unfinished

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus
    from airflow_delta.log.table_definition import TableDefinition


def check_finished_files(
    table: TableDefinition, rules: TableRules, columns: Sequence[str], *, rows_checked: bool, overwrite_schema: bool
) -> None:
    """Refuse finished files if only their rows could show whether they fit the table.

    :param columns: columns of the files and their partitions.
    :param rows_checked: the job itself has checked the rows.
    :param overwrite_schema: the files decide the schema.
    :raises DeltaIllegalArgumentException: if there are such rules; names them and the ways out.
    """
    given = {name.lower() for name in columns}
    identities = [i.column for i in rules.identities if i.column.lower() not in given or not i.explicit]
    problems = []
    if identities:
        problems.append(f"only the table assigns values to the identity columns {', '.join(identities)}")
    absent = [name for name in (*rules.generated, *rules.defaults) if name.lower() not in given]
    if absent:
        problems.append(f"the files lack {', '.join(absent)}, which the table computes")
    if not problems and not rows_checked:
        problems += [f"CHECK constraint {name} ({text})" for name, text in rules.checks.items()]
        problems += [f"generated column {name} ({text})" for name, text in rules.generated.items()]
        known = [] if overwrite_schema else table.struct["fields"]
        present = [f for f in known if f["name"].lower() in given]
        # Footers count the nulls of leaves only.
        problems += [
            f"NOT NULL column {f['name']}" for f in present if not (f.get("nullable", True) or isinstance(f["type"], str))
        ]
        problems += [f"the length of {path} ({limit})" for f in present for path, _, limit in length_problems(f)]
        if problems:
            problems = [f"the files do not show whether their rows keep the rules of the table: {'; '.join(problems)}"]
    if problems:
        way_out = "" if identities or absent else ", or set rows_checked=True if the job that wrote the files checks them itself"
        raise table.error(
            DeltaIllegalArgumentException,
            f"Finished files cannot be staged into table {table.table} version {table.version}: {'; '.join(problems)}. Stage the "
            f"rows with @task.delta_stage or DeltaStageSparkSubmitOperator, which check and compute them{way_out}.",
        )


_SUCCESS = "_SUCCESS"
"""Marker of Hadoop's committers: the job has ended, with or without rows."""

_ATTEMPT = lazy_pattern(r"[^/]+/\d+-[0-9a-f]{8}/[0-9a-f]{8}(-[^/]*)?/")

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
    from airflow_delta.log.data_files.footers import try_footers

    root = transaction_directory(handle.transaction_id)
    if directory == root:
        raise handle.error(
            DeltaIllegalArgumentException,
            f"Finished files need a path below the staging path {handle.staging_path} of table {handle.table}: the staging path "
            "itself also holds files of failed tries and other stages. Have the job write to staging_path(transaction, ti), "
            "and pass the same as path=.",
        )
    statuses, ended = [], False
    for status in log.store.list_recursive(directory):
        relative = status.path.removeprefix(f"{directory}/")
        if is_unfinished(relative):
            raise unfinished(log, directory, relative)
        if LOG_DIRECTORY in relative.split("/")[:-1]:
            raise handle.error(
                StagedFileException,
                f"{log.uri.rstrip('/')}/{directory} is itself a Delta table: its deleted rows and older "
                f"versions of rows would appear in {handle.table}. Have the job write plain Parquet, or read that table in "
                "@task.delta_stage.",
            )
        if is_hidden(relative):
            ended = ended or status.name == _SUCCESS
            continue
        if _ATTEMPT.match(status.path.removeprefix(f"{root}/")):
            raise handle.error(
                StagingException,
                f"{status.path} of table {handle.table} was staged by another stage of transaction {handle.transaction_id}. Have "
                "the job write to its own directory (staging_path), and pass that as path.",
            )
        statuses.append(status)
    if not statuses and not ended:
        raise handle.error(
            StagedFileException,
            f"{log.uri.rstrip('/')}/{directory} is missing or empty, which is not the same as no rows. Check that the job "
            "wrote there. To stage no rows, write a Parquet file without rows, or the marker _SUCCESS.",
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
        raise handle.error(
            StagedFileException,
            f"{len(broken)} of {len(statuses)} files in {directory} of table {log.uri} are not Parquet: "
            f"{', '.join(broken[:_LISTED])}{more}. Nothing was staged. Write them again, or let the names of files without data "
            "begin with '_' or '.'.",
        )
    return statuses, footers
