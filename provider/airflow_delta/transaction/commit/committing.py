"""The half of a transaction that makes one log entry of its actions and puts it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAssertionError
from airflow_delta.log.actions.actions import Action, AddCDCFile, CommitInfo, DomainMetadata, Metadata, Protocol, RemoveFile
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.transaction.commit import active
from airflow_delta.transaction.commit.lock import is_commit_lock_enabled, lock_commit_if_enabled
from airflow_delta.transaction.commit.loop import CommitLoop, Entry
from airflow_delta.transaction.commit.stats import CommitStats
from airflow_delta.transaction.commit.table_changes import TableChanges
from airflow_delta.transaction.conflicts import metadata as conflict_metadata
from airflow_delta.transaction.conflicts.checker import ConflictChecker, CurrentTransaction
from airflow_delta.transaction.policy.policy import CommitOutcome, CommitPolicy
from airflow_delta.transaction.prepare import in_commit_timestamps, row_tracking
from airflow_delta.transaction.prepare.action_checks import (
    check_added_files,
    check_consistent_data_change,
    check_domains,
    check_duplicates,
    deduplicate_set_transactions,
)
from airflow_delta.transaction.prepare.commit_info import build_commit_info
from airflow_delta.transaction.prepare.isolation import IsolationLevel, choose_isolation_level, table_isolation_level
from airflow_delta.transaction.prepare.prepare import PreparedCommit, TableState, prepare_commit

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.commit.observer import TransactionObserver
    from airflow_delta.transaction.operations.operation import Operation


class Committing(TableChanges):
    """Preparation, ``commitInfo`` and the put of a commit.

    :ivar clock: gives milliseconds since the epoch.
    :ivar is_blind_append: of the commit: it adds files, or nothing, and read none.
    :ivar outcome: how the commit went; ``None`` before.
    """

    def __init__(
        self,
        log: DeltaLog,
        snapshot: Snapshot,
        *,
        txn_id: str,
        policy: CommitPolicy,
        isolation_level: IsolationLevel | None,
        user_metadata: str | None,
        observer: TransactionObserver,
        default_properties: Mapping[str, str] | None,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(log, snapshot, default_properties=default_properties)
        self.txn_id = txn_id
        self.policy = policy
        self.user_metadata = user_metadata
        self.clock = clock
        self.is_blind_append = False
        self.outcome: CommitOutcome | None = None
        self._isolation_level = isolation_level
        self._observer = observer
        self._committed_metadata: Metadata | None = None
        self._started = time.monotonic()

    @property
    def committed(self) -> bool:
        """Whether the transaction has been committed."""
        return self.outcome is not None

    @property
    def is_commit_lock_enabled(self) -> bool:
        """Whether the commit takes turns with others of this process."""
        return is_commit_lock_enabled(self.log.store, self.policy)

    def lock_commit_if_enabled(self) -> AbstractContextManager[None]:
        """Hold the table's lock inside a ``with`` block, where it is enabled; see :mod:`.commit_lock`."""
        return lock_commit_if_enabled(self.log.store, self.policy)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the committed version is a multiple of ``delta.checkpointInterval``, and not the first."""
        if self.outcome is None or self.outcome.version == 0 or self._committed_metadata is None:
            return False
        return self.outcome.version % self.checkpoint_interval == 0

    @property
    def checkpoint_interval(self) -> int:
        """``delta.checkpointInterval`` of the metadata that the commit has left."""
        from airflow_delta.log.features.properties import TableProperties

        metadata = self._committed_metadata
        return TableProperties({} if metadata is None else metadata.configuration).checkpoint_interval

    def get_user_metadata(self, operation: Operation) -> str | None:
        """Return the text for ``commitInfo.userMetadata``: the operation's, else the transaction's, else the policy's."""
        for text in (operation.user_metadata, self.user_metadata, self.policy.user_metadata):
            if text is not None:
                return text
        return None

    def get_operation_metrics(self, operation: Operation) -> dict[str, str] | None:
        """Return ``commitInfo.operationMetrics``, ``None`` where the policy switches them off."""
        return operation.encoded_metrics() if self.policy.history_metrics else None

    # -- preparation -----------------------------------------------------------------------------------------------------------

    def _prepare(self, actions: Sequence[Action], operation: Operation) -> PreparedCommit:
        """Return what is to be written, after every check that needs no look at other commits, in Delta's order."""
        self._assert_not_committed()
        deduplicated = deduplicate_set_transactions(self._with_domains(actions), self._set_transactions)
        deduplicated = self._fold_identity_marks(deduplicated)
        prepared = prepare_commit(self._state(), deduplicated, operation, policy=self.policy)
        check_added_files(self.log.uri, prepared.actions, prepared.metadata, self.policy)
        self._check_among_themselves(prepared.actions, operation.name)
        check_domains(self.log.uri, prepared.actions, prepared.protocol)
        return prepared

    def _check_among_themselves(self, actions: Sequence[Action], operation: str) -> None:
        """Check actions that are to be written together; again when winning commits have changed them."""
        if self.policy.duplicate_action_check:
            check_duplicates(self.log.uri, actions)
        check_consistent_data_change(self.log.uri, actions, operation, self.policy)

    def _prepare_large(self, actions: Sequence[Action], operation: Operation) -> tuple[PreparedCommit, list[Action]]:
        """Return what a ``commitLarge`` writes: metadata always and first, the protocol after the caller's actions."""
        self._assert_not_committed()
        deduplicated = deduplicate_set_transactions(self._with_domains(actions), self._set_transactions)
        prepared = prepare_commit(self._state(), deduplicated, operation, policy=self.policy, large=True)
        check_added_files(self.log.uri, prepared.actions, prepared.metadata, self.policy)
        check_consistent_data_change(self.log.uri, prepared.actions, operation.name, self.policy)
        rest = [action for action in prepared.actions if not isinstance(action, Metadata | Protocol)]
        marks = [a for a in rest if isinstance(a, DomainMetadata) and a.domain == row_tracking.DOMAIN]
        protocol = [prepared.new_protocol] if prepared.new_protocol is not None else []
        others = [action for action in rest if action not in marks] if marks else rest
        return prepared, [prepared.metadata, *others, *protocol, *marks]

    def _tags(self, prepared: PreparedCommit, tags: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the tags, with the one of a commit whose metadata only notes which identity values have been used."""
        old = self.snapshot.metadata if self.read_version >= 0 else None
        if self.sync_identity or conflict_metadata.identity_only(old, prepared.new_metadata):
            return {**(tags or {}), conflict_metadata.IDENTITY_TAG: "true"}
        return tags

    def _level(self, prepared: PreparedCommit, operation: Operation) -> IsolationLevel:
        asked = self._isolation_level if self._isolation_level is not None else table_isolation_level(prepared.metadata)
        return choose_isolation_level(prepared.actions, asked, operation)

    def _may_be_left_out(self, prepared: PreparedCommit, level: IsolationLevel) -> bool:
        """Tell whether a commit that may be left out when it is empty is left out."""
        nothing = not prepared.actions and self.policy.skip_recording_empty_commits
        return nothing and level is not IsolationLevel.WRITE_SERIALIZABLE

    def _only_adds_blindly(self, actions: Sequence[Action]) -> bool:
        only_adds = not any(isinstance(action, RemoveFile | AddCDCFile) for action in actions)
        return only_adds and not self.reads.depends_on_files

    def _commit_info(
        self,
        actions: Sequence[Action],
        operation: Operation,
        level: IsolationLevel,
        tags: Mapping[str, Any] | None,
        user_metadata: str | None,
        *,
        large: bool = False,
    ) -> CommitInfo:
        return build_commit_info(
            actions,
            operation,
            read_version=self.read_version,
            isolation_level=level,
            is_blind_append=self.is_blind_append,
            timestamp=self.clock(),
            txn_id=self.txn_id,
            tags=tags,
            user_metadata=user_metadata if user_metadata is not None else self.get_user_metadata(operation),
            metrics=self.get_operation_metrics(operation),
            large=large,
        )

    # -- the put ---------------------------------------------------------------------------------------------------------------

    def _put(
        self,
        prepared: PreparedCommit,
        actions: Sequence[Action],
        info: CommitInfo,
        level: IsolationLevel,
        *,
        may_retry: bool = True,
    ) -> Sequence[Action]:
        """Put the log entry, and return what was committed, ``commitInfo`` first."""
        current = self._current(prepared, actions, info, level)
        entry = Entry(self.txn_id, self.read_version, current.encode(), len(actions) + 1, level.value, may_retry)
        loop = CommitLoop(self.log, entry, ConflictChecker(current, self._commit_time), self.policy, self._observer)
        with self.lock_commit_if_enabled():
            landed = loop.run()
            info, actions = loop.committed(landed)
            self.outcome = CommitOutcome(
                version=landed.version,
                attempts=landed.attempts,
                versions_checked=landed.versions_checked,
                recognised=landed.recognised,
                commit_info=info,
                timestamp=info.timestamp or 0,
                elapsed=loop.elapsed,
            )
            self._committed_metadata = current.metadata
            active.record_commit(landed.version)
            self._observer.committed(landed.version)
            self.log.update_after_commit(landed.version, landed.commits)
        if CommitStats.enabled():
            CommitStats.of(
                self.outcome,
                actions,
                prepared,
                self.log,
                start_version=self.read_version,
                size=len(landed.commits[-1].data),
                txn_seconds=time.monotonic() - self._started,
                write_seconds=landed.write_seconds,
                checkpoint_attempt=self.needs_checkpoint or not may_retry,
            ).record(self.log.uri)
        return [info, *actions]

    def _current(
        self, prepared: PreparedCommit, actions: Sequence[Action], info: CommitInfo, level: IsolationLevel
    ) -> CurrentTransaction:
        exists = self.read_version >= 0
        current = CurrentTransaction(
            table=self.log.uri,
            read_version=self.read_version,
            reads=self.reads,
            metadata=prepared.metadata,
            protocol=prepared.protocol,
            partition_columns=self.snapshot.metadata.partition_columns if exists else (),
            actions=actions,
            is_blind_append=self.is_blind_append,
            isolation_level=level,
            commit_info=info,
            operation=info.operation or "",
            read_metadata=self.snapshot.metadata if exists else None,
            read_protocol=self.snapshot.protocol if exists else None,
            read_high_water_mark=self._row_id_high_water_mark,
            options=self.policy.conflicts,
            snapshot_at=self.log.snapshot_at,
            validate=partial(self._check_among_themselves, operation=info.operation or ""),
        )
        if in_commit_timestamps.is_enabled(current.metadata):
            current.stamp(self.snapshot.timestamp)
        return current

    def _row_id_high_water_mark(self) -> int:
        """Return the last row id of the version that was read."""
        mark = self.snapshot.row_id_high_water_mark
        return row_tracking.NO_HIGH_WATER_MARK if mark is None else mark

    def _commit_time(self, version: int) -> int:
        """Return the modification time of a commit file, in milliseconds since the epoch."""
        status = self.log.store.head(commit_file(version))
        return status.modification_time if status is not None else 0

    def _state(self) -> TableState:
        exists = self.read_version >= 0
        return TableState(
            table=self.log.uri,
            read_version=self.read_version,
            metadata=self.snapshot.metadata if exists else None,
            protocol=self.snapshot.protocol if exists else None,
            new_metadata=self._new_metadata,
            new_protocol=self._new_protocol,
            row_id_high_water_mark=self._row_id_high_water_mark if exists else lambda: row_tracking.NO_HIGH_WATER_MARK,
            snapshot=self.snapshot if exists else None,
        )

    def _assert_not_committed(self) -> None:
        if self.committed:
            raise DeltaAssertionError("Transaction already committed.", table=self.log.uri)
