"""The files of the version that was read that overwrites remove whole, listed once for all overwrites of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_delta.log import heavy
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.schema.partition_index import NamedValues, PartitionIndex
from airflow_delta.table.stage.earlier_stages import stage_id
from airflow_delta.table.stage.load import StageActions

if TYPE_CHECKING:
    from airflow_delta.log.expressions.ast import ColumnReference
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import OptimisticTransaction
    from airflow_delta.transaction.reads.table_reads import TableReads

LISTS_FILES = ("append", "rewrite", "alter")
"""Modes that list all files that they remove."""


_Selects = Callable[[Mapping[str, str | None]], bool]
_Key = tuple[str, tuple["ColumnReference", ...]]


def whole_files(
    view: TransactionView, reads: OptimisticTransaction | TableReads, stages: Sequence[StageActions]
) -> dict[str, list[AddFile]]:
    """Return the files that stages remove whole, by stage, and record them as read.

    Stages that list all their removes have none.
    """
    overwrites = [stage for stage in stages if stage.write.mode not in LISTS_FILES]
    dynamic = [stage for stage in overwrites if stage.write.mode == "dynamic"]
    replacing = [stage for stage in overwrites if stage.write.mode != "dynamic"]
    found: dict[str, list[AddFile]] = {}
    everything = [stage for stage in replacing if stage.write.replace_where is None]
    if everything:
        files = heavy.to_add_files(reads.filter_files(columns=heavy.FILE_COLUMNS))
        found |= {stage_id(stage.write): files for stage in everything}
    by_predicate: dict[_Key, tuple[Predicate, list[StageActions]]] = {}
    for stage in replacing:
        if stage.write.replace_where is not None:
            predicate = view.predicate_of(stage, stage.write.replace_where)
            if predicate.partition_only:
                by_predicate.setdefault((predicate.text, predicate.columns), (predicate, []))[1].append(stage)
            else:
                reads.track_read_predicates(predicate)
    if by_predicate:
        predicates = [predicate for predicate, _stages in by_predicate.values()]
        listed = reads.filter_files_for_any(predicates, columns=heavy.FILE_COLUMNS)
        each_of = _shared_out(
            heavy.to_add_files(listed), [(predicate.named_values, predicate.matches_partition) for predicate in predicates]
        )
        for (predicate, same), files in zip(by_predicate.values(), each_of, strict=True):
            for stage in same:
                found[stage_id(stage.write)] = _surely_replaced(files, stage, predicate) if predicate.zone_dependent else files
    if dynamic:
        sets = [reads.partitions_of(stage.adds) for stage in dynamic]
        listed = reads.filter_files_for_partition_sets(sets, columns=heavy.FILE_COLUMNS)
        each_of = _shared_out(heavy.to_add_files(listed), [(each.named_values, each.replaces) for each in sets])
        found |= {stage_id(stage.write): files for stage, files in zip(dynamic, each_of, strict=True)}
    return found


def _shared_out(files: Sequence[AddFile], selections: Sequence[tuple[NamedValues, _Selects]]) -> list[list[AddFile]]:
    """Return the files that each of some selections has, which are asked only about partitions with the values that they name.

    :param files: those that any of them has.
    """
    if len(selections) == 1:
        return [list(files)]
    partitions: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for at, file in enumerate(files):
        partitions.setdefault(tuple(file.partition_values.items()), []).append(at)
    index, positions = PartitionIndex(map(dict, partitions)), list(partitions.values())
    return [
        [
            files[position]
            for position in sorted(
                position for at in index.having(named) if selects(index.partitions[at]) for position in positions[at]
            )
        ]
        for named, selects in selections
    ]


def _surely_replaced(files: Sequence[AddFile], stage: StageActions, predicate: Predicate) -> list[AddFile]:
    """Return the files that a stage replaces in every time zone.

    Of those that need one, Spark wrote the rows that stay; with change data, the stage lists the other files too.
    """
    listed = {remove.path for remove in stage.removes}
    return [file for file in files if file.path not in listed and predicate.selects_partition(file.partition_values)]
