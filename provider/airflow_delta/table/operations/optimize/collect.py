"""OPTIMIZE and REORG after Spark: the same rows in other files, with the ``dataChange`` of the files before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec
from pyroaring import BitMap64

from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.partition_texts import partition_texts_of
from airflow_delta.contract.payloads import DeclaredReads, ScanFile, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import DeltaError, StagedFileException, StagingException
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG, AddFile, RemoveFile
from airflow_delta.log.actions.deletion_vectors import read_deletion_vectors
from airflow_delta.log.actions.moved_rows import MovedRows, RowSource, write_moved_rows
from airflow_delta.log.data_files.footers import read_footers
from airflow_delta.log.features.clustering import PROVIDER, Cube, quoted_path
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.table.files.adds import DataFiles, check_rows, check_written, find_data_files
from airflow_delta.table.files.footers import check_row_counts
from airflow_delta.table.files.partitions import url_encode
from airflow_delta.table.operations.optimize.bins import values_in_new_files
from airflow_delta.table.stage.scan import candidate_files
from airflow_delta.table.stage.stage_view import StageView

logger = logging.getLogger(__name__)

MOST_ROWS = 1 << 30
"""Rows of an old file up to which Spark tells them apart in the order that it reports."""


def collect_optimize(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of an OPTIMIZE or a REORG, in the worker, after Spark.

    As a stage it only conflicts with what touches the files that it rewrote.
    """
    arguments = OptimizeArguments.of(request)
    stage = stage.reported(request, report, arguments)
    adds, removes, rows = collect_actions(stage, request, report, arguments)
    # Copies that keep their row ids do not count as copied.
    copied = DataFiles(adds=adds, rows=0 if arguments.row_ids is not None else rows)
    return stage.staged(
        copied=copied,
        removes=removes,
        mode="rewrite",
        operation=request.operation,
        parameters=arguments.parameters,
        keeps_row_ids=arguments.row_ids is not None,
        metrics=rewrite_metrics(adds, removes),
        reads=DeclaredReads(files=tuple(remove.path for remove in removes)),
    )


def collect_actions(
    stage: StageView, request: StageRequest, report: StageReport, arguments: OptimizeArguments
) -> tuple[list[AddFile], list[RemoveFile], int]:
    """Return the new files, the removes of the files that they replace, and the number of rows.

    :param stage: of the report (:meth:`~airflow_delta.table.stage.stage_view.StageView.reported`).
    :param arguments: of the request.
    :raises StagingException: if the report has other rows than the files had.
    :raises RowCountMismatchException: if a file has another number of rows than the log says.
    """
    handle, plan = stage.handle, request.rewrite
    bins = arguments.bins
    if plan is None or len(report.directories) != len(bins):
        raise handle.error(
            StagingException,
            f"The report of stage {request.stage} has {len(report.directories)} directories, {len(bins)} were asked for. Clear "
            "the stage.",
        )
    adds: list[AddFile] = []
    records: list[MovedRows] = []
    total = 0
    changes = arguments.data_change or [False] * len(bins)
    removes = _removes(stage, request, arguments)
    cubes = _cubes(arguments)
    for members, name, data_change, cube in zip(bins, report.directories, changes, cubes, strict=True):
        files = [plan.files[position] for position in members]
        found, rows = _new_files(stage, request, report, name, files[0].partition_values, data_change)
        if cube is not None:
            found = [msgspec.structs.replace(add, tags={**cube.tags}, clustering_provider=PROVIDER) for add in found]
        before = [file.num_records for file in files]
        if not any(count is None for count in before) and rows != sum(count or 0 for count in before):
            _raise_other_rows(stage, request, files, rows, sum(count or 0 for count in before))
        record = None
        if arguments.record_rows and not data_change and len(found) == 1:
            record = _record_of(stage, found[0], rows, [removes[at] for at in members], members, report.first_rows.get(name))
        if record is not None:
            records.append(record)
        adds += found
        total += rows
    return _tagged(stage, request, adds, records), removes, total


def _cubes(arguments: OptimizeArguments) -> list[Cube | None]:
    """Return the cube that each bin becomes; ``None`` if the table is not clustered."""
    if not arguments.cluster_by:
        return [None for _ in arguments.bins]
    columns = tuple(map(quoted_path, arguments.cluster_by))
    return [Cube(cube_id, columns) for cube_id in arguments.cubes]


def _record_of(
    stage: StageView,
    new: AddFile,
    rows: int,
    removes: Sequence[RemoveFile],
    members: Sequence[int],
    first_rows: Sequence[Sequence[int]] | None,
) -> MovedRows | None:
    """Return the record of where the rows of a bin went; ``None`` if what Spark reports does not account for every row.

    :param removes: of its files.
    :param members: positions of these files in the request.
    :param first_rows: as Spark reports them.
    """
    of = dict(zip(members, removes, strict=True))
    counts = {member: num_records(remove.stats) for member, remove in of.items()}
    if (
        first_rows is None
        or any(count is None or count >= MOST_ROWS for count in counts.values())
        or any(remove.size is None for remove in removes)
    ):
        return None
    try:
        marked = [member for member in members if of[member].deletion_vector is not None]
        vectors = [vector for member in marked if (vector := of[member].deletion_vector) is not None]
        read = read_deletion_vectors(stage.log.store, vectors, [counts[member] for member in marked])
        deleted = dict(zip(marked, read, strict=True))
        sources = tuple(
            RowSource.of(of[at].path, of[at].size or 0, counts[at] or 0, first, deleted.get(at, BitMap64()))
            for at, first in first_rows
        )
        record = MovedRows(path=new.path, size=new.size, num_records=rows, sources=sources)
        record.check()
    except (DeltaError, ValueError, KeyError, TypeError, OSError) as error:
        logger.info("Where the rows of %s come from is not recorded: %s", new.path, error)
        return None
    return record


def _tagged(stage: StageView, request: StageRequest, adds: Sequence[AddFile], records: Sequence[MovedRows]) -> list[AddFile]:
    """Write the records and return the new files with tags that name them; without them, the compaction is as good."""
    try:
        tags = write_moved_rows(stage.log.store, request.directory, records)
    except OSError as error:
        logger.warning("Where the rows of the new files come from is not recorded: %s", error)
        return list(adds)
    tag_of = {record.path: tag for record, tag in zip(records, tags, strict=True)}
    return [
        msgspec.structs.replace(add, tags={**(add.tags or {}), MOVED_ROWS_TAG: tag_of[add.path]}) if add.path in tag_of else add
        for add in adds
    ]


def _raise_other_rows(stage: StageView, request: StageRequest, files: Sequence[ScanFile], rows: int, wanted: int) -> NoReturn:
    """Raise the error for a number of rows other than the log's; footers show whether the log is wrong."""
    handle = stage.handle
    paths = {file.path for file in files}
    check_row_counts(
        stage.log.store,
        [file for file in candidate_files(stage, None) if file.path in paths],
        operation=request.operation,
        version=handle.read_version,
    )
    raise handle.error(
        StagingException,
        f"{request.operation} of table {handle.table} version {handle.read_version} wrote {rows} rows instead of the {wanted} of "
        f"{len(files)} files, {files[0].path} among them. Nothing was committed. Run it again; if that does not help, the "
        "deletion vectors of these files are wrong.",
    )


def _new_files(
    stage: StageView,
    request: StageRequest,
    report: StageReport,
    name: str,
    values: Mapping[str, str | None],
    data_change: bool,
) -> tuple[list[AddFile], int]:
    """Return the files of a bin, all in the partition of its input."""
    log, table = stage.log, stage.target
    statuses = find_data_files(log, f"{request.directory}/{name}")
    check_written(log, request, report, name, statuses)
    schema = stage.schema.without(stage.target.partition_columns)
    tight = "deletionVectors" in table.features
    adds = []
    rows = 0
    for status, footer in zip(statuses, read_footers(log.store, statuses, 16), strict=True):
        if footer.num_rows == 0:
            continue
        rows += footer.num_rows
        adds.append(
            AddFile(
                path=url_encode(status.path),
                partition_values=partition_texts_of(values_in_new_files(stage, values)),
                size=status.size,
                modification_time=status.modification_time,
                data_change=data_change,
                stats=stats_from_footer(footer, schema, table.properties, tight_bounds=tight, file=status.path),
            )
        )
    check_rows(log, request, report, name, rows)
    return adds, rows


def _removes(stage: StageView, request: StageRequest, arguments: OptimizeArguments) -> list[RemoveFile]:
    staged = [msgspec.convert(line["remove"], RemoveFile) for line in arguments.removes]
    removes = {remove.path: remove for remove in staged}
    wanted = [] if request.rewrite is None else [file.path for file in request.rewrite.files]
    missing = set(wanted) - removes.keys()
    if missing:
        live = stage.snapshot.add_files()
        removes.update((file.path, file.remove(0, data_change=False)) for file in live if file.path in missing)
    handle = stage.handle
    if lost := [path for path in wanted if path not in removes]:
        raise handle.error(
            StagedFileException,
            f"{lost[0]} is not in table {handle.table} version {handle.read_version}, which the stage read. "
            "Clear the start task with everything downstream.",
        )
    return [removes[path] for path in wanted]


def rewrite_metrics(adds: Sequence[AddFile], removes: Sequence[RemoveFile]) -> dict[str, int]:
    """Return the ``operationMetrics`` of OPTIMIZE and REORG; sizes in bytes."""
    vectors = [remove.deletion_vector for remove in removes if remove.deletion_vector is not None]
    metrics = {
        "numAddedFiles": len(adds),
        "numRemovedFiles": len(removes),
        "numAddedBytes": sum(add.size for add in adds),
        "numRemovedBytes": sum(remove.size or 0 for remove in removes),
        "numDeletionVectorsRemoved": len(vectors),
    }
    sizes = sorted(add.size for add in adds)
    if sizes:
        metrics |= {
            "minFileSize": sizes[0],
            "p25FileSize": sizes[len(sizes) // 4],
            "p50FileSize": sizes[len(sizes) // 2],
            "p75FileSize": sizes[3 * len(sizes) // 4],
            "maxFileSize": sizes[-1],
        }
    return metrics
