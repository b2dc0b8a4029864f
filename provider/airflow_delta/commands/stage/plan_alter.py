"""ALTER TABLE as a stage of a transaction: the changes are planned here and made by the commit.

Only ADD CONSTRAINT, and SET NOT NULL on columns without null counts, need Spark to look at rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.definition.alter_paths import is_not_null
from airflow_delta.commands.definition.altered_table import MODE, AlteredTable, handle_of, table_of
from airflow_delta.commands.definition.apply_changes import after_writes, apply_changes
from airflow_delta.commands.stage.scan import candidate_files, scan_of
from airflow_delta.commands.stage.stage_view import SparkWork, StageView
from airflow_delta.exceptions import InvariantViolationException
from airflow_delta.staging.changes import Change, changes_from
from airflow_delta.staging.constraint import ConstraintArguments
from airflow_delta.staging.contract import ReadSet, StagedWrite
from airflow_delta.staging.partition_texts import partition_text
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import AddFile
    from airflow_delta.log.schema.walk import Path

CHECK_OPERATION = "ADD CONSTRAINT"
"""``StageRequest.operation`` of a look at rows."""


def plan_alter(stage: StageView, changes: Sequence[Change | Mapping[str, Any]]) -> StagedWrite | SparkWork:
    """Plan changes of the table, made in order: return the staged write, or what Spark has to check first.

    :param changes: see :mod:`airflow_delta.staging.changes`; values, or their JSON form.
    :raises DeltaTableNotFoundException: if the table does not exist.
    :raises DeltaError: if a change cannot be made.
    :raises InvariantViolationException: if a column that is to be NOT NULL holds a null.
    """
    given = changes_from(changes)
    handle = stage.handle
    before = after_writes(handle, table_of(handle, stage.snapshot), [earlier.write for earlier in stage.stages])
    table = apply_changes(before, given)
    added = table.operations[len(before.operations) :]
    columns = tuple(table.metadata.partition_columns)
    staged = stage.staged(
        mode=MODE,
        operation=added[0].name if len({operation.name for operation in added}) == 1 else "ALTER TABLE",
        schema_string=table.metadata.schema_string,
        partition_columns=columns,
        reads=ReadSet(whole_table=table.reads_table),
        changes=tuple(change.to_dict() for change in given),
    )
    constraints = {name: text for name, text in table.constraints.items() if before.constraints.get(name) != text}
    not_null = [path for path in table.not_null if path not in before.not_null and is_not_null(table.schema, path)]
    if not constraints and not not_null:
        return staged
    files = candidate_files(stage, None)
    if not constraints:
        files = [file for file in files if any(_holds_nulls(table, file, path) is None for path in not_null)]
        if not files:
            return staged
    request = stage.request(
        ConstraintArguments(constraints=constraints, not_null=tuple(not_null), staged=staged.to_dict()),
        operation=CHECK_OPERATION,
        mode=MODE,
        schema_string=table.metadata.schema_string,
        partition_columns=columns,
        rewrite=scan_of(stage, files, target=handle_of(handle, table)),
    )
    return SparkWork(request, partial(collect_constraint, stage))


def collect_constraint(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of changes that passed the check on Spark.

    :raises StagingException: if the report belongs to another attempt.
    """
    stage.reported(request, report)
    return StagedWrite.from_dict(ConstraintArguments.of(request).staged)


def _holds_nulls(table: AlteredTable, file: AddFile, path: Path) -> bool | None:
    """Return ``False`` if a file has no null in a column, ``None`` if only its rows can tell.

    :raises InvariantViolationException: if the file has one.
    """
    found, physical, at = None, [], table.schema
    for name in path:
        found = at.find(name) if hasattr(at, "find") else None
        if found is None:
            return None
        physical.append(found.physical_name)
        at = found.data_type  # type: ignore[assignment]
    nulls: Any
    if physical[0] in file.partition_values:
        nulls = 0 if partition_text(file.partition_values, physical[0]) else 1
    else:
        nulls = json.loads(file.stats or "{}").get("nullCount") or {}
        for name in physical:
            nulls = nulls.get(name) if isinstance(nulls, dict) else None
    if not isinstance(nulls, int):
        return None
    if nulls and file.deletion_vector is not None:
        return None  # the nulls may be in rows that are deleted
    if nulls:
        raise InvariantViolationException(
            f"Column {'.'.join(path)} of table {table.table} version {table.version} cannot be NOT NULL: {file.path} holds "
            f"at least {nulls} rows without a value. Give them one, or delete them.",
            table=table.table,
            version=table.version,
        )
    return False
