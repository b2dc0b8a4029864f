"""Parameters, metrics and rules of each of Delta's operations, as a table (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from airflow_delta.light_dataclasses import dataclass

COMPACTIONS = ("OPTIMIZE", "REORG")
"""Operations that may leave out some of their files."""

_DELETION_VECTORS = frozenset({"numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated"})
_TIMES = frozenset({"executionTimeMs", "scanTimeMs", "rewriteTimeMs"})
_REWRITE = (
    frozenset({"numAddedFiles", "numRemovedFiles", "numAddedChangeFiles", "numCopiedRows", "numAddedBytes", "numRemovedBytes"})
    | _DELETION_VECTORS
    | _TIMES
)

WRITE = frozenset({"numFiles", "numOutputBytes", "numOutputRows"})
OVERWRITE_REMOVES = frozenset({"numRemovedFiles", "numRemovedBytes"})
WRITE_REPLACE_WHERE = WRITE | OVERWRITE_REMOVES | {"numAddedChangeFiles", "numDeletedRows", "numCopiedRows"}
_STREAMING_UPDATE = frozenset({"numAddedFiles", "numRemovedFiles", "numOutputRows", "numOutputBytes"})
_DELETE = _REWRITE | {"numDeletedRows"}
_UPDATE = _REWRITE | {"numUpdatedRows"}
_MERGE = (
    frozenset(
        {
            "numSourceRows",
            "numTargetRowsInserted",
            "numTargetRowsUpdated",
            "numTargetRowsMatchedUpdated",
            "numTargetRowsNotMatchedBySourceUpdated",
            "numTargetRowsDeleted",
            "numTargetRowsMatchedDeleted",
            "numTargetRowsNotMatchedBySourceDeleted",
            "numTargetRowsCopied",
            "numTargetBytesAdded",
            "numTargetBytesRemoved",
            "numOutputRows",
            "numTargetFilesAdded",
            "numTargetFilesRemoved",
            "numTargetChangeFilesAdded",
            "materializeSourceTimeMs",
            "numTargetDeletionVectorsAdded",
            "numTargetDeletionVectorsRemoved",
            "numTargetDeletionVectorsUpdated",
        }
    )
    | _TIMES
)
_OPTIMIZE = frozenset(
    {
        "numAddedFiles",
        "numRemovedFiles",
        "numAddedBytes",
        "numRemovedBytes",
        "minFileSize",
        "p25FileSize",
        "p50FileSize",
        "p75FileSize",
        "maxFileSize",
        "numDeletionVectorsRemoved",
    }
)
_RESTORE = frozenset(
    {
        "tableSizeAfterRestore",
        "numOfFilesAfterRestore",
        "numRemovedFiles",
        "numRestoredFiles",
        "removedFilesSize",
        "restoredFilesSize",
    }
)
_CLONE = frozenset(
    {"sourceTableSize", "sourceNumOfFiles", "numRemovedFiles", "numCopiedFiles", "removedFilesSize", "copiedFilesSize"}
)
_REMOVE_COLUMN_MAPPING = frozenset(
    {"numRewrittenFiles", "numOutputBytes", "numRemovedBytes", "numCopiedRows", "numDeletionVectorsRemoved"}
)

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationKind:
    """Rules for one operation.

    :param parameters: names that ``operationParameters`` may hold.
    :param metrics: names that ``operationMetrics`` may hold.
    :param changes_data: it changes data even if its actions say ``dataChange=false`` (Delta's ``changesData``).
    :param changes_partitioning: it may change an existing table's partitioning (``canChangePartitionColumns``).
    :param checks_loose_bounds: files that it adds with a deletion vector must say ``tightBounds=false``
        (``checkAddFileWithDeletionVectorStatsAreNotTightBounds``).
    :param in_place: it only changes what the log says about existing files (``isInPlaceFileMetadataUpdate``).
    """

    parameters: tuple[str, ...] = ()
    metrics: frozenset[str] = _NOTHING
    changes_data: bool = False
    changes_partitioning: bool = False
    checks_loose_bounds: bool = True
    in_place: bool = False


_TABLE = ("partitionBy", "clusterBy", "description", "isManaged", "properties")
_OVERWRITE = ("predicate", "isDynamicPartitionOverwrite", "canOverwriteSchema", "canMergeSchema")
_REPLACED = (*_TABLE, *_OVERWRITE, "isV1SaveAsTableOverwrite")
_WRITE_PARAMETERS = ("mode", "partitionBy", *_OVERWRITE, "replaceOnCond", "replaceUsingCols")

KINDS: dict[str, OperationKind] = {
    "WRITE": OperationKind(parameters=_WRITE_PARAMETERS, metrics=WRITE, changes_data=True),
    "STREAMING UPDATE": OperationKind(
        parameters=("outputMode", "queryId", "epochId"), metrics=_STREAMING_UPDATE, changes_data=True
    ),
    "DELETE": OperationKind(parameters=("predicate",), metrics=_DELETE, changes_data=True),
    "TRUNCATE": OperationKind(metrics=frozenset({"numRemovedFiles", "executionTimeMs"}), changes_data=True),
    "UPDATE": OperationKind(parameters=("predicate",), metrics=_UPDATE, changes_data=True),
    "MERGE": OperationKind(
        parameters=("predicate", "matchedPredicates", "notMatchedPredicates", "notMatchedBySourcePredicates"),
        metrics=_MERGE,
        changes_data=True,
    ),
    "CONVERT": OperationKind(
        parameters=("numFiles", "partitionedBy", "collectStats", "catalogTable", "sourceFormat"),
        metrics=frozenset({"numConvertedFiles"}),
        changes_data=True,
    ),
    "RESTORE": OperationKind(parameters=("version", "timestamp"), metrics=_RESTORE, changes_data=True, checks_loose_bounds=False),
    "CLONE": OperationKind(
        parameters=("source", "sourceVersion"),
        metrics=_CLONE,
        changes_data=True,
        changes_partitioning=True,
        checks_loose_bounds=False,
    ),
    "CREATE TABLE": OperationKind(parameters=_TABLE, changes_partitioning=True),
    "CREATE TABLE AS SELECT": OperationKind(parameters=_TABLE, metrics=WRITE, changes_data=True, changes_partitioning=True),
    "REPLACE TABLE": OperationKind(parameters=_REPLACED, changes_data=True, changes_partitioning=True),
    "REPLACE TABLE AS SELECT": OperationKind(
        parameters=_REPLACED, metrics=WRITE | OVERWRITE_REMOVES, changes_data=True, changes_partitioning=True
    ),
    "CREATE OR REPLACE TABLE": OperationKind(parameters=_REPLACED, changes_data=True, changes_partitioning=True),
    "CREATE OR REPLACE TABLE AS SELECT": OperationKind(
        parameters=_REPLACED, metrics=WRITE | OVERWRITE_REMOVES, changes_data=True, changes_partitioning=True
    ),
    "OPTIMIZE": OperationKind(parameters=("predicate", "zOrderBy", "clusterBy", "auto", "isFull"), metrics=_OPTIMIZE),
    "REORG": OperationKind(parameters=("predicate", "applyPurge"), metrics=_OPTIMIZE),
    "REORG TABLE UPGRADE UNIFORM": OperationKind(parameters=("properties",)),
    "COMPUTE STATS": OperationKind(parameters=("predicate",), checks_loose_bounds=False, in_place=True),
    "ROW TRACKING BACKFILL": OperationKind(parameters=("batchId",), checks_loose_bounds=False, in_place=True),
    "ROW TRACKING UNBACKFILL": OperationKind(parameters=("batchId",), checks_loose_bounds=False, in_place=True),
    "DROP FEATURE": OperationKind(parameters=("featureName", "truncateHistory"), in_place=True),
    "REMOVE COLUMN MAPPING": OperationKind(metrics=_REMOVE_COLUMN_MAPPING),
    "Deletion Vector Tombstones": OperationKind(),
    "OPTIMIZE CHECKPOINT": OperationKind(parameters=("incremental", "triggerName"), checks_loose_bounds=False),
    "DOMAIN METADATA CLEANUP": OperationKind(parameters=("domainMetadataRemovedCount",)),
    "VACUUM START": OperationKind(
        parameters=("retentionCheckEnabled", "defaultRetentionMillis", "specifiedRetentionMillis"),
        metrics=frozenset({"numFilesToDelete", "sizeOfDataToDelete"}),
    ),
    "VACUUM END": OperationKind(parameters=("status",), metrics=frozenset({"numDeletedFiles", "numVacuumedDirectories"})),
    "SET TBLPROPERTIES": OperationKind(parameters=("properties",)),
    "UNSET TBLPROPERTIES": OperationKind(parameters=("properties", "ifExists")),
    "ADD COLUMNS": OperationKind(parameters=("columns",)),
    "DROP COLUMNS": OperationKind(parameters=("columns",)),
    "RENAME COLUMN": OperationKind(parameters=("oldColumnPath", "newColumnPath"), changes_partitioning=True),
    "CHANGE COLUMN": OperationKind(parameters=("column", "position")),
    "CHANGE COLUMNS": OperationKind(parameters=("columns",)),
    "REPLACE COLUMNS": OperationKind(parameters=("columns",)),
    "UPDATE SCHEMA": OperationKind(parameters=("oldSchema", "newSchema")),
    "ADD CONSTRAINT": OperationKind(parameters=("name", "expr")),
    "DROP CONSTRAINT": OperationKind(parameters=("name", "expr", "existed")),
    "CLUSTER BY": OperationKind(parameters=("oldClusteringColumns", "newClusteringColumns")),
    "UPGRADE PROTOCOL": OperationKind(parameters=("newProtocol",)),
    "Manual Update": OperationKind(changes_partitioning=True, checks_loose_bounds=False),
    "Empty Commit": OperationKind(),
}
"""The operations that Delta has, by name."""

UNKNOWN = OperationKind()
"""An operation that Delta does not have: Delta's default rules, and all of its metrics are kept."""


def operation_kind(name: str) -> OperationKind:
    """Return the rules for an operation of that name."""
    return KINDS.get(name, UNKNOWN)
