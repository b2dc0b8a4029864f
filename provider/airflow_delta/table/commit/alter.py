"""The commit of a transaction that changes the table itself, with or without stages that write data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.table.definition.altered_table import AlteredTable, is_alter, needs_own_commit, table_as_read
from airflow_delta.table.definition.apply_changes import after_writes
from airflow_delta.table.stage.earlier_stages import stage_id

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction


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
