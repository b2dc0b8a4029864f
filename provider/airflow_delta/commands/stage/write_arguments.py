"""What the arguments of a write request mean to the worker, once Spark has done its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.begin.read_snapshot import parse_predicate
from airflow_delta.commands.definition.create import as_defined, define_table
from airflow_delta.commands.stage.after import handle_after, stage_id
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.commands.stage.plan_create import defining
from airflow_delta.commands.stage.scan import candidate_files
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.staging.contract import Json, TransactionHandle
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def as_planned(
    log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport, earlier: Sequence[StageActions]
) -> tuple[Json, TransactionHandle]:
    """Return what the arguments of the request add to the staged write, and the handle of the table that it was planned for.

    :param earlier: from :func:`airflow_delta.commands.stage.after.earlier_of`.
    """
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
    if earlier:
        extra["after"] = tuple(stage_id(stage.write) for stage in earlier)
        handle = handle_after(handle, earlier)
    if "replaceOn" in arguments:
        extra |= {"mode": "rewrite", "parameters": dict(arguments["parameters"])}
    if not arguments.get("dataChange", True):
        extra["data_change"] = False
    return extra, handle


def rewritten_files(
    log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport, earlier: Sequence[StageActions]
) -> list[AddFile]:
    """Return the files that an attempt has rewritten, as the version that was read, or an earlier stage, has them.

    :param handle: of the transaction.
    :param earlier: from :func:`airflow_delta.commands.stage.after.earlier_of`.
    :raises StagingException: one was not there when the stage was planned.
    """
    wanted = list(dict.fromkeys(report.rewritten_files))
    if not wanted:
        return []
    text = None if request.rewrite is None else request.rewrite.predicate
    predicate = None if text is None else parse_predicate(log, handle_after(handle, earlier), text)
    live = {file.path: file for file in candidate_files(log, handle, predicate, earlier)}
    lost = next((path for path in wanted if path not in live), None)
    if lost is not None:
        raise StagingException(
            f"Stage {request.stage} reports the rewritten file {lost}, which is not among the files of table {log.uri} version "
            f"{handle.read_version} that it was planned on. Clear the stage.",
            table=log.uri,
            version=handle.read_version,
        )
    return [live[path] for path in wanted]
