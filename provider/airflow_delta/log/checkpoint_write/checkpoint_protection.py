"""Checkpoints that must outlive a dropped feature (Delta protocol, "Checkpoint Protection")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import PROTECTED_BEFORE
from airflow_delta.log.features.protocol import features

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot


def protected_before(snapshot: Snapshot) -> int:
    """Return the version below which only clients that support the protocol may write checkpoints; 0 if there is none."""
    if "checkpointProtection" not in features(snapshot.protocol):
        return 0
    return int(snapshot.properties.get(PROTECTED_BEFORE) or 0)
