"""An operation as ``commitInfo`` records it (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Self

import msgspec

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.transaction.operation_kinds import (
    KINDS,
    OVERWRITE_REMOVES,
    WRITE,
    WRITE_REPLACE_WHERE,
    OperationKind,
    operation_kind,
)

Columns = Sequence[str]

Column = Mapping[str, Any]
"""A column in ``commitInfo``: ``name`` (a dotted path), ``type`` (name of its type), ``nullable``, ``metadata``."""


def document(value: Any) -> str:
    """Return a structured parameter as JSON text (it is encoded once more inside ``commitInfo``)."""
    return msgspec.json.encode(value).decode()


def present(**parameters: Any) -> dict[str, Any]:
    """Return the parameters that are not ``None``."""
    return {name: value for name, value in parameters.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Operation:
    """What a commit does, as ``commitInfo`` records it.

    An operation is data: :data:`~airflow_delta.transaction.operation_kinds.KINDS` has the names, parameters and metrics of
    Delta's. What writers of tables do has a constructor here; everything else is created by name, an operation that Delta does
    not have, too: ``Operation("UPGRADE PROTOCOL", {"newProtocol": {...}})``, ``Operation("MY JOB", {"source": "x"})``.

    :param name: Delta's name of the operation.
    :param parameters: by name; lists and mappings become JSON text.
    :param metrics: operation metrics; written as strings, if the operation has a metric of that name.
    :param user_metadata: text for ``commitInfo.userMetadata``.
    :param can_change_partition_columns: it may change an existing table's partitioning; default: Delta's rule for its name.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    user_metadata: str | None = None
    can_change_partition_columns: bool | None = None

    @property
    def kind(self) -> OperationKind:
        """Delta's rules for operations of this name."""
        return operation_kind(self.name)

    @property
    def changes_data(self) -> bool:
        """Whether the operation changes data, whatever its actions say."""
        return self.kind.changes_data

    @property
    def may_change_partition_columns(self) -> bool:
        """Whether the operation may change an existing table's partitioning."""
        if self.can_change_partition_columns is not None:
            return self.can_change_partition_columns
        return self.kind.changes_partitioning

    @property
    def checks_loose_bounds(self) -> bool:
        """Whether files with a deletion vector must say that their statistics are not tight bounds."""
        return self.kind.checks_loose_bounds

    @property
    def updates_in_place(self) -> bool:
        """Whether the operation only changes what the log says about existing files."""
        return self.kind.in_place

    @property
    def metric_names(self) -> frozenset[str] | None:
        """Names that ``operationMetrics`` may hold; ``None`` for an operation that Delta does not have."""
        if self.name not in KINDS:
            return None
        if self.name == "WRITE":
            if {"predicate", "replaceOnCond", "replaceUsingCols"} & self.parameters.keys():
                return WRITE_REPLACE_WHERE
            return WRITE | OVERWRITE_REMOVES if self.parameters.get("mode") == "Overwrite" else WRITE
        return self.kind.metrics

    def encoded_parameters(self) -> dict[str, Any]:
        """Return ``operationParameters``: lists and mappings as JSON text, other values as they are."""
        return {
            name: document(value) if isinstance(value, Mapping | list | tuple | set | frozenset) else value
            for name, value in self.parameters.items()
        }

    def encoded_metrics(self) -> dict[str, str]:
        """Return ``operationMetrics``: numbers as strings, in the given order, without metrics the operation does not have."""
        allowed = self.metric_names
        return {
            name: str(value)
            for name, value in (self.metrics or {}).items()
            if value is not None and (allowed is None or name in allowed)
        }

    def with_metrics(self, metrics: Mapping[str, Any]) -> Self:
        """Return the operation with further metrics."""
        return replace(self, metrics={**(self.metrics or {}), **metrics})

    # -- files: added, removed, rearranged -------------------------------------------------------------------------------------

    @classmethod
    def write(
        cls,
        mode: str = "Append",
        partition_by: Columns | None = None,
        *,
        predicate: str | None = None,
        dynamic_partition_overwrite: bool | None = None,
        can_overwrite_schema: bool | None = None,
        can_merge_schema: bool | None = None,
        replace_on: str | None = None,
        replace_using: Columns | None = None,
        metrics: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> Self:
        """Return WRITE, a DataFrame write.

        :param mode: ``Append``, ``Overwrite``, ``ErrorIfExists`` or ``Ignore``, case-insensitive.
        :param predicate: text of ``replaceWhere`` as the user wrote it.
        :param replace_on: condition of REPLACE ON.
        :param replace_using: columns of REPLACE USING.
        """
        name = {"errorifexists": "ErrorIfExists"}.get(mode.lower(), mode[:1].upper() + mode[1:].lower())
        parameters = present(
            mode=name,
            partitionBy=list(partition_by or ()),
            predicate=predicate,
            isDynamicPartitionOverwrite=dynamic_partition_overwrite,
            canOverwriteSchema=can_overwrite_schema,
            canMergeSchema=can_merge_schema,
            replaceOnCond=replace_on,
            replaceUsingCols=f"({', '.join(replace_using)})" if replace_using is not None else None,
        )
        return cls("WRITE", parameters, metrics, user_metadata, bool(name == "Overwrite" and can_overwrite_schema))

    @classmethod
    def streaming_update(
        cls,
        output_mode: str,
        query_id: str,
        epoch_id: int,
    ) -> Self:
        """Return STREAMING UPDATE: a micro-batch of a streaming query."""
        parameters = {"outputMode": output_mode, "queryId": query_id, "epochId": str(epoch_id)}
        return cls("STREAMING UPDATE", parameters)

    @classmethod
    def delete(cls, predicates: Columns = (), *, metrics: Mapping[str, Any] | None = None) -> Self:
        """Return DELETE; no predicate deletes everything."""
        return cls("DELETE", {"predicate": list(predicates)}, metrics)

    @classmethod
    def truncate(cls) -> Self:
        """Return TRUNCATE."""
        return cls("TRUNCATE")

    @classmethod
    def update(cls, predicate: str | None = None) -> Self:
        """Return UPDATE."""
        return cls("UPDATE", {"predicate": [predicate] if predicate is not None else []})

    @classmethod
    def merge(
        cls,
        predicate: str | None,
        *,
        matched: Sequence[Mapping[str, str]] = (),
        not_matched: Sequence[Mapping[str, str]] = (),
        not_matched_by_source: Sequence[Mapping[str, str]] = (),
    ) -> Self:
        """Return MERGE; a clause is a mapping of ``actionType`` and, optionally, ``predicate``."""
        parameters = {
            "predicate": [predicate] if predicate is not None else [],
            "matchedPredicates": list(matched),
            "notMatchedPredicates": list(not_matched),
            "notMatchedBySourcePredicates": list(not_matched_by_source),
        }
        return cls("MERGE", parameters)

    @classmethod
    def optimize(
        cls,
        predicates: Columns = (),
        z_order_by: Columns = (),
        *,
        auto: bool = False,
        cluster_by: Columns | None = None,
        is_full: bool = False,
    ) -> Self:
        """Return OPTIMIZE; its actions must say ``dataChange=false``.

        :param auto: run by auto compaction.
        :param cluster_by: columns of a clustered table, ``None`` for any other.
        :param is_full: OPTIMIZE FULL of a clustered table.
        """
        parameters: dict[str, Any] = {
            "predicate": list(predicates),
            "zOrderBy": list(z_order_by),
            "clusterBy": list(cluster_by or ()),
            "auto": auto,
        }
        if cluster_by:
            parameters["isFull"] = is_full
        return cls("OPTIMIZE", parameters)

    @classmethod
    def reorg(cls) -> Self:
        """Return REORG APPLY (PURGE), which rewrites files without the data that the table no longer shows."""
        return cls("REORG", {"predicate": [], "applyPurge": True})

    @classmethod
    def compute_stats(cls, predicates: Columns = ()) -> Self:
        """Return COMPUTE STATS: files added again with new statistics."""
        return cls("COMPUTE STATS", {"predicate": list(predicates)})

    @classmethod
    def restore(
        cls, version: int | None = None, timestamp: str | None = None, *, metrics: Mapping[str, Any] | None = None
    ) -> Self:
        """Return RESTORE to a version or a timestamp; the other is ``None`` and written as null."""
        return cls("RESTORE", {"version": version, "timestamp": timestamp}, metrics)

    @classmethod
    def convert(
        cls,
        num_files: int,
        partition_by: Columns = (),
        *,
        collect_stats: bool = True,
        catalog_table: str | None = None,
        source_format: str | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return CONVERT of a directory of Parquet files."""
        parameters = present(
            numFiles=num_files,
            partitionedBy=list(partition_by),
            collectStats=collect_stats,
            catalogTable=catalog_table,
            sourceFormat=source_format,
        )
        return cls("CONVERT", parameters, metrics)

    @classmethod
    def clone(cls, source: str, source_version: int, *, shallow: bool = True, metrics: Mapping[str, Any] | None = None) -> Self:
        """Return CLONE of another table.

        :param shallow: Delta Spark, which has only these, does not say so; a deep one does.
        """
        parameters: dict[str, Any] = {"source": source, "sourceVersion": source_version}
        return cls("CLONE", parameters if shallow else {**parameters, "isShallow": False}, metrics)

    @classmethod
    def vacuum_start(
        cls,
        *,
        retention_check_enabled: bool,
        default_retention_millis: int,
        specified_retention_millis: int | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return VACUUM START."""
        parameters = present(
            retentionCheckEnabled=retention_check_enabled,
            defaultRetentionMillis=default_retention_millis,
            specifiedRetentionMillis=specified_retention_millis,
        )
        return cls("VACUUM START", parameters, metrics)

    @classmethod
    def vacuum_end(cls, status: str, *, metrics: Mapping[str, Any] | None = None) -> Self:
        """Return VACUUM END.

        :param status: ``COMPLETED`` or ``FAILED``.
        """
        return cls("VACUUM END", {"status": status}, metrics)

    # -- the table itself: creation, schema, properties ------------------------------------------------------------------------

    @classmethod
    def create_table(
        cls,
        partition_by: Columns | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        is_managed: bool = False,
        as_select: bool = False,
        cluster_by: Columns | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return CREATE TABLE, or CREATE TABLE AS SELECT."""
        parameters = _table_parameters(partition_by, properties, description, is_managed, cluster_by)
        return cls("CREATE TABLE AS SELECT" if as_select else "CREATE TABLE", parameters, metrics)

    @classmethod
    def replace_table(
        cls,
        partition_by: Columns | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        is_managed: bool = False,
        or_create: bool = False,
        as_select: bool = False,
        cluster_by: Columns | None = None,
        predicate: str | None = None,
        dynamic_partition_overwrite: bool | None = None,
        can_overwrite_schema: bool | None = None,
        can_merge_schema: bool | None = None,
        is_v1_save_as_table: bool | None = None,
        metrics: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> Self:
        """Return [CREATE OR] REPLACE TABLE [AS SELECT].

        :param is_v1_save_as_table: ``saveAsTable`` in overwrite mode; the partitioning may then only change together with the
            schema (``can_overwrite_schema``).
        """
        name = f"{'CREATE OR ' if or_create else ''}REPLACE TABLE{' AS SELECT' if as_select else ''}"
        parameters = _table_parameters(partition_by, properties, description, is_managed, cluster_by) | present(
            predicate=predicate,
            isDynamicPartitionOverwrite=dynamic_partition_overwrite,
            canOverwriteSchema=can_overwrite_schema,
            canMergeSchema=can_merge_schema,
            isV1SaveAsTableOverwrite=is_v1_save_as_table,
        )
        may_change = bool(can_overwrite_schema) if is_v1_save_as_table else None
        return cls(name, parameters, metrics, user_metadata, may_change)

    @classmethod
    def set_table_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return SET TBLPROPERTIES."""
        return cls("SET TBLPROPERTIES", {"properties": dict(properties)})

    @classmethod
    def unset_table_properties(cls, names: Columns, *, if_exists: bool = False) -> Self:
        """Return UNSET TBLPROPERTIES."""
        return cls("UNSET TBLPROPERTIES", {"properties": list(names), "ifExists": if_exists})

    @classmethod
    def add_columns(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Return ADD COLUMNS; an item is a mapping of ``column`` and, optionally, ``position`` (``FIRST``, ``AFTER x``)."""
        return cls("ADD COLUMNS", {"columns": list(columns)})

    @classmethod
    def drop_columns(cls, columns: Columns) -> Self:
        """Return DROP COLUMNS, by dotted path."""
        return cls("DROP COLUMNS", {"columns": list(columns)})

    @classmethod
    def rename_column(cls, old_path: str, new_path: str) -> Self:
        """Return RENAME COLUMN; both paths are dotted."""
        return cls("RENAME COLUMN", {"oldColumnPath": old_path, "newColumnPath": new_path})

    @classmethod
    def change_column(cls, column: Column, position: str | None = None) -> Self:
        """Return CHANGE COLUMN; ``position`` is ``FIRST`` or ``AFTER x``."""
        return cls("CHANGE COLUMN", present(column=dict(column), position=position))

    @classmethod
    def change_columns(cls, columns: Sequence[Column]) -> Self:
        """Return CHANGE COLUMNS: several columns at once."""
        return cls("CHANGE COLUMNS", {"columns": list(columns)})

    @classmethod
    def replace_columns(cls, columns: Sequence[Column]) -> Self:
        """Return REPLACE COLUMNS, with all columns of the new list."""
        return cls("REPLACE COLUMNS", {"columns": list(columns)})

    @classmethod
    def add_constraint(cls, name: str, expression: str) -> Self:
        """Return ADD CONSTRAINT."""
        return cls("ADD CONSTRAINT", {"name": name, "expr": expression})

    @classmethod
    def drop_constraint(cls, name: str, expression: str | None = None) -> Self:
        """Return DROP CONSTRAINT; without an expression, there was no such constraint."""
        if expression is None:
            return cls("DROP CONSTRAINT", {"name": name, "existed": "false"})
        return cls("DROP CONSTRAINT", {"name": name, "expr": expression, "existed": "true"})

    @classmethod
    def cluster_by(cls, old: Columns, new: Columns) -> Self:
        """Return CLUSTER BY; no new columns end the clustering."""
        return cls("CLUSTER BY", {"oldClusteringColumns": ",".join(old), "newClusteringColumns": ",".join(new)})

    @classmethod
    def drop_feature(cls, name: str, *, truncate_history: bool = False) -> Self:
        """Return DROP FEATURE."""
        return cls("DROP FEATURE", {"featureName": name, "truncateHistory": truncate_history})

    @classmethod
    def manual_update(cls) -> Self:
        """Return Manual Update: actions assembled by hand."""
        return cls("Manual Update")


def _table_parameters(
    partition_by: Columns | None,
    properties: Mapping[str, str] | None,
    description: str | None,
    is_managed: bool,
    cluster_by: Columns | None,
) -> dict[str, Any]:
    return {
        "partitionBy": list(partition_by or ()),
        "clusterBy": list(cluster_by or ()),
        "description": description,
        "isManaged": str(is_managed).lower(),
        "properties": dict(properties or {}),
    }
