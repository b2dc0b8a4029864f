"""Conflicts between stages of one transaction, found before the commit by the rules that hold between transactions.

A stage that rewrites or removes rows has read them at the version that the transaction reads, without what another stage adds or
removes there. Neither order of the two would be right; only a stage that was planned on top of the other (``after=``) knows of
it.

Overwrites beside each other in one transaction: one may not write into what another replaces.

Whichever came last would win, and nothing says which it is. If no new row of either is in what the other replaces, both orders
give the same table. Instances of one mapped task are one overwrite in parts: what they write together replaces the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.table.definition.create import written
from airflow_delta.table.stage.load import StageActions, stage_id

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.stage.view import TransactionView


OVERWRITES = ("overwrite", "dynamic")


def check_staged_overwrites(view: TransactionView) -> None:
    """Refuse overwrites of different tasks that may replace each other's new rows, unless one was planned on top of the other.

    :raises StageConflictException: if there are two.
    """
    stages = [stage for stage in view.stages if stage.write.mode in OVERWRITES]
    if len({stage.write.task_id for stage in stages}) < 2:
        return
    for stage in stages:
        others = [other for other in stages if other.write.task_id != stage.write.task_id and not _not_ordered(stage, other)]
        for other in others:
            if (file := next(_replaced(view, stage, other.adds), None)) is not None:
                raise _overwrite_conflict(view, stage, other, file)


def _not_ordered(one: StageActions, other: StageActions) -> bool:
    return stage_id(one.write) in other.write.after or stage_id(other.write) in one.write.after


def _replaced(view: TransactionView, stage: StageActions, adds: Sequence[AddFile]) -> Iterator[AddFile]:
    """Yield the files that may have rows in what an overwrite replaces; whatever cannot be told has some."""
    write = stage.write
    if write.mode == "dynamic":
        partitions = view.partitions_of(stage)
        yield from (add for add in adds if partitions.matches_partition(add.partition_values))
        return
    if write.replace_where is None:
        yield from adds
        return
    from airflow_delta.transaction.reads.row_condition import RowCondition

    condition = RowCondition(view.predicate_of(stage, write.replace_where))
    seen = view.seen_by(stage)
    known = seen if seen.is_known else written(write)
    told = condition.may_hold(adds) if adds and condition.fits(known.schema) else [True] * len(adds)
    yield from (add for add, may_hold in zip(adds, told, strict=True) if may_hold)


def _overwrite_conflict(view: TransactionView, stage: StageActions, other: StageActions, file: AddFile) -> StageConflictException:
    values = ", ".join(f"{name}={value}" for name, value in (file.partition_values or {}).items())
    where = f"partition [{values}]" if values else "the same rows"
    handle, predicate = view.handle, stage.write.replace_where
    what = f"replace_where {predicate!r}" if predicate is not None else stage.write.mode
    return StageConflictException(
        f"The stages {stage.write.stage} ({what}) and {other.write.stage} of transaction {handle.transaction_id} on table "
        f"{handle.table} both overwrite {where}, and nothing says which of them wins. Give one of them after=<output of the "
        "other>, let them replace different partitions, or make them instances of one mapped task.",
        table=handle.table,
        version=handle.read_version,
    )


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
