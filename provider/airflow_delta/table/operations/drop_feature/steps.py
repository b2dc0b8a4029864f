"""What the steps of DROP FEATURE share: commits on the newest version, rewrites on Spark, verified checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from airflow_delta.contract.payloads import CommitResult
from airflow_delta.exceptions import (
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    FeatureDropConflictException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddFile, Metadata, RemoveFile
from airflow_delta.log.actions.decode import read_commit_info
from airflow_delta.log.segment.segment import LogListing
from airflow_delta.log.storage.file_names import LOG_DIRECTORY, is_uuid_checkpoint, version_prefix
from airflow_delta.table.operations.optimize.run import run_rewrite
from airflow_delta.table.state.commit_result import result_of_nothing, result_of_transaction
from airflow_delta.transaction import Operation, OptimisticTransaction

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.operations.optimize.bins import RewriteSelection
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.transaction import CommitPolicy, PostCommitHook

logger = logging.getLogger(__name__)

EMPTY_COMMIT = "Empty Commit"


def _now() -> int:
    return int(time.time() * 1000)


class Step(NamedTuple):
    """What a commit holds."""

    operation: Operation
    actions: Sequence[Action] = ()


@dataclass(kw_only=True)
class Steps:
    """The commits of one run. Each starts from the newest version and looks for what is left to do.

    None has a ``txn`` action, which would raise rewrites of files to the table's isolation level.

    :param on_spark: does the Spark part of a rewrite; ``None``: no rewrite is possible.
    :param identity: ``task_id``, ``map_index`` and ``attempt``, which separate the staged files.
    :param parallel: files that Spark writes at a time.
    :param max_restarts: how often in a row to start over when another commit conflicts.
    :param clock: milliseconds since the epoch.
    :ivar result: of the last commit.
    """

    log: DeltaLog
    on_spark: Callable[[StageRequest], StageReport] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    parallel: int = 4
    spark_table_uri: str | None = None
    max_restarts: int = 3
    policy: CommitPolicy | None = None
    tags: Mapping[str, str] | None = None
    user_metadata: str | None = None
    hooks: Sequence[PostCommitHook] = ()
    clock: Callable[[], int] = _now
    result: CommitResult | None = None

    def snapshot(self) -> Snapshot:
        """Return the newest version.

        :raises DeltaTableNotFoundException: if there is no table.
        """
        snapshot = self.log.update()
        if snapshot.version < 0:
            raise self.log.error(DeltaTableNotFoundException, f"There is no Delta table at {self.log.uri}.")
        return snapshot

    def nothing(self) -> CommitResult:
        """Return the result of the last commit, or that nothing was done."""
        return self.result or result_of_nothing(OptimisticTransaction(self.log, self.snapshot()))

    def commit(self, prepare: Callable[[OptimisticTransaction], Step | None]) -> bool:
        """Commit a step on the newest version; return whether there was something to do.

        :param prepare: returns what to commit on the version that the transaction reads, ``None`` if nothing is left.
        :raises DeltaConcurrentModificationException: if another commit conflicts, and no restart is left.
        """
        restarts = 0
        while True:
            txn = OptimisticTransaction(self.log, self.snapshot(), policy=self.policy, clock=self.clock)
            for hook in self.hooks:
                txn.register_post_commit_hook(hook)
            step = prepare(txn)
            if step is None:
                return False
            name = step.operation.name
            try:
                version = txn.commit(step.actions, step.operation, tags=self.tags, user_metadata=self.user_metadata)
            except DeltaConcurrentModificationException as conflict:
                if restarts >= self.max_restarts:
                    raise
                restarts += 1
                logger.info("%s of %s again (%s of %s): %s", name, self.log.uri, restarts, self.max_restarts, conflict.message)
                continue
            adds = [action for action in step.actions if isinstance(action, AddFile)]
            removed = sum(isinstance(action, RemoveFile) for action in step.actions)
            self.result = result_of_transaction(txn, name, adds, num_removed_files=removed, num_records=0)
            logger.info("Version %s of %s: %s.", version, self.log.uri, name)
            return True

    def unset(self, keys: Collection[str]) -> bool:
        """Unset table properties; return whether one was set."""

        def prepare(txn: OptimisticTransaction) -> Step | None:
            known = txn.metadata.configuration
            gone = [key for key in keys if key in known]
            if not gone:
                return None
            kept = {key: value for key, value in known.items() if key not in gone}
            txn.update_metadata(msgspec.structs.replace(txn.metadata, configuration=kept))
            return Step(Operation.unset_table_properties(gone, if_exists=True))

        return self.commit(prepare)

    def set(self, properties: Mapping[str, str]) -> bool:
        """Set table properties that need no checks; return whether one had another value."""

        def prepare(txn: OptimisticTransaction) -> Step | None:
            known = txn.metadata.configuration
            if all(known.get(key) == value for key, value in properties.items()):
                return None
            changed = msgspec.structs.replace(txn.metadata, configuration={**known, **properties})
            txn.adopt_changes(changed, txn.protocol)  # users may not set some of them
            return Step(Operation.set_table_properties(dict(properties)))

        return self.commit(prepare)

    def change_metadata(self, change: Callable[[Metadata], Metadata | None], operation: Operation) -> bool:
        """Commit metadata that is already checked; return whether there was something to change."""

        def prepare(txn: OptimisticTransaction) -> Step | None:
            metadata = change(txn.metadata)
            if metadata is None:
                return None
            txn.adopt_changes(metadata, txn.protocol)
            return Step(operation)

        return self.commit(prepare)

    def rewrite(self, select: Callable[[TransactionView], RewriteSelection]) -> bool:
        """Rewrite files on Spark, as OPTIMIZE does; return whether files were rewritten.

        Bins whose files others have changed meanwhile are left out of a commit, with files that still have the feature: it is
        repeated for them.

        :raises DeltaIllegalArgumentException: if there is no Spark to do it.
        :raises FeatureDropConflictException: if others go on changing the files.
        """
        if self.on_spark is None:
            raise self.log.error(
                DeltaIllegalArgumentException, f"Files of table {self.log.uri} must be rewritten, but there is no Spark to do it."
            )
        rewritten = False
        for _ in range(self.max_restarts + 1):
            done = run_rewrite(
                self.log,
                select,
                self.on_spark,
                identity=self.identity,
                parallel=self.parallel,
                spark_table_uri=self.spark_table_uri,
                policy=self.policy,
                tags=self.tags,
                user_metadata=self.user_metadata,
                hooks=self.hooks,
                max_restarts=self.max_restarts,
            )
            if done.commits:
                self.result, rewritten = done.commits[-1], True
            if not done.num_dropped_bins:
                return rewritten
        raise self.log.error(
            FeatureDropConflictException,
            f"Other writers have changed files of table {self.log.uri} while they were rewritten, {done.num_dropped_bins} groups "
            "of them the last time. The feature was not dropped. Run this again.",
        )

    # -- checkpoints -----------------------------------------------------------------------------------------------------------

    def barriers(self) -> int:
        """Return how many of the newest versions are empty commits with a checkpoint, left by a run that was cut off."""
        snapshot, found = self.snapshot(), 0
        while found < snapshot.version:
            version = snapshot.version - found
            info = read_commit_info(version, self.log.read_commit(version), table=self.log.uri) or {}
            if info.get("operation") != EMPTY_COMMIT or not self.has_classic_checkpoint(version):
                break
            found += 1
        return found

    def add_barrier(self) -> None:
        """Commit nothing, and write a checkpoint of that version: it has no trace of what earlier commits hold."""
        self.commit(lambda _txn: Step(Operation(EMPTY_COMMIT)))
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and look whether it is there.

        :raises DeltaIllegalStateException: if it is not, even after a second try.
        """
        for _ in range(2):
            snapshot = self.snapshot()
            self.log.checkpoint(snapshot)
            if self.has_checkpoint(snapshot.version):
                return
        raise snapshot.error(
            DeltaIllegalStateException,
            f"A checkpoint of version {snapshot.version} of table {self.log.uri} was written but is not in the log "
            "(DELTA_FEATURE_DROP_CHECKPOINT_FAILED). The feature was not dropped. Run this again.",
        )

    def has_checkpoint(self, version: int) -> bool:
        """Return whether the log holds a complete checkpoint of a version."""
        return self._listing(version).complete_checkpoint(self.log.store, version) is not None

    def has_classic_checkpoint(self, version: int) -> bool:
        """Return whether the log holds a complete checkpoint of a version that clients without V2 checkpoints read."""
        found = self._listing(version).complete_checkpoint(self.log.store, version)
        return found is not None and not is_uuid_checkpoint(found.parts[0].name[20:])

    def _listing(self, version: int) -> LogListing:
        return LogListing.of(self.log.store.list_from(LOG_DIRECTORY, version_prefix(version)))
