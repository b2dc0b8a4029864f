"""CREATE TABLE, CREATE OR REPLACE TABLE and REPLACE TABLE as a stage of a transaction, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import APPEND_ONLY, MAX_COLUMN_ID
from airflow_delta.contract.operations import CreateArguments
from airflow_delta.contract.payloads import Json, StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaIllegalArgumentException,
    DeltaTableAlreadyExistsException,
    DeltaTableNotFoundException,
    StageConflictException,
)
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.properties import validate
from airflow_delta.table.definition.columns_sql import schema_of_columns
from airflow_delta.table.definition.create import OPERATIONS, define_table
from airflow_delta.table.stage.stage_view import StageView
from airflow_delta.table.start.new_table import DEFAULT_CONFIGURATION

if TYPE_CHECKING:
    from airflow_delta.log.table_definition import TableDefinition


MODES = tuple(OPERATIONS)


def plan_create(
    stage: StageView,
    *,
    schema: str,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    mode: str = "create",
) -> StagedWrite:
    """Stage the creation or replacement of a table; history is kept.

    Stages planned on top of it (``after=``) write into the new table; the commit is one version.

    :param schema: columns as SQL (``definition.columns_sql``), or Spark's JSON form.
    :param cluster_by: up to four columns; dots lead into structs.
    :param properties: table properties; those of a replaced table are dropped.
    :param mode: ``create``, ``create_or_replace``, ``replace`` or ``create_if_not_exists``.
    :raises DeltaTableAlreadyExistsException: if the table exists and is not to be replaced.
    :raises DeltaTableNotFoundException: if there is no table to replace.
    :raises DeltaAnalysisException: if schema, partitioning, clustering or an expression is not valid.
    """
    handle = stage.handle
    if stage.stages:
        raise handle.error(
            StageConflictException,
            f"Stage {stage.own.task_id} creates table {handle.table}: it cannot build on other stages, only they on it.",
        )
    stage.check_open()
    check_create(stage.definition, mode)
    if mode == "create_if_not_exists" and handle.read_version >= 0:
        return stage.staged(mode="append")
    definition = define_table(
        handle,
        stage.snapshot,
        mode=mode,
        schema=schema_of_columns(schema),
        partition_by=partition_by,
        cluster_by=cluster_by,
        properties=properties,
        description=description,
    )
    metadata = definition["metaData"]
    return stage.staged(
        schema_string=metadata["schemaString"],
        partition_columns=tuple(metadata.get("partitionColumns", ())),
        **defining(handle, definition),
    )


def defining(handle: TransactionHandle, definition: Json, *, as_select: bool = False) -> Json:
    """Return the fields of a staged write that defines the table and replaces an existing one."""
    # To Delta, CREATE OR REPLACE TABLE AS SELECT is never a blind append, even if it creates the table.
    overwrites = handle.read_version >= 0 or (as_select and definition["mode"] == "create_or_replace")
    return {
        "operation": OPERATIONS[definition["mode"]] + (" AS SELECT" if as_select else ""),
        "mode": "overwrite" if overwrites else "append",
        "overwrite_schema": handle.read_version >= 0,
        "definition": definition,
    }


def check_create(table: TableDefinition, mode: str) -> None:
    """Check that the table exists, or not, as the mode requires.

    :raises DeltaTableAlreadyExistsException: if the table exists and is not to be replaced.
    :raises DeltaTableNotFoundException: if there is no table to replace.
    :raises AppendOnlyException: if the table that would be replaced only takes appends.
    """
    if mode not in MODES:
        raise table.error(DeltaIllegalArgumentException, f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    exists = table.version >= 0
    if exists and mode == "create":
        raise table.error(
            DeltaTableAlreadyExistsException,
            f"There already is a table at {table.table}, version {table.version} (TABLE_OR_VIEW_ALREADY_EXISTS). Use "
            "mode='create_if_not_exists' to leave it, or 'create_or_replace' to replace it.",
        )
    if not exists and mode == "replace":
        raise table.error(
            DeltaTableNotFoundException, f"There is no table to replace at {table.table}. Use mode='create_or_replace'."
        )
    append_only = table.configuration.get(APPEND_ONLY, "false").lower() == "true"
    if exists and "replace" in mode and append_only:
        raise table.error(
            AppendOnlyException,
            f"Table {table.table} version {table.version} only takes appends (delta.appendOnly=true, "
            "DELTA_CANNOT_MODIFY_APPEND_ONLY) and cannot be replaced. Unset the property first.",
        )


def definition_from_rows(table: TableDefinition, create: CreateArguments) -> TableDefinition:
    """Return the definition of a table whose columns come from the rows of CREATE TABLE AS SELECT.

    :param table: what there is before.
    """
    configuration = validate({**DEFAULT_CONFIGURATION, **create.properties}, table=table.table)
    highest = table.configuration.get(MAX_COLUMN_ID)
    if highest is not None and column_mapping.mode(configuration) != "none":
        configuration[MAX_COLUMN_ID] = highest  # ids of dropped columns are not reused
    return replace(
        table, schema_string=None, partition_columns=create.partition_by, configuration=configuration, features=frozenset()
    )
