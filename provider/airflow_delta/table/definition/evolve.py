"""The metadata that a commit of staged writes gives a table: new, with more columns, or with another schema."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaIllegalArgumentException, SchemaMismatchException, StageConflictException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.column_mapping import field_id
from airflow_delta.log.schema.types import to_json
from airflow_delta.log.schema.walk import dotted, walk_fields
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.definition.staged_definition import (
    defined_metadata,
    definition_of,
    replaces_columns,
    schema_with,
    written,
)

if TYPE_CHECKING:
    from airflow_delta.log.schema.types import StructType


def new_metadata(
    handle: TransactionHandle, table: TableDefinition, current: Metadata | None, writes: Sequence[StagedWrite]
) -> Metadata | None:
    """Return the metadata to commit with staged writes, ``None`` if they stay as they are.

    :param table: what the table is at the version that the transaction reads.
    :param current: its metadata there, ``None`` if the table does not exist.
    """
    if (definition := definition_of(handle, writes)) is not None:
        _check_column_ids(handle, writes)
        return defined_metadata(handle, writes, definition)
    if current is None:
        return _mapped(handle, _of_new_table(handle, table, writes), None, writes)
    changed = evolved(handle, current, writes)
    return None if changed is current else _mapped(handle, changed, current, writes)


def evolved(handle: TransactionHandle, current: Metadata, writes: Sequence[StagedWrite]) -> Metadata:
    """Return the metadata with the columns that the stages add; unchanged if there are none."""
    if not any(w.merge_schema or w.overwrite_schema for w in writes):
        return current
    table = TableDefinition.of(current, table=handle.table, version=handle.read_version)
    if any(w.overwrite_schema for w in writes):
        if not all(w.overwrite_schema for w in writes):
            raise handle.error(
                StageConflictException,
                f"Some stages of transaction {handle.transaction_id} replace the schema of table {handle.table}, others do not: "
                f"{', '.join(w.stage for w in writes if not w.overwrite_schema)}. Set overwrite_schema on all or none.",
            )
        try:
            schema, partition_columns = _union(table, None, writes), _partitioning(handle, deciding(writes))
        except SchemaMismatchException as error:
            raise handle.error(
                StageConflictException,
                f"The stages {', '.join(w.stage for w in writes)} of transaction {handle.transaction_id} replace the schema of "
                f"table {handle.table} by different ones. Give all of them the same columns. ({error.message})",
            ) from error
    else:
        schema, partition_columns = _union(table, table.schema, writes), list(current.partition_columns)
    if schema == table.schema and partition_columns == current.partition_columns:
        return current
    return msgspec.structs.replace(current, schema_string=to_json(schema), partition_columns=partition_columns)


def _mapped(handle: TransactionHandle, metadata: Metadata, current: Metadata | None, writes: Sequence[StagedWrite]) -> Metadata:
    """Return the metadata with the highest id of column mapping, including the stages' new columns."""
    if column_mapping.mode(metadata.configuration) == "none":
        return metadata
    _check_column_ids(handle, writes)
    return column_mapping.assign(metadata, current, overwrites_schema=any(w.overwrite_schema for w in writes))


def _check_column_ids(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
    known: dict[int, tuple[str, str]] = {}
    for write in writes:
        for path, field in walk_fields(written(write).schema):
            identity = field_id(field)
            if identity is None:
                continue
            other, stage = known.setdefault(identity, (dotted(path), write.stage))
            if other.lower() != dotted(path).lower():
                raise handle.error(
                    StageConflictException,
                    f"Stage {stage} adds column {other} to table {handle.table}, stage {write.stage} column {dotted(path)}, and "
                    "both gave it the same column mapping id. Have every stage write all new columns in the same order, or "
                    "add them in separate transactions.",
                )


def _of_new_table(handle: TransactionHandle, table: TableDefinition, writes: Sequence[StagedWrite]) -> Metadata:
    base = table.schema if table.is_known else None
    if base is None and not writes:
        raise handle.error(
            DeltaIllegalArgumentException,
            f"Table {handle.table} does not exist, and no stage says which columns it gets. Stage something, or give the "
            "start task a schema.",
        )
    return Metadata(
        id=str(uuid.uuid4()),
        name=table.name,
        description=table.description,
        schema_string=to_json(_union(table, base, writes)),
        partition_columns=_partitioning(handle, deciding(writes)) if writes else list(table.partition_columns),
        configuration=dict(table.configuration),
        created_time=int(time.time() * 1000),
    )


def deciding(writes: Sequence[StagedWrite]) -> Sequence[StagedWrite]:
    """Return the stages from the last one on that replaces the columns of all before it."""
    return writes[max((at for at, write in enumerate(writes) if replaces_columns(write, writes[:at])), default=0) :]


def _union(table: TableDefinition, base: StructType | None, writes: Sequence[StagedWrite]) -> StructType:
    rest = deciding(writes)
    schema = None if rest and replaces_columns(rest[0], writes[: -len(rest)]) else base
    for write in rest:
        staged = written(write).schema
        if schema is None:
            schema = staged
        else:
            _check_spelling(table, schema, write, staged)
            schema = schema_with(table, schema, write)
    if schema is None:
        raise table.error(SchemaMismatchException, f"No stage has written a schema for table {table.table}")
    return schema


def _check_spelling(table: TableDefinition, known: StructType, write: StagedWrite, staged: StructType) -> None:
    """Check that a stage spells columns like the table and earlier stages: its files are already written.

    With column mapping, files hold physical names, whatever the spelling in the query.

    :raises StageConflictException: if a column is spelled differently.
    """
    if table.column_mapping != "none":
        return
    spelled = {tuple(part.lower() for part in path): dotted(path) for path, _ in walk_fields(known)}
    for path, _ in walk_fields(staged):
        other = spelled.get(tuple(part.lower() for part in path))
        if other is not None and other != dotted(path):
            raise table.error(
                StageConflictException,
                f"Stage {write.stage} has written column {dotted(path)} of table {table.table}, which the table or another "
                f"stage spells {other}: not every reader would find it. Use the same spelling and "
                "clear the start task with everything downstream.",
            )


def _partitioning(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> list[str]:
    found = {write.partition_columns: write.stage for write in writes}
    if len(found) > 1:
        listed = "; ".join(f"{stage}: ({', '.join(columns)})" for columns, stage in found.items())
        raise handle.error(
            StageConflictException,
            f"The stages of transaction {handle.transaction_id} partition table {handle.table} in different ways "
            f"({listed}). Set partition_by on the start task only.",
        )
    return list(next(iter(found)))
