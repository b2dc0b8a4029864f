"""The Delta log on its own, without transactions: reading a table at a version, and writing commits and checkpoints.

Everything is imported on first use, so that a task pays only for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import (
        AddCDCFile,
        AddFile,
        CommitInfo,
        DeletionVectorDescriptor,
        DomainMetadata,
        Format,
        Metadata,
        Protocol,
        RemoveFile,
        SetTransaction,
    )
    from airflow_delta.log.checksum_validation import ChecksumValidation
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.history import CommitRecord
    from airflow_delta.log.snapshot import Snapshot

_HOMES = {
    "AddCDCFile": "actions.actions",
    "AddFile": "actions.actions",
    "ChecksumValidation": "checksum_validation",
    "CommitInfo": "actions.actions",
    "CommitRecord": "history",
    "DeletionVectorDescriptor": "actions.actions",
    "DeltaLog": "delta_log",
    "DomainMetadata": "actions.actions",
    "Format": "actions.actions",
    "Metadata": "actions.actions",
    "Protocol": "actions.actions",
    "RemoveFile": "actions.actions",
    "SetTransaction": "actions.actions",
    "Snapshot": "snapshot",
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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
