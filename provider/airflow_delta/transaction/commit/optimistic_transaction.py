"""An optimistic transaction: reads a version, tracks what it reads, and commits all of its actions as one version or none.

Follows Delta's ``OptimisticTransaction``; names are Delta's in snake_case.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_delta.exceptions import DeltaAssertionError
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, Metadata, Protocol, RemoveFile
from airflow_delta.transaction.commit import active_transaction
from airflow_delta.transaction.commit.auto_compact import AutoCompactHook, wants_auto_compaction
from airflow_delta.transaction.commit.committer import Committer
from airflow_delta.transaction.commit.hooks import CheckpointHook, ChecksumHook, PostCommitHook, run_hooks
from airflow_delta.transaction.commit.lock import is_commit_lock_enabled, lock_commit_if_enabled
from airflow_delta.transaction.commit.observer import TransactionObserver
from airflow_delta.transaction.commit.symlink_manifest import SymlinkManifestHook, wants_symlink_manifest
from airflow_delta.transaction.operations import Operation
from airflow_delta.transaction.policy import CommitOutcome, CommitPolicy
from airflow_delta.transaction.prepare.isolation import IsolationLevel, writer_isolation_level
from airflow_delta.transaction.prepare.prepare import PreparedCommit, check_writable
from airflow_delta.transaction.prepare.table_changes import TableChanges
from airflow_delta.transaction.reads.read_set import ReadSet
from airflow_delta.transaction.reads.table_reads import TableReads

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot

P = ParamSpec("P")
R = TypeVar("R")


def _of_reads(method: Callable[Concatenate[TableReads, P], R]) -> Callable[Concatenate[OptimisticTransaction, P], R]:
    """Return a method of the transaction that its reads answer."""

    @functools.wraps(method)
    def delegate(self: OptimisticTransaction, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._reads, *args, **kwargs)

    return delegate


def _of_changes(method: Callable[Concatenate[TableChanges, P], R]) -> Callable[Concatenate[OptimisticTransaction, P], R]:
    """Return a method of the transaction that its changes answer."""

    @functools.wraps(method)
    def delegate(self: OptimisticTransaction, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._changes, *args, **kwargs)

    return delegate


class OptimisticTransaction:
    """A transaction on one table. Not thread-safe, and committed at most once.

    It holds what it reads (:class:`TableReads`), what it changes about the table itself (:class:`TableChanges`) and how it
    commits (:class:`Committer`). None of these parts knows the transaction, and only the committer knows the other two.

    :param log: the table's log.
    :param snapshot: version that the transaction reads; default: the latest.
    :param txn_id: identity, ``commitInfo.txnId``; default: a new UUID. A commit that is retried in another process must use the
        same one, so that it recognises what it has written.
    :param policy: limits and options of the commit.
    :param isolation_level: Serializable or WriteSerializable, instead of what the table says.
    :param user_metadata: text for ``commitInfo.userMetadata`` if neither the commit nor its operation has one.
    :param observer: called in every phase.
    :param default_properties: table properties for a table that the transaction creates or replaces, unless its metadata sets
        them itself (Delta: ``properties.defaults.*`` of the session).
    :param clock: gives the time for ``commitInfo``, in milliseconds since the epoch; default: the machine's.
    :raises DeltaUnsupportedTableFeatureException: if the table needs a feature that this provider cannot write.
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
        self.log = log
        self.snapshot = snapshot if snapshot is not None else log.update()
        self._reads = TableReads(self.snapshot)
        self._changes = TableChanges(self.snapshot, default_properties)
        self._committer = Committer(
            log=log,
            reads=self._reads,
            changes=self._changes,
            txn_id=txn_id if txn_id is not None else str(uuid.uuid4()),
            policy=policy if policy is not None else CommitPolicy(),
            isolation_level=None if isolation_level is None else writer_isolation_level(isolation_level),
            user_metadata=user_metadata,
            observer=observer if observer is not None else TransactionObserver(),
            clock=clock if clock is not None else _now,
        )
        self._hooks: list[PostCommitHook] = [ChecksumHook(), CheckpointHook()]
        self._committed_actions: Sequence[Action] = ()
        if self.read_version >= 0:
            check_writable(self.snapshot.protocol, self.snapshot.metadata, log.uri, self.read_version, provided=log.provided)
            log.validate_at_start(self.snapshot)
        self._committer.observer.starting(self.read_version)

    @property
    def txn_id(self) -> str:
        """Identity of the transaction, ``commitInfo.txnId``."""
        return self._committer.txn_id

    @property
    def policy(self) -> CommitPolicy:
        """Limits and options of the commit."""
        return self._committer.policy

    @property
    def user_metadata(self) -> str | None:
        """Text for ``commitInfo.userMetadata`` if neither the commit nor its operation has one."""
        return self._committer.user_metadata

    @property
    def clock(self) -> Callable[[], int]:
        """Gives the time for ``commitInfo``, in milliseconds since the epoch."""
        return self._committer.clock

    # -- the active transaction of the thread ----------------------------------------------------------------------------------

    @classmethod
    def get_active(cls) -> OptimisticTransaction | None:
        """Return the transaction that is active in this thread."""
        txn = active_transaction.get_active()
        return txn if isinstance(txn, OptimisticTransaction) else None

    @classmethod
    def set_active(cls, txn: OptimisticTransaction) -> None:
        """Make ``txn`` the active transaction of this thread.

        :raises DeltaIllegalStateException: if another one is.
        """
        active_transaction.set_active(txn)

    @classmethod
    def with_active(
        cls, txn: OptimisticTransaction, *, override_existing: bool = False
    ) -> AbstractContextManager[OptimisticTransaction]:
        """Make ``txn`` active inside a ``with`` block, and afterwards the one that was active before.

        :param override_existing: also if another transaction is active.
        """
        return active_transaction.with_active(txn, override_existing=override_existing)

    @classmethod
    def clear_active(cls) -> None:
        """Leave this thread without an active transaction."""
        active_transaction.clear_active()

    # -- reads: every look at the table is answered at its version, and recorded -----------------------------------------------

    filter_files = _of_reads(TableReads.filter_files)
    files_for_scan = _of_reads(TableReads.files_for_scan)
    files_with_stats_for_scan = _of_reads(TableReads.files_with_stats_for_scan)
    filter_files_for_partitions = _of_reads(TableReads.filter_files_for_partitions)
    partitions_of = _of_reads(TableReads.partitions_of)
    filter_files_for_partition_sets = _of_reads(TableReads.filter_files_for_partition_sets)
    filter_files_for_any = _of_reads(TableReads.filter_files_for_any)
    track_files_read = _of_reads(TableReads.track_files_read)
    track_files_moved = _of_reads(TableReads.track_files_moved)
    track_read_predicates = _of_reads(TableReads.track_read_predicates)
    read_whole_table = _of_reads(TableReads.read_whole_table)
    track_app_ids = _of_reads(TableReads.track_app_ids)
    track_app_ids_by = _of_reads(TableReads.track_app_ids_by)
    txn_version = _of_reads(TableReads.txn_version)

    @property
    def read_version(self) -> int:
        """Version that the transaction reads; -1 if there is no table."""
        return self.snapshot.version

    @property
    def reads(self) -> ReadSet:
        """What has been read so far."""
        return self._reads.recorded

    @property
    def read_predicates(self) -> tuple[str, ...]:
        """The texts of the predicates that were read with; ``true`` is the whole table."""
        return tuple(dict.fromkeys(predicate.text for predicate in self.reads.predicates.values()))

    @property
    def read_files(self) -> frozenset[str]:
        """Paths of the files that were read. They are kept as columns; this makes an object of each."""
        return self.reads.paths()

    @property
    def read_the_whole_table(self) -> bool:
        """Whether the transaction relies on the whole table."""
        return self.reads.whole_table

    @property
    def read_app_ids(self) -> frozenset[str]:
        """Application ids whose version was looked up (Delta's ``readTxn``)."""
        return frozenset(self.reads.app_ids)

    # -- changes of the table itself -------------------------------------------------------------------------------------------

    update_metadata = _of_changes(TableChanges.update_metadata)
    update_metadata_for_new_table = _of_changes(TableChanges.update_metadata_for_new_table)
    update_metadata_for_new_table_in_replace = _of_changes(TableChanges.update_metadata_for_new_table_in_replace)
    update_metadata_for_table_overwrite = _of_changes(TableChanges.update_metadata_for_table_overwrite)
    update_metadata_for_clone = _of_changes(TableChanges.update_metadata_for_clone)
    update_metadata_for_restore = _of_changes(TableChanges.update_metadata_for_restore)
    adopt_changes = _of_changes(TableChanges.adopt_changes)
    cluster_new_table = _of_changes(TableChanges.cluster_new_table)
    with_global_config_defaults = _of_changes(TableChanges.with_global_config_defaults)
    update_set_transaction = _of_changes(TableChanges.update_set_transaction)
    update_identity_high_water_marks = _of_changes(TableChanges.update_identity_high_water_marks)
    set_sync_identity = _of_changes(TableChanges.set_sync_identity)

    @property
    def metadata(self) -> Metadata:
        """The table's metadata as this transaction leaves it.

        :raises DeltaTableNotFoundException: if there is no table and the transaction has not set any.
        """
        return self._changes.metadata

    @property
    def new_metadata(self) -> Metadata | None:
        """Metadata that the transaction sets."""
        return self._changes.new_metadata

    @property
    def snapshot_metadata(self) -> Metadata:
        """The table's metadata at the version that is read."""
        return self.snapshot.metadata

    @property
    def protocol(self) -> Protocol:
        """The table's protocol as this transaction leaves it."""
        return self._changes.protocol

    @property
    def new_protocol(self) -> Protocol | None:
        """Protocol that the transaction sets, or that its metadata needs."""
        return self._changes.new_protocol

    @property
    def can_update_metadata(self) -> bool:
        """Whether :meth:`update_metadata` may still be called."""
        return self._changes.can_update_metadata

    @property
    def is_creating_new_table(self) -> bool:
        """Whether the metadata is for a new table, or for one that replaces the table."""
        return self._changes.is_creating_new_table

    @property
    def is_overwriting_schema(self) -> bool:
        """Whether the metadata comes with an overwrite that brings its own schema."""
        return self._changes.is_overwriting_schema

    @property
    def has_written(self) -> bool:
        """Whether data files have been written; the metadata may then no longer change."""
        return self._changes.has_written

    @has_written.setter
    def has_written(self, value: bool) -> None:
        self._changes.has_written = value

    # -- hooks -----------------------------------------------------------------------------------------------------------------

    @property
    def post_commit_hooks(self) -> tuple[PostCommitHook, ...]:
        """The registered hooks, in the order they run."""
        return tuple(self._hooks)

    def register_post_commit_hook(self, hook: PostCommitHook) -> None:
        """Register a hook, unless it already is."""
        if hook not in self._hooks:
            self._hooks.append(hook)

    def run_post_commit_hooks(self, version: int, committed_actions: Sequence[Action]) -> None:
        """Run the registered hooks.

        :raises DeltaAssertionError: if the transaction has not been committed.
        """
        if not self.committed:
            raise self.log.error(DeltaAssertionError, "Can't call post commit hooks before committing")
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

        :param tags: ``commitInfo.tags``; values become strings.
        :raises DeltaConcurrentModificationException: if others committed what this transaction cannot be serialised with.
        :raises MaxCommitRetriesExceededException: if the limits of the policy are reached.
        :raises CommitCancelledException: if the policy's ``cancelled`` says so.
        :raises CommitStateUnknownException: if neither the store nor the log shows whether the commit was written.
        :raises DeltaAssertionError: if the transaction has already been committed.
        """
        version = self.commit_impl(actions, operation, can_skip_empty_commits=False, tags=tags, user_metadata=user_metadata)
        if version is None:
            raise self.log.error(DeltaAssertionError, "A commit was skipped that must not be")
        return version

    def commit_if_needed(
        self,
        actions: Iterable[Action],
        operation: Operation,
        *,
        tags: Mapping[str, Any] | None = None,
        user_metadata: str | None = None,
    ) -> int | None:
        """Commit as :meth:`commit` does, or return ``None`` if there is nothing to commit.

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

        :raises ConcurrentWriteException: if another writer has that version.
        """
        committed = self._committer.commit_large(list(actions), operation, tags=tags, user_metadata=user_metadata)
        run_hooks([CheckpointHook(always=True)], self, committed.outcome.version, committed.actions)
        return committed.outcome.version

    def prepare_commit(self, actions: Sequence[Action], operation: Operation) -> list[Action]:
        """Return the final actions of a commit of ``actions``, without ``commitInfo``.

        :raises DeltaAssertionError: if the transaction has already been committed, or metadata or protocol come twice.
        """
        return self._committer.prepare(actions, operation).actions

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

        :param can_skip_empty_commits: return ``None`` if there is nothing to commit.
        """
        committed = self._committer.commit(
            list(actions),
            operation,
            can_skip_empty_commits=can_skip_empty_commits,
            tags=tags,
            user_metadata=user_metadata,
        )
        if committed is None:
            return None
        self._committed_actions = committed.actions
        self._register_hooks_of(committed.prepared, operation)
        self.run_post_commit_hooks(committed.outcome.version, committed.actions)
        return committed.outcome.version

    @property
    def committed(self) -> bool:
        """Whether the transaction has been committed."""
        return self.outcome is not None

    @property
    def committed_actions(self) -> Sequence[Action]:
        """What :meth:`commit` has put into the log, ``commitInfo`` first: winning commits may have changed it. Empty before."""
        return self._committed_actions

    @property
    def outcome(self) -> CommitOutcome | None:
        """How the commit went; ``None`` before."""
        return self._committer.outcome

    @outcome.setter
    def outcome(self, outcome: CommitOutcome | None) -> None:
        self._committer.outcome = outcome

    @property
    def is_blind_append(self) -> bool:
        """Whether the commit only adds files, or nothing, and read none."""
        return self._committer.is_blind_append

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the committed version is a multiple of ``delta.checkpointInterval``, and not the first."""
        return self._committer.needs_checkpoint

    @property
    def checkpoint_interval(self) -> int:
        """``delta.checkpointInterval`` of the committed metadata."""
        return self._committer.checkpoint_interval

    @property
    def is_commit_lock_enabled(self) -> bool:
        """Whether the commit takes turns with others of this process."""
        return is_commit_lock_enabled(self.log.store, self.policy)

    def lock_commit_if_enabled(self) -> AbstractContextManager[None]:
        """Hold the table's lock inside a ``with`` block, if it is enabled; see :mod:`airflow_delta.transaction.commit.lock`."""
        return lock_commit_if_enabled(self.log.store, self.policy)

    def get_user_metadata(self, operation: Operation) -> str | None:
        """Return the text for ``commitInfo.userMetadata``: the operation's, else the transaction's, else the policy's."""
        return self._committer.get_user_metadata(operation)

    def get_operation_metrics(self, operation: Operation) -> dict[str, str] | None:
        """Return ``commitInfo.operationMetrics``, or ``None`` if the policy switches them off."""
        return self._committer.get_operation_metrics(operation)

    def split(self, read_files: Iterable[str]) -> OptimisticTransaction:
        """Return a transaction on the same version that commits part of the work, to commit it in batches.

        It has read the same predicates and application ids, but only the given files.

        :param read_files: paths of files that this transaction read.
        :raises DeltaAssertionError: if the transaction changes the metadata, has been committed, is active in this thread, or has
            not read one of the files.
        """
        self._committer.assert_not_committed()
        if self.new_metadata is not None:
            raise self.log.error(DeltaAssertionError, "A transaction that changes the metadata cannot be split.")
        if active_transaction.get_active() is not None:
            raise self.log.error(DeltaAssertionError, "A transaction cannot be split while one is active in this thread.")
        paths = frozenset(read_files)
        unread = paths - self.reads.read_among(sorted(paths))
        if unread:
            raise self.log.error(DeltaAssertionError, f"The transaction has not read the file {min(unread)}.")
        part = OptimisticTransaction(
            self.log,
            self.snapshot,
            policy=self.policy,
            isolation_level=self._committer.isolation_level,
            user_metadata=self.user_metadata,
            observer=self._committer.observer,
            default_properties=self._changes.default_properties,
            clock=self.clock,
        )
        part._reads.recorded = self.reads.split(paths)
        return part

    def _register_hooks_of(self, prepared: PreparedCommit, operation: Operation) -> None:
        """Register the hooks that the commit itself calls for."""
        if not any(isinstance(action, AddFile | RemoveFile | AddCDCFile) for action in prepared.actions):
            return
        configuration = prepared.metadata.configuration
        if wants_auto_compaction(configuration, self.policy) and operation.name != "OPTIMIZE" and self.log.managed_as is None:
            self.register_post_commit_hook(AutoCompactHook())
        if wants_symlink_manifest(configuration):
            self.register_post_commit_hook(SymlinkManifestHook())


def _now() -> int:
    return int(time.time() * 1000)
