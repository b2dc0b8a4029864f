"""Conflicts between stages of one transaction, found before the commit by the rules that hold between transactions.

A stage that rewrites or removes rows has read them at the version that the transaction reads, without what another stage adds or
removes there. Neither order of the two would be right; only a stage that was planned on top of the other (``after=``) knows of
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.after import stage_id
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.commands.stage.overwrites import check_staged_overwrites
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView
    from airflow_delta.log.expressions.predicate import Predicate


def check_stages(view: TransactionView) -> None:
    """Refuse stages that change what another stage reads and changes, unless one was planned on top of the other.

    :raises StageConflictException: if two stages touch the same file or the same partition, or two tasks overwrite the same rows.
    """
    check_staged_overwrites(view)
    stages = view.stages
    rewriting = [stage for stage in stages if stage.write.mode == "rewrite"]
    for stage in rewriting:
        read = _read_predicates(view, stage)
        for other in stages:
            if other is stage or _ordered(stage.write, other.write):
                continue
            changed: list[AddFile | RemoveFile] = [*other.adds, *other.removes]
            touched = next((action for action in changed if _reads(read, action)), None)
            if touched is not None or (read is None and other.write.mode != "append"):
                raise _conflict(view.handle, stage.write, other.write, touched)


def _ordered(one: StagedWrite, other: StagedWrite) -> bool:
    return stage_id(one) in other.after or stage_id(other) in one.after


def _read_predicates(view: TransactionView, stage: StageActions) -> list[Predicate] | None:
    """Return the predicates that a stage has read by, ``None`` for the whole table."""
    reads = stage.write.reads
    if reads.whole_table or not reads.predicates:
        return None
    return [view.predicate_of(stage, text) for text in reads.predicates]


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
