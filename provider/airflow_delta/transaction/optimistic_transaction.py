"""One optimistic transaction: reads a version, tracks what it reads, and commits all of its actions as one version or none.

Follows Delta's ``OptimisticTransaction``; names are its names in snake_case.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import (
    DeltaAssertionError,
)
from airflow_delta.log import protocol as table_protocol
from airflow_delta.log.actions import (
    Action,
    AddCDCFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    encode_actions,
)
from airflow_delta.transaction import active
from airflow_delta.transaction.commit_info import build_commit_info
from airflow_delta.transaction.commit_loop import CommitLoop, Entry
from airflow_delta.transaction.conflict_checker import ConflictChecker, CurrentTransaction
from airflow_delta.transaction.hooks import CheckpointHook, ChecksumHook, PostCommitHook, run_hooks
from airflow_delta.transaction.isolation import (
    IsolationLevel,
    choose_isolation_level,
    table_isolation_level,
    writer_isolation_level,
)
from airflow_delta.transaction.observer import TransactionObserver
from airflow_delta.transaction.operations import Operation
from airflow_delta.transaction.policy import CommitOutcome, CommitPolicy
from airflow_delta.transaction.prepare import (
    PreparedCommit,
    TableState,
    check_domains,
    check_duplicates,
    check_writable,
    deduplicate_set_transactions,
    prepare_commit,
    verify_metadata,
)
from airflow_delta.transaction.stats import CommitStats
from airflow_delta.transaction.table_reads import TableReads

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot


class OptimisticTransaction(TableReads):
    """A transaction on one table. Not thread-safe, and committed at most once.

    :param log: the table's log.
    :param snapshot: version that the transaction reads; by default the latest.
    :param txn_id: identity, ``commitInfo.txnId``; by default a new UUID. A commit that is tried again in another process must
        use the same one, so that it recognises what it has written.
    :param policy: bounds of the commit.
    :param isolation_level: Serializable or WriteSerializable, instead of what the table says.
    :param user_metadata: text for ``commitInfo.userMetadata`` when neither the commit nor its operation has one.
    :param observer: is told of every phase.
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
    ) -> None:
        super().__init__(log, snapshot if snapshot is not None else log.update())
        self.txn_id = txn_id if txn_id is not None else _new_txn_id()
        self.policy = policy if policy is not None else CommitPolicy()
        self.user_metadata = user_metadata
        self.has_written = False
        self.outcome: CommitOutcome | None = None
        self._isolation_level = _asked_level(isolation_level)
        self._observer = observer if observer is not None else TransactionObserver()
        self._new_metadata: Metadata | None = None
        self._new_protocol: Protocol | None = None
        self._set_transactions: list[SetTransaction] = []
        self._hooks: list[PostCommitHook] = [ChecksumHook(), CheckpointHook()]
        self._committed_metadata: Metadata | None = None
        self._started = time.monotonic()
        if self.read_version >= 0:
            check_writable(self.snapshot.protocol, self.snapshot.metadata, log.uri, self.read_version)
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
    def clear_active(cls) -> None:
        """Leave this thread without an active transaction."""
        active.clear_active()

    # -- the table -------------------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata:
        """The table's metadata as this transaction leaves it.

        :raises DeltaTableNotFoundException: the table does not exist and the transaction has not set it.
        """
        return self._new_metadata if self._new_metadata is not None else self.snapshot.metadata

    @property
    def protocol(self) -> Protocol:
        """The table's protocol as this transaction leaves it."""
        return self._new_protocol if self._new_protocol is not None else self.snapshot.protocol

    # -- what it changes beside files ------------------------------------------------------------------------------------------

    @property
    def can_update_metadata(self) -> bool:
        """Whether ``update_metadata`` may still be called."""
        return not self.has_written and self._new_metadata is None

    def update_metadata(self, metadata: Metadata) -> None:
        """Set the table's new metadata: once, and before any file is written. Upgrades the protocol where it must.

        :raises DeltaAssertionError: it was set before, or files have been written.
        :raises DeltaAnalysisException: the metadata is not valid.
        """
        if self.has_written:
            raise DeltaAssertionError(
                "Cannot update the metadata in a transaction that has already written data.", table=self.log.uri
            )
        if self._new_metadata is not None:
            raise DeltaAssertionError("Cannot change the metadata more than once in a transaction.", table=self.log.uri)
        state = self._state()
        from airflow_delta.log.properties import FEATURE_PREFIX, validate

        old = state.metadata.configuration if state.metadata is not None else {}
        changed = {key: value for key, value in metadata.configuration.items() if old.get(key) != value}
        validate(changed, table=self.log.uri)
        asked_for = {key.removeprefix(FEATURE_PREFIX) for key in metadata.configuration if key.startswith(FEATURE_PREFIX)}
        metadata, protocol = table_protocol.apply_feature_properties(metadata, state.protocol)
        verify_metadata(state, metadata, asked_for=asked_for)
        self._new_metadata = metadata
        self._new_protocol = protocol if protocol != state.protocol else None

    def update_metadata_for_new_table(self, metadata: Metadata) -> None:
        """Set the metadata of a table that this transaction creates; see :meth:`update_metadata`."""
        self.update_metadata(metadata)

    def update_set_transaction(self, txn: SetTransaction) -> None:
        """Commit ``txn`` with whatever is committed."""
        self._set_transactions.append(txn)

    def get_user_metadata(self, operation: Operation) -> str | None:
        """Return the text for ``commitInfo.userMetadata``: the operation's, else the transaction's."""
        return operation.user_metadata if operation.user_metadata is not None else self.user_metadata

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

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the committed version is a multiple of ``delta.checkpointInterval``, and not the first."""
        if self.outcome is None or self.outcome.version == 0 or self._committed_metadata is None:
            return False
        from airflow_delta.log.properties import TableProperties

        return self.outcome.version % TableProperties(self._committed_metadata.configuration).checkpoint_interval == 0

    # -- commit ----------------------------------------------------------------------------------------------------------------

    @property
    def committed(self) -> bool:
        """Whether the transaction has been committed."""
        return self.outcome is not None

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
        version = self._commit(list(actions), operation, tags, user_metadata, elide_empty=False)
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
        return self._commit(list(actions), operation, tags, user_metadata, elide_empty=True)

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
            self._assert_not_committed()
            given = [*actions]
            prepared = prepare_commit(self._state(), given, operation)
            final = [
                prepared.metadata,
                *(action for action in prepared.actions if not isinstance(action, Metadata | Protocol)),
                *self._set_transactions,
                *([prepared.new_protocol] if prepared.new_protocol is not None else []),
            ]
            level = IsolationLevel.SERIALIZABLE
            info = self._commit_info(final, operation, level, False, tags, user_metadata, large=True)
            self._put(prepared, final, info, level, False, may_retry=False)
        except BaseException as error:
            self._observer.aborted(error)
            raise
        outcome = self._outcome()
        run_hooks([CheckpointHook(always=True)], self, outcome.version, [outcome.commit_info, *final])
        return outcome.version

    def prepare_commit(self, actions: Sequence[Action], operation: Operation) -> list[Action]:
        """Return the final actions of a commit of ``actions``, without ``commitInfo``.

        :raises DeltaAssertionError: the transaction has been committed already, or metadata or protocol come twice.
        """
        return self._prepare(actions, operation).actions

    def _commit(
        self,
        actions: list[Action],
        operation: Operation,
        tags: Mapping[str, Any] | None,
        user_metadata: str | None,
        *,
        elide_empty: bool,
    ) -> int | None:
        self._observer.preparing()
        try:
            prepared = self._prepare(actions, operation)
            level = choose_isolation_level(prepared.actions, self._table_level(prepared.metadata), operation)
            if elide_empty and not prepared.actions and level is not IsolationLevel.WRITE_SERIALIZABLE:
                return None
            blind = self._is_blind_append(prepared.actions)
            info = self._commit_info(prepared.actions, operation, level, blind, tags, user_metadata)
            self._put(prepared, prepared.actions, info, level, blind)
        except BaseException as error:
            self._observer.aborted(error)
            raise
        outcome = self._outcome()
        self.run_post_commit_hooks(outcome.version, [outcome.commit_info, *prepared.actions])
        return outcome.version

    def _prepare(self, actions: Sequence[Action], operation: Operation) -> PreparedCommit:
        self._assert_not_committed()
        deduplicated = deduplicate_set_transactions(actions, self._set_transactions)
        prepared = prepare_commit(self._state(), deduplicated, operation)
        check_duplicates(self.log.uri, prepared.actions)
        check_domains(self.log.uri, prepared.actions, prepared.protocol)
        return prepared

    def _put(
        self,
        prepared: PreparedCommit,
        actions: Sequence[Action],
        info: CommitInfo,
        level: IsolationLevel,
        blind: bool,
        *,
        may_retry: bool = True,
    ) -> None:
        current = CurrentTransaction(
            table=self.log.uri,
            read_version=self.read_version,
            reads=self.reads,
            metadata=prepared.metadata,
            protocol=prepared.protocol,
            partition_columns=self.snapshot.metadata.partition_columns if self.read_version >= 0 else (),
            actions=actions,
            is_blind_append=blind,
            isolation_level=level,
        )
        data = encode_actions([info, *actions])
        entry = Entry(self.txn_id, self.read_version, data, len(actions) + 1, level.value, may_retry)
        loop = CommitLoop(self.log, entry, ConflictChecker(current), self.policy, self._observer)
        landed = loop.run()
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
        self.log.advance(landed.commits)
        if CommitStats.enabled():
            CommitStats.of(
                self.outcome,
                actions,
                prepared,
                start_version=self.read_version,
                size=len(data),
                txn_seconds=time.monotonic() - self._started,
                write_seconds=landed.write_seconds,
            ).record()

    def _is_blind_append(self, actions: Sequence[Action]) -> bool:
        only_adds = not any(isinstance(action, RemoveFile | AddCDCFile) for action in actions)
        return only_adds and not self.reads.depends_on_files

    def _table_level(self, metadata: Metadata) -> IsolationLevel:
        return self._isolation_level if self._isolation_level is not None else table_isolation_level(metadata)

    def _commit_info(
        self,
        actions: Sequence[Action],
        operation: Operation,
        level: IsolationLevel,
        blind: bool,
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
            is_blind_append=blind,
            timestamp=int(time.time() * 1000),
            txn_id=self.txn_id,
            tags=tags,
            user_metadata=user_metadata if user_metadata is not None else self.get_user_metadata(operation),
            large=large,
        )

    def _state(self) -> TableState:
        exists = self.read_version >= 0
        return TableState(
            table=self.log.uri,
            read_version=self.read_version,
            metadata=self.snapshot.metadata if exists else None,
            protocol=self.snapshot.protocol if exists else None,
            new_metadata=self._new_metadata,
            new_protocol=self._new_protocol,
        )

    def _assert_not_committed(self) -> None:
        if self.committed:
            raise DeltaAssertionError("Transaction already committed.", table=self.log.uri)

    def _outcome(self) -> CommitOutcome:
        if self.outcome is None:
            raise DeltaAssertionError("The transaction has not been committed", table=self.log.uri)
        return self.outcome


def _new_txn_id() -> str:
    return str(uuid.uuid4())


def _asked_level(level: IsolationLevel | str | None) -> IsolationLevel | None:
    if level is None:
        return None
    return writer_isolation_level(IsolationLevel.parse(level) if isinstance(level, str) else level)
