"""Checkpoints that must outlive a dropped feature (protocol, "Checkpoint Protection")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.log.protocol import check_can_write, features

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot

_PROPERTY = "delta.requireCheckpointProtectionBeforeVersion"


def protected_before(snapshot: Snapshot) -> int:
    """Return the version below which no checkpoint may be made by who does not know its protocol; 0 when there is none."""
    if "checkpointProtection" not in features(snapshot.protocol):
        return 0
    return int(snapshot.properties.get(_PROPERTY) or 0)


def check_checkpoint_allowed(snapshot: Snapshot) -> None:
    """Refuse a checkpoint of a protected version whose protocol this provider does not write.

    The latest protocol says nothing of older versions: they may have features that were dropped since.

    :raises DeltaUnsupportedTableFeatureException: the version has a feature that this provider does not write.
    :raises InvalidProtocolVersionException: it needs a newer writer version.
    """
    latest = snapshot.log.snapshot
    if latest.version > snapshot.version and snapshot.version < protected_before(latest):
        check_can_write(snapshot.protocol, snapshot.metadata, snapshot.log.uri, snapshot.version)
