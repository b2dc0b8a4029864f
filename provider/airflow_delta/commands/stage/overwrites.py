"""Overwrites beside each other in one transaction: one may not write into what another replaces.

Whichever came last would win, and nothing says which it is. If no new row of either is in what the other replaces, both orders
give the same table. Instances of one mapped task are one overwrite in parts: what they write together replaces the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_delta.commands.stage.load import StageActions
from airflow_delta.exceptions import StageConflictException
from airflow_delta.log.actions.actions import AddFile

if TYPE_CHECKING:
    from airflow_delta.commands.stage.view import TransactionView

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
    from airflow_delta.commands.stage.after import stage_id

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
    from airflow_delta.log.schema.types import parse_schema
    from airflow_delta.transaction.reads.row_condition import RowCondition

    condition = RowCondition(view.predicate_of(stage, write.replace_where))
    seen = view.seen_by(stage).schema_string or write.schema_string
    told = condition.may_hold(adds) if adds and condition.fits(parse_schema(seen)) else [True] * len(adds)
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
