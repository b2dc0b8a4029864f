"""The rules and metrics of each of Delta's operations, as a table (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from dataclasses import dataclass

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

    :param metrics: names that ``operationMetrics`` may hold.
    :param changes_data: it changes data even if its actions say ``dataChange=false`` (Delta's ``changesData``).
    :param changes_partitioning: it may change an existing table's partitioning (``canChangePartitionColumns``).
    :param checks_loose_bounds: files that it adds with a deletion vector must say ``tightBounds=false``
        (``checkAddFileWithDeletionVectorStatsAreNotTightBounds``).
    :param in_place: it only changes what the log says about existing files (``isInPlaceFileMetadataUpdate``).
    """

    metrics: frozenset[str] = _NOTHING
    changes_data: bool = False
    changes_partitioning: bool = False
    checks_loose_bounds: bool = True
    in_place: bool = False


def _data(metrics: frozenset[str]) -> OperationKind:
    return OperationKind(metrics=metrics, changes_data=True)


def _replace(metrics: frozenset[str]) -> OperationKind:
    return OperationKind(metrics=metrics, changes_data=True, changes_partitioning=True)


_IN_PLACE = OperationKind(checks_loose_bounds=False, in_place=True)
_SCHEMA = OperationKind()

KINDS: dict[str, OperationKind] = {
    "WRITE": _data(WRITE),
    "STREAMING UPDATE": _data(_STREAMING_UPDATE),
    "DELETE": _data(_DELETE),
    "TRUNCATE": _data(frozenset({"numRemovedFiles", "executionTimeMs"})),
    "UPDATE": _data(_UPDATE),
    "MERGE": _data(_MERGE),
    "CONVERT": _data(frozenset({"numConvertedFiles"})),
    "RESTORE": OperationKind(metrics=_RESTORE, changes_data=True, checks_loose_bounds=False),
    "CLONE": OperationKind(metrics=_CLONE, changes_data=True, changes_partitioning=True, checks_loose_bounds=False),
    "CREATE TABLE": OperationKind(changes_partitioning=True),
    "CREATE TABLE AS SELECT": _replace(WRITE),
    "REPLACE TABLE": _replace(_NOTHING),
    "REPLACE TABLE AS SELECT": _replace(WRITE | OVERWRITE_REMOVES),
    "CREATE OR REPLACE TABLE": _replace(_NOTHING),
    "CREATE OR REPLACE TABLE AS SELECT": _replace(WRITE | OVERWRITE_REMOVES),
    "OPTIMIZE": OperationKind(metrics=_OPTIMIZE),
    "REORG": OperationKind(metrics=_OPTIMIZE),
    "REORG TABLE UPGRADE UNIFORM": _SCHEMA,
    "COMPUTE STATS": _IN_PLACE,
    "ROW TRACKING BACKFILL": _IN_PLACE,
    "ROW TRACKING UNBACKFILL": _IN_PLACE,
    "DROP FEATURE": OperationKind(in_place=True),
    "REMOVE COLUMN MAPPING": OperationKind(metrics=_REMOVE_COLUMN_MAPPING),
    "Deletion Vector Tombstones": OperationKind(),
    "OPTIMIZE CHECKPOINT": OperationKind(checks_loose_bounds=False),
    "DOMAIN METADATA CLEANUP": OperationKind(),
    "VACUUM START": OperationKind(metrics=frozenset({"numFilesToDelete", "sizeOfDataToDelete"})),
    "VACUUM END": OperationKind(metrics=frozenset({"numDeletedFiles", "numVacuumedDirectories"})),
    "SET TBLPROPERTIES": _SCHEMA,
    "UNSET TBLPROPERTIES": _SCHEMA,
    "ADD COLUMNS": _SCHEMA,
    "DROP COLUMNS": _SCHEMA,
    "RENAME COLUMN": OperationKind(changes_partitioning=True),
    "CHANGE COLUMN": _SCHEMA,
    "CHANGE COLUMNS": _SCHEMA,
    "REPLACE COLUMNS": _SCHEMA,
    "UPDATE SCHEMA": _SCHEMA,
    "ADD CONSTRAINT": _SCHEMA,
    "DROP CONSTRAINT": _SCHEMA,
    "CLUSTER BY": _SCHEMA,
    "UPGRADE PROTOCOL": _SCHEMA,
    "Manual Update": OperationKind(changes_partitioning=True, checks_loose_bounds=False),
    "Empty Commit": _SCHEMA,
}

UNKNOWN = OperationKind()
"""An operation that Delta does not have: Delta's default rules, and all of its metrics are kept."""


def operation_kind(name: str) -> OperationKind:
    """Return the rules for an operation of that name."""
    return KINDS.get(name, UNKNOWN)
