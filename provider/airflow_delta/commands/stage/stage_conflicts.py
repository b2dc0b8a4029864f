"""Stages of one transaction that get into each other's way: found before the commit, by the rules between transactions.

A stage that rewrites or removes rows has read them at the version that the transaction reads. What another stage adds or removes
there is missing from what it has read, so that neither order of the two is what the Dag says; only a stage that was planned on
top of the other (``after=``) knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.after import handle_of_stage, predicate_of, stage_id
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate


def check_stages(handle: TransactionHandle, stages: Sequence[StageActions]) -> None:
    """Refuse stages that change what another one has read and changes as well, unless one was planned on top of the other.

    :raises StageConflictException: two stages touch the same file or the same partition.
    """
    rewriting = [stage for stage in stages if stage.write.mode == "rewrite"]
    for stage in rewriting:
        read = _read_predicates(handle_of_stage(handle, stage, stages), stage)
        for other in stages:
            if other is stage or _ordered(stage.write, other.write):
                continue
            changed: list[AddFile | RemoveFile] = [*other.adds, *other.removes]
            touched = next((action for action in changed if _reads(read, action)), None)
            if touched is not None or (read is None and other.write.mode != "append"):
                raise _conflict(handle, stage.write, other.write, touched)


def _ordered(one: StagedWrite, other: StagedWrite) -> bool:
    return stage_id(one) in other.after or stage_id(other) in one.after


def _read_predicates(handle: TransactionHandle, stage: StageActions) -> list[Predicate] | None:
    """Return the predicates of what a stage has read, ``None`` for the whole table."""
    reads = stage.write.reads
    if reads.whole_table or not reads.predicates:
        return None
    return [predicate_of(handle, stage.write, text) for text in reads.predicates]


def _reads(predicates: Sequence[Predicate] | None, action: AddFile | RemoveFile) -> bool:
    values = action.partition_values or {}
    return predicates is None or any(predicate.matches_partition(values) for predicate in predicates)


def _conflict(
    handle: TransactionHandle, stage: StagedWrite, other: StagedWrite, touched: AddFile | RemoveFile | None
) -> StageConflictException:
    where = "the whole table"
    if touched is not None:
        values = ", ".join(f"{name}={value}" for name, value in (touched.partition_values or {}).items())
        where = f"{touched.path}, in partition [{values}]" if values else touched.path
    return StageConflictException(
        f"The stages {stage.stage} ({stage.operation}) and {other.stage} ({other.operation}) of transaction "
        f"{handle.transaction_id} on table {handle.table} both touch {where}, and neither was planned on top of the other. Give "
        "one of them after=<output of the other>, or make their predicates name different partitions.",
        table=handle.table,
        version=handle.read_version,
    )
