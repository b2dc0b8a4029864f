"""The operations of Delta: names, parameters, and what the engine needs to know of each (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

CHANGES_DATA = frozenset(
    {
        "WRITE",
        "STREAMING UPDATE",
        "DELETE",
        "TRUNCATE",
        "CONVERT",
        "MERGE",
        "UPDATE",
        "RESTORE",
        "CLONE",
        "CREATE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
    }
)
"""Operations that change data even where their actions say ``dataChange=false``."""

_CHANGES_PARTITIONING = (CHANGES_DATA - {"WRITE", "STREAMING UPDATE", "DELETE", "TRUNCATE", "MERGE", "UPDATE", "RESTORE"}) | {
    "CREATE TABLE",
    "RENAME COLUMN",
    "Manual Update",
}
_KEEPS_LOOSE_BOUNDS = frozenset(
    {"Manual Update", "COMPUTE STATS", "RESTORE", "CLONE", "ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL"}
)
_IN_PLACE = frozenset({"COMPUTE STATS", "ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL", "DROP FEATURE"})

Columns = Sequence[str]


def _document(value: Any) -> str:
    """Return a parameter that is a document itself as JSON text (it is encoded once more inside ``commitInfo``)."""
    return msgspec.json.encode(value).decode()


@dataclass(frozen=True, slots=True)
class Operation:
    """What a commit does, as ``commitInfo`` records it.

    :param name: Delta's name of the operation.
    :param parameters: by name; lists and mappings are documents and become JSON text.
    :param metrics: operation metrics; written as strings.
    :param user_metadata: text for ``commitInfo.userMetadata``.
    :param can_change_partition_columns: it may give an existing table another partitioning; default: as Delta has it.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    user_metadata: str | None = None
    can_change_partition_columns: bool | None = None

    @property
    def changes_data(self) -> bool:
        """Whether the operation changes data, whatever its actions say."""
        return self.name in CHANGES_DATA

    @property
    def may_change_partition_columns(self) -> bool:
        """Whether the operation may give an existing table another partitioning."""
        if self.can_change_partition_columns is not None:
            return self.can_change_partition_columns
        return self.name in _CHANGES_PARTITIONING

    @property
    def checks_loose_bounds(self) -> bool:
        """Whether files with a deletion vector must say that their statistics are no tight bounds."""
        return self.name not in _KEEPS_LOOSE_BOUNDS

    @property
    def updates_in_place(self) -> bool:
        """Whether the operation only adds facts about files that are in the table."""
        return self.name in _IN_PLACE

    def encoded_parameters(self) -> dict[str, Any]:
        """Return ``operationParameters``: documents as JSON text, all else as the JSON value it is."""
        return {
            name: _document(value) if isinstance(value, Mapping | list | tuple | set | frozenset) else value
            for name, value in self.parameters.items()
        }

    def encoded_metrics(self) -> dict[str, str]:
        """Return ``operationMetrics``: numbers as strings, in the order given."""
        return {name: str(value) for name, value in (self.metrics or {}).items() if value is not None}

    def with_metrics(self, metrics: Mapping[str, Any]) -> Operation:
        """Return the operation with ``metrics`` added to those it has."""
        return replace(self, metrics={**(self.metrics or {}), **metrics})

    # -- one constructor an operation ------------------------------------------------------------------------------------------

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
        metrics: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> Operation:
        """Return WRITE, a DataFrame write.

        :param mode: ``Append`` or ``Overwrite``.
        :param predicate: text of ``replaceWhere``, as the user wrote it.
        """
        overwrite = mode.lower() == "overwrite"
        parameters = _present(
            mode=mode[:1].upper() + mode[1:],
            partitionBy=list(partition_by or ()),
            isDynamicPartitionOverwrite=dynamic_partition_overwrite,
            canOverwriteSchema=can_overwrite_schema,
            canMergeSchema=can_merge_schema,
            predicate=predicate,
        )
        return cls("WRITE", parameters, metrics, user_metadata, bool(overwrite and can_overwrite_schema))

    @classmethod
    def streaming_update(cls, output_mode: str, query_id: str, epoch_id: int) -> Operation:
        """Return STREAMING UPDATE, one micro-batch of a streaming query."""
        return cls("STREAMING UPDATE", {"outputMode": output_mode, "queryId": query_id, "epochId": str(epoch_id)})

    @classmethod
    def create_table(
        cls,
        partition_by: Columns | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        description: str | None = None,
        is_managed: bool = False,
        as_select: bool = False,
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return CREATE TABLE, or CREATE TABLE AS SELECT."""
        parameters = _table_parameters(partition_by, properties, description, is_managed)
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
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return [CREATE OR] REPLACE TABLE [AS SELECT]."""
        name = f"{'CREATE OR ' if or_create else ''}REPLACE TABLE{' AS SELECT' if as_select else ''}"
        return cls(name, _table_parameters(partition_by, properties, description, is_managed), metrics)

    @classmethod
    def delete(cls, predicates: Columns = (), *, metrics: Mapping[str, Any] | None = None) -> Operation:
        """Return DELETE; no predicate deletes everything."""
        return cls("DELETE", {"predicate": list(predicates)}, metrics)

    @classmethod
    def truncate(cls, *, metrics: Mapping[str, Any] | None = None) -> Operation:
        """Return TRUNCATE."""
        return cls("TRUNCATE", {}, metrics)

    @classmethod
    def update(cls, predicate: str | None = None, *, metrics: Mapping[str, Any] | None = None) -> Operation:
        """Return UPDATE."""
        return cls("UPDATE", {"predicate": [predicate] if predicate is not None else []}, metrics)

    @classmethod
    def merge(
        cls,
        predicate: str,
        *,
        matched: Sequence[Mapping[str, str]] = (),
        not_matched: Sequence[Mapping[str, str]] = (),
        not_matched_by_source: Sequence[Mapping[str, str]] = (),
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return MERGE; the clauses are mappings of ``predicate`` (optional) and ``actionType``."""
        parameters = {
            "predicate": [predicate],
            "matchedPredicates": list(matched),
            "notMatchedPredicates": list(not_matched),
            "notMatchedBySourcePredicates": list(not_matched_by_source),
        }
        return cls("MERGE", parameters, metrics)

    @classmethod
    def optimize(
        cls,
        predicates: Columns = (),
        z_order_by: Columns = (),
        *,
        auto: bool = False,
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return OPTIMIZE; its actions must say ``dataChange=false``."""
        parameters = {"predicate": list(predicates), "zOrderBy": list(z_order_by), "clusterBy": [], "auto": auto}
        return cls("OPTIMIZE", parameters, metrics)

    @classmethod
    def compute_stats(cls, predicates: Columns = ()) -> Operation:
        """Return COMPUTE STATS: files added again with new statistics."""
        return cls("COMPUTE STATS", {"predicate": list(predicates)})

    @classmethod
    def restore(
        cls, version: int | None = None, timestamp: str | None = None, *, metrics: Mapping[str, Any] | None = None
    ) -> Operation:
        """Return RESTORE to a version or to a timestamp; the other one is ``None`` and written as null."""
        return cls("RESTORE", {"version": version, "timestamp": timestamp}, metrics)

    @classmethod
    def convert(
        cls,
        num_files: int,
        partition_by: Columns = (),
        *,
        collect_stats: bool = True,
        source_format: str | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return CONVERT of a directory of Parquet files."""
        parameters = _present(
            numFiles=num_files, partitionedBy=list(partition_by), collectStats=collect_stats, sourceFormat=source_format
        )
        return cls("CONVERT", parameters, metrics)

    @classmethod
    def clone(cls, source: str, source_version: int, *, metrics: Mapping[str, Any] | None = None) -> Operation:
        """Return CLONE of another table."""
        return cls("CLONE", {"source": source, "sourceVersion": source_version}, metrics)

    @classmethod
    def vacuum_start(
        cls,
        *,
        retention_check_enabled: bool,
        default_retention_millis: int,
        specified_retention_millis: int | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> Operation:
        """Return VACUUM START."""
        parameters = _present(
            retentionCheckEnabled=retention_check_enabled,
            defaultRetentionMillis=default_retention_millis,
            specifiedRetentionMillis=specified_retention_millis,
        )
        return cls("VACUUM START", parameters, metrics)

    @classmethod
    def vacuum_end(cls, status: str, *, metrics: Mapping[str, Any] | None = None) -> Operation:
        """Return VACUUM END.

        :param status: ``COMPLETED`` or ``FAILED``.
        """
        return cls("VACUUM END", {"status": status}, metrics)

    @classmethod
    def set_table_properties(cls, properties: Mapping[str, str]) -> Operation:
        """Return SET TBLPROPERTIES."""
        return cls("SET TBLPROPERTIES", {"properties": dict(properties)})

    @classmethod
    def unset_table_properties(cls, names: Columns, *, if_exists: bool = False) -> Operation:
        """Return UNSET TBLPROPERTIES."""
        return cls("UNSET TBLPROPERTIES", {"properties": list(names), "ifExists": if_exists})

    @classmethod
    def add_columns(cls, columns: Sequence[Mapping[str, Any]]) -> Operation:
        """Return ADD COLUMNS; each column is a mapping of ``column`` (a field in JSON form) and, optionally, ``position``."""
        return cls("ADD COLUMNS", {"columns": list(columns)})

    @classmethod
    def upgrade_protocol(cls, protocol: Mapping[str, Any]) -> Operation:
        """Return UPGRADE PROTOCOL to the given protocol in its JSON form."""
        return cls("UPGRADE PROTOCOL", {"newProtocol": dict(protocol)})

    @classmethod
    def manual_update(cls) -> Operation:
        """Return Manual Update: actions put together by hand."""
        return cls("Manual Update")

    @classmethod
    def empty_commit(cls) -> Operation:
        """Return Empty Commit."""
        return cls("Empty Commit")


def _present(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _table_parameters(
    partition_by: Columns | None, properties: Mapping[str, str] | None, description: str | None, is_managed: bool
) -> dict[str, Any]:
    return {
        "partitionBy": list(partition_by or ()),
        "clusterBy": [],
        "description": description,
        "isManaged": str(is_managed).lower(),
        "properties": dict(properties or {}),
    }
