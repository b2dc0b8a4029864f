"""What OPTIMIZE or REORG wrote becomes actions: the same rows in other files, which say ``dataChange`` as those before did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.commands.begin.read_snapshot import read_snapshot
from airflow_delta.commands.files.adds import DataFiles, find_data_files
from airflow_delta.commands.files.partitions import url_encode
from airflow_delta.commands.files.written import check_files, check_rows
from airflow_delta.commands.stage.staged_write import staged_write
from airflow_delta.exceptions import StagedFileException, StagingException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import stage_key
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.optimize.bins import Rewrite
    from airflow_delta.log import DeltaLog


def collect_optimize(log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of an OPTIMIZE or a REORG, in the worker, after Spark.

    What depends on rows alone does not matter to it: as a stage it conflicts with what touches the files that it has rewritten,
    and with nothing else.

    :raises StagingException: the report belongs to another attempt, or rows were lost.
    """
    adds, removes, rows = collect_actions(log, handle, request, report)
    kept = request.arguments.get("rowIds") is not None
    # Copied rows that keep their ids are not among those that a commit has to excuse itself for.
    copied = DataFiles(adds=adds, rows=0 if kept else rows)
    return staged_write(
        log,
        handle,
        DataFiles(),
        copied,
        removes,
        [],
        stage=request.stage,
        task_id=request.task_id,
        map_index=request.map_index,
        attempt=request.attempt,
        operation=request.operation,
        parameters=dict(request.arguments.get("parameters") or {}),
        metrics=rewrite_metrics(adds, removes),
        after=tuple(request.arguments.get("after") or ()),
        mode="rewrite",
        schema_string=request.schema_string or "",
        partition_columns=request.partition_columns,
        reads=ReadSet(files=tuple(remove.path for remove in removes)),
    )


def nothing_to_rewrite(
    log: DeltaLog, handle: TransactionHandle, rewrite: Rewrite, identity: Mapping[str, Any], after: Sequence[str]
) -> StagedWrite:
    """Return the staged write of a stage that found nothing to rewrite."""
    return staged_write(
        log,
        handle,
        DataFiles(),
        DataFiles(),
        [],
        [],
        stage=stage_key(identity["task_id"], identity.get("map_index", -1)),
        task_id=identity["task_id"],
        map_index=identity.get("map_index", -1),
        attempt=identity["attempt"],
        operation=rewrite.operation,
        parameters=dict(rewrite.parameters),
        after=tuple(after),
        mode="rewrite",
        schema_string=handle.schema_string or "",
        partition_columns=handle.partition_columns,
    )


def collect_actions(
    log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport
) -> tuple[list[AddFile], list[RemoveFile], int]:
    """Return the new files, the removes of those that they replace, and the number of rows.

    :raises StagingException: the report belongs to another attempt, or has other rows than the files had.
    """
    _check_report(handle, request, report)
    plan = request.rewrite
    bins = request.arguments["bins"]
    if plan is None or len(report.directories) != len(bins):
        raise StagingException(
            f"The report of stage {request.stage} has {len(report.directories)} directories, {len(bins)} were asked for. Clear "
            "the stage.",
            table=handle.table,
        )
    adds: list[AddFile] = []
    total = 0
    changes = request.arguments.get("dataChange") or [False] * len(bins)
    for members, name, data_change in zip(bins, report.directories, changes, strict=True):
        files = [plan.files[position] for position in members]
        found, rows = _new_files(log, handle, request, report, name, files[0].partition_values, data_change)
        before = [file.num_records for file in files]
        if not any(count is None for count in before) and rows != sum(count or 0 for count in before):
            raise StagingException(
                f"{request.operation} of table {handle.table} version {handle.read_version} wrote {rows} rows instead of the "
                f"{sum(count or 0 for count in before)} of {len(files)} files, {files[0].path} among them. Nothing was committed."
                " Run it again; if it stays so, the statistics or the deletion vectors of these files are wrong.",
                table=handle.table,
                version=handle.read_version,
            )
        adds += found
        total += rows
    return adds, _removes(log, handle, request), total


def _new_files(
    log: DeltaLog,
    handle: TransactionHandle,
    request: StageRequest,
    report: StageReport,
    name: str,
    values: Mapping[str, str | None],
    data_change: bool,
) -> tuple[list[AddFile], int]:
    """Return the files of a bin; all of them are of the partition that its input is of."""
    from airflow_delta.log.features.properties import TableProperties
    from airflow_delta.log.schema.types import parse_schema
    from airflow_delta.log.statistics.statistics import read_footers, stats_from_footer

    statuses = find_data_files(log, f"{request.directory}/{name}")
    check_files(log, request, report, name, statuses)
    schema = parse_schema(request.schema_string or "").without(list(request.partition_columns))
    properties = TableProperties(dict(handle.configuration))
    adds = []
    rows = 0
    for status, footer in zip(statuses, read_footers(log.store, statuses, 16), strict=True):
        if footer.num_rows == 0:
            continue
        rows += footer.num_rows
        adds.append(
            AddFile(
                path=url_encode(status.path),
                partition_values=dict(values),
                size=status.size,
                modification_time=status.modification_time,
                data_change=data_change,
                stats=stats_from_footer(footer, schema, properties, tight_bounds="deletionVectors" in handle.features),
            )
        )
    check_rows(log, request, report, name, rows)
    return adds, rows


def _removes(log: DeltaLog, handle: TransactionHandle, request: StageRequest) -> list[RemoveFile]:
    staged = [msgspec.convert(line["remove"], RemoveFile) for line in request.arguments.get("removes") or []]
    removes = {remove.path: remove for remove in staged}
    wanted = [] if request.rewrite is None else [file.path for file in request.rewrite.files]
    missing = set(wanted) - removes.keys()
    if missing:
        live = read_snapshot(log, handle).add_files()
        removes.update((file.path, file.remove(0, data_change=False)) for file in live if file.path in missing)
    if lost := [path for path in wanted if path not in removes]:
        raise StagedFileException(
            f"{lost[0]} is not in table {handle.table} version {handle.read_version}, which the stage has rewritten it from. "
            "Clear the stage.",
            table=handle.table,
            version=handle.read_version,
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


def _check_report(handle: TransactionHandle, request: StageRequest, report: StageReport) -> None:
    for name in ("transaction_id", "stage", "attempt"):
        if getattr(report, name) != getattr(request, name):
            raise StagingException(
                f"The report of stage {request.stage} is of another execution: {name} is {getattr(report, name)!r}, expected "
                f"{getattr(request, name)!r}. Clear the stage.",
                table=handle.table,
                version=handle.read_version,
            )
    if any("/" in name or name.startswith(".") for name in report.directories):
        raise StagingException(f"The report of stage {request.stage} names directories outside its attempt", table=handle.table)
