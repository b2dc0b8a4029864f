from airflow_delta.log.actions.actions import (
    AddCDCFile as AddCDCFile,
)
from airflow_delta.log.actions.actions import (
    AddFile as AddFile,
)
from airflow_delta.log.actions.actions import (
    CommitInfo as CommitInfo,
)
from airflow_delta.log.actions.actions import (
    DeletionVectorDescriptor as DeletionVectorDescriptor,
)
from airflow_delta.log.actions.actions import (
    DomainMetadata as DomainMetadata,
)
from airflow_delta.log.actions.actions import (
    Format as Format,
)
from airflow_delta.log.actions.actions import (
    Metadata as Metadata,
)
from airflow_delta.log.actions.actions import (
    Protocol as Protocol,
)
from airflow_delta.log.actions.actions import (
    RemoveFile as RemoveFile,
)
from airflow_delta.log.actions.actions import (
    SetTransaction as SetTransaction,
)
from airflow_delta.log.checksum_validation import ChecksumValidation as ChecksumValidation
from airflow_delta.log.snapshot import Snapshot as Snapshot
from airflow_delta.log.time_travel import CommitRecord as CommitRecord
from airflow_delta.transaction.delta_log import DeltaLog as DeltaLog

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
