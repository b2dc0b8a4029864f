"""A ``WRITE`` stage after Spark: Parquet files become staged actions, with statistics from their footers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.choices import ENFORCE
from airflow_delta.contract.drift import check_schema
from airflow_delta.contract.location import Location
from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    ReplaceWhereMismatchException,
    SchemaMismatchException,
    StagingException,
)
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, RemoveFile
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.features.schema_merge import merge_schema, write_casts
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.create import define_table
from airflow_delta.table.definition.staged_definition import as_defined
from airflow_delta.table.files.adds import DataFiles, Footers
from airflow_delta.table.files.finished_files import check_finished_files, find_finished_files
from airflow_delta.table.files.finished_schema import mapped_schema_of_files, schema_of_files
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.stage.data_change import check_replacement, refuse_untold
from airflow_delta.table.stage.key_reads import key_reads
from airflow_delta.table.stage.plan_create import defining
from airflow_delta.table.stage.rewritten_files import rewritten_files
from airflow_delta.table.stage.scan import undecided_files, zone_needed
from airflow_delta.table.stage.source_reads import with_views
from airflow_delta.table.stage.stage_view import StageView
from airflow_delta.table.stage.write.expected_schema import expected_schema_of
from airflow_delta.table.stage.write.options import check_write_options
from airflow_delta.table.start.new_table import check_new_schema

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType


def collect_stage(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Turn the files of one attempt into staged actions, in the worker, after Spark.

    Statistics come from the Parquet footers, partition values from the directories of this attempt.

    :raises SchemaMismatchException: if what was written does not fit the table.
    :raises ReplaceWhereMismatchException: if a file lies in a partition outside the predicate.
    :raises StagedFileException: if the files are not those that Spark says it wrote, or a file cannot be read as Parquet.
    """
    arguments = WriteArguments.of(request)
    stage = stage.reported(request, report, arguments)
    if not report.directories:
        raise stage.handle.error(
            StagingException,
            f"The report of stage {request.stage} names no directory; even zero rows are written to one. "
            "Clear the start task with everything downstream.",
        )
    removes = [file.remove(0) for file in rewritten_files(stage, request, report)]
    defined: dict[str, Any] = {}
    if arguments.create is not None:
        definition = define_table(
            stage.handle,
            stage.snapshot,
            mode=arguments.create.mode,
            schema=report.schema_string,
            partition_by=report.partition_columns,
            cluster_by=arguments.create.cluster_by,
            properties=arguments.create.properties,
            description=arguments.create.description,
        )
        defined = defining(stage.handle, definition, as_select=True)
        stage = replace(stage, given_target=as_defined(stage.definition, definition))
    target = stage.target
    written = TableDefinition.of_rows(report.schema_string, report.partition_columns)
    if request.overwrite_schema or not target.is_known:
        check_new_schema(report.schema_string, report.partition_columns, target.configuration, table=target.table)
    else:
        _check_schema(target, written, merge=request.merge_schema, widen=request.rules.type_widening)
    decided = request.overwrite_schema or arguments.create is not None
    footers = Footers(stage.log, target, written, report.time_zone, overwrite_schema=decided)
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
        predicate = _predicate(stage, request.replace_where, written)
        _check_inside_predicate(target, predicate, new.adds)
    if not arguments.data_change:
        new.adds = [msgspec.structs.replace(add, data_change=False) for add in new.adds]
    if arguments.replace_on is not None:
        defined |= {"mode": "rewrite", "parameters": dict(arguments.parameters or {})}
    return stage.staged(
        new,
        copied,
        removes,
        [AddCDCFile(path=add.path, partition_values=add.partition_values, size=add.size) for add in changed.adds],
        **{
            "mode": request.mode,
            "replace_where": request.replace_where,
            "schema_string": report.schema_string,
            "merge_schema": request.merge_schema,
            "overwrite_schema": request.overwrite_schema,
            "partition_columns": report.partition_columns,
            "reads": _reads(stage, request, report, removes),
            "data_change": arguments.data_change,
            "keeps_row_ids": arguments.row_ids is not None,
            "identity_high_water_marks": new.marks,
            **defined,
        },
        sources=tuple(source.position for source in request.sources),
    )


def _reads(stage: StageView, request: StageRequest, report: StageReport, removes: Sequence[RemoveFile]) -> DeclaredReads:
    """Return what the stage depends on: what it may have read, and the files that it rewrote.

    Rows that ``replace_on`` replaces may be anywhere in the table. If all of them equal a new row in some columns, its key values
    make that narrower: then the table is also read by the predicate that these are of.
    """
    predicates: tuple[str, ...] = ()
    whole_table = False
    if request.scan is not None:
        predicates = () if request.scan.predicate is None else (request.scan.predicate,)
        whole_table = request.scan.predicate is None
    if request.rewrite is None:
        return with_views(request, DeclaredReads(predicates=predicates, whole_table=whole_table))
    if request.replace_where is None:
        keys = key_reads(stage, request, report, WriteArguments.of(request).keys)
        predicates += tuple(key.predicate for key in keys)
        files = tuple(remove.path for remove in removes)
        reads = DeclaredReads(predicates=predicates, files=files, whole_table=True, keys=keys, selected=bool(keys))
        return with_views(request, reads)
    reads = DeclaredReads(predicates=(*predicates, request.replace_where), files=report.rewritten_files, whole_table=whole_table)
    return with_views(request, reads)


def collect_files(
    stage: StageView,
    *,
    path: str | None = None,
    mode: str = "append",
    replace_where: str | None = None,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] = (),
    time_zone: str = "UTC",
    rows_checked: bool = False,
    schema_policy: str = ENFORCE,
    expected_schema: str | Mapping[str, Any] | None = None,
    **others: Any,
) -> StagedWrite:
    """Turn Parquet files that any job wrote under the transaction's staging path into staged actions.

    Every file must be Parquet, whatever its name; hidden ones (``_*``, ``.*``) are ignored. The schema comes from the files; a
    partition column has the table's type, or is a string in a new table whose schema the start task did not set.

    :param path: directory that the job wrote, a URI or relative to the handle's staging path; not the staging path itself.
    :param time_zone: time zone of timestamps in the names of partition directories.
    :param rows_checked: the job has checked the constraints of the table, which files cannot show.
    :param schema_policy: ``enforce`` or ``strict``.
    :param expected_schema: under ``strict``: the schema that the files must have; default: the table's.
    :param others: options of a write that need rows on Spark; refused.
    :raises DeltaIllegalArgumentException: if the table has rules that finished files cannot be checked for, or no path is given.
    :raises DeltaAnalysisException: if a column has a type that Spark cannot read.
    :raises SchemaDriftException: if the write is strict, and the files do not have the expected schema.
    :raises SchemaMismatchException: if a column has another type or spelling than in the table.
    :raises StagedFileException: if there is no file, or one that is not Parquet.
    :raises StagingException: if the path is not under the transaction's staging path, or belongs to another stage.
    """
    log, handle, table = stage.log, stage.handle, stage.target
    if others:
        raise handle.error(
            DeltaIllegalArgumentException,
            f"Finished files cannot be staged with {', '.join(others)}: that needs the rows. Use @task.delta_stage or "
            f"DeltaStageSparkSubmitOperator (table {handle.table})",
        )
    stage.check_open()
    partition_columns = check_write_options(
        table,
        append_only=stage.is_append_only,
        mode=mode,
        replace_where=replace_where,
        overwrite_schema=overwrite_schema,
        partition_by=partition_by,
    )
    directory = _inside_staging(handle, path)
    statuses, footers = find_finished_files(log, handle, directory)
    files = list(zip(statuses, footers, strict=True))
    known = table if table.is_known and not overwrite_schema else None
    rules = table_rules(table, overwrite_schema=overwrite_schema)
    if rules.column_mapping != "none":
        schema_string = mapped_schema_of_files(log, table, files, known, partition_columns, rules)
    else:
        schema_string = schema_of_files(log, files, known, partition_columns)
    written = TableDefinition.of_rows(schema_string, partition_columns)
    expected = expected_schema_of(table, schema_policy, expected_schema, changes=merge_schema or overwrite_schema)
    if expected is not None:
        check_schema(
            written.struct,
            TableDefinition.of_rows(expected).struct,
            table=log.uri,
            version=stage.handle.read_version,
            rules=rules,
            adds_columns=merge_schema or overwrite_schema,
        )
    if known is not None:
        _check_schema(table, written, merge=merge_schema, widen=rules.type_widening)
        _refuse_casts(table, written, widen=merge_schema and rules.type_widening)
    else:
        check_new_schema(schema_string, partition_columns, table.configuration, table=log.uri)
    columns = [f["name"] for f in written.struct["fields"]]
    check_finished_files(table, rules, columns, rows_checked=rows_checked, overwrite_schema=overwrite_schema)
    predicate = None if replace_where is None else _predicate(stage, replace_where, written)
    if predicate is not None:
        _refuse_data_predicate(table, predicate)
        if known is not None and undecided_files(stage, predicate):
            raise zone_needed(table, predicate, "With files that another job wrote")
    check_replacement(stage, mode=mode, predicate=predicate)
    if rules.change_data:
        refuse_untold(stage, "A write", tells=False)
    new = DataFiles()
    Footers(log, table, written, time_zone, overwrite_schema=overwrite_schema).collect(directory, new, statuses, footers)
    _check_inside_predicate(table, predicate, new.adds)
    return stage.staged(
        new,
        mode=mode,
        replace_where=replace_where,
        schema_string=schema_string,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        partition_columns=partition_columns,
    )


def _check_schema(table: TableDefinition, written: TableDefinition, *, merge: bool, widen: bool) -> StructType:
    return merge_schema(
        table.schema, written.schema, merge=merge, widen=merge and widen, table=table.table, version=table.version
    )


def _refuse_casts(table: TableDefinition, written: TableDefinition, *, widen: bool) -> None:
    """Refuse finished files whose types differ from the table's: their rows cannot be cast."""
    schema, data = table.schema, written.schema
    if widen:
        schema = merge_schema(schema, data, merge=True, widen=True)
    casts = write_casts(schema, data)
    if casts:
        listed = "; ".join(f"column {cast.column}: expected {cast.table_type}, got {cast.data_type}" for cast in casts)
        raise table.error(
            SchemaMismatchException,
            f"The staged files do not have the types of table {table.table} version {table.version}: {listed}. Have "
            "the job cast them.",
        )


def _predicate(stage: StageView, text: str, written: TableDefinition) -> Predicate:
    """Return a predicate on the table, or on the data staged to create it."""
    if stage.target.is_known:
        return stage.predicate(text)
    return Predicate.parse(text, written.schema, written.partition_columns)


def _refuse_data_predicate(table: TableDefinition, predicate: Predicate) -> None:
    """Refuse ``replaceWhere`` on data columns: only the rows show whether finished files satisfy it."""
    if not predicate.partition_only:
        raise table.error(
            DeltaIllegalArgumentException,
            f"replace_where ({predicate.text}) of files that another job wrote may only name the partition columns "
            f"({', '.join(table.partition_columns)}) of table {table.table}. Use @task.delta_stage for data columns.",
        )


def _inside_staging(handle: TransactionHandle, path: str | None) -> str:
    """Return the directory relative to the table root."""
    directory = transaction_directory(handle.transaction_id)
    if path is None:
        return directory
    relative = path.rstrip("/")
    if "://" in relative or relative.startswith(("/", "file:")):
        staging, given = Location.parse(handle.staging_path).resolved(), Location.parse(relative).resolved()
        if not staging.holds(given):
            raise handle.error(
                StagingException,
                f"{path} is not under the staging path {handle.staging_path} of transaction {handle.transaction_id} on table "
                f"{handle.table}. Have the job write there: files are published where they are.",
            )
        relative = given.path[len(staging.path) :].lstrip("/")
    if ".." in relative.split("/"):
        raise handle.error(StagingException, f"{path} leads out of the staging path {handle.staging_path}")
    return posixpath.normpath(f"{directory}/{relative}")


def _check_inside_predicate(table: TableDefinition, predicate: Predicate | None, adds: Sequence[AddFile]) -> None:
    """Check that every file lies in a partition that the predicate may select; rows were checked when they were written."""
    if predicate is None:
        return
    for add in adds:
        if not predicate.matches_partition(add.partition_values):
            where = ", ".join(f"{k}={v}" for k, v in table.named_partition(add.partition_values).items())
            raise table.error(
                ReplaceWhereMismatchException,
                f"{add.path} lies in the partition [{where}], outside replaceWhere ({predicate.text}) of table {table.table}. "
                "Nothing was committed; filter the rows or widen the predicate.",
            )
