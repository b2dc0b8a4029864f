"""The one operation that a commit records in ``commitInfo``: that of all staged writes, or of all changes of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.tags import OPERATIONS_TAG
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.definition.altered_table import AlteredTable
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.stage.net_effect import NetEffect
from airflow_delta.transaction import Operation

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, RemoveFile


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


_JOINED = {"ADD COLUMNS": "columns", "DROP COLUMNS": "columns", "UNSET TBLPROPERTIES": "properties"}


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


def defined_operation(
    definition: Mapping[str, Any],
    metadata: Metadata,
    writes: Sequence[StagedWrite],
    adds: Sequence[AddFile],
    removes: Sequence[RemoveFile],
) -> Operation:
    """Return CREATE or REPLACE TABLE as ``commitInfo`` records it; ``AS SELECT`` if any stage has rows.

    :param writes: of all stages; the first defines the table.
    :param adds: files that the transaction adds in the end; so with ``removes``.
    """
    as_select = len(writes) > 1 or writes[0].operation.endswith("AS SELECT")
    mode = str(definition["mode"])
    options: dict[str, Any] = {
        "partition_by": metadata.partition_columns,
        "cluster_by": definition["clusterBy"],
        "properties": metadata.configuration,
        "description": metadata.description,
        "as_select": as_select,
    }
    if as_select:
        counts = [write.num_records for write in writes]
        metrics = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
        if not any(count is None for count in counts):
            metrics["numOutputRows"] = sum(count or 0 for count in counts)
        if "replace" in mode:
            metrics["numRemovedFiles"] = len(removes)
            metrics["numRemovedBytes"] = sum(remove.size or 0 for remove in removes)
        options["metrics"] = metrics
    if "replace" in mode:
        return Operation.replace_table(**options, or_create=mode == "create_or_replace")
    return Operation.create_table(**options)
