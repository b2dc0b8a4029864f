"""DELETE and UPDATE after Spark: files become staged actions (Delta's ``DeleteCommand`` and ``UpdateCommand``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_delta.contract.arguments import RewriteArguments
from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagingException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.files.adds import DataFiles, Footers
from airflow_delta.table.operations.rewrite.vectors import MarkedFiles, mark_rows
from airflow_delta.table.stage.key_reads import key_reads, read_predicate
from airflow_delta.table.stage.rewritten_files import rewritten_files
from airflow_delta.table.stage.stage_view import StageView


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
    arguments = RewriteArguments.of(request)
    stage = stage.reported(request, report, arguments)
    if request.rewrite is None:
        raise stage.handle.error(
            StagingException, f"{request.operation} of stage {request.stage} was planned without files to look at."
        )
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
