"""An operation that rewrites rows, after Spark: its files become staged actions.

Delta's counterparts are ``DeleteCommand`` and ``UpdateCommand`` with ``DMLWithDeletionVectorsHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.commands.files.adds import DataFiles, Footers
from airflow_delta.commands.rewrite.vectors import MarkedFiles, mark_rows
from airflow_delta.commands.stage.after import AFTER, earlier_of, handle_after
from airflow_delta.commands.stage.staged_write import staged_write
from airflow_delta.commands.stage.write_arguments import rewritten_files
from airflow_delta.commands.write.collect_write import check_report
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

PARAMETERS = "operationParameters"
"""Argument of a request: ``operationParameters`` of the commit."""


@dataclass(slots=True)
class Rewritten:
    """What a rewrite of rows did, for its metrics.

    :param new: files with new rows; of an UPDATE that copies, with the rows beside them that stay.
    :param copied: files with nothing but rows that stay.
    :param marked: files that get a deletion vector.
    :param removes: files that leave the table, or get another deletion vector.
    :param with_vectors: rows were marked in deletion vectors.
    """

    new: DataFiles
    copied: DataFiles
    marked: MarkedFiles
    removes: list[RemoveFile]
    changes: list[AddCDCFile] = field(default_factory=list)
    with_vectors: bool = False

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
"""Function that names what an operation did; what the report counts is added."""


def row_metrics(rewritten: Rewritten, report: StageReport) -> dict[str, int]:
    """Return the metrics of DELETE and UPDATE."""
    changed = report.metrics.get("numUpdatedRows")
    # Delta counts every file that an UPDATE touches as removed, and of a DELETE only those that go for good.
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
    log: DeltaLog,
    handle: TransactionHandle,
    request: StageRequest,
    report: StageReport,
    *,
    metrics: Metrics = row_metrics,
    num_copied_records: int | None = None,
) -> StagedWrite:
    """Turn what one attempt of a rewrite has written into staged actions, in the worker, after Spark.

    Touched files are removed; with deletion vectors those of which rows are left stay, with the rows marked.

    :param metrics: what ``operationMetrics`` is to hold beside the metrics of the report.
    :param num_copied_records: rows that were written as they were; default: those of the copied directories, and of new ones
        what ``numUpdatedRows`` does not account for.
    :raises StagingException: the report is of another attempt, or does not fit what was planned.
    :raises StagedFileException: the files are not those that Spark says it wrote, or a file cannot be read as Parquet.
    :raises InvariantViolationException: a NOT NULL column holds a null.
    """
    check_report(handle, request, report)
    if request.rewrite is None:
        raise StagingException(
            f"{request.operation} of stage {request.stage} was planned without files to look at.", table=handle.table
        )
    earlier = earlier_of(log, handle, request)
    target = handle_after(handle, earlier)
    touched = rewritten_files(log, handle, request, report, earlier)
    new, copied, changed = _data_files(log, target, request, report)
    marked = MarkedFiles()
    if request.deletion_vectors:
        marked = mark_rows(log, target, request, report, {file.path: file for file in touched})
        removes = marked.removes
    else:
        removes = [file.remove(0) for file in touched]
    changes = [AddCDCFile(path=add.path, partition_values=add.partition_values, size=add.size) for add in changed.adds]
    rewritten = Rewritten(new, copied, marked, removes, changes, request.deletion_vectors)
    num_records = new.rows
    if num_copied_records is None:  # an UPDATE may write rows that stay next to those that change
        num_records = min(new.rows, report.metrics.get("numUpdatedRows", new.rows))
        num_copied_records = copied.rows + new.rows - num_records
    return staged_write(
        log,
        handle,
        DataFiles(adds=[*new.adds, *marked.adds], rows=new.rows, marks=new.marks),
        copied,
        removes,
        changes,
        identity_high_water_marks=new.marks,
        num_records=num_records,
        num_copied_records=num_copied_records,
        stage=request.stage,
        task_id=request.task_id,
        map_index=request.map_index,
        attempt=request.attempt,
        operation=request.operation,
        parameters=dict(request.arguments.get(PARAMETERS) or {}),
        metrics={**metrics(rewritten, report), **report.metrics},
        after=tuple(request.arguments.get(AFTER) or ()),
        mode="rewrite",
        schema_string=report.schema_string,
        merge_schema=request.merge_schema,
        partition_columns=report.partition_columns,
        reads=_reads(request, report),
    )


def _data_files(
    log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport
) -> tuple[DataFiles, DataFiles, DataFiles]:
    footers = Footers(log, handle, report.schema_string, report.partition_columns, report.time_zone, known=handle.schema_string)
    found = []
    for directories in (report.directories, report.copied_directories, report.change_directories):
        files = DataFiles()
        for name in directories:
            identities = report.identities if directories is report.directories else ()
            footers.collect_written(request, report, name, files, identities=identities)
        found.append(files)
    return found[0], found[1], found[2]


def _reads(request: StageRequest, report: StageReport) -> ReadSet:
    """Return what the stage depends on: the predicate that its files were planned for, and those that it touched.

    A file in which it found nothing may go meanwhile: what others add where the predicate matches is a conflict anyway.
    """
    predicates = [request.rewrite.predicate or "true"] if request.rewrite is not None else []
    files = list(report.rewritten_files)
    if request.scan is not None:  # the source of the rows reads the table as well
        predicates.append(request.scan.predicate or "true")
        files += [file.path for file in request.scan.files]
    return ReadSet(predicates=tuple(dict.fromkeys(predicates)), files=tuple(dict.fromkeys(files)))
