"""The commit of a transaction that changes the table itself, with or without stages that write data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter, table_as_read
from airflow_delta.table.definition.apply_changes import after_writes
from airflow_delta.table.stage.after import stage_id
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction

OPERATIONS_TAG = "airflow.operations"
"""Tag of ``commitInfo`` that lists the operations of a commit that has no single name in Delta."""

_JOINED = {"ADD COLUMNS": "columns", "DROP COLUMNS": "columns", "UNSET TBLPROPERTIES": "properties"}


def altered_table(view: TransactionView) -> AlteredTable | None:
    """Return the table as the stages of a transaction leave it, ``None`` if no stage alters it.

    :raises StageConflictException: if a stage and a change are not planned on top of each other, or cannot share a commit.
    :raises DeltaError: if a change cannot be made.
    """
    handle, writes = view.handle, [stage.write for stage in view.stages]
    if not any(map(is_alter, writes)):
        return None
    _check(handle, writes)
    table = after_writes(handle, table_as_read(handle, view.snapshot), writes)
    _check_change_data(view, table, writes)
    return table


def adopt_altered(txn: OptimisticTransaction, table: AlteredTable) -> None:
    """Let a transaction commit the altered table, and record what the changes rely on."""
    txn.adopt_changes(
        table.metadata if table.sets_metadata or table.metadata != txn.snapshot.metadata else None,
        table.protocol,
        tuple(table.domains.values()),
    )
    if table.reads_table:
        txn.filter_files()
        txn.read_whole_table()


def with_altered_reads(view: TransactionView, table: AlteredTable) -> TransactionView:
    """Return the view with the reads of stages in terms of the version that was read.

    Predicates of stages that were planned on other columns may name columns that this version lacks, or that are different ones
    there: such stages count as having read the whole table.
    """
    if table.metadata.schema_string == view.definition.schema_string:
        return view
    alters = {stage_id(stage.write) for stage in view.stages if is_alter(stage.write)}
    found = []
    for stage in view.stages:
        reads = stage.write.reads
        if reads.predicates and alters & set(stage.write.after):
            whole = DeclaredReads(files=reads.files, whole_table=True, app_ids=reads.app_ids)
            stage = replace(stage, write=replace(stage.write, reads=whole))
        found.append(stage)
    return replace(view, stages=tuple(found))


def operation_with(table: AlteredTable, data: Operation | None, partition_columns: Sequence[str]) -> Operation:
    """Return the operation of a commit: that of its data stages, else that of its changes.

    Changes of one kind are recorded as Delta would record them, changes of several kinds as ``Manual Update``, Delta's name for
    actions put together by hand; :data:`OPERATIONS_TAG` then lists them.

    :param partition_columns: of the version that was read.
    """
    operation = data if data is not None else _joined(table.operations)
    if list(partition_columns) != table.metadata.partition_columns:
        return replace(operation, can_change_partition_columns=True)
    return operation


def operation_tags(table: AlteredTable, data: Operation | None) -> dict[str, str]:
    """Return the tag that lists the changes of a commit, if its operation does not name them."""
    if data is None and (len(table.operations) == 1 or _joined(table.operations).name != "Manual Update"):
        return {}
    listed = [{"operation": o.name, "parameters": o.encoded_parameters()} for o in table.operations]
    if data is not None:
        listed.append({"operation": data.name, "parameters": data.encoded_parameters()})
    return {OPERATIONS_TAG: json.dumps(listed, separators=(",", ":"), ensure_ascii=False)}


def _joined(operations: Sequence[Operation]) -> Operation:
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
                    "one alters the table and the other replaces it. Put them into separate transactions",
                )
            if any(change.get("change") == "DropFeature" for change in alter.changes):
                raise _conflict(handle, alter, other, "dropping a feature needs its own transaction")
            if stage_id(alter) not in other.after and stage_id(other) not in alter.after:
                raise _conflict(
                    handle,
                    alter,
                    other,
                    "neither was planned on top of the other, so it is unclear which table the write is for. Give "
                    "one of them after=<output of the other>",
                )
        kinds = [change.get("change") for change in alter.changes]
        if "DropFeature" in kinds and len(kinds) > 1:
            raise handle.error(
                StageConflictException,
                f"Stage {alter.stage} drops a feature of table {handle.table} and makes other changes. Drop the feature in its "
                "own transaction.",
            )


def _check_change_data(view: TransactionView, table: AlteredTable, writes: Sequence[StagedWrite]) -> None:
    """Refuse rows that were rewritten before the same commit enables the change data feed: they have no change data."""
    before, now = view.definition.properties, table.definition.properties
    if before.enable_change_data_feed or not now.enable_change_data_feed:
        return
    alters = {stage_id(write) for write in writes if is_alter(write)}
    for write in writes:
        if write.num_removed_files and not is_alter(write) and not alters <= set(write.after):
            alter = next(other for other in writes if is_alter(other))
            raise _conflict(view.handle, alter, write, "the change data feed is enabled after rows were rewritten without it")


def _conflict(handle: TransactionHandle, alter: StagedWrite, other: StagedWrite, why: str) -> StageConflictException:
    return handle.error(
        StageConflictException,
        f"The stages {alter.stage} ({alter.operation}) and {other.stage} ({other.operation}) of transaction "
        f"{handle.transaction_id} on table {handle.table} cannot be committed together: {why}.",
    )
