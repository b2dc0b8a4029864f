"""Constructors of the operations on the table itself: creation, schema, properties, protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from airflow_delta.transaction.operations.base import Columns, OperationBase, document, present

Column = Mapping[str, Any]
"""A column in ``commitInfo``: ``name`` (a dotted path), ``type`` (name of its type), ``nullable``, ``metadata``."""


class TableOperations(OperationBase):
    """One constructor for each operation, named after it."""

    __slots__ = ()

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
    def update_column_metadata(cls, name: str, columns: Sequence[Column]) -> Self:
        """Return an operation of that name on the metadata of columns (Delta's ``UpdateColumnMetadata``)."""
        return cls(name, {"columns": list(columns)})

    @classmethod
    def update_schema(cls, old: Mapping[str, Any], new: Mapping[str, Any]) -> Self:
        """Return UPDATE SCHEMA; both schemas are in JSON form."""
        return cls("UPDATE SCHEMA", {"oldSchema": dict(old), "newSchema": dict(new)})

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
    def upgrade_protocol(cls, protocol: Mapping[str, Any]) -> Self:
        """Return UPGRADE PROTOCOL to a protocol in its JSON form."""
        return cls("UPGRADE PROTOCOL", {"newProtocol": dict(protocol)})

    @classmethod
    def drop_feature(cls, name: str, *, truncate_history: bool = False) -> Self:
        """Return DROP FEATURE."""
        return cls("DROP FEATURE", {"featureName": name, "truncateHistory": truncate_history})

    @classmethod
    def remove_column_mapping(cls) -> Self:
        """Return REMOVE COLUMN MAPPING: every file rewritten with logical names."""
        return cls("REMOVE COLUMN MAPPING")

    @classmethod
    def upgrade_uniform_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return REORG TABLE UPGRADE UNIFORM."""
        return cls("REORG TABLE UPGRADE UNIFORM", {"properties": document(dict(properties))})

    @classmethod
    def domain_metadata_cleanup(cls, removed: int) -> Self:
        """Return DOMAIN METADATA CLEANUP: removes the domains of a feature that is being dropped."""
        return cls("DOMAIN METADATA CLEANUP", {"domainMetadataRemovedCount": removed})

    @classmethod
    def optimize_checkpoint(cls, trigger: str, *, incremental: bool) -> Self:
        """Return OPTIMIZE CHECKPOINT."""
        return cls("OPTIMIZE CHECKPOINT", {"incremental": incremental, "triggerName": trigger})

    @classmethod
    def manual_update(cls) -> Self:
        """Return Manual Update: actions assembled by hand."""
        return cls("Manual Update")

    @classmethod
    def empty_commit(cls) -> Self:
        """Return Empty Commit."""
        return cls("Empty Commit")


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
