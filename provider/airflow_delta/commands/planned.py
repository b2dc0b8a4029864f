"""What the arguments of a write request mean to the worker, once Spark has done its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.commands.create import defining
from airflow_delta.commands.definition import as_defined, define_table
from airflow_delta.commands.earlier import stage_id
from airflow_delta.commands.staged import StageActions
from airflow_delta.commands.table import read_snapshot
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions import RemoveFile
from airflow_delta.staging.contract import Json, TransactionHandle
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def after_arguments(earlier: Sequence[StageActions]) -> Json:
    """Return what a request has to say of the stages that it was planned on top of."""
    definition = next((stage.write.definition for stage in earlier if stage.write.definition), None)
    return {"ids": [stage_id(stage.write) for stage in earlier], "definition": definition}


def as_planned(
    log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport
) -> tuple[Json, TransactionHandle]:
    """Return what the arguments of the request add to the staged write, and the handle of the table that it was planned for."""
    arguments = request.arguments
    extra: Json = {}
    if create := arguments.get("create"):
        definition = define_table(
            log,
            handle,
            mode=create["mode"],
            schema=report.schema_string,
            partition_by=report.partition_columns,
            cluster_by=create["clusterBy"],
            properties=create["properties"],
            description=create["description"],
        )
        extra |= defining(handle, definition, as_select=True)
        handle = as_defined(handle, definition)
    if after := arguments.get("after"):
        extra["after"] = tuple(after["ids"])
        if after["definition"]:
            handle = as_defined(handle, after["definition"])
        if not request.overwrite_schema:
            handle = replace(handle, schema_string=request.schema_string, partition_columns=request.partition_columns)
    if "replaceOn" in arguments:
        extra |= {"mode": "rewrite", "parameters": dict(arguments["parameters"])}
    if not arguments.get("dataChange", True):
        extra["data_change"] = False
    return extra, handle


def removes_of_plan(log: DeltaLog, handle: TransactionHandle, request: StageRequest, paths: Sequence[str]) -> list[RemoveFile]:
    """Return the removes of rewritten files, also of those that an earlier stage of the transaction has added."""
    wanted = set(paths)
    planned = {file.path: file for file in request.rewrite.files} if request.rewrite is not None else {}
    known = {file.path: file for file in read_snapshot(log, handle).add_files() if file.path in wanted} if wanted else {}
    removes = []
    for path in sorted(wanted):
        file, live = planned.get(path), known.get(path)
        marked = file is not None and file.deletion_vector is not None
        fits = live is None or (live.deletion_vector is not None) == marked
        if file is None or not fits or (live is None and marked):
            raise StagingException(
                f"The stage {request.stage} has rewritten {path}, which is not among the files of table {log.uri} that it was "
                "planned on, or of which an earlier stage of the transaction has marked rows as deleted. Give such stages "
                "transactions of their own.",
                table=log.uri,
                version=handle.read_version,
            )
        if live is not None:
            removes.append(live.remove(0))
        else:
            removes.append(RemoveFile(path=path, data_change=True, partition_values=file.partition_values, size=file.size))
    return removes
