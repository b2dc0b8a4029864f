"""Names that Delta and Spark give: table properties, metadata of fields, domains, columns of the change data feed.

Here is each name that more than one module spells. The table of properties with their types and defaults is
:mod:`airflow_delta.log.features.properties`.
"""

from __future__ import annotations

# Table properties (Delta's DeltaConfigs).
APPEND_ONLY = "delta.appendOnly"
CHECKPOINT_POLICY = "delta.checkpointPolicy"
PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
CHECKPOINT_STATS_AS_JSON = "delta.checkpoint.writeStatsAsJson"
CHECKPOINT_STATS_AS_STRUCT = "delta.checkpoint.writeStatsAsStruct"
COLUMN_MAPPING_MODE = "delta.columnMapping.mode"
DATA_SKIPPING_STATS_COLUMNS = "delta.dataSkippingStatsColumns"
ENABLE_DELETION_VECTORS = "delta.enableDeletionVectors"
ENABLE_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
ENABLE_ROW_TRACKING = "delta.enableRowTracking"
ENABLE_TYPE_WIDENING = "delta.enableTypeWidening"
IGNORE_PROTOCOL_DEFAULTS = "delta.ignoreProtocolDefaults"
IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION = "delta.inCommitTimestampEnablementVersion"
ISOLATION_LEVEL = "delta.isolationLevel"
LOG_RETENTION_DURATION = "delta.logRetentionDuration"
MATERIALIZED_ROW_COMMIT_VERSION = "delta.rowTracking.materializedRowCommitVersionColumnName"
MATERIALIZED_ROW_ID = "delta.rowTracking.materializedRowIdColumnName"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
MIN_READER_VERSION = "delta.minReaderVersion"
MIN_WRITER_VERSION = "delta.minWriterVersion"
ROW_TRACKING_SUSPENDED = "delta.rowTrackingSuspended"
SET_TRANSACTION_RETENTION_DURATION = "delta.setTransactionRetentionDuration"
SYMLINK_MANIFEST = "delta.compatibility.symlinkFormatManifest.enabled"
UNIVERSAL_FORMAT = "delta.universalFormat.enabledFormats"

COLUMN_MAPPING_PREFIX = "delta.columnMapping."
CONSTRAINT_PREFIX = "delta.constraints."
FEATURE_PREFIX = "delta.feature."
MATERIALIZED_PREFIX = "delta.rowTracking.materialized"

# Metadata of a field.
COLLATIONS = "__COLLATIONS"
"""Spark's key for the collations of its strings."""
COLUMN_ID = "delta.columnMapping.id"
GENERATION_EXPRESSION = "delta.generationExpression"
HIGH_WATER_MARK = "delta.identity.highWaterMark"
NESTED_IDS = "delta.columnMapping.nested.ids"
PARQUET_FIELD_ID = "parquet.field.id"
"""Spark's Parquet writer writes it as the field id."""
PHYSICAL_NAME = "delta.columnMapping.physicalName"
TYPE_CHANGES = "delta.typeChanges"

# Domains (protocol, "Domain Metadata"), and tags of commitInfo.
CLUSTERING_DOMAIN = "delta.clustering"
ROW_TRACKING_DOMAIN = "delta.rowTracking"
ROW_TRACKING_PRESERVED = "delta.rowTracking.preserved"

# Columns of the change data feed.
CHANGE_TYPE = "_change_type"
COMMIT_TIMESTAMP = "_commit_timestamp"
COMMIT_VERSION = "_commit_version"

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Null in the path of a partition."""
