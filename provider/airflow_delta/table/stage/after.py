"""Stages that build on each other: each sees the table as the earlier stages of its transaction leave it.

A stage that is planned ``after`` others reads what they staged as if it were committed. What it removes of that never reaches
the log: the commit publishes the net effect of all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import PredicateException, StageConflictException
from airflow_delta.table.definition.create import as_defined
from airflow_delta.table.stage.load import StageActions

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate


def stage_id(write: StagedWrite) -> str:
    """Return what ``StagedWrite.after`` calls a stage."""
    return f"{write.stage}/{write.attempt}"


def in_order(handle: TransactionHandle, stages: Sequence[StageActions]) -> list[StageActions]:
    """Return the stages, each after those that it was planned on top of, otherwise in the given order.

    :raises StageConflictException: if a stage builds on one that is not given, or on another attempt of one.
    """
    known = {stage_id(stage.write) for stage in stages}
    for stage in stages:
        missing = sorted(set(stage.write.after) - known)
        if missing:
            raise StageConflictException(
                f"Stage {stage.write.stage} of transaction {handle.transaction_id} on table {handle.table} was planned on top of "
                f"{', '.join(missing)}, which is not among the staged writes. Pass them as well; if such a stage has run again "
                f"since, clear {stage.write.stage}.",
                table=handle.table,
                version=handle.read_version,
            )
    ordered: list[StageActions] = []
    placed: set[str] = set()
    waiting = list(stages)
    while waiting:
        ready = [stage for stage in waiting if placed.issuperset(stage.write.after)]
        if not ready:
            names = ", ".join(stage.write.stage for stage in waiting)
            raise StageConflictException(f"The stages {names} were planned on top of each other", table=handle.table)
        ordered += ready
        placed.update(stage_id(stage.write) for stage in ready)
        waiting = [stage for stage in waiting if stage_id(stage.write) not in placed]
    return ordered


def handle_after(handle: TransactionHandle, after: Sequence[StageActions]) -> TransactionHandle:
    """Return the handle of the table as earlier stages leave it: its schema, partitioning and properties."""
    if not after:
        return handle
    from airflow_delta.log.features.schema_merge import merge_schema
    from airflow_delta.log.schema.types import parse_schema, to_json

    schema = None if handle.schema_string is None else parse_schema(handle.schema_string)
    partition_columns, changes_before = handle.partition_columns, 0
    for stage in after:
        write = stage.write
        if write.changes:
            from airflow_delta.table.definition.apply_changes import altered_handle

            known = replace(handle, schema_string=to_json(schema) if schema else None, partition_columns=tuple(partition_columns))
            handle = altered_handle(known, write, changes_before)
            schema, partition_columns = parse_schema(handle.schema_string or ""), handle.partition_columns
            changes_before += len(write.changes)
            continue
        staged = parse_schema(write.schema_string)
        if write.definition:
            handle = as_defined(handle, write.definition)
        if schema is None or write.overwrite_schema:
            schema, partition_columns = staged, write.partition_columns
        elif write.merge_schema:
            schema = merge_schema(
                schema, staged, merge=True, widen=_widens(handle), table=handle.table, version=handle.read_version
            )
    return replace(handle, schema_string=None if schema is None else to_json(schema), partition_columns=tuple(partition_columns))


def _widens(handle: TransactionHandle) -> bool:
    from airflow_delta.log.features.properties import TableProperties

    return handle.read_version >= 0 and bool(TableProperties(dict(handle.configuration)).get("enableTypeWidening"))


def predicate_of(handle: TransactionHandle, write: StagedWrite, text: str) -> Predicate:
    """Return a predicate of a staged write; it may name columns that this stage or an earlier one adds.

    :raises PredicateException: if neither the table nor the staged write has the columns.
    """
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import parse_schema

    if handle.schema_string is not None:
        try:
            partition_columns = handle.partition_columns or (write.partition_columns if handle.read_version < 0 else ())
            return Predicate.parse(text, parse_schema(handle.schema_string), partition_columns)
        except PredicateException:
            if handle.schema_string == write.schema_string:
                raise
    return Predicate.parse(text, parse_schema(write.schema_string), write.partition_columns)
