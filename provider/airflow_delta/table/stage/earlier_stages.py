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
from airflow_delta.log.features import column_mapping
from airflow_delta.table.definition.apply_changes import altered_definition, with_written_identities
from airflow_delta.table.definition.staged_definition import as_defined, replaces_columns, schema_with, written

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.stage.load import StageActions


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
            raise handle.error(
                StageConflictException,
                f"Stage {stage.write.stage} of transaction {handle.transaction_id} on table {handle.table} was planned on top of "
                f"{', '.join(missing)}, which is not among the staged writes. Pass them as well; if such a stage has run again "
                f"since, clear {stage.write.stage}.",
            )
    ordered: list[StageActions] = []
    placed: set[str] = set()
    waiting = list(stages)
    while waiting:
        ready = [stage for stage in waiting if placed.issuperset(stage.write.after)]
        if not ready:
            names = ", ".join(stage.write.stage for stage in waiting)
            raise handle.error(StageConflictException, f"The stages {names} were planned on top of each other")
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
    writes = [stage.write for stage in after]
    for at, write in enumerate(writes):
        if write.changes:
            table = altered_definition(table, write, changes_before, seed=seed)
            changes_before += len(write.changes)
        elif write.definition:
            table = as_defined(table, write.definition)
        elif not table.is_known or replaces_columns(write, writes[:at]):
            table = _with_columns(table, written(write).schema, write.partition_columns)
        elif write.merge_schema or write.overwrite_schema:
            table = _with_columns(table, schema_with(table, table.schema, write), table.partition_columns)
        if write.identity_high_water_marks:
            table = replace(table, schema_string=with_written_identities(table.metadata, write).schema_string)
    return table


def _with_columns(table: TableDefinition, schema: StructType, partition_columns: Sequence[str]) -> TableDefinition:
    configuration = column_mapping.with_highest_id(table.configuration, schema)
    return replace(table.with_schema(schema, partition_columns), configuration=configuration)


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
