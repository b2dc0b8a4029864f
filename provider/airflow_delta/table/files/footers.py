"""The footers of files of the table, wherever they lie, and whether they have the rows that the log counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.exceptions import RowCountMismatchException, StagedFileException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.actions.reconciliation import canonical_path
from airflow_delta.log.data_files.footers import footers_progress, read_footers
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.factory import sibling

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from airflow_delta.log.storage.base import LogStore


CONCURRENCY = 16  # footers that are read at a time
FILES_AT_ONCE = 4096  # files whose footers are in memory at a time

_AUTHORITY = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)/(.*)", re.DOTALL)


def check_row_counts(store: LogStore, files: Sequence[AddFile], *, operation: str, version: int) -> None:
    """Check that files have as many rows as the log says, before they are replaced by other files or get a deletion vector.

    ``numRecords`` is a claim of whoever wrote the file. If it is too small, a file whose rows are only partly selected would
    look as if all of them were. Files without ``numRecords`` claim nothing, and are not opened.

    :param files: the files that are rewritten.
    :raises RowCountMismatchException: if a file has another number of rows.
    :raises StagedFileException: if a file is gone, or is not a Parquet file.
    """
    counted = [file for file in files if num_records(file.stats) is not None]
    for file, footer in table_footers(store, counted, f"{operation} cannot tell how many rows it has"):
        claimed = num_records(file.stats)
        if footer.num_rows != claimed:
            raise store.error(
                RowCountMismatchException,
                f"{file.path} of table {store.root} version {version} has {footer.num_rows} rows by its Parquet footer, and "
                f"{claimed} by the log (numRecords), so {operation} might lose rows. Nothing was committed. Put the statistics "
                "right with DeltaComputeStatisticsOperator (all, not only_missing), and run it again.",
                version=version,
            )


def table_footers(store: LogStore, files: Sequence[AddFile], problem: str) -> Iterator[tuple[AddFile, pq.FileMetaData]]:
    """Yield files of the table with their footers; those of a shallow clone lie outside of the table.

    :param problem: what fails without a footer, for the error.
    :raises StagedFileException: if a file is gone, or is not a Parquet file.
    """
    with footers_progress(store, len(files)) as progress:
        for start in range(0, len(files), FILES_AT_ONCE):
            groups: dict[str | None, list[tuple[AddFile, FileStatus]]] = {}
            for file in files[start : start + FILES_AT_ONCE]:
                elsewhere, status = _status(store, file)
                groups.setdefault(elsewhere, []).append((file, status))
            for root, group in groups.items():
                there = store if root is None else sibling(store, root)
                try:
                    footers = read_footers(there, [status for _file, status in group], CONCURRENCY, progress)
                except StagedFileException as error:
                    raise store.error(
                        StagedFileException,
                        f"{error.message.removesuffix(' Run the stage that wrote it again.')} {problem} (table {store.root}); "
                        "restore the file, or the table to a version without it.",
                    ) from error
                yield from ((file, footer) for (file, _status_), footer in zip(group, footers, strict=True))


def _status(store: LogStore, file: AddFile) -> tuple[str | None, FileStatus]:
    """Return the root below which a file lies, ``None`` for that of the table, and its status there."""
    path = canonical_path(file.path)
    if match := _AUTHORITY.fullmatch(path):
        root, path = f"{match[1]}://{match[2]}", match[3]
    elif path.startswith(("/", "file:/")):
        bucket = _AUTHORITY.match(f"{store.root}/")
        root = "/" if bucket is None or path.startswith("file:") else f"{bucket[1]}://{bucket[2]}"
        path = path.removeprefix("file:").lstrip("/")
    else:
        return None, FileStatus(unquote(path), file.size, file.modification_time)
    return root, FileStatus(unquote(path), file.size, file.modification_time)
