"""The definition that the stages of a transaction give a table: one defines it, later ones (``after=``) may add columns.

It travels in the staged write of its stage (``StagedWrite.definition``); later stages work on the table as defined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.contract.payloads import Json, StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.properties import strip_protocol_properties
from airflow_delta.log.features.schema_merge import merge_schema
from airflow_delta.log.features.type_widening import stored_otherwise, with_type_changes
from airflow_delta.log.schema.types import to_json
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType


def written(write: StagedWrite) -> TableDefinition:
    """Return the definition that the rows of a stage have by themselves."""
    return TableDefinition.of_rows(write.schema_string, write.partition_columns)


def as_defined(table: TableDefinition, definition: Mapping[str, Any]) -> TableDefinition:
    """Return what the table is once a stage has defined it."""
    metadata = definition["metaData"]
    return replace(
        table,
        schema_string=metadata["schemaString"],
        partition_columns=tuple(metadata.get("partitionColumns", ())),
        configuration=strip_protocol_properties(metadata.get("configuration", {})),
        features=frozenset(definition["features"]),
        description=metadata.get("description"),
    )


def builds_on(write: StagedWrite, others: Sequence[StagedWrite]) -> bool:
    """Return whether a stage was planned on top of all others."""
    return all(f"{other.stage}/{other.attempt}" in write.after for other in others)


def replaces_columns(write: StagedWrite, before: Sequence[StagedWrite]) -> bool:
    """Return whether the rows of a stage decide the columns, whatever the table and earlier stages have.

    :param before: those that come before it, beside it or under it.
    """
    return write.overwrite_schema and not write.definition and builds_on(write, before)


def definition_of(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> Json | None:
    """Return the definition that a stage gives the table, if one does.

    :raises StageConflictException: if several stages do, or a stage was planned on the table as it was before.
    """
    defining = [write for write in writes if write.definition]
    if not defining:
        return None
    others = [write.stage for write in writes if write is not defining[0] and not builds_on(write, defining[:1])]
    if others or len(defining) > 1:
        what = "define" if len(defining) > 1 else "work on"
        named = ", ".join(write.stage for write in defining) if len(defining) > 1 else ", ".join(others)
        raise handle.error(
            StageConflictException,
            f"Stage {defining[0].stage} of transaction {handle.transaction_id} redefines table {handle.table} "
            f"({defining[0].operation}), while {named} also {what} it. Give every other stage after=<output of "
            f"{defining[0].stage}>.",
        )
    return defining[0].definition


def defined_metadata(handle: TransactionHandle, writes: Sequence[StagedWrite], definition: Mapping[str, Any]) -> Metadata:
    """Return the metadata to commit: those of the definition with the columns that later stages add."""
    metadata = msgspec.convert(definition["metaData"], Metadata)
    table = TableDefinition.of(metadata, table=handle.table, version=handle.read_version)
    schema = table.schema
    for write in writes:
        if not write.definition:
            schema = schema_with(table, schema, write)
    return msgspec.structs.replace(metadata, schema_string=to_json(schema))


def schema_with(table: TableDefinition, known: StructType, write: StagedWrite) -> StructType:
    """Return the schema that the table has after a stage, with the types that files have for a column recorded.

    :param known: after earlier stages.
    :raises SchemaMismatchException: if what the stage wrote does not fit.
    :raises StageConflictException: if readers do not take the type of a column for that of the table and earlier stages: files
        cannot be cast any more.
    """
    staged = written(write).schema
    widens = table.widens_types
    for column, given, wanted in stored_otherwise(known, staged, widening=write.merge_schema and widens):
        raise table.error(
            StageConflictException,
            f"Stage {write.stage} has written column {column} of table {table.table} as {given}, which the table or another "
            f"stage has as {wanted}: not every reader could read it. Cast it to the same type and "
            "clear the start task with everything downstream.",
        )
    merged = merge_schema(
        known,
        staged,
        merge=write.merge_schema,
        widen=write.merge_schema and widens,
        table=table.table,
        version=table.version,
    )
    # A column that the transaction adds may have files of each type.
    return with_type_changes(with_type_changes(merged, known), staged) if widens else merged
