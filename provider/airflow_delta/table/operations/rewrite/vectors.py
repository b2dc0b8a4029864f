"""Deletion vectors for the rows that Spark found, merged with those that the files have (``DMLWithDeletionVectorsHelper``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.spark_paths import FILE, NUMBER, WORD, file_of, files_by_uri
from airflow_delta.exceptions import StagingException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors, write_deletion_vectors
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.adds import check_rows, check_written, find_data_files
from airflow_delta.table.files.footers import table_footers
from airflow_delta.table.files.row_words import rows_of_words
from airflow_delta.table.stage.stage_view import StageView

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


@dataclass(slots=True)
class MarkedFiles:
    """What marking rows does to files.

    :param adds: files that stay, with the vector that marks the rows.
    :param removes: the same files without it, and files with no rows left.
    :param added: vectors that files get, including those that replace another.
    :param removed: vectors that files lose, including replaced ones.
    :param updated: vectors that replace another.
    """

    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemoveFile] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    updated: int = 0


def mark_rows(stage: StageView, request: StageRequest, report: StageReport, files: Mapping[str, AddFile]) -> MarkedFiles:
    """Write the deletion vectors of the rows that a report marks, all into one file of the attempt.

    :param files: live files that the operation has touched, by path; their row counts were checked with their footers
        (:func:`~airflow_delta.table.files.footers.check_row_counts`), so they tell whether a file has rows left.
    :raises StagingException: if the report marks rows that the files do not have.
    """
    log = stage.log
    new = _reported_rows(log, request, report)
    unknown = [path for path in new if path not in files]
    if unknown:
        raise _wrong_rows(request, f"{unknown[0]}, which it does not list as rewritten")
    touched = [files[path] for path in new]
    sized = _with_num_records(log, stage.target, [file for file in touched if num_records(file.stats) is None])
    known = {file.path: file.deletion_vector for file in touched if file.deletion_vector is not None}
    totals = [num_records(sized.get(path, files[path]).stats) for path in known]
    old = iter(read_deletion_vectors(log.store, list(known.values()), totals))
    marked = MarkedFiles()
    kept: list[tuple[AddFile, BitMap64]] = []
    for file in touched:
        file = sized.get(file.path, file)
        rows = new[file.path]
        if file.deletion_vector is not None:
            before = next(old)
            if before & rows:
                raise _wrong_rows(request, f"rows of {file.path} that are already deleted")
            rows = before | rows
        total = num_records(file.stats) or 0
        if len(rows) and rows.max() >= total:
            raise _wrong_rows(request, f"row {rows.max()} of {file.path}, which has {total}")
        marked.removes.append(files[file.path].remove(0))
        marked.removed += file.deletion_vector is not None
        if len(rows) < total:
            kept.append((file, rows))
    descriptors = write_deletion_vectors(log.store, request.directory, [rows for _, rows in kept]) if kept else []
    for (file, _), descriptor in zip(kept, descriptors, strict=True):
        marked.updated += file.deletion_vector is not None
        marked.added += 1
        counted = None if file.path in sized else file.deletion_vector  # footers count all rows of the file
        marked.adds.append(
            msgspec.structs.replace(
                file, data_change=True, deletion_vector=descriptor, stats=with_wide_bounds(file.stats, counted)
            )
        )
    whole = [files[path] for path in report.rewritten_files if path not in new]
    marked.removes += [file.remove(0) for file in whole]
    marked.removed += sum(file.deletion_vector is not None for file in whole)
    return marked


def _reported_rows(log: DeltaLog, request: StageRequest, report: StageReport) -> dict[str, BitMap64]:
    """Return the rows that go, by path of their file as the log has it."""
    if request.rewrite is None:
        raise _wrong_rows(request, "rows, and was planned without files")
    known = files_by_uri(request.rewrite)
    found: dict[str, BitMap64] = {}
    for name in report.vector_directories:
        statuses, num_words = find_data_files(log, f"{request.directory}/{name}"), 0
        check_written(log, request, report, name, statuses)
        for status in statuses:
            table = pq.ParquetFile(pa.BufferReader(log.store.read(status.path))).read(columns=[FILE, NUMBER, WORD])
            for uri, words in _by_file(table):
                path = file_of(known, uri).path
                rows = rows_of_words(words)
                found[path] = found[path] | rows if path in found else rows
            num_words += table.num_rows
        check_rows(log, request, report, name, num_words)
    return found


def _by_file(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    table = table.take(pc.sort_indices(table, sort_keys=[(FILE, "ascending")]))
    start = 0
    for counted in table.column(FILE).value_counts().to_pylist():  # in order of first appearance
        yield counted["values"], table.slice(start, counted["counts"])
        start += counted["counts"]


def _with_num_records(log: DeltaLog, table: TableDefinition, files: Sequence[AddFile]) -> dict[str, AddFile]:
    """Return files whose statistics lack the number of rows, with new ones from their footers: a vector requires it."""
    if not files:
        return {}
    found = {}
    for file, footer in table_footers(log.store, files, "Its rows cannot be marked"):
        stats = stats_from_footer(footer, table.schema, table.properties, table.partition_columns, file=unquote(file.path))
        found[file.path] = msgspec.structs.replace(file, stats=stats)
    return found


def _wrong_rows(request: StageRequest, what: str) -> StagingException:
    return request.error(
        StagingException,
        f"The report of stage {request.stage} on table {request.table} marks {what}. Nothing is committed. "
        "Clear the start task with everything downstream.",
    )
