"""Turns the actions of a transaction into one log entry and puts it, in the order of Delta's ``commitImpl``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAssertionError, DeltaConcurrentModificationException, InvalidCommittedVersionException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Action, AddCDCFile, CommitInfo, Metadata, Protocol, RemoveFile
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.transaction.commit.active_transaction import record_commit
from airflow_delta.transaction.commit.lock import lock_commit_if_enabled
from airflow_delta.transaction.commit.loop import CommitLoop, Entry, Landed, NothingLeftError
from airflow_delta.transaction.commit.stats import CommitStats
from airflow_delta.transaction.conflict_detection import resolved_by
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.metadata import IDENTITY_TAG, identity_only
from airflow_delta.transaction.conflicts.resolution import Resolution
from airflow_delta.transaction.conflicts.rows_of_winners import WinnersRows
from airflow_delta.transaction.events import FAILURE, RESOLVED, record_event
from airflow_delta.transaction.intents import OpenIntents
from airflow_delta.transaction.policy import CommitOutcome, CommitPolicy
from airflow_delta.transaction.prepare import in_commit_timestamps
from airflow_delta.transaction.prepare.action_checks import (
    check_added_files,
    check_consistent_data_change,
    check_domain_actions,
    check_duplicates,
)
from airflow_delta.transaction.prepare.commit_info import build_commit_info
from airflow_delta.transaction.prepare.isolation import IsolationLevel, choose_isolation_level, table_isolation_level
from airflow_delta.transaction.prepare.prepare import PreparedCommit, prepare_commit

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.transaction.commit.observer import TransactionObserver
    from airflow_delta.transaction.operations import Operation
    from airflow_delta.transaction.prepare.table_changes import TableChanges
    from airflow_delta.transaction.reads.table_reads import TableReads


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that is in the log.

    :param prepared: what was to be written.
    :param actions: what was written, ``commitInfo`` first; winning commits may have changed them.
    """

    outcome: CommitOutcome
    prepared: PreparedCommit
    actions: Sequence[Action]


@dataclass(kw_only=True, slots=True, eq=False)
class Committer:
    """Commits what one transaction has read and changed, once.

    The parameters are those of :class:`airflow_delta.transaction.OptimisticTransaction`.

    :ivar is_blind_append: of the commit: it adds files, or nothing, and read none.
    :ivar outcome: how the commit went; ``None`` before.
    """

    log: DeltaLog
    reads: TableReads
    changes: TableChanges
    txn_id: str
    policy: CommitPolicy
    isolation_level: IsolationLevel | None
    user_metadata: str | None
    observer: TransactionObserver
    clock: Callable[[], int]
    is_blind_append: bool = field(default=False, init=False)
    outcome: CommitOutcome | None = field(default=None, init=False)
    _committed_metadata: Metadata | None = field(default=None, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)

    def commit(
        self,
        actions: Sequence[Action],
        operation: Operation,
        *,
        can_skip_empty_commits: bool,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> Committed | None:
        """Commit the actions; ``None`` if there is nothing to commit and that may be skipped."""
        with self._reported():
            prepared = self.prepare(actions, operation)
            level = self._level(prepared, operation)
            self.is_blind_append = self._only_adds_blindly(prepared.actions)
            may_skip = can_skip_empty_commits and self._may_skip_empty(level)
            if may_skip and not prepared.actions:
                return None
            info = self._commit_info(prepared, operation, level, self._with_identity_tag(tags, prepared), user_metadata)
            try:
                return self._put(prepared, info, level, may_retry=not self.policy.next_version_only, may_skip=may_skip)
            except NothingLeftError:
                logger.info("Nothing is left to commit to %s: others have compacted the files", self.log.uri)
                return None

    def commit_large(
        self,
        actions: Sequence[Action],
        operation: Operation,
        *,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> Committed:
        """Commit the actions as the very next version, or not at all (Delta's ``commitLarge``)."""
        with self._reported():
            prepared = self._prepare_large(actions, operation)
            level = IsolationLevel.SERIALIZABLE
            self.is_blind_append = False
            info = self._commit_info(prepared, operation, level, tags, user_metadata, large=True)
            return self._put(prepared, info, level, may_retry=False)

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the committed version is a multiple of ``delta.checkpointInterval``, and not the first."""
        if self.outcome is None or self.outcome.version == 0 or self._committed_metadata is None:
            return False
        return self.outcome.version % self.checkpoint_interval == 0

    @property
    def checkpoint_interval(self) -> int:
        """``delta.checkpointInterval`` of the committed metadata."""
        metadata = self._committed_metadata
        return TableProperties({} if metadata is None else metadata.configuration).checkpoint_interval

    def assert_not_committed(self) -> None:
        """Raise an error if the transaction has been committed.

        :raises DeltaAssertionError: if it has.
        """
        if self.outcome is not None:
            raise self.log.error(DeltaAssertionError, "Transaction already committed.")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Tell the observer when a commit begins and that it failed. A durable commit has not failed."""
        self.observer.preparing()
        try:
            yield
        except InvalidCommittedVersionException:
            raise
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, DeltaConcurrentModificationException):
                # the commit loop has recorded conflicts
                data = {"txnId": self.txn_id, "readVersion": self._read_version, "error": type(error).__name__}
                record_event(FAILURE, self.log.uri, {**data, "message": str(error)}, level=logging.INFO)
            self.observer.aborted(error)
            raise

    # -- preparation -----------------------------------------------------------------------------------------------------------

    def prepare(self, actions: Sequence[Action], operation: Operation) -> PreparedCommit:
        """Return what is to be written, after every check that needs no look at other commits, in Delta's order."""
        self.assert_not_committed()
        complete = self.changes.with_identity_marks(self.changes.added_to(actions))
        prepared = prepare_commit(self.changes.state(), complete, operation, policy=self.policy)
        self._check_allowed(prepared, operation)
        check_added_files(self.log.uri, prepared.actions, prepared.metadata, self.policy)
        self._check_among_themselves(prepared.actions, operation.name)
        check_domain_actions(self.log.uri, prepared.actions, prepared.protocol)
        self._check_by_policy(prepared, prepared.actions)
        return prepared

    def _prepare_large(self, actions: Sequence[Action], operation: Operation) -> PreparedCommit:
        self.assert_not_committed()
        complete = self.changes.added_to(actions)
        prepared = prepare_commit(self.changes.state(), complete, operation, policy=self.policy, large=True)
        self._check_allowed(prepared, operation)
        check_added_files(self.log.uri, prepared.actions, prepared.metadata, self.policy)
        check_consistent_data_change(self.log.uri, prepared.actions, operation.name, self.policy)
        self._check_by_policy(prepared, prepared.actions)
        return prepared

    def _check_allowed(self, prepared: PreparedCommit, operation: Operation) -> None:
        """Refuse what whoever decides on the table's versions does not allow its clients."""
        changes = self._read_version >= 0 and any(isinstance(action, Metadata | Protocol) for action in prepared.actions)
        self.log.store.committer.check_allowed(operation.name, prepared.metadata if changes else None)

    def _check_by_policy(self, prepared: PreparedCommit, actions: Sequence[Action]) -> None:
        if self.policy.check_actions is not None:
            self.policy.check_actions(prepared.metadata, actions)

    def _check_among_themselves(self, actions: Sequence[Action], operation: str) -> None:
        """Check actions that are written together."""
        if self.policy.duplicate_action_check:
            check_duplicates(self.log.uri, actions)
        check_consistent_data_change(self.log.uri, actions, operation, self.policy)

    def _check_changed(self, prepared: PreparedCommit, operation: str, actions: Sequence[Action]) -> None:
        """Check actions again that winning commits have changed."""
        self._check_among_themselves(actions, operation)
        self._check_by_policy(prepared, actions)

    def _level(self, prepared: PreparedCommit, operation: Operation) -> IsolationLevel:
        asked = self.isolation_level if self.isolation_level is not None else table_isolation_level(prepared.metadata)
        return choose_isolation_level(prepared.actions, asked, operation)

    def _may_skip_empty(self, level: IsolationLevel) -> bool:
        """Tell whether a commit that is empty need not be recorded."""
        return self.policy.skip_recording_empty_commits and level is not IsolationLevel.WRITE_SERIALIZABLE

    def _only_adds_blindly(self, actions: Sequence[Action]) -> bool:
        only_adds = not any(isinstance(action, RemoveFile | AddCDCFile) for action in actions)
        return only_adds and not self.reads.recorded.depends_on_files

    # -- commitInfo ------------------------------------------------------------------------------------------------------------

    def get_user_metadata(self, operation: Operation) -> str | None:
        """Return the text for ``commitInfo.userMetadata``: the operation's, else the transaction's, else the policy's."""
        for text in (operation.user_metadata, self.user_metadata, self.policy.user_metadata):
            if text is not None:
                return text
        return None

    def get_operation_metrics(self, operation: Operation) -> dict[str, str] | None:
        """Return ``commitInfo.operationMetrics``, or ``None`` if the policy switches them off."""
        return operation.encoded_metrics() if self.policy.history_metrics else None

    def _commit_info(
        self,
        prepared: PreparedCommit,
        operation: Operation,
        level: IsolationLevel,
        tags: Mapping[str, Any] | None,
        user_metadata: str | None,
        *,
        large: bool = False,
    ) -> CommitInfo:
        return build_commit_info(
            prepared.actions,
            operation,
            read_version=self._read_version,
            isolation_level=level,
            is_blind_append=self.is_blind_append,
            timestamp=self.clock(),
            txn_id=self.txn_id,
            tags=tags,
            user_metadata=user_metadata if user_metadata is not None else self.get_user_metadata(operation),
            metrics=self.get_operation_metrics(operation),
            large=large,
        )

    def _with_identity_tag(self, tags: Mapping[str, Any] | None, prepared: PreparedCommit) -> Mapping[str, Any] | None:
        """Return the tags, with that of a commit whose metadata only records which identity values have been used."""
        if self.changes.sync_identity or identity_only(prepared.read.metadata, prepared.new_metadata):
            return {**(tags or {}), IDENTITY_TAG: "true"}
        return tags

    # -- the put ---------------------------------------------------------------------------------------------------------------

    def _put(
        self,
        prepared: PreparedCommit,
        info: CommitInfo,
        level: IsolationLevel,
        *,
        may_retry: bool = True,
        may_skip: bool = False,
    ) -> Committed:
        """Put the log entry, and bring the log up to date with it."""
        current = self._current(prepared, info, level)
        num_actions = len(prepared.actions) + 1
        entry = Entry(
            self.txn_id,
            self._read_version,
            current.encode(),
            num_actions,
            level.value,
            may_retry,
            may_skip,
            prepared.read.metadata,
        )
        checker = ConflictChecker(current, self._commit_time, self._resolution(current))
        rule = self.policy.intents
        intents = OpenIntents(self.reads.snapshot.intents if rule.looks else (), rule)
        loop = CommitLoop(self.log, entry, checker, self.policy, self.observer, intents)
        landed = None
        while landed is None:
            with lock_commit_if_enabled(self.log.store, self.policy):
                landed = loop.run()
                if landed is not None:
                    outcome, actions = self._landed(loop, landed, current)
            if landed is None:
                intents.await_next(self.log)
        self._record_resolved(outcome)
        if CommitStats.enabled():
            CommitStats.of(
                outcome,
                actions,
                prepared,
                self.log,
                start_version=self._read_version,
                size=len(landed.commits[-1].data),
                txn_seconds=time.monotonic() - self._started,
                write_seconds=landed.write_seconds,
                checkpoint_attempt=self.needs_checkpoint or not may_retry,
            ).record(self.log.uri)
        return Committed(outcome, prepared, [outcome.commit_info, *actions])

    def _landed(self, loop: CommitLoop, landed: Landed, current: CurrentTransaction) -> tuple[CommitOutcome, Sequence[Action]]:
        """Bring transaction and log up to date with the entry, and return its actions."""
        info, actions = loop.committed(landed)
        self.outcome = outcome = CommitOutcome(
            version=landed.version,
            attempts=landed.attempts,
            versions_checked=landed.versions_checked,
            recognised=landed.recognised,
            commit_info=info,
            timestamp=info.timestamp or 0,
            elapsed=loop.elapsed,
            resolved=resolved_by(info.tags),
        )
        self._committed_metadata = current.metadata
        record_commit(landed.version)
        self.observer.committed(landed.version)
        self.log.store.committer.publish()
        self.log.update_after_commit(landed.version, landed.commits)
        return outcome, actions

    def _resolution(self, current: CurrentTransaction) -> Resolution | None:
        level = self.policy.conflict_detection
        if level == "delta":
            return None
        return Resolution(current, level, WinnersRows(self.log.store, self.policy.conflict_read_limit))

    def _record_resolved(self, outcome: CommitOutcome) -> None:
        """Record which winners turned out not to conflict (``delta.commit.resolved``, ours)."""
        if outcome.resolved:
            data = {"txnId": self.txn_id, "version": outcome.version, "how": dict(outcome.resolved)}
            record_event(RESOLVED, self.log.uri, data)

    def _current(self, prepared: PreparedCommit, info: CommitInfo, level: IsolationLevel) -> CurrentTransaction:
        read = prepared.read
        current = CurrentTransaction(
            table=self.log.uri,
            read_version=read.read_version,
            reads=self.reads.recorded,
            metadata=prepared.metadata,
            protocol=prepared.protocol,
            partition_columns=read.metadata.partition_columns if read.metadata is not None else (),
            actions=prepared.actions,
            is_blind_append=self.is_blind_append,
            isolation_level=level,
            commit_info=info,
            operation=info.operation or "",
            read_metadata=read.metadata,
            read_protocol=read.protocol,
            read_high_water_mark=read.row_id_high_water_mark,
            options=self.policy.conflicts,
            snapshot_at=self.log.snapshot_at,
            validate=partial(self._check_changed, prepared, info.operation or ""),
        )
        if in_commit_timestamps.uses_in_commit_timestamps(current.metadata):
            current.stamp(self.reads.snapshot.timestamp)
        return current

    @property
    def _read_version(self) -> int:
        return self.reads.snapshot.version

    def _commit_time(self, version: int) -> int:
        """Return the modification time of a commit file, in milliseconds since the epoch."""
        status = self.log.store.head(commit_file(version))
        return status.modification_time if status is not None else 0
