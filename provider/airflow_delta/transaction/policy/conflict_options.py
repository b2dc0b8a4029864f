"""Choices of the conflict checker that Delta makes by configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ConflictOptions:
    """Choices of the conflict checker; defaults are Delta's, but for ``resolve_same_new_columns``.

    :param resolve_feature_enablement: live with a winner's metadata when it only switches on features that need nothing from
        this commit (Delta: ``featureEnablement.conflictResolution.enabled``). Without it, only row tracking that was switched on
        alone and moved identity columns are lived with.
    :param enforce_concurrent_feature_enablement: lose against a protocol that gains a feature with rules for every write, such as
        check constraints (Delta: ``conflictChecker.enforceConcurrentFeatureEnablement.enabled``).
    :param replace_removes_new_domains: a REPLACE TABLE removes the clustering that was declared meanwhile (Delta:
        ``conflictDetection.allowReplaceTableToRemoveNewDomainMetadata``).
    :param resolve_same_new_columns: live with a winner that has added the very columns that this commit adds; Delta does not.
    """

    resolve_feature_enablement: bool = True
    enforce_concurrent_feature_enablement: bool = False
    replace_removes_new_domains: bool = True
    resolve_same_new_columns: bool = True
