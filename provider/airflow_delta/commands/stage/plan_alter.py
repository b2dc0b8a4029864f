"""ALTER TABLE as a stage of a transaction: the changes are planned here and made by the commit.

Only ADD CONSTRAINT, and SET NOT NULL where statistics do not count nulls, have to look at rows, on Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.begin.read_snapshot import read_snapshot
from airflow_delta.commands.definition.alter_paths import is_not_null
from airflow_delta.commands.definition.altered_table import MODE, AlteredTable, handle_of, table_of
from airflow_delta.commands.definition.apply_changes import after_writes, apply_changes
from airflow_delta.commands.stage.after import load_earlier, stage_id
from airflow_delta.commands.stage.scan import candidate_files, scan_of, spark_table
from airflow_delta.exceptions import InvariantViolationException, StagingException
from airflow_delta.staging.changes import Change, changes_from
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import attempt_directory, stage_key
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import AddFile, DeltaLog
    from airflow_delta.log.schema.walk import Path

CHECK_OPERATION = "ADD CONSTRAINT"
"""``StageRequest.operation`` of a look at rows. Its arguments: ``constraints`` (expression by name), ``notNull`` (columns) and
``staged``, the staged write that the look decides about."""


def plan_alter(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    changes: Sequence[Change | Mapping[str, Any]],
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StagedWrite | StageRequest:
    """Plan changes of the table, made in their order, and return the staged write; or what Spark has to check before.

    :param changes: see :mod:`airflow_delta.staging.changes`; values, or their JSON form.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param after: staged writes of the earlier stages that this one is planned on top of.
    :raises DeltaTableNotFoundException: the table does not exist.
    :raises DeltaError: a change cannot be made.
    :raises InvariantViolationException: a column that is to be NOT NULL holds a null.
    """
    given = changes_from(changes)
    earlier = load_earlier(log, handle, after) if after else []
    before = after_writes(handle, table_of(handle, read_snapshot(log, handle)), [stage.write for stage in earlier])
    table = apply_changes(before, given)
    added = table.operations[len(before.operations) :]
    stage = stage_key(task_id, map_index)
    staged = StagedWrite(
        transaction_id=handle.transaction_id,
        stage=stage,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        operation=added[0].name if len({operation.name for operation in added}) == 1 else "ALTER TABLE",
        after=tuple(stage_id(other.write) for other in earlier),
        mode=MODE,
        schema_string=table.metadata.schema_string,
        partition_columns=tuple(table.metadata.partition_columns),
        reads=ReadSet(whole_table=table.reads_table),
        num_records=0,
        changes=tuple(change.to_dict() for change in given),
    )
    constraints = {name: text for name, text in table.constraints.items() if before.constraints.get(name) != text}
    columns = [path for path in table.not_null if path not in before.not_null and is_not_null(table.schema, path)]
    if not constraints and not columns:
        return staged
    altered = handle_of(handle, table)
    files = candidate_files(log, handle, None, earlier)
    if not constraints:
        files = [file for file in files if any(_holds_nulls(table, file, path) is None for path in columns)]
        if not files:
            return staged
    return StageRequest(
        transaction_id=handle.transaction_id,
        table=spark_table(log, spark_table_uri),
        read_version=handle.read_version,
        stage=stage,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        directory=attempt_directory(handle.transaction_id, stage, attempt),
        operation=CHECK_OPERATION,
        mode=MODE,
        schema_string=table.metadata.schema_string,
        partition_columns=tuple(table.metadata.partition_columns),
        rewrite=scan_of(log, altered, files, spark_table_uri=spark_table_uri),
        arguments={
            "constraints": constraints,
            "notNull": [list(path) for path in columns],
            "staged": staged.to_dict(),
        },
    )


def collect_constraint(log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of changes that Spark has found nothing against.

    :raises StagingException: the report belongs to another attempt.
    """
    if (report.transaction_id, report.stage, report.attempt) != (handle.transaction_id, request.stage, request.attempt):
        raise StagingException(
            f"The report of stage {report.stage} (attempt {report.attempt}, transaction {report.transaction_id}) is not that of "
            f"stage {request.stage}, attempt {request.attempt}, of transaction {handle.transaction_id} on table {log.uri}. Clear "
            "the stage.",
            table=log.uri,
            version=handle.read_version,
        )
    return StagedWrite.from_dict(request.arguments["staged"])


def _holds_nulls(table: AlteredTable, file: AddFile, path: Path) -> bool | None:
    """Return ``False`` when a file has no null in a column, ``None`` when only its rows can tell.

    :raises InvariantViolationException: it has one.
    """
    found, physical, at = None, [], table.schema
    for name in path:
        found = at.find(name) if hasattr(at, "find") else None
        if found is None:
            return None
        physical.append(found.physical_name)
        at = found.data_type  # type: ignore[assignment]
    nulls: Any
    if physical[0] in file.partition_values:  # an empty text is null as well (Delta protocol, "Partition Value Serialization")
        nulls = 0 if file.partition_values[physical[0]] else 1
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
            f"{nulls} rows or more without a value. Give them one, or delete them.",
            table=table.table,
            version=table.version,
        )
    return False
