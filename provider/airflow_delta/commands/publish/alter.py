"""The commit of a transaction that changes the table itself, with or without stages that write data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.definition.altered_table import AlteredTable, is_alter, table_of
from airflow_delta.commands.definition.apply_changes import after_writes
from airflow_delta.commands.stage.after import stage_id
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.exceptions import StageConflictException
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.transaction import Operation, OptimisticTransaction

OPERATIONS_TAG = "airflow.operations"
"""Tag of ``commitInfo`` that lists the operations of a commit which Delta has no one name for."""

_JOINED = {"ADD COLUMNS": "columns", "DROP COLUMNS": "columns", "UNSET TBLPROPERTIES": "properties"}


def altered_table(handle: TransactionHandle, snapshot: Snapshot, stages: Sequence[StageActions]) -> AlteredTable | None:
    """Return the table as the stages of a transaction leave it, ``None`` when none of them changes the table itself.

    :param stages: in the order of :func:`airflow_delta.commands.stage.after.in_order`.
    :raises StageConflictException: a stage and a change do not know of each other, or cannot share a commit.
    :raises DeltaError: a change cannot be made.
    """
    writes = [stage.write for stage in stages]
    if not any(map(is_alter, writes)):
        return None
    _check(handle, writes)
    table = after_writes(handle, table_of(handle, snapshot), writes)
    _check_change_data(handle, table, writes)
    return table


def adopt_altered(txn: OptimisticTransaction, table: AlteredTable) -> None:
    """Let a transaction commit what the changes have made of the table, and record what they rely on."""
    txn.adopt_changes(
        table.metadata if table.sets_metadata or table.metadata != txn.snapshot.metadata else None,
        table.protocol,
        tuple(table.domains.values()),
    )
    if table.reads_table:
        txn.filter_files()
        txn.read_whole_table()


def with_altered_reads(handle: TransactionHandle, table: AlteredTable, stages: Sequence[StageActions]) -> list[StageActions]:
    """Return the stages with what they have read in terms of the version that was read.

    Predicates of those that were planned on a table with other columns may name some that this version does not have, or that
    mean another column there: they count as having read the whole table.
    """
    if table.metadata.schema_string == handle.schema_string:
        return list(stages)
    alters = {stage_id(stage.write) for stage in stages if is_alter(stage.write)}
    found = []
    for stage in stages:
        reads = stage.write.reads
        if reads.predicates and alters & set(stage.write.after):
            whole = ReadSet(files=reads.files, whole_table=True, app_ids=reads.app_ids)
            stage = replace(stage, write=replace(stage.write, reads=whole))
        found.append(stage)
    return found


def operation_with(table: AlteredTable, data: Operation | None, partition_columns: Sequence[str]) -> Operation:
    """Return the operation of a commit: that of its data stages, else that of its changes.

    Changes of one kind are recorded as the one operation that Delta would record for them; of several kinds as ``Manual Update``,
    Delta's name for actions that are put together by hand. The tag :data:`OPERATIONS_TAG` then lists them.

    :param partition_columns: of the version that was read.
    """
    operation = data if data is not None else _joined(table.operations)
    if list(partition_columns) != table.metadata.partition_columns:
        return replace(operation, can_change_partition_columns=True)
    return operation


def operation_tags(table: AlteredTable, data: Operation | None) -> dict[str, str]:
    """Return the tag that lists the changes of a commit, where its operation does not tell them."""
    if data is None and (len(table.operations) == 1 or _joined(table.operations).name != "Manual Update"):
        return {}
    listed = [{"operation": o.name, "parameters": o.encoded_parameters()} for o in table.operations]
    if data is not None:
        listed.append({"operation": data.name, "parameters": data.encoded_parameters()})
    return {OPERATIONS_TAG: json.dumps(listed, separators=(",", ":"), ensure_ascii=False)}


def _joined(operations: Sequence[Operation]) -> Operation:
    from airflow_delta.transaction import Operation

    first, names = operations[0], {operation.name for operation in operations}
    if len(operations) == 1:
        return first
    if len(names) > 1:
        return Operation.manual_update()
    if first.name in _JOINED:
        key = _JOINED[first.name]
        joined: list[Any] = [item for operation in operations for item in operation.parameters[key]]
        return Operation(first.name, {**first.parameters, key: joined})
    if first.name == "SET TBLPROPERTIES":
        return Operation.set_table_properties({k: v for o in operations for k, v in o.parameters["properties"].items()})
    if first.name == "CHANGE COLUMN":
        positions = [{"position": o.parameters["position"]} if "position" in o.parameters else {} for o in operations]
        columns = [{**o.parameters["column"], **position} for o, position in zip(operations, positions, strict=True)]
        return Operation.change_columns(columns)
    return Operation.manual_update()


def _check(handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
    for alter in filter(is_alter, writes):
        for other in writes:
            if other is alter:
                continue
            if other.overwrite_schema or other.definition:
                raise _conflict(
                    handle,
                    alter,
                    other,
                    "one changes the table and the other one replaces it. Put them into transactions of their own",
                )
            if any(change.get("change") == "DropFeature" for change in alter.changes):
                raise _conflict(handle, alter, other, "dropping a feature is a transaction of its own")
            if stage_id(alter) not in other.after and stage_id(other) not in alter.after:
                raise _conflict(
                    handle,
                    alter,
                    other,
                    "neither was planned on top of the other, so that it is open which table the one that writes means. Give "
                    "one of them after=<output of the other>",
                )
        kinds = [change.get("change") for change in alter.changes]
        if "DropFeature" in kinds and len(kinds) > 1:
            raise StageConflictException(
                f"Stage {alter.stage} drops a feature of table {handle.table} and changes more besides. Drop the feature in a "
                "transaction of its own.",
                table=handle.table,
                version=handle.read_version,
            )


def _check_change_data(handle: TransactionHandle, table: AlteredTable, writes: Sequence[StagedWrite]) -> None:
    """Refuse rows that were written again before the same commit switches the change data feed on: they have no change data."""
    from airflow_delta.log.features.properties import TableProperties

    before, now = TableProperties(dict(handle.configuration)), TableProperties(table.metadata.configuration)
    if before.enable_change_data_feed or not now.enable_change_data_feed:
        return
    alters = {stage_id(write) for write in writes if is_alter(write)}
    for write in writes:
        if write.num_removed_files and not is_alter(write) and not alters <= set(write.after):
            alter = next(other for other in writes if is_alter(other))
            raise _conflict(handle, alter, write, "the change data feed is switched on after rows were written again without it")


def _conflict(handle: TransactionHandle, alter: StagedWrite, other: StagedWrite, why: str) -> StageConflictException:
    return StageConflictException(
        f"The stages {alter.stage} ({alter.operation}) and {other.stage} ({other.operation}) of transaction "
        f"{handle.transaction_id} on table {handle.table} cannot be committed together: {why}.",
        table=handle.table,
        version=handle.read_version,
    )
