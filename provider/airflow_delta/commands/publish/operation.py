"""The operation that a commit of staged writes records in ``commitInfo``, with its parameters and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.definition.create import defined_operation
from airflow_delta.commands.files.row_counts import live_records
from airflow_delta.commands.stage.load import StageActions
from airflow_delta.commands.stage.net_effect import NetEffect
from airflow_delta.staging.contract import StagedWrite

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.transaction import Operation


_JOINS: dict[str, Callable[[Iterable[int]], int]] = {"minFileSize": min, "maxFileSize": max}
_PERCENTILES = ("p25FileSize", "p50FileSize", "p75FileSize")  # unknown for several stages together


def operation_of(metadata: Metadata, stages: Sequence[StageActions], replaced: NetEffect) -> Operation:
    """Return the one operation of all stages that change something; of several operations, ``WRITE``."""
    definition = next((stage.write.definition for stage in stages if stage.write.definition), None)
    if definition is not None:
        return defined_operation(definition, metadata, [stage.write for stage in stages], replaced.adds, replaced.removes)
    # A CREATE TABLE that found its table, or an append without rows, does not name what the others do.
    deciding = [stage for stage in stages if not _appends_nothing(stage)] or stages
    operations = {stage.write.operation for stage in deciding}
    if len(operations) == 1 and operations != {"WRITE"}:
        return _other([stage.write for stage in deciding])
    return _write(metadata, stages, replaced)


def _appends_nothing(stage: StageActions) -> bool:
    write = stage.write
    is_append = write.operation == "WRITE" and write.mode == "append" and not write.merge_schema
    return is_append and not (stage.adds or stage.removes or stage.changes)


def _other(writes: Sequence[StagedWrite]) -> Operation:
    """Return an operation whose stages counted their metrics: they add up, and lists of parameters are joined."""
    from airflow_delta.transaction import Operation

    parameters: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    for write in writes:
        for name, value in write.parameters.items():
            known = parameters.setdefault(name, value)
            if known != value and isinstance(known, list) and isinstance(value, list):
                parameters[name] = [*known, *(item for item in value if item not in known)]
        for name, count in write.metrics.items():
            join = _JOINS.get(name, sum)
            metrics[name] = join((metrics[name], count)) if name in metrics else count
    if len(writes) > 1:
        metrics = {name: count for name, count in metrics.items() if name not in _PERCENTILES}
    return Operation(writes[0].operation, parameters, metrics)


def _write(metadata: Metadata, stages: Sequence[StageActions], replaced: NetEffect) -> Operation:
    """Return the ``WRITE`` as ``commitInfo`` records it (Delta's ``DeltaOperations.Write`` and its metrics)."""
    from airflow_delta.transaction import Operation

    writes = [stage.write for stage in stages]
    adds = replaced.adds
    rows = [write.num_records for write in writes]
    overwrite = any(write.mode != "append" for write in writes)
    predicates = list(dict.fromkeys(write.replace_where for write in writes if write.replace_where is not None))
    metrics: dict[str, Any] = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
    if not any(count is None for count in rows):
        metrics["numOutputRows"] = sum(count or 0 for count in rows)
    if overwrite or replaced.removes:
        metrics["numRemovedFiles"] = len(replaced.removes)
        metrics["numRemovedBytes"] = sum(remove.size or 0 for remove in replaced.removes)
    copied = sum(write.num_copied_records for write in writes)
    replacing = next((write.parameters for write in writes if write.operation == "WRITE" and write.parameters), {})
    if replacing and "numOutputRows" in metrics:  # here, Delta counts copied rows too
        metrics["numOutputRows"] += copied
    if predicates or replacing:
        deleted = [live_records(remove) for remove in replaced.removes]
        metrics["numCopiedRows"] = copied
        metrics["numAddedChangeFiles"] = sum(len(stage.changes) for stage in stages)
        if not any(count is None for count in deleted):
            metrics["numDeletedRows"] = sum(count or 0 for count in deleted) - copied
    return Operation.write(
        "Overwrite" if overwrite else "Append",
        list(metadata.partition_columns),
        predicate=predicates[0] if len(predicates) == 1 else " OR ".join(f"({p})" for p in predicates) or None,
        dynamic_partition_overwrite=True if any(write.mode == "dynamic" for write in writes) else None,
        can_overwrite_schema=True if any(write.overwrite_schema for write in writes) else None,
        can_merge_schema=True if any(write.merge_schema for write in writes) else None,
        replace_on=replacing.get("replaceOnCond"),
        replace_using=replacing.get("replaceUsingCols"),
        metrics=metrics,
    )
