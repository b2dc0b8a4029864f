"""DROP FEATURE in several commits, for features that older clients would find in the log (``AlterTableDropFeatureDeltaCommand``).

By default the versions that have the feature stay: three checkpoints without a trace of it come before the downgrade, so that
older clients never have to read further back, and ``checkpointProtection`` keeps them from writing checkpoints there. With
TRUNCATE HISTORY these versions go first, which takes a day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import PROTECTED_BEFORE
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    FeatureDropConflictException,
    FeatureDropWaitException,
)
from airflow_delta.log.checkpoint_write.checkpoint_protection import protected_before
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.clustering import clustering_columns
from airflow_delta.log.features.properties import PREFIX, PROPERTIES, TableProperties, normalise_key
from airflow_delta.table.commit.alter import adopt_altered
from airflow_delta.table.definition.alter_properties import without_feature
from airflow_delta.table.definition.altered_table import AlteredTable
from airflow_delta.table.operations.drop_feature.history import (
    RETENTION,
    dropped_at,
    is_truncated,
    last_use,
    truncate_history,
)
from airflow_delta.table.operations.drop_feature.steps import Step, Steps
from airflow_delta.table.operations.drop_feature.traces import end_column_mapping, remove_traces
from airflow_delta.transaction.prepare import feature_drop

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction import OptimisticTransaction

logger = logging.getLogger(__name__)

BARRIERS = 3
"""Checkpoints before the downgrade, as in Delta: one of them is there even if others are lost."""

_HOUR = 60 * 60 * 1000


def drop_feature(
    log: DeltaLog,
    feature: str,
    on_spark: Callable[[StageRequest], StageReport] | None = None,
    *,
    truncate_history: bool = False,
    **options: Any,
) -> CommitResult:
    """Drop a table feature, with the traces that it has left.

    Each step starts from the newest version and looks for what is left, so a run that was cut off is taken up by the next one.

    :param feature: its name, in any case.
    :param on_spark: does the Spark part where files must be rewritten.
    :param truncate_history: cut off the versions that have the feature instead of protecting them. The first run removes the
        traces and stops with :class:`FeatureDropWaitException`; a run when they have expired drops the feature.
    :param options: the other fields of :class:`~airflow_delta.table.operations.drop_feature.steps.Steps`.
    :returns: the last commit; with ``attempts=0`` and the version that was read if the feature has been dropped already.
    """
    log.store.committer.check_allowed("DROP FEATURE")
    steps = Steps(log=log, on_spark=on_spark, **options)
    snapshot = steps.snapshot()
    name = _feature_of(snapshot, feature)
    if name is None:
        return _dropped_before(steps, snapshot, feature)
    _check(snapshot, name, truncate_history=truncate_history)
    if name == feature_drop.CHECKPOINT_PROTECTION:
        _end_protection(steps)
        _downgrade(steps, name, truncate_history=True)
        return steps.nothing()
    changed = remove_traces(steps, name)
    if not _marks_history(name):
        _downgrade(steps, name)
        return steps.nothing()
    if truncate_history:
        _truncate(steps, name, changed=changed)
        _downgrade(steps, name, truncate_history=True)
        return steps.nothing()
    for _ in range(BARRIERS - min(steps.barriers(), BARRIERS)):
        steps.add_barrier()
    _downgrade(steps, name, protects=True)
    steps.write_checkpoint()
    return steps.nothing()


def remove_column_mapping(
    log: DeltaLog, on_spark: Callable[[StageRequest], StageReport] | None = None, **options: Any
) -> CommitResult:
    """Set ``delta.columnMapping.mode`` to ``none``, and rewrite all files with the names of the schema, in one commit.

    :param on_spark: does the Spark part.
    :param options: the other fields of :class:`~airflow_delta.table.operations.drop_feature.steps.Steps`.
    :returns: the commit; with ``attempts=0`` and the version that was read if the table has no column mapping.
    """
    log.store.committer.check_allowed("REMOVE COLUMN MAPPING")
    steps = Steps(log=log, on_spark=on_spark, **options)
    snapshot = steps.snapshot()
    _check_dependents(snapshot, "columnMapping", in_use_only=True)
    end_column_mapping(steps)
    return steps.nothing()


# -- what is refused -----------------------------------------------------------------------------------------------------------


def _feature_of(snapshot: Snapshot, feature: str) -> str | None:
    present = table_protocol.features(snapshot.protocol)
    return next((known for known in present if known.lower() == feature.strip().lower()), None)


def _dropped_before(steps: Steps, snapshot: Snapshot, feature: str) -> CommitResult:
    """Finish what an earlier run of this has begun, or say that the table does not have the feature."""
    given = feature.strip()
    if not given:
        raise snapshot.error(DeltaIllegalArgumentException, f"DROP FEATURE of table {steps.log.uri} needs the name of a feature.")
    present = table_protocol.features(snapshot.protocol)
    if given.lower().startswith(PREFIX) or normalise_key(PREFIX + given) in PROPERTIES:
        raise snapshot.error(
            DeltaAnalysisException,
            f"{given} is a table property, not a table feature (DELTA_FEATURE_DROP_FEATURE_IS_DELTA_PROPERTY). Table "
            f"{steps.log.uri} has the features {', '.join(sorted(present))}.",
        )
    name = next((known for known in table_protocol.FEATURES if known.lower() == given.lower()), given)
    version = dropped_at(steps.log, snapshot, name)
    if version is None:
        raise snapshot.error(
            DeltaAnalysisException,
            f"Table {steps.log.uri} version {snapshot.version} does not have the feature {given} "
            f"(DELTA_FEATURE_DROP_FEATURE_NOT_PRESENT); it has {', '.join(sorted(present))}.",
        )
    logger.info("Version %s of %s has dropped %s already.", version, steps.log.uri, name)
    checkpoint = snapshot.segment.checkpoint
    if protected_before(snapshot) == version and (checkpoint is None or checkpoint.version < version):
        steps.write_checkpoint()
    return steps.nothing()


def _check(snapshot: Snapshot, feature: str, *, truncate_history: bool) -> None:
    log = snapshot.log
    if feature not in table_protocol.FEATURES:
        raise snapshot.error(
            DeltaUnsupportedOperationException,
            f"The feature {feature} of table {log.uri} is not known (DELTA_FEATURE_DROP_UNSUPPORTED_CLIENT_FEATURE). Drop it "
            "with a client that knows it.",
        )
    if not feature_drop.is_removable(feature):
        raise snapshot.error(
            DeltaUnsupportedOperationException,
            f"The feature {feature} cannot be dropped from table {log.uri}: Delta does not allow it "
            "(DELTA_FEATURE_DROP_NONREMOVABLE_FEATURE).",
        )
    protects = feature == feature_drop.CHECKPOINT_PROTECTION
    if truncate_history and not protects and not _marks_history(feature):
        raise snapshot.error(
            DeltaAnalysisException,
            f"The feature {feature} of table {log.uri} leaves nothing in its history that older clients cannot read, so there is "
            "nothing to truncate (DELTA_FEATURE_DROP_HISTORY_TRUNCATION_NOT_ALLOWED). Leave out truncate_history.",
        )
    if protects and not truncate_history:
        raise snapshot.error(
            DeltaAnalysisException,
            f"The feature {feature} can only be dropped from table {log.uri} together with the versions that it protects "
            "(DELTA_FEATURE_CAN_ONLY_DROP_CHECKPOINT_PROTECTION_WITH_HISTORY_TRUNCATION). Set truncate_history.",
        )
    _check_dependents(snapshot, feature)


def _check_dependents(snapshot: Snapshot, feature: str, *, in_use_only: bool = False) -> None:
    present = table_protocol.features(snapshot.protocol)
    known = table_protocol.FEATURES
    dependent = {name for name in present if name in known and feature in known[name].requires}
    if in_use_only:
        dependent &= table_protocol.active_features(snapshot.metadata)
    if dependent:
        raise snapshot.error(
            DeltaAnalysisException,
            f"Table {snapshot.log.uri} has features that need {feature}: {', '.join(sorted(dependent))} "
            "(DELTA_FEATURE_DROP_DEPENDENT_FEATURE). Drop them first.",
        )


def _marks_history(feature: str) -> bool:
    """Return whether older clients cannot read the versions that have a feature (Delta's ``requiresHistoryProtection``)."""
    return table_protocol.FEATURES[feature].reader


# -- steps ---------------------------------------------------------------------------------------------------------------------


def _truncate(steps: Steps, feature: str, *, changed: bool) -> None:
    """Cut the versions with a feature off, as far as they have expired.

    :param changed: this run has removed traces, so versions with them are a moment old.
    """
    if not steps.barriers():
        steps.add_barrier()
    snapshot = steps.snapshot()
    if changed:
        raise _wait(steps, snapshot, feature, "its traces are removed from the newest version")
    _check_unused(snapshot, feature)
    truncate_history(snapshot, steps.clock())
    last = last_use(steps.log, snapshot, feature)
    if last is not None:
        raise _wait(steps, snapshot, feature, f"version {last} uses it (DELTA_FEATURE_DROP_HISTORICAL_VERSIONS_EXIST)")


def _end_protection(steps: Steps) -> None:
    snapshot = steps.snapshot()
    if not is_truncated(steps.log, snapshot):
        if not steps.barriers():
            steps.add_barrier()
        snapshot = steps.snapshot()
        truncate_history(snapshot, steps.clock())
        if not is_truncated(steps.log, snapshot):
            what = (
                f"versions before {protected_before(snapshot)} are in the log "
                "(DELTA_FEATURE_DROP_CHECKPOINT_PROTECTION_WAIT_FOR_RETENTION_PERIOD)"
            )
            raise _wait(steps, snapshot, feature_drop.CHECKPOINT_PROTECTION, what)
    steps.unset([PROTECTED_BEFORE])


def _wait(steps: Steps, snapshot: Snapshot, feature: str, what: str) -> FeatureDropWaitException:
    properties = TableProperties(snapshot.metadata.configuration)
    hours = properties.get(RETENTION) / _HOUR
    if not properties.enable_expired_log_cleanup:
        what += ", and delta.enableExpiredLogCleanup is false, so that they stay"
    return snapshot.error(
        FeatureDropWaitException,
        f"The feature {feature} is not dropped from table {steps.log.uri} version {snapshot.version} yet: {what}. Earlier "
        f"versions stay in the log for {hours:g} hours ({RETENTION}). Run this again when they have expired and all transactions "
        "that began before have ended.",
    )


def _check_unused(snapshot: Snapshot, feature: str) -> None:
    in_use = feature_drop.obstacle({feature}, snapshot)
    if in_use is not None:
        raise snapshot.error(
            FeatureDropConflictException,
            f"The table feature {feature} cannot be dropped from table {snapshot.log.uri} version {snapshot.version}: {in_use}. "
            "Another writer has used it since its traces were removed. Run this again.",
        )


def _downgrade(steps: Steps, feature: str, *, protects: bool = False, truncate_history: bool = False) -> None:
    """Commit the protocol without a feature."""

    def prepare(txn: OptimisticTransaction) -> Step | None:
        snapshot = txn.snapshot
        if feature not in table_protocol.features(snapshot.protocol):
            return None  # another run was faster
        if _marks_history(feature):
            _check_unused(snapshot, feature)
        table = AlteredTable(
            table=steps.log.uri,
            version=snapshot.version,
            seed=txn.txn_id,
            metadata=snapshot.metadata,
            protocol=snapshot.protocol,
            snapshot=snapshot,
            clustering=tuple(clustering_columns(snapshot.domain_metadata)),
        )
        altered = without_feature(table, feature, protects_history=protects, truncate_history=truncate_history)
        adopt_altered(txn, altered)
        return Step(altered.operations[-1])

    steps.commit(prepare)
