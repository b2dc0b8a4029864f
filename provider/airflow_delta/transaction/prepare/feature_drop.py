"""Dropping a table feature: one at a time, once nothing uses it (Delta's ``RemovableFeature``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import (
    CLUSTERING_DOMAIN,
    COLUMN_MAPPING_MODE,
    COLUMN_MAPPING_PREFIX,
    ENABLE_DELETION_VECTORS,
    ENABLE_IN_COMMIT_TIMESTAMPS,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
    PROTECTED_BEFORE,
)
from airflow_delta.exceptions import ProtocolDowngradeException
from airflow_delta.log.actions.actions import Metadata, Protocol
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot

OPERATION = "DROP FEATURE"
CHECKPOINT_PROTECTION = "checkpointProtection"
_COORDINATION = "delta.coordinatedcommits."


def dropped(old: Protocol, new: Protocol) -> frozenset[str]:
    """Return the features that ``new`` lacks."""
    return table_protocol.features(old) - table_protocol.features(new)


def check_drop(old: Protocol, new: Protocol, snapshot: Snapshot, *, table: str) -> None:
    """Check that a commit may take features away from a table's protocol.

    :raises ProtocolDowngradeException: if more than one feature is dropped, another is added, or the feature is in use or
        required by one that stays.
    """
    lost = dropped(old, new)
    gained = dropped(new, old) - {CHECKPOINT_PROTECTION}
    known = table_protocol.FEATURES
    dependent = sorted(name for name in table_protocol.features(new) if name in known and lost & set(known[name].requires))
    why = None
    if gained:
        why = f"{', '.join(sorted(gained))} cannot be added in the same commit"
    elif dependent:
        why = f"{', '.join(dependent)} depends on it (DELTA_FEATURE_DROP_DEPENDENT_FEATURE)"
    elif lost:
        why = obstacle(lost, snapshot)
    if why is not None:
        raise snapshot.error(
            ProtocolDowngradeException,
            f"The table feature {', '.join(sorted(lost))} cannot be dropped from table {table}: {why}. Remove what uses it, "
            "and drop one feature at a time.",
        )


def obstacle(features: Collection[str], snapshot: Snapshot) -> str | None:
    """Return why the features cannot be dropped from the table as it is, or ``None`` if they can."""
    if len(features) != 1:
        return "only one feature can be dropped in a commit"
    (feature,) = features
    rule = _REMOVABLE.get(feature)
    if rule is None:
        return "Delta does not allow it"
    return rule(snapshot)


def is_removable(feature: str) -> bool:
    """Tell whether there is a way to drop a feature."""
    return feature in _REMOVABLE


def needs_history_protection(protocol: Protocol, features: Collection[str]) -> bool:
    """Tell whether old checkpoints must be kept for clients that do not know the dropped features."""
    known = table_protocol.FEATURES
    reader = any(name in known and known[name].reader for name in features)
    return reader and CHECKPOINT_PROTECTION in table_protocol.features(protocol)


def leaves_no_trace(feature: str) -> bool:
    """Tell whether the log of a table that has a reader feature looks to older clients as without it, apart from the protocol.

    They refuse the versions that list the feature, and read the later ones although both share checkpoints and commits.
    """
    return feature in _WITHOUT_TRACE


def with_history_protection(metadata: Metadata, version: int) -> Metadata:
    """Return the metadata that keeps the checkpoint before ``version`` from being cleaned up."""
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, PROTECTED_BEFORE: str(version)})


# -- what stands in the way, by feature ----------------------------------------------------------------------------------------


def _unused(feature: str, *also: str) -> Callable[[Snapshot], str | None]:
    """Return the rule for features that only table properties, the schema or the partitioning can use.

    :param also: features whose use is use of this one.
    """

    def rule(snapshot: Snapshot) -> str | None:
        in_use = table_protocol.active_features(snapshot.metadata)
        return "the table uses it" if not in_use.isdisjoint((feature, *also)) else None

    return rule


def _free(_snapshot: Snapshot) -> str | None:
    return None


def _no_domains(snapshot: Snapshot) -> str | None:
    domains = sorted(snapshot.domain_metadata)
    return f"the metadata domains {', '.join(domains)} are set" if domains else None


def _not_clustered(snapshot: Snapshot) -> str | None:
    return "the table is clustered" if CLUSTERING_DOMAIN in snapshot.domain_metadata else None


def _no_timestamps(snapshot: Snapshot) -> str | None:
    keys = (
        IN_COMMIT_TIMESTAMP_ENABLEMENT_VERSION,
        IN_COMMIT_TIMESTAMP_ENABLEMENT_TIMESTAMP,
    )
    known = [key for key in keys if key in snapshot.metadata.configuration]
    if in_commit_timestamps.uses_in_commit_timestamps(snapshot.metadata):
        known.insert(0, ENABLE_IN_COMMIT_TIMESTAMPS)
    return f"the table properties {', '.join(known)} are set" if known else None


def _no_vectors(snapshot: Snapshot) -> str | None:
    if snapshot.metadata.configuration.get(ENABLE_DELETION_VECTORS, "false").lower() == "true":
        return "the table property delta.enableDeletionVectors is set"
    column = snapshot.files(columns=["deletion_vector"]).column("deletion_vector")
    count = len(column) - column.null_count
    return f"{count} files have a deletion vector" if count else None


def _no_mapping(snapshot: Snapshot) -> str | None:
    mapped = COLUMN_MAPPING_PREFIX in snapshot.metadata.schema_string
    off = snapshot.metadata.configuration.get(COLUMN_MAPPING_MODE, "none").lower() == "none"
    return None if off and not mapped else "the columns are mapped"


def _no_row_ids(snapshot: Snapshot) -> str | None:
    if row_tracking.has_row_tracking(snapshot.metadata):
        return "the table property delta.enableRowTracking is set"
    column = snapshot.files(columns=["base_row_id"]).column("base_row_id")
    count = len(column) - column.null_count
    return f"{count} files have row ids (set delta.rowTrackingSuspended, then commit them again without)" if count else None


def _not_coordinated(snapshot: Snapshot) -> str | None:
    known = sorted(key for key in snapshot.metadata.configuration if key.lower().startswith(_COORDINATION))
    return f"the table properties {', '.join(known)} are set" if known else None


_REMOVABLE: Mapping[str, Callable[[Snapshot], str | None]] = {
    "checkConstraints": _unused("checkConstraints"),
    "columnMapping": _no_mapping,
    "deletionVectors": _no_vectors,
    "typeWidening": _unused("typeWidening"),
    "typeWidening-preview": _unused("typeWidening-preview"),
    "v2Checkpoint": _unused("v2Checkpoint"),
    "inCommitTimestamp": _no_timestamps,
    "vacuumProtocolCheck": _free,
    "domainMetadata": _no_domains,
    "clustering": _not_clustered,
    "rowTracking": _no_row_ids,
    "checkpointProtection": _free,
    # Delta knows no way to drop the following; once nothing uses them, they only keep other clients out.
    "variantType": _unused("variantType"),
    "variantType-preview": _unused("variantType-preview", "variantType"),
    "variantShredding": _unused("variantShredding", "variantShredding-preview"),
    "variantShredding-preview": _unused("variantShredding-preview"),
    "icebergCompatV1": _unused("icebergCompatV1"),
    "icebergCompatV2": _unused("icebergCompatV2"),
    "icebergCompatV3": _unused("icebergCompatV3"),
    "redirectWriterOnly-preview": _unused("redirectWriterOnly-preview"),
    # Delta: also where partition columns are in the files, which readers do not look at.
    "materializePartitionColumns": _unused("materializePartitionColumns"),
    "coordinatedCommits-preview": _not_coordinated,
}

_WITHOUT_TRACE = frozenset({"variantType", "variantType-preview", "variantShredding", "variantShredding-preview"})
