"""The door from light modules of the log to heavy ones, which import pyarrow or sqlglot.

Start and the commit of a blind append import only light ones: a name is looked up when it is used. Types: ``heavy.pyi``.
"""

from __future__ import annotations

from airflow_delta.lazy import door

_HOMES = {
    "CheckpointReader": "airflow_delta.log.checkpoint.reader",
    "ChecksumValidation": "airflow_delta.log.checksum_validation",
    "ColumnName": "airflow_delta.log.expressions.nodes",
    "FILE_COLUMNS": "airflow_delta.log.checkpoint.columns",
    "FileFilter": "airflow_delta.log.replay.filter",
    "HdfsStore": "airflow_delta.log.storage.hdfs",
    "LocalStore": "airflow_delta.log.storage.local",
    "ObjectStore": "airflow_delta.log.storage.object",
    "PER_SECOND": "airflow_delta.log.data_files.footers",
    "PartitionsFilter": "airflow_delta.log.replay.filter",
    "PathFilter": "airflow_delta.log.replay.filter",
    "Predicate": "airflow_delta.log.expressions.predicate",
    "calls_unknown": "airflow_delta.log.expressions.nodes",
    "canonical_paths": "airflow_delta.log.replay.filter",
    "clean_up_expired_logs": "airflow_delta.log.cleanup",
    "columns_of": "airflow_delta.log.expressions.nodes",
    "comparable": "airflow_delta.log.expressions.arrow_rows",
    "count_files": "airflow_delta.log.replay.live_files",
    "count_totals": "airflow_delta.log.replay.live_files",
    "dotted": "airflow_delta.log.schema.types",
    "equality_of": "airflow_delta.log.expressions.nodes",
    "find_mismatches": "airflow_delta.log.checksum_validation",
    "has_subquery": "airflow_delta.log.expressions.nodes",
    "is_compared_exactly": "airflow_delta.log.expressions.arrow_rows",
    "leaf_paths": "airflow_delta.log.data_files.footers",
    "live_adds": "airflow_delta.log.replay.live_files",
    "live_files": "airflow_delta.log.replay.live_files",
    "mismatch_error": "airflow_delta.log.checksum_validation",
    "needs_other_rows": "airflow_delta.log.expressions.nodes",
    "parse_column_list": "airflow_delta.log.features.clustering",
    "partition_texts": "airflow_delta.log.expressions.predicate",
    "projected": "airflow_delta.log.checkpoint.columns",
    "read_footers": "airflow_delta.log.data_files.footers",
    "read_history": "airflow_delta.log.time_travel",
    "references": "airflow_delta.log.expressions.generated",
    "timestamps": "airflow_delta.log.data_files.footers",
    "to_add_files": "airflow_delta.log.checkpoint.columns",
    "tombstones": "airflow_delta.log.replay.live_files",
    "version_at_timestamp": "airflow_delta.log.time_travel",
    "walk_fields": "airflow_delta.log.schema.types",
    "write_checkpoint": "airflow_delta.log.checkpoint_write.writer",
    "write_snapshot_checksum": "airflow_delta.log.checksum_writer",
}

__all__ = sorted(_HOMES)

__getattr__ = door(__name__, _HOMES)
