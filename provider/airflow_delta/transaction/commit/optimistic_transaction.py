"""One optimistic transaction: reads a version, tracks what it reads, and commits all of its actions as one version or none.

Follows Delta's ``OptimisticTransaction``; names are its names in snake_case.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAssertionError, DeltaConcurrentModificationException, InvalidCommittedVersionException
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, RemoveFile
from airflow_delta.transaction.commit import active
from airflow_delta.transaction.commit.auto_compact import AutoCompactHook, wants_auto_compaction
from airflow_delta.transaction.commit.committing import Committing
from airflow_delta.transaction.commit.hooks import CheckpointHook, ChecksumHook, PostCommitHook, run_hooks
from airflow_delta.transaction.commit.observer import TransactionObserver
from airflow_delta.transaction.commit.symlink_manifest import SymlinkManifestHook, wants_symlink_manifest
from airflow_delta.transaction.operations.operation import Operation
from airflow_delta.transaction.policy.events import record_event
from airflow_delta.transaction.policy.policy import CommitOutcome, CommitPolicy
from airflow_delta.transaction.prepare.isolation import IsolationLevel, writer_isolation_level
from airflow_delta.transaction.prepare.prepare import PreparedCommit, check_writable

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot


class OptimisticTransaction(Committing):
    """A transaction on one table. Not thread-safe, and committed at most once.

    :param log: the table's log.
    :param snapshot: version that the transaction reads; by default the latest.
    :param txn_id: identity, ``commitInfo.txnId``; by default a new UUID. A commit that is tried again in another process must
        use the same one, so that it recognises what it has written.
    :param policy: bounds of the commit.
    :param isolation_level: Serializable or WriteSerializable, instead of what the table says.
    :param user_metadata: text for ``commitInfo.userMetadata`` when neither the commit nor its operation has one.
    :param observer: is told of every phase.
    :param default_properties: table properties for a table that the transaction creates or replaces, unless its metadata sets
        them itself (Delta: ``properties.defaults.*`` of the session).
    :param clock: gives the time for ``commitInfo``, in milliseconds since the epoch; by default the machine's.
    :raises DeltaUnsupportedTableFeatureException: the table needs what this provider cannot write.
    """

    def __init__(
        self,
        log: DeltaLog,
        snapshot: Snapshot | None = None,
        *,
        txn_id: str | None = None,
        policy: CommitPolicy | None = None,
        isolation_level: IsolationLevel | str | None = None,
        user_metadata: str | None = None,
        observer: TransactionObserver | None = None,
        default_properties: Mapping[str, str] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(
            log,
            snapshot if snapshot is not None else log.update(),
            txn_id=txn_id if txn_id is not None else _new_txn_id(),
            policy=policy if policy is not None else CommitPolicy(),
            isolation_level=_asked_level(isolation_level),
            user_metadata=user_metadata,
            observer=observer if observer is not None else TransactionObserver(),
            default_properties=default_properties,
            clock=clock if clock is not None else _now,
        )
        self._hooks: list[PostCommitHook] = [ChecksumHook(), CheckpointHook()]
        if self.read_version >= 0:
            check_writable(self.snapshot.protocol, self.snapshot.metadata, log.uri, self.read_version)
            log.validate_at_start(self.snapshot)
        self._observer.starting(self.read_version)

    # -- the active transaction of the thread ----------------------------------------------------------------------------------

    @classmethod
    def get_active(cls) -> OptimisticTransaction | None:
        """Return the transaction that is active in this thread."""
        return active.get_active()

    @classmethod
    def set_active(cls, txn: OptimisticTransaction) -> None:
        """Make ``txn`` the active transaction of this thread.

        :raises DeltaIllegalStateException: another one is.
        """
        active.set_active(txn)

    @classmethod
    def with_active(
        cls, txn: OptimisticTransaction, *, override_existing: bool = False
    ) -> AbstractContextManager[OptimisticTransaction]:
        """Make ``txn`` active inside a ``with`` block, and then again the one that was active before.

        :param override_existing: also when another transaction is active.
        """
        return active.with_active(txn, override_existing=override_existing)

    @classmethod
    def clear_active(cls) -> None:
        """Leave this thread without an active transaction."""
        active.clear_active()

    def split(self, read_files: Iterable[str]) -> OptimisticTransaction:
        """Return a transaction on the same version that commits part of the work, to commit it in batches.

        It has read with the same predicates and looked up the same application ids, but only the given files.

        :param read_files: paths, of those that this transaction read.
        :raises DeltaAssertionError: the transaction changes the metadata, has been committed, is active in this thread, or has
            not read one of the files.
        """
        self._assert_not_committed()
        if self.new_metadata is not None:
            raise DeltaAssertionError("A transaction that changes the metadata cannot be split.", table=self.log.uri)
        if active.get_active() is not None:
            raise DeltaAssertionError("A transaction cannot be split while one is active in this thread.", table=self.log.uri)
        paths = frozenset(read_files)
        unread = paths - self.reads.read_among(sorted(paths))
        if unread:
            raise DeltaAssertionError(f"The transaction has not read the file {min(unread)}.", table=self.log.uri)
        part = OptimisticTransaction(
            self.log,
            self.snapshot,
            policy=self.policy,
            isolation_level=self._isolation_level,
            user_metadata=self.user_metadata,
            observer=self._observer,
            default_properties=self.default_properties,
            clock=self.clock,
        )
        part.reads = self.reads.split(paths)
        return part

    # -- hooks -----------------------------------------------------------------------------------------------------------------

    @property
    def post_commit_hooks(self) -> tuple[PostCommitHook, ...]:
        """The registered hooks, in the order they run."""
        return tuple(self._hooks)

    def register_post_commit_hook(self, hook: PostCommitHook) -> None:
        """Register a hook; one that is registered already is not registered twice."""
        if hook not in self._hooks:
            self._hooks.append(hook)

    def run_post_commit_hooks(self, version: int, committed_actions: Sequence[Action]) -> None:
        """Run the registered hooks.

        :raises DeltaAssertionError: the transaction has not been committed.
        """
        if not self.committed:
            raise DeltaAssertionError("Can't call post commit hooks before committing", table=self.log.uri)
        run_hooks(self._hooks, self, version, committed_actions)

    # -- commit ----------------------------------------------------------------------------------------------------------------

    def commit(
        self,
        actions: Iterable[Action],
        operation: Operation,
        *,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> int:
        """Commit the actions as one version, and return it.

        :param tags: ``commitInfo.tags``; values become text.
        :raises DeltaConcurrentModificationException: others committed what this transaction cannot be serialised with.
        :raises MaxCommitRetriesExceededException: the bounds of the policy are reached.
        :raises CommitCancelledException: the policy's ``cancelled`` said so.
        :raises CommitStateUnknownException: the store did not tell whether the commit was written, and the log could not.
        :raises DeltaAssertionError: the transaction has been committed already.
        """
        version = self.commit_impl(actions, operation, can_skip_empty_commits=False, tags=tags, user_metadata=user_metadata)
        if version is None:
            raise DeltaAssertionError("A commit that may not be left out was left out", table=self.log.uri)
        return version

    def commit_if_needed(
        self,
        actions: Iterable[Action],
        operation: Operation,
        *,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> int | None:
        """Commit as :meth:`commit` does, or return ``None`` when there is nothing to commit.

        An empty commit is then neither checked for conflicts nor written, and no hook runs. Raises as :meth:`commit` does.
        """
        return self.commit_impl(actions, operation, can_skip_empty_commits=True, tags=tags, user_metadata=user_metadata)

    def commit_large(
        self,
        actions: Iterable[Action],
        operation: Operation,
        *,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> int:
        """Commit as the version right after the one that was read, or not at all: no conflict is resolved.

        Metadata is always written, the protocol last, and no hooks run but a checkpoint is written (Delta's ``commitLarge``, for
        commands that replace the state of the table). Raises as :meth:`commit` does.

        :raises ConcurrentWriteException: another writer has that version.
        """
        self._observer.preparing()
        try:
            prepared, final = self._prepare_large(list(actions), operation)
            level = IsolationLevel.SERIALIZABLE
            self.is_blind_append = False
            info = self._commit_info(final, operation, level, tags, user_metadata, large=True)
            committed = self._put(prepared, final, info, level, may_retry=False)
        except BaseException as error:
            self._failed(error)
            raise
        outcome = self._outcome()
        run_hooks([CheckpointHook(always=True)], self, outcome.version, committed)
        return outcome.version

    def prepare_commit(self, actions: Sequence[Action], operation: Operation) -> list[Action]:
        """Return the final actions of a commit of ``actions``, without ``commitInfo``.

        :raises DeltaAssertionError: the transaction has been committed already, or metadata or protocol come twice.
        """
        return self._prepare(actions, operation).actions

    def commit_impl(
        self,
        actions: Iterable[Action],
        operation: Operation,
        *,
        can_skip_empty_commits: bool,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> int | None:
        """Commit the actions: what :meth:`commit` and :meth:`commit_if_needed` have in common.

        :param can_skip_empty_commits: return ``None`` when there is nothing to commit.
        """
        self._observer.preparing()
        try:
            prepared = self._prepare(list(actions), operation)
            level = self._level(prepared, operation)
            self.is_blind_append = self._only_adds_blindly(prepared.actions)
            self._register_hooks_of(prepared, operation)
            if can_skip_empty_commits and self._may_be_left_out(prepared, level):
                return None
            info = self._commit_info(prepared.actions, operation, level, self._tags(prepared, tags), user_metadata)
            committed = self._put(prepared, prepared.actions, info, level)
        except BaseException as error:
            self._failed(error)
            raise
        outcome = self._outcome()
        self.run_post_commit_hooks(outcome.version, committed)
        return outcome.version

    def _register_hooks_of(self, prepared: PreparedCommit, operation: Operation) -> None:
        """Register the hooks that follow from what is committed."""
        if not any(isinstance(action, AddFile | RemoveFile | AddCDCFile) for action in prepared.actions):
            return
        configuration = prepared.metadata.configuration
        if wants_auto_compaction(configuration, self.policy) and operation.name != "OPTIMIZE":
            self.register_post_commit_hook(AutoCompactHook())
        if wants_symlink_manifest(configuration):
            self.register_post_commit_hook(SymlinkManifestHook())

    def _failed(self, error: BaseException) -> None:
        """Tell of a commit that failed; of a conflict, the loop has. A commit that is durable is no failed one."""
        if isinstance(error, InvalidCommittedVersionException):
            return
        if isinstance(error, Exception) and not isinstance(error, DeltaConcurrentModificationException):
            data = {"txnId": self.txn_id, "readVersion": self.read_version, "error": type(error).__name__, "message": str(error)}
            record_event("delta.commit.failure", self.log.uri, data, level=logging.INFO)
        self._observer.aborted(error)

    def _outcome(self) -> CommitOutcome:
        if self.outcome is None:
            raise DeltaAssertionError("The transaction has not been committed", table=self.log.uri)
        return self.outcome


def _now() -> int:
    return int(time.time() * 1000)


def _new_txn_id() -> str:
    return str(uuid.uuid4())


def _asked_level(level: IsolationLevel | str | None) -> IsolationLevel | None:
    if level is None:
        return None
    return writer_isolation_level(IsolationLevel.parse(level) if isinstance(level, str) else level)
