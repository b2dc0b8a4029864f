"""Stages that build on each other: the table as earlier stages of the same transaction leave it.

A stage that is planned ``after`` others reads what they have staged as if it were committed. What it removes of that never
reaches the log: the commit publishes the net effect of all stages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.definition.create import as_defined
from airflow_delta.commands.stage.load import StageActions, load_actions, parse_staged
from airflow_delta.commands.stage.staged_paths import check_paths
from airflow_delta.exceptions import PredicateException, StageConflictException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.staging.contract import Json, StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate

AFTER = "after"
"""Argument of a request: the ids of the stages that it was planned on top of."""

EARLIER = "earlier"
"""Argument of a request: those stages as their tasks returned them, for the collect."""

FileKey = tuple[str, str | None]
"""What tells files of a table apart: the path, and the id of the deletion vector."""


def file_key(action: AddFile | RemoveFile) -> FileKey:
    """Return the key of a file."""
    return action.path, action.deletion_vector.unique_id if action.deletion_vector is not None else None


def stage_id(write: StagedWrite) -> str:
    """Return what ``StagedWrite.after`` calls a stage."""
    return f"{write.stage}/{write.attempt}"


def load_earlier(
    log: DeltaLog, handle: TransactionHandle, after: Sequence[StagedWrite | Mapping[str, Any]]
) -> list[StageActions]:
    """Return earlier stages with their actions, each after those that it was planned on top of itself.

    :raises StageConflictException: one of them builds on a stage that is not among them.
    """
    writes = parse_staged(handle, after, None)
    return load_stages(log, handle, [write for write in writes if not write.already_committed])


def load_stages(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> list[StageActions]:
    """Return stages with their actions, checked, each after those that it was planned on top of.

    :raises ManifestException: a manifest is missing, truncated or altered.
    :raises StagingException: an action is none, or names what is not the stage's.
    :raises StageConflictException: one builds on a stage that is not among them.
    """
    stages = in_order(handle, load_actions(log, handle, writes))
    check_paths(log, handle, stages)
    return stages


def after_arguments(stages: Sequence[StageActions]) -> Json:
    """Return what the arguments of a request say of the stages that it was planned on top of."""
    return {AFTER: [stage_id(stage.write) for stage in stages], EARLIER: [stage.write.to_dict() for stage in stages]}


def earlier_of(log: DeltaLog, handle: TransactionHandle, request: StageRequest) -> list[StageActions]:
    """Return the stages that a request was planned on top of."""
    given = request.arguments.get(EARLIER)
    return load_earlier(log, handle, given) if given else []


def in_order(handle: TransactionHandle, stages: Sequence[StageActions]) -> list[StageActions]:
    """Return stages so that each comes after those that it was planned on top of; the order of the others stays.

    :raises StageConflictException: a stage builds on one that is not among them, or on another attempt of one.
    """
    known = {stage_id(stage.write) for stage in stages}
    for stage in stages:
        missing = sorted(set(stage.write.after) - known)
        if missing:
            raise StageConflictException(
                f"Stage {stage.write.stage} of transaction {handle.transaction_id} on table {handle.table} was planned on top of "
                f"{', '.join(missing)}, which is not among the staged writes: pass them as well, or, when such a stage has run "
                f"again since, clear {stage.write.stage}.",
                table=handle.table,
                version=handle.read_version,
            )
    ordered: list[StageActions] = []
    placed: set[str] = set()
    waiting = list(stages)
    while waiting:
        ready = [stage for stage in waiting if placed.issuperset(stage.write.after)]
        if not ready:
            names = ", ".join(stage.write.stage for stage in waiting)
            raise StageConflictException(f"The stages {names} were planned on top of each other", table=handle.table)
        ordered += ready
        placed.update(stage_id(stage.write) for stage in ready)
        waiting = [stage for stage in waiting if stage_id(stage.write) not in placed]
    return ordered


def handle_after(handle: TransactionHandle, after: Sequence[StageActions]) -> TransactionHandle:
    """Return the handle with the schema, and for a new table the partitioning, that earlier stages give the table."""
    if not after:
        return handle
    from airflow_delta.log.features.schema_merge import merge_schema
    from airflow_delta.log.schema.types import parse_schema, to_json

    schema = None if handle.schema_string is None else parse_schema(handle.schema_string)
    partition_columns, changes_before = handle.partition_columns, 0
    for stage in after:
        write = stage.write
        if write.changes:
            from airflow_delta.commands.definition.apply_changes import altered_handle

            known = replace(handle, schema_string=to_json(schema) if schema else None, partition_columns=tuple(partition_columns))
            handle = altered_handle(known, write, changes_before)
            schema, partition_columns = parse_schema(handle.schema_string or ""), handle.partition_columns
            changes_before += len(write.changes)
            continue
        staged = parse_schema(write.schema_string)
        if write.definition:
            handle = as_defined(handle, write.definition)
        if schema is None or write.overwrite_schema:
            schema, partition_columns = staged, write.partition_columns
        elif write.merge_schema:
            schema = merge_schema(
                schema, staged, merge=True, widen=_widens(handle), table=handle.table, version=handle.read_version
            )
    return replace(handle, schema_string=None if schema is None else to_json(schema), partition_columns=tuple(partition_columns))


def _widens(handle: TransactionHandle) -> bool:
    from airflow_delta.log.features.properties import TableProperties

    return handle.read_version >= 0 and bool(TableProperties(dict(handle.configuration)).get("enableTypeWidening"))


def handle_of_stage(handle: TransactionHandle, stage: StageActions, stages: Sequence[StageActions]) -> TransactionHandle:
    """Return the handle as a stage knew it: what its predicates name are columns of the table that it was planned on.

    :param stages: of the transaction, each after those that it was planned on top of.
    """
    return handle_after(handle, [other for other in stages if stage_id(other.write) in stage.write.after])


def files_after(handle: TransactionHandle, files: Iterable[AddFile], after: Sequence[StageActions]) -> list[AddFile]:
    """Return the files of the table after earlier stages.

    :param files: of the version that the transaction reads; may be a selection of them.
    :param after: from :func:`load_earlier`.
    """
    live = {file_key(file): file for file in files}
    for stage in after:
        for key in gone(handle_of_stage(handle, stage, after), live.values(), stage):
            del live[key]
        live.update((file_key(add), add) for add in stage.adds)
    return list(live.values())


def gone(handle: TransactionHandle, live: Collection[AddFile], stage: StageActions) -> list[FileKey]:
    """Return which of the live files a stage removes: whole, or because it has written their rows again.

    :param handle: from :func:`handle_of_stage`.
    """
    listed = {file_key(remove) for remove in stage.removes}
    selected = _selection(handle, stage)
    return [
        file_key(file) for file in live if file_key(file) in listed or (selected is not None and _matches(selected, file, stage))
    ]


def predicate_of(handle: TransactionHandle, write: StagedWrite, text: str) -> Predicate:
    """Return a predicate of a staged write, which may name columns that it, or a stage before it, brings.

    :raises PredicateException: neither the table nor the staged write has its columns.
    """
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.schema.types import parse_schema

    if handle.schema_string is not None:
        try:
            partition_columns = handle.partition_columns or (write.partition_columns if handle.read_version < 0 else ())
            return Predicate.parse(text, parse_schema(handle.schema_string), partition_columns)
        except PredicateException:
            if handle.schema_string == write.schema_string:
                raise
    return Predicate.parse(text, parse_schema(write.schema_string), write.partition_columns)


def _selection(handle: TransactionHandle, stage: StageActions) -> Predicate | str | None:
    """Return which files a stage removes whole: those of a predicate, ``all``, ``partitions`` (its own), or none."""
    write = stage.write
    if write.mode == "dynamic":
        return "partitions"
    if write.mode != "overwrite":
        return None
    if write.replace_where is None:
        return "all"
    predicate = predicate_of(handle, write, write.replace_where)
    return predicate if predicate.partition_only else None


def _matches(selected: Predicate | str, file: AddFile, stage: StageActions) -> bool:
    if isinstance(selected, str):
        return selected == "all" or any(add.partition_values == file.partition_values for add in stage.adds)
    return selected.selects_partition(file.partition_values)
