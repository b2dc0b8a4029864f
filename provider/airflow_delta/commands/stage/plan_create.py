"""CREATE TABLE, CREATE OR REPLACE TABLE and REPLACE TABLE, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.definition.columns_sql import schema_of_columns
from airflow_delta.commands.definition.create import OPERATIONS, define_table
from airflow_delta.commands.stage.staged_write import staged_write
from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableAlreadyExistsException,
    DeltaTableNotFoundException,
    StageConflictException,
)
from airflow_delta.staging.contract import Json, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import stage_key

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

MODES = tuple(OPERATIONS)


def plan_create(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    schema: str,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    mode: str = "create",
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StagedWrite:
    """Stage the creation of a table, or its replacement by another one at the same location. History is kept.

    Stages planned on top of it (``after=``) write into the new table; the commit is one version.

    :param schema: columns as SQL words them (``definition.columns_sql``), or Spark's JSON form.
    :param cluster_by: up to four columns, those of structs with dots.
    :param properties: table properties; those of a table that is replaced are gone.
    :param mode: ``create``, ``create_or_replace``, ``replace`` or ``create_if_not_exists``.
    :raises DeltaTableAlreadyExistsException: the table exists and is not to be replaced.
    :raises DeltaTableNotFoundException: there is no table to replace.
    :raises DeltaAnalysisException: schema, partitioning, clustering or an expression is not valid.
    """
    if after:
        raise StageConflictException(
            f"Stage {task_id} creates table {handle.table}: it cannot build on other stages, they can build on it.",
            table=handle.table,
        )
    check_create(handle, mode)
    identity: dict[str, Any] = {
        "stage": stage_key(task_id, map_index),
        "task_id": task_id,
        "map_index": map_index,
        "attempt": attempt,
    }
    if mode == "create_if_not_exists" and handle.read_version >= 0:
        return _stage(log, handle, handle.schema_string or "", handle.partition_columns, **identity)
    definition = define_table(
        log,
        handle,
        mode=mode,
        schema=schema_of_columns(schema),
        partition_by=partition_by,
        cluster_by=cluster_by,
        properties=properties,
        description=description,
    )
    metadata = definition["metaData"]
    columns = tuple(metadata.get("partitionColumns", ()))
    return _stage(log, handle, metadata["schemaString"], columns, **identity, **defining(handle, definition))


def defining(handle: TransactionHandle, definition: Json, *, as_select: bool = False) -> Json:
    """Return the fields that make a staged write define the table: what is there is replaced."""
    # Delta counts CREATE OR REPLACE TABLE AS SELECT as no blind append even where it creates the table.
    overwrites = handle.read_version >= 0 or (as_select and definition["mode"] == "create_or_replace")
    return {
        "operation": OPERATIONS[definition["mode"]] + (" AS SELECT" if as_select else ""),
        "mode": "overwrite" if overwrites else "append",
        "overwrite_schema": handle.read_version >= 0,
        "definition": definition,
    }


def check_create(handle: TransactionHandle, mode: str) -> None:
    """Check that the table is there, or is not, as the mode wants it.

    :raises DeltaTableAlreadyExistsException: the table exists and is not to be replaced.
    :raises DeltaTableNotFoundException: there is no table to replace.
    :raises AppendOnlyException: the table that would be replaced only takes appends.
    """
    if mode not in MODES:
        raise DeltaIllegalArgumentException(f"mode must be one of {', '.join(MODES)}, got {mode!r}", table=handle.table)
    if handle.committed is not None:
        raise DeltaIllegalStateException(
            f"Transaction {handle.app_id!r} is committed in version {handle.committed.version} of table {handle.table}; there is "
            "nothing to stage. Clear the start task with another rerun_policy to do it again.",
            table=handle.table,
            version=handle.committed.version,
        )
    exists = handle.read_version >= 0
    if exists and mode == "create":
        raise DeltaTableAlreadyExistsException(
            f"There is a table at {handle.table} already, version {handle.read_version} (TABLE_OR_VIEW_ALREADY_EXISTS). Use "
            "mode='create_if_not_exists' to leave it, or 'create_or_replace' to replace it.",
            table=handle.table,
            version=handle.read_version,
        )
    if not exists and mode == "replace":
        raise DeltaTableNotFoundException(
            f"There is no table to replace at {handle.table}. Use mode='create_or_replace'.", table=handle.table
        )
    append_only = handle.configuration.get("delta.appendOnly", "false").lower() == "true"
    if exists and "replace" in mode and append_only:
        raise AppendOnlyException(
            f"Table {handle.table} version {handle.read_version} only takes appends (delta.appendOnly=true, "
            "DELTA_CANNOT_MODIFY_APPEND_ONLY) and cannot be replaced. Unset the property first.",
            table=handle.table,
            version=handle.read_version,
        )


def handle_of_new(handle: TransactionHandle, create: Mapping[str, Any]) -> TransactionHandle:
    """Return the handle of a table whose columns the rows of CREATE TABLE AS SELECT decide."""
    from airflow_delta.commands.begin.begin import DEFAULT_CONFIGURATION
    from airflow_delta.log.features import column_mapping
    from airflow_delta.log.features.properties import validate

    configuration = validate({**DEFAULT_CONFIGURATION, **create["properties"]}, table=handle.table)
    highest = handle.configuration.get(column_mapping.MAX_COLUMN_ID)
    if highest is not None and column_mapping.mode(configuration) != "none":
        configuration[column_mapping.MAX_COLUMN_ID] = highest  # ids of columns that are gone are not given again
    return replace(
        handle, schema_string=None, partition_columns=tuple(create["partitionBy"]), configuration=configuration, features=()
    )


def _stage(
    log: DeltaLog, handle: TransactionHandle, schema_string: str, partition_columns: Sequence[str], **staged: Any
) -> StagedWrite:
    from airflow_delta.commands.files.adds import DataFiles

    return staged_write(
        log,
        handle,
        DataFiles(),
        DataFiles(),
        [],
        [],
        schema_string=schema_string,
        partition_columns=tuple(partition_columns),
        **{"mode": "append", **staged},
    )
