"""Stages that build on each other: each sees the table as the earlier stages of its transaction leave it.

A stage that is planned ``after`` others reads what they staged as if it were committed. What it removes of that never reaches
the log: the commit publishes the net effect of all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import PredicateException, StageConflictException
from airflow_delta.log.features.schema_merge import merge_schema
from airflow_delta.table.definition.apply_changes import altered_definition
from airflow_delta.table.definition.create import as_defined, written
from airflow_delta.table.stage.load import StageActions

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.table_definition import TableDefinition


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


def definition_after(table: TableDefinition, after: Sequence[StageActions], *, seed: str) -> TableDefinition:
    """Return what the table is as earlier stages leave it.

    :param table: what it is at the version that the transaction reads.
    :param seed: id of the transaction, which names new columns.
    """
    changes_before = 0
    for stage in after:
        write = stage.write
        if write.changes:
            table = altered_definition(table, write, changes_before, seed=seed)
            changes_before += len(write.changes)
            continue
        staged = written(write)
        columns = table  # those of a table that a stage defines came with its schema
        if write.definition:
            table = as_defined(table, write.definition)
        if not columns.is_known or write.overwrite_schema:
            table = table.with_schema(staged.schema, write.partition_columns)
        elif write.merge_schema:
            merged = merge_schema(
                columns.schema, staged.schema, merge=True, widen=table.widens_types, table=table.table, version=table.version
            )
            table = table.with_schema(merged, columns.partition_columns)
        elif write.definition:
            table = table.with_schema(columns.schema, columns.partition_columns)
    return table.with_schema(table.schema, table.partition_columns) if after and table.is_known else table


def predicate_of(table: TableDefinition, write: StagedWrite, text: str) -> Predicate:
    """Return a predicate of a staged write; it may name columns that this stage or an earlier one adds.

    :param table: that the stage was planned on.
    :raises PredicateException: if neither the table nor the staged write has the columns.
    """
    from airflow_delta.log.expressions.predicate import Predicate

    if table.is_known:
        try:
            partition_columns = table.partition_columns or (write.partition_columns if table.version < 0 else ())
            return Predicate.parse(text, table.schema, partition_columns)
        except PredicateException:
            if table.schema_string == write.schema_string:
                raise
    return Predicate.parse(text, written(write).schema, write.partition_columns)
