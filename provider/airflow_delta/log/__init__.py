"""The Delta log on its own, without transactions: reading a table at a version, and writing commits and checkpoints.

Everything is imported on first use, so that a task pays only for what it needs. ``DeltaLog`` comes from the floor
above, with transactions; the package itself uses :class:`airflow_delta.log.delta_log.DeltaLog`.
"""

from __future__ import annotations

from airflow_delta.lazy import face

_HOMES = {
    "AddCDCFile": "airflow_delta.log.actions.actions",
    "AddFile": "airflow_delta.log.actions.actions",
    "ChecksumValidation": "airflow_delta.log.checksum_validation",
    "CommitInfo": "airflow_delta.log.actions.actions",
    "CommitRecord": "airflow_delta.log.time_travel",
    "DeletionVectorDescriptor": "airflow_delta.log.actions.actions",
    "DeltaLog": "airflow_delta.transaction.delta_log",
    "DomainMetadata": "airflow_delta.log.actions.actions",
    "Format": "airflow_delta.log.actions.actions",
    "Metadata": "airflow_delta.log.actions.actions",
    "Protocol": "airflow_delta.log.actions.actions",
    "RemoveFile": "airflow_delta.log.actions.actions",
    "SetTransaction": "airflow_delta.log.actions.actions",
    "Snapshot": "airflow_delta.log.snapshot",
}

__all__ = [
    "AddCDCFile",
    "AddFile",
    "ChecksumValidation",
    "CommitInfo",
    "CommitRecord",
    "DeletionVectorDescriptor",
    "DeltaLog",
    "DomainMetadata",
    "Format",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "SetTransaction",
    "Snapshot",
]

__getattr__, __dir__ = face(__name__, _HOMES)
