"""The commit of a transaction that changes the table itself, with or without stages that write data.

What the features of a table add to a commit of staged writes: change data files and tags of ``commitInfo``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import ENABLE_ROW_TRACKING, ROW_TRACKING_PRESERVED
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.contract.tags import KEEPS_ROWS_TAG, OPERATIONS_TAG
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddCDCFile
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter, needs_own_commit, table_as_read
from airflow_delta.table.definition.apply_changes import after_writes
from airflow_delta.table.definition.create import builds_on
from airflow_delta.table.definition.evolve import deciding
from airflow_delta.table.stage.data_change import is_rearranging
from airflow_delta.table.stage.load import StageActions, stage_id
from airflow_delta.table.stage.net_effect import NetEffect
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction


_JOINED = {"ADD COLUMNS": "columns", "DROP COLUMNS": "columns", "UNSET TBLPROPERTIES": "properties"}


def altered_table(view: TransactionView) -> AlteredTable | None:
    """Return the table as the stages of a transaction leave it, ``None`` if no stage alters it."""
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
    if table.syncs_identity:
        txn.set_sync_identity()
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
            if (alone := needs_own_commit(alter)) is not None:
                raise _conflict(handle, alter, other, f"{alone} needs its own transaction")
            if stage_id(alter) not in other.after and stage_id(other) not in alter.after:
                raise _conflict(
                    handle,
                    alter,
                    other,
                    "neither was planned on top of the other, so it is unclear which table the write is for. Give "
                    "one of them after=<output of the other>",
                )
        if len(alter.changes) > 1 and (alone := needs_own_commit(alter)) is not None:
            raise handle.error(
                StageConflictException,
                f"Stage {alter.stage} makes several changes of table {handle.table}, but {alone} needs its own transaction.",
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


def changes_to_commit(handle: TransactionHandle, stages: Sequence[StageActions], replaced: NetEffect) -> list[AddCDCFile]:
    """Return the change data files of a commit.

    If a version has such files, readers of the change data feed take its changes from them alone (Delta protocol, "Add CDC
    File"), so they must cover everything that the commit changes.

    :raises StageConflictException: if other stages change rows without change data files.
    """
    changes = [change for stage in stages for change in stage.changes]
    if not changes:
        return []
    _refuse_changed_twice(handle, stages)
    told = {remove.path for stage in stages if stage.changes for remove in stage.removes}
    untold = [stage.write.stage for stage in stages if stage.adds and not stage.changes and not is_rearranging(stage.write)]
    whole = [remove.path for remove in replaced.removes if remove.data_change and remove.path not in told]
    if untold or whole:
        writer = next(stage.write.stage for stage in stages if stage.changes)
        other = f"stage {', '.join(untold)} adds rows" if untold else f"files are removed whole ({whole[0]}, ...)"
        raise handle.error(
            StageConflictException,
            f"Stage {writer} replaces rows of table {handle.table} by a predicate on data columns and writes change data, "
            f"while {other} in the same transaction: readers of the change data feed would miss that. Put them into separate "
            "transactions.",
        )
    return changes


def _refuse_changed_twice(handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Refuse change data of rows that another stage changed before: readers would get both changes, in no order."""
    staged = {add.path: stage for stage in stages for add in stage.adds}
    for stage in stages:
        if is_rearranging(stage.write):  # only moves rows
            continue
        for remove in stage.removes:
            first = staged.get(remove.path)
            if first is not None and first is not stage and (first.changes or stage.changes):
                raise handle.error(
                    StageConflictException,
                    f"Stage {stage.write.stage} changes rows of {remove.path}, which stage {first.write.stage} of the same "
                    f"transaction has staged for table {handle.table}. The change data feed of one version cannot show that a "
                    "row changed twice. Put the stages into separate transactions.",
                )


def feature_tags(txn: OptimisticTransaction, stages: Sequence[StageActions]) -> dict[str, str]:
    """Return tags that say what a commit does to a feature.

    Rows that were written again get new row ids unless the new files hold their old ones; then the commit must not claim to have
    kept them (Delta protocol, "Row Tracking"). Rows that stay in place keep theirs.
    """
    again = [stage.write for stage in stages if stage.write.num_copied_records or _writes_again(stage)]
    marked = any(add.deletion_vector is not None for stage in stages for add in stage.adds)
    tags = {KEEPS_ROWS_TAG: "true"} if again or marked else {}
    if txn.metadata.configuration.get(ENABLE_ROW_TRACKING, "false").lower() != "true":
        return tags
    if again:
        kept = all(write.keeps_row_ids for write in again)
        return {**tags, ROW_TRACKING_PRESERVED: "true" if kept else "false"}
    return {**tags, ROW_TRACKING_PRESERVED: "true"} if all(stage.write.mode == "rewrite" for stage in stages) else tags


def _writes_again(stage: StageActions) -> bool:
    """Return whether a stage rewrote rows of files that it removes; a new deletion vector does not count."""
    stay = {remove.path for remove in stage.removes}
    return stage.write.mode == "rewrite" and bool(stage.removes) and any(add.path not in stay for add in stage.adds)


def identity_marks(handle: TransactionHandle, stages: Sequence[StageActions]) -> list[dict[str, int]]:
    """Return the last values that stages gave to identity columns, each as the stage names them.

    :raises StageConflictException: if two stages did that were not planned on top of each other: both started at the same value.
    """
    filled = [write for write in deciding([stage.write for stage in stages]) if write.identity_high_water_marks]
    for at, write in enumerate(filled):
        if not builds_on(write, filled[:at]):
            raise handle.error(
                StageConflictException,
                f"Stages {', '.join(write.stage for write in filled)} of transaction {handle.transaction_id} all gave values to "
                f"the identity columns of table {handle.table}, so values would repeat. Plan each on top of the others (after=), "
                "or write the rows in one stage.",
            )
    return [write.identity_high_water_marks for write in filled]
