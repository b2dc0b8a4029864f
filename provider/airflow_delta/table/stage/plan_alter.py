"""ALTER TABLE as a stage of a transaction: the changes are planned here and made by the commit.

Only ADD CONSTRAINT, and SET NOT NULL on columns without null counts, need Spark to look at rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.changes import Change, SyncIdentity, changes_from
from airflow_delta.contract.operations import ConstraintArguments
from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import InvariantViolationException
from airflow_delta.log.expressions.ast import ColumnReference
from airflow_delta.table.definition.altered_table import MODE, AlteredTable, table_as_read
from airflow_delta.table.definition.apply_changes import after_writes, apply_changes
from airflow_delta.table.definition.column_paths import is_not_null
from airflow_delta.table.definition.sync_identity import furthest_in_statistics, identity_column
from airflow_delta.table.stage.scan import candidate_files, scan_of
from airflow_delta.table.stage.stage_view import SparkWork, StageView

if TYPE_CHECKING:
    from airflow_delta.log import AddFile
    from airflow_delta.log.schema.walk import Path

CHECK_OPERATION = "ADD CONSTRAINT"
"""``StageRequest.operation`` of a look at rows."""


def plan_alter(stage: StageView, changes: Sequence[Change | Mapping[str, Any]]) -> StagedWrite | SparkWork:
    """Plan changes of the table, made in order: return the staged write, or what Spark has to check first.

    :param changes: see :mod:`airflow_delta.contract.changes`; values, or their JSON form.
    """
    given = changes_from(changes)
    handle = stage.handle
    before = after_writes(handle, table_as_read(handle, stage.snapshot), [earlier.write for earlier in stage.stages])
    table = apply_changes(before, given)
    stage.log.store.committer.check_allowed("ALTER TABLE", table.metadata)
    added = table.operations[len(before.operations) :]
    columns = tuple(table.metadata.partition_columns)
    staged = stage.staged(
        mode=MODE,
        operation=added[0].name if len({operation.name for operation in added}) == 1 else "ALTER TABLE",
        schema_string=table.metadata.schema_string,
        partition_columns=columns,
        reads=DeclaredReads(whole_table=table.reads_table),
        changes=tuple(change.to_dict() for change in given),
    )
    if table.syncs_identity and len(given) == 1 and isinstance(given[0], SyncIdentity):
        return _sync_identity(stage, table, given[0], staged)
    constraints = {name: text for name, text in table.constraints.items() if before.constraints.get(name) != text}
    not_null = [path for path in table.not_null if path not in before.not_null and is_not_null(table.schema, path)]
    if not constraints and not not_null:
        return staged
    files = candidate_files(stage, None)
    if not constraints:
        files = _undecided(table, files, not_null)
        if not files:
            return staged
    request = stage.request(
        ConstraintArguments(constraints=constraints, not_null=tuple(not_null), staged=staged.to_dict()),
        operation=CHECK_OPERATION,
        mode=MODE,
        schema_string=table.metadata.schema_string,
        partition_columns=columns,
        rewrite=scan_of(stage, files, target=table.definition),
    )
    return SparkWork(request, partial(collect_constraint, stage))


def _sync_identity(stage: StageView, table: AlteredTable, change: SyncIdentity, staged: StagedWrite) -> StagedWrite | SparkWork:
    """Return the staged write, or what Spark has to look up: the furthest value in files whose statistics do not show it."""
    field, column = identity_column(table, change.column)
    _value, undecided = furthest_in_statistics(candidate_files(stage, None), field, column.step)
    if not undecided:
        return staged
    request = stage.request(
        ConstraintArguments(furthest={field.name: column.step}, staged=staged.to_dict()),
        operation=CHECK_OPERATION,
        mode=MODE,
        schema_string=table.metadata.schema_string,
        partition_columns=tuple(table.metadata.partition_columns),
        rewrite=scan_of(stage, undecided, target=table.definition),
    )
    return SparkWork(request, partial(collect_constraint, stage))


def collect_constraint(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of changes that passed the check on Spark."""
    arguments = ConstraintArguments.of(request)
    stage.reported(request, report, arguments)
    staged = StagedWrite.from_dict(arguments.staged)
    if not arguments.furthest:
        return staged
    (name,) = arguments.furthest
    return replace(staged, changes=(SyncIdentity(name, report.furthest.get(name)).to_dict(),))


def _undecided(table: AlteredTable, files: Sequence[AddFile], paths: Sequence[Path]) -> list[AddFile]:
    """Return the files of which only the rows can show whether they have a null in a column.

    :raises InvariantViolationException: if a file has one.
    """
    undecided: set[str] = set()
    for path in paths:
        for file, nulls in zip(files, _nulls(table, files, path), strict=True):
            # The nulls of a file with a deletion vector may be in rows that are deleted.
            if nulls is None or (nulls and file.deletion_vector is not None):
                undecided.add(file.path)
            elif nulls:
                raise table.error(
                    InvariantViolationException,
                    f"Column {'.'.join(path)} of table {table.table} version {table.version} cannot be NOT NULL: {file.path} "
                    f"holds at least {nulls} rows without a value. Give them one, or delete them.",
                )
    return [file for file in files if file.path in undecided]


def _nulls(table: AlteredTable, files: Sequence[AddFile], path: Path) -> list[int | None]:
    """Return how many nulls a column has in each file, ``None`` if only the rows can tell."""
    physical: list[str] = []
    kind: Any = table.schema
    for name in path:
        field = kind.find(name) if hasattr(kind, "find") else None
        if field is None:
            return [None] * len(files)
        physical.append(field.physical_name)
        kind = field.data_type
    if any(physical[0] in file.partition_values for file in files):
        return [0 if partition_text(file.partition_values, physical[0]) else 1 for file in files]
    import pyarrow as pa

    from airflow_delta.log.arrow.arrays import array
    from airflow_delta.log.statistics.credible import column_has_bounds, null_counts

    column = ColumnReference(tuple(path), tuple(physical), kind, is_partition=False)
    return null_counts(array([file.stats for file in files], pa.string()), column, bounded=column_has_bounds(column))
