"""Deletion vectors for the rows that Spark found, merged with those that the files have.

An operation that rewrites rows, after Spark: its files become staged actions.

Delta's counterparts are ``DeleteCommand`` and ``UpdateCommand`` with ``DMLWithDeletionVectorsHelper``.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from airflow_delta.contract.operations import ComparedColumns
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.contract.request import RewriteArguments, StageReport, StageRequest
from airflow_delta.contract.spark_paths import FILE, NUMBER, WORD, file_of, files_by_uri
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors, write_deletion_vectors
from airflow_delta.log.arrow.arrays import scalar
from airflow_delta.log.statistics.statistics import num_records, stats_from_footer, with_wide_bounds
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.adds import DataFiles, Footers, check_rows, check_written, find_data_files
from airflow_delta.table.files.footers import table_footers
from airflow_delta.table.stage.reported import key_reads, read_predicate, rewritten_files
from airflow_delta.table.stage.stage_view import StageView

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


_WORD_BITS = 64


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
                rows = _rows(words)
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


def _rows(words: pa.Table) -> BitMap64:
    """Return the positions of the rows whose bits are set."""
    first = pc.multiply(words.column(NUMBER).combine_chunks(), scalar(_WORD_BITS))
    word = words.column(WORD).combine_chunks().view(pa.uint64())
    rows = BitMap64()
    for bit in range(_WORD_BITS):
        is_set = pc.not_equal(pc.bit_wise_and(word, scalar(1 << bit, pa.uint64())), scalar(0, pa.uint64()))
        positions = pc.add(first.filter(is_set), scalar(bit))
        if len(positions):
            rows |= BitMap64(array.array("Q", positions.buffers()[1].to_pybytes()[: 8 * len(positions)]))
    return rows


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


@dataclass(slots=True)
class Rewritten:
    """What a rewrite of rows did, for its metrics.

    :param new: files with new rows; for an UPDATE that copies, also with unchanged rows of the same files.
    :param copied: files with only unchanged rows.
    :param marked: files that get a deletion vector.
    :param removes: files that leave the table, or get another deletion vector.
    """

    new: DataFiles
    copied: DataFiles
    marked: MarkedFiles
    removes: list[RemoveFile]
    changes: list[AddCDCFile]

    @property
    def written(self) -> list[AddFile]:
        """Return the data files that were written."""
        return [*self.new.adds, *self.copied.adds]

    @property
    def gone(self) -> list[RemoveFile]:
        """Return the files that leave the table for good."""
        stay = {add.path for add in self.marked.adds}
        return [remove for remove in self.removes if remove.path not in stay]


Metrics = Callable[[Rewritten, StageReport], Mapping[str, int]]
"""Function that counts what an operation did; the counts of the report are added."""


def row_metrics(rewritten: Rewritten, report: StageReport) -> dict[str, int]:
    """Return the metrics of DELETE and UPDATE."""
    changed = report.metrics.get("numUpdatedRows")
    # Delta counts every file that an UPDATE touches as removed, but for a DELETE only those that go for good.
    removed = rewritten.gone if changed is None else rewritten.removes
    changed = changed or 0
    return {
        "numAddedFiles": len(rewritten.written),
        "numAddedBytes": sum(add.size for add in rewritten.written),
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(remove.size or 0 for remove in rewritten.gone),
        "numCopiedRows": max(rewritten.new.rows + rewritten.copied.rows - changed, 0),
        "numAddedChangeFiles": len(rewritten.changes),
        "numDeletionVectorsAdded": rewritten.marked.added,
        "numDeletionVectorsRemoved": rewritten.marked.removed,
        "numDeletionVectorsUpdated": rewritten.marked.updated,
    }


def collect_rewrite(
    stage: StageView,
    request: StageRequest,
    report: StageReport,
    *,
    metrics: Metrics = row_metrics,
    compared: Sequence[ComparedColumns] = (),
) -> StagedWrite:
    """Turn what one attempt of a rewrite has written into staged actions, in the worker, after Spark.

    Touched files are removed; with deletion vectors, files with remaining rows stay and get the rows marked.

    :param metrics: returns ``operationMetrics`` beside the metrics of the report.
    :param compared: columns in which the rows that were read equal a row of the source.
    :raises StagingException: if the report is of another attempt, or does not fit what was planned.
    :raises StagedFileException: if the files are not those that Spark says it wrote, or a file cannot be read as Parquet.
    :raises InvariantViolationException: if a NOT NULL column holds a null.
    """
    stage = stage.reported(request, report)
    if request.rewrite is None:
        raise stage.handle.error(
            StagingException, f"{request.operation} of stage {request.stage} was planned without files to look at."
        )
    arguments = RewriteArguments.of(request)
    touched = rewritten_files(stage, request, report)
    new, copied, changed = _data_files(stage, request, report)
    marked = MarkedFiles()
    if request.deletion_vectors:
        marked = mark_rows(stage, request, report, {file.path: file for file in touched})
        removes = marked.removes
    else:
        removes = [file.remove(0) for file in touched]
    changes = [AddCDCFile(path=add.path, partition_values=add.partition_values, size=add.size) for add in changed.adds]
    rewritten = Rewritten(new, copied, marked, removes, changes)
    # An UPDATE may write unchanged rows beside changed ones.
    num_records = min(new.rows, report.metrics.get("numUpdatedRows", new.rows))
    return stage.staged(
        DataFiles(adds=[*new.adds, *marked.adds], rows=new.rows),
        copied,
        removes,
        changes,
        mode="rewrite",
        operation=request.operation,
        parameters=arguments.operation_parameters,
        keeps_row_ids=arguments.row_ids is not None,
        metrics={**metrics(rewritten, report), **report.metrics},
        num_records=num_records,
        num_copied_records=copied.rows + new.rows - num_records,
        identity_high_water_marks=new.marks,
        schema_string=report.schema_string,
        merge_schema=request.merge_schema,
        partition_columns=report.partition_columns,
        reads=_reads(stage, request, report, compared),
    )


Collect = Callable[[StageView, StageRequest, StageReport], StagedWrite]
"""Function that turns the report of a rewrite into its staged write."""


def _data_files(stage: StageView, request: StageRequest, report: StageReport) -> tuple[DataFiles, DataFiles, DataFiles]:
    written = TableDefinition.of_rows(report.schema_string, report.partition_columns)
    footers = Footers(stage.log, stage.target, written, report.time_zone)
    found = []
    for directories in (report.directories, report.copied_directories, report.change_directories):
        files = DataFiles()
        for name in directories:
            identities = report.identities if directories is report.directories else ()
            footers.collect_written(request, report, name, files, identities=identities)
        found.append(files)
    return found[0], found[1], found[2]


def _reads(stage: StageView, request: StageRequest, report: StageReport, compared: Sequence[ComparedColumns]) -> DeclaredReads:
    """Return what the stage depends on: the predicate that its files were planned for, and the files that it touched.

    Files without matching rows may go: what others add where the predicate matches is a conflict anyway.
    """
    predicates, files = [read_predicate(request)], list(report.rewritten_files)
    # Spark has marked each row that the condition selects, or its file goes: `Rewrite.marked`.
    marked = request.deletion_vectors and request.predicate == predicates[0]
    if request.scan is not None:  # the source reads the table too
        predicates.append(request.scan.predicate or "true")
        files += [file.path for file in request.scan.files]
        marked = marked and predicates[0] != predicates[1]
    return DeclaredReads(
        predicates=tuple(dict.fromkeys(predicates)),
        files=tuple(dict.fromkeys(files)),
        marked=(predicates[0],) if marked else (),
        keys=key_reads(stage, request, report, compared),
    )
