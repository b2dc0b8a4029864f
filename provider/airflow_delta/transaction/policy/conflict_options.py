"""Options of the conflict checker, which Delta has as configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ConflictOptions:
    """Options of the conflict checker; the defaults are Delta's, except for ``resolve_same_new_columns``.

    :param resolve_feature_enablement: accept a winner's metadata if it only enables features that need nothing from this commit
        (Delta: ``featureEnablement.conflictResolution.enabled``). If off, only row tracking enabled on its own and moved identity
        columns are accepted.
    :param enforce_concurrent_feature_enablement: fail if a winner's protocol gains a feature with rules for every write, such as
        check constraints (Delta: ``conflictChecker.enforceConcurrentFeatureEnablement.enabled``).
    :param replace_removes_new_domains: a REPLACE TABLE removes clustering that was declared in the meantime (Delta:
        ``conflictDetection.allowReplaceTableToRemoveNewDomainMetadata``).
    :param resolve_same_new_columns: accept a winner that added the very columns that this commit adds; Delta does not.
    """

    resolve_feature_enablement: bool = True
    enforce_concurrent_feature_enablement: bool = False
    replace_removes_new_domains: bool = True
    resolve_same_new_columns: bool = True
