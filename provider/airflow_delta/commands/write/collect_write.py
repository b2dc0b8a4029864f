"""A ``WRITE`` stage after Spark: Parquet files become staged actions, with statistics from their footers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.commands.begin.read_snapshot import check_new_schema, parse_predicate
from airflow_delta.commands.files.adds import DataFiles, Footers
from airflow_delta.commands.files.rules import check_finished_files, table_rules
from airflow_delta.commands.stage.after import earlier_of
from airflow_delta.commands.stage.data_change import check_replacement, refuse_untold
from airflow_delta.commands.stage.scan import undecided_files, zone_needed
from airflow_delta.commands.stage.staged_write import staged_write
from airflow_delta.commands.stage.write_arguments import as_planned, rewritten_files
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    ReplaceWhereMismatchException,
    SchemaMismatchException,
    StagingException,
)
from airflow_delta.log.actions.actions import AddCDCFile, AddFile
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import stage_key, transaction_directory
from airflow_delta.staging.report import StageReport, StageRequest
from airflow_delta.staging.schema import parse_struct

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import StructType


def collect_stage(log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport) -> StagedWrite:
    """Turn the files of one attempt into staged actions, in the worker, after Spark.

    Statistics come from the Parquet footers, partition values from the directories of this attempt.

    :raises SchemaMismatchException: what was written does not fit the table.
    :raises ReplaceWhereMismatchException: a file lies in a partition outside the predicate.
    :raises StagedFileException: the files are not those that Spark says it wrote, or a file cannot be read as Parquet.
    """
    check_report(handle, request, report)
    if not report.directories:
        raise StagingException(
            f"The report of stage {request.stage} names no directory; even zero rows are written to one. Clear the stage.",
            table=log.uri,
            version=request.read_version,
        )
    earlier = earlier_of(log, handle, request)
    removes = [file.remove(0) for file in rewritten_files(log, handle, request, report, earlier)]
    extra, handle = as_planned(log, handle, request, report, earlier)
    if not (request.overwrite_schema or handle.schema_string is None):
        _check_schema(log, handle, report.schema_string, merge=request.merge_schema, widen=request.rules.type_widening)
    else:
        check_new_schema(report.schema_string, report.partition_columns, handle.configuration, table=log.uri)
    footers = Footers(
        log,
        handle,
        report.schema_string,
        report.partition_columns,
        report.time_zone,
        known=None if request.overwrite_schema or "create" in request.arguments else handle.schema_string,
    )
    new, copied, changed = DataFiles(), DataFiles(), DataFiles()
    for directories, into in (
        (report.directories, new),
        (report.copied_directories, copied),
        (report.change_directories, changed),
    ):
        for name in directories:
            identities = report.identities if into is new else ()
            footers.collect_written(request, report, name, into, identities=identities)
    if request.replace_where is not None:
        predicate = _predicate(log, handle, request.replace_where, report.schema_string, report.partition_columns)
        _check_inside_predicate(log, handle, predicate, new.adds)
    reads = ReadSet()
    if request.scan is not None:
        scanned = request.scan.predicate
        reads = ReadSet(predicates=() if scanned is None else (scanned,), whole_table=scanned is None)
    if request.rewrite is not None and request.replace_where is None:
        reads = ReadSet(predicates=reads.predicates, files=tuple(r.path for r in removes), whole_table=True)
    elif request.rewrite is not None:
        reads = ReadSet(
            predicates=(*reads.predicates, request.replace_where or "true"),
            files=report.rewritten_files,
            whole_table=reads.whole_table,
        )
    if not extra.get("data_change", True):
        new.adds = [msgspec.structs.replace(add, data_change=False) for add in new.adds]
    fields: dict[str, Any] = {
        "identity_high_water_marks": new.marks,
        "stage": request.stage,
        "task_id": request.task_id,
        "map_index": request.map_index,
        "attempt": request.attempt,
        "mode": request.mode,
        "replace_where": request.replace_where,
        "schema_string": report.schema_string,
        "merge_schema": request.merge_schema,
        "overwrite_schema": request.overwrite_schema,
        "partition_columns": report.partition_columns,
        "reads": reads,
    }
    return staged_write(
        log,
        handle,
        new,
        copied,
        removes,
        [AddCDCFile(path=add.path, partition_values=add.partition_values, size=add.size) for add in changed.adds],
        **fields | extra,
    )


def collect_files(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    path: str | None = None,
    mode: str = "append",
    replace_where: str | None = None,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] = (),
    time_zone: str = "UTC",
    rows_checked: bool = False,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
    **others: Any,
) -> StagedWrite:
    """Turn Parquet that any job left under the transaction's staging path into staged actions.

    Every file is Parquet, whatever its name; hidden ones (``_*``, ``.*``) are left alone. The schema is that of the files; a
    partition column has the table's type, and is text in a table that does not exist yet unless the start task gave the schema.

    :param path: directory that the job wrote, an URI or relative to the handle's staging path; not that itself.
    :param time_zone: time zone of timestamps in the names of partition directories.
    :param rows_checked: the job that wrote the files has checked the constraints of the table, which only rows tell of.
    :param after: staged writes of earlier stages, whose table the files are for.
    :param others: options of a write that need its rows on Spark; refused.
    :raises DeltaIllegalArgumentException: the table has rules that finished files cannot be checked for, or no path is given.
    :raises DeltaAnalysisException: a column has a type that Spark cannot read.
    :raises SchemaMismatchException: a column has another type or spelling than in the table.
    :raises StagedFileException: there is no file, or one that is not Parquet.
    :raises StagingException: the path is not under the staging path of the transaction, or of another of its stages.
    """
    from airflow_delta.commands.stage.after import handle_after, load_earlier, stage_id
    from airflow_delta.commands.write.write_options import check_write_options

    if others:
        raise DeltaIllegalArgumentException(
            f"Finished files cannot be staged with {', '.join(others)}: that needs the rows. Use @task.delta_stage or "
            f"DeltaStageSparkSubmitOperator (table {handle.table})",
            table=handle.table,
        )
    earlier = load_earlier(log, handle, after) if after else []
    begun, handle = handle, handle_after(handle, earlier)
    partition_columns = check_write_options(
        handle, mode=mode, replace_where=replace_where, overwrite_schema=overwrite_schema, partition_by=partition_by
    )
    directory = _inside_staging(handle, path)
    from airflow_delta.commands.files.finished import find_finished_files
    from airflow_delta.commands.files.footers import mapped_schema_of_files, schema_of_files

    statuses, footers = find_finished_files(log, handle, directory)
    files = list(zip(statuses, footers, strict=True))
    known = None if overwrite_schema else handle.schema_string
    rules = table_rules(handle, overwrite_schema=overwrite_schema)
    if rules.column_mapping != "none":
        schema_string = mapped_schema_of_files(log, handle, files, known, partition_columns, rules)
    else:
        schema_string = schema_of_files(log, files, known, partition_columns)
    if known is not None:
        _check_schema(log, handle, schema_string, merge=merge_schema, widen=rules.type_widening)
        _refuse_casts(log, handle, schema_string, widen=merge_schema and rules.type_widening)
    else:
        check_new_schema(schema_string, partition_columns, handle.configuration, table=log.uri)
    columns = [f["name"] for f in parse_struct(schema_string)["fields"]]
    check_finished_files(handle, rules, known, columns, rows_checked=rows_checked, table=log.uri)
    predicate = None if replace_where is None else _predicate(log, handle, replace_where, schema_string, partition_columns)
    if predicate is not None:
        _refuse_data_predicate(handle, predicate)
        if known is not None and undecided_files(log, begun, predicate, earlier):
            raise zone_needed(handle, predicate, "With files that another job wrote")
    check_replacement(begun, earlier, mode=mode, predicate=predicate)
    if rules.change_data:
        refuse_untold(begun, "A write", earlier, tells=False)
    new = DataFiles()
    Footers(log, handle, schema_string, partition_columns, time_zone, known=known).collect(directory, new, statuses, footers)
    _check_inside_predicate(log, handle, predicate, new.adds)
    return staged_write(
        log,
        handle,
        new,
        DataFiles(),
        [],
        [],
        stage=stage_key(task_id, map_index),
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        mode=mode,
        replace_where=replace_where,
        schema_string=schema_string,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        partition_columns=partition_columns,
        reads=ReadSet(),
        after=tuple(stage_id(stage.write) for stage in earlier),
    )


def check_report(handle: TransactionHandle, request: StageRequest, report: StageReport) -> None:
    """Check that a report is of this attempt, and names directories of it only.

    :raises StagingException: it does not.
    """
    for name in ("transaction_id", "stage", "attempt"):
        if getattr(report, name) != getattr(request, name):
            raise StagingException(
                f"The report of stage {request.stage} is of another execution: {name} is {getattr(report, name)!r}, expected "
                f"{getattr(request, name)!r}. Clear the stage.",
                table=handle.table,
                version=handle.read_version,
            )
    names = (*report.directories, *report.copied_directories, *report.change_directories, *report.vector_directories)
    if any("/" in name or name.startswith(".") for name in names):
        raise StagingException(f"The report of stage {request.stage} names directories outside its attempt", table=handle.table)


def _check_schema(log: DeltaLog, handle: TransactionHandle, schema_string: str, *, merge: bool, widen: bool) -> StructType:
    from airflow_delta.log.features.schema_merge import merge_schema
    from airflow_delta.log.schema.types import parse_schema

    return merge_schema(
        parse_schema(handle.schema_string or ""),
        parse_schema(schema_string),
        merge=merge,
        widen=merge and widen,
        table=log.uri,
        version=handle.read_version,
    )


def _refuse_casts(log: DeltaLog, handle: TransactionHandle, schema_string: str, *, widen: bool) -> None:
    """Refuse finished files whose types are only near the table's: nobody casts their rows any more."""
    from airflow_delta.log.features.schema_merge import merge_schema, write_casts
    from airflow_delta.log.schema.types import parse_schema

    table, data = parse_schema(handle.schema_string or ""), parse_schema(schema_string)
    if widen:
        table = merge_schema(table, data, merge=True, widen=True)
    casts = write_casts(table, data)
    if casts:
        listed = "; ".join(f"column {cast.column}: expected {cast.table_type}, got {cast.data_type}" for cast in casts)
        raise SchemaMismatchException(
            f"The staged files do not have the types of table {log.uri} version {handle.read_version}: {listed}. "
            "Have the job cast them.",
            table=log.uri,
            version=handle.read_version,
        )


def _predicate(
    log: DeltaLog, handle: TransactionHandle, text: str, schema_string: str, partition_columns: Sequence[str]
) -> Predicate:
    """Return a predicate on the table, or, while there is none, on what was staged to create it."""
    if handle.schema_string is not None:
        return parse_predicate(log, handle, text)
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import parse_schema

    return Predicate.parse(text, parse_schema(schema_string), partition_columns)


def _refuse_data_predicate(handle: TransactionHandle, predicate: Predicate) -> None:
    """Refuse ``replaceWhere`` on data columns: whether rows of finished files satisfy it shows only in the rows."""
    if not predicate.partition_only:
        raise DeltaIllegalArgumentException(
            f"replace_where ({predicate.text}) of files that another job wrote may only name the partition columns "
            f"({', '.join(handle.partition_columns)}) of table {handle.table}. Use @task.delta_stage for data columns.",
            table=handle.table,
            version=handle.read_version,
        )


def _inside_staging(handle: TransactionHandle, path: str | None) -> str:
    """Return the directory relative to the table root."""
    directory = transaction_directory(handle.transaction_id)
    if path is None:
        return directory
    relative = path.rstrip("/")
    if "://" in relative or relative.startswith(("/", "file:")):
        roots = [handle.staging_path, handle.staging_path.replace("s3://", "s3a://", 1), f"file://{handle.staging_path}"]
        base = next((root for root in roots if relative == root or relative.startswith(f"{root}/")), None)
        if base is None:
            raise StagingException(
                f"{path} is not under the staging path {handle.staging_path} of transaction {handle.transaction_id} on table "
                f"{handle.table}. Have the job write there: only files that stay where they are can be published.",
                table=handle.table,
                version=handle.read_version,
            )
        relative = relative[len(base) :].lstrip("/")
    if ".." in relative.split("/"):
        raise StagingException(f"{path} leads out of the staging path {handle.staging_path}", table=handle.table)
    return posixpath.normpath(f"{directory}/{relative}")


def _check_inside_predicate(
    log: DeltaLog, handle: TransactionHandle, predicate: Predicate | None, adds: Sequence[AddFile]
) -> None:
    """Check that every file lies in a partition that the predicate may select; rows were checked when they were written."""
    if predicate is None:
        return
    for add in adds:
        if not predicate.matches_partition(add.partition_values):
            where = ", ".join(f"{k}={v}" for k, v in add.partition_values.items())
            raise ReplaceWhereMismatchException(
                f"{add.path} lies in the partition [{where}], outside replaceWhere ({predicate.text}) of table {log.uri}. "
                "Nothing was "
                "committed; filter the rows or widen the predicate.",
                table=log.uri,
                version=handle.read_version,
            )
