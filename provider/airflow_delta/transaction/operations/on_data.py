"""Constructors of the operations that add, remove or rearrange files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from airflow_delta.transaction.operations.base import Columns, OperationBase, present


class DataOperations(OperationBase):
    """One constructor for each operation, named after it."""

    __slots__ = ()

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
    def clone(cls, source: str, source_version: int, *, metrics: Mapping[str, Any] | None = None) -> Self:
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

    @classmethod
    def row_tracking_backfill(cls, batch_id: int = 0) -> Self:
        """Return ROW TRACKING BACKFILL: files added again with row ids."""
        return cls("ROW TRACKING BACKFILL", {"batchId": str(batch_id)})

    @classmethod
    def row_tracking_unbackfill(cls, batch_id: int = 0) -> Self:
        """Return ROW TRACKING UNBACKFILL: files added again without row ids."""
        return cls("ROW TRACKING UNBACKFILL", {"batchId": str(batch_id)})

    @classmethod
    def deletion_vector_tombstones(cls) -> Self:
        """Return Deletion Vector Tombstones: vectors that DROP FEATURE deletionVectors leaves for VACUUM."""
        return cls("Deletion Vector Tombstones")
