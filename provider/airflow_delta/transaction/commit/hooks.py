"""Post-commit hooks: the checksum, the checkpoint when one is due, and those that a caller registers.

Auto compaction as a request: a commit that leaves many small files asks for an OPTIMIZE, which somebody else runs.

A thread's active transaction and the last version committed from it (Delta keeps both in the session).
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from airflow_delta.contract.files import partition_texts_of
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException, PostCommitHookFailedException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.storage.puts import turn
from airflow_delta.transaction.events import record_event
from airflow_delta.transaction.policy import AutoCompactionRequest, CommitPolicy
from airflow_delta.transaction.reads.read_set import PartitionSet

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log.actions.actions import Action
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.policy import CommitOutcome, CommitPolicy


class ActiveTransaction(Protocol):
    """What is known here of a transaction: an :class:`~airflow_delta.transaction.OptimisticTransaction`."""

    log: DeltaLog

    @property
    def read_version(self) -> int:
        """Version that it reads."""
        ...


T = TypeVar("T", bound=ActiveTransaction)


class _Thread(threading.local):
    transaction: ActiveTransaction | None = None
    last_version: int | None = None


_thread = _Thread()


def get_active() -> ActiveTransaction | None:
    """Return the transaction that is active in this thread."""
    return _thread.transaction


def set_active(txn: ActiveTransaction) -> None:
    """Make ``txn`` the active transaction of this thread; setting it again has no effect.

    :raises DeltaIllegalStateException: if another transaction is active (Delta: DELTA_ACTIVE_TRANSACTION_ALREADY_SET).
    """
    current = _thread.transaction
    if current is not None and current is not txn:
        raise txn.log.error(
            DeltaIllegalStateException,
            f"Cannot make the transaction on {txn.log.uri} active: this thread already has an active one on {current.log.uri} "
            f"(version {current.read_version}). Transactions do not nest (DELTA_ACTIVE_TRANSACTION_ALREADY_SET); commit or clear "
            "the active one first.",
        )
    _thread.transaction = txn


def clear_active() -> None:
    """Leave this thread without an active transaction."""
    _thread.transaction = None


@contextmanager
def with_active(txn: T, *, override_existing: bool = False) -> Iterator[T]:
    """Make ``txn`` the active transaction inside a ``with`` block, then restore the one that was active before.

    :param override_existing: also if another transaction is active.
    """
    before = _thread.transaction
    if override_existing:
        _thread.transaction = txn
    else:
        set_active(txn)
    try:
        yield txn
    finally:
        _thread.transaction = before


@contextmanager
def suspended() -> Iterator[None]:
    """Run a ``with`` block without an active transaction (what a post-commit hook does is not part of the commit)."""
    transaction, _thread.transaction = _thread.transaction, None
    try:
        yield
    finally:
        _thread.transaction = transaction


def last_commit_version_in_session() -> int | None:
    """Return the last version committed from this thread (Delta's ``lastCommitVersionInSession``)."""
    return _thread.last_version


def record_commit(version: int) -> None:
    """Remember the version that was just committed."""
    _thread.last_version = version


logger = logging.getLogger(__name__)


class CommittedTransaction(Protocol):
    """What a hook sees of the transaction: an :class:`~airflow_delta.transaction.OptimisticTransaction` after its commit.

    :ivar outcome: how the commit went; a hook may add to it.
    """

    log: DeltaLog
    snapshot: Snapshot
    outcome: CommitOutcome | None

    @property
    def policy(self) -> CommitPolicy:
        """Limits and options of the commit."""
        ...

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a checkpoint of the committed version is due."""
        ...

    @property
    def checkpoint_interval(self) -> int:
        """``delta.checkpointInterval`` of the committed metadata."""
        ...


class PostCommitHook(ABC):
    """Runs right after a successful commit. It cannot undo the commit, and may start transactions of its own.

    :ivar name: for messages.
    """

    name: str

    @abstractmethod
    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
        """Run after ``txn`` was committed as ``version``.

        :param actions: what was committed, ``commitInfo`` first.
        """

    def handle_error(self, txn: CommittedTransaction, error: Exception, version: int) -> None:
        """Decide what an error of :meth:`run` means; default: the policy's ``fail_on_hook_error`` decides."""
        if txn.policy.fail_on_hook_error:
            raise txn.log.error(
                PostCommitHookFailedException,
                f"Version {version} of table {txn.log.uri} is committed, but its post-commit hook {self.name} failed: {error}",
                hook=self.name,
                version=version,
            ) from error


class ChecksumHook(PostCommitHook):
    """Writes ``<version>.crc``, from which the next start reads protocol, metadata and transactions."""

    name = "Post commit checksum"

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:  # noqa: ARG002
        """Write the checksum, unless a later version is already known; an optional file never fails a commit."""
        if not txn.policy.checksum:
            return
        snapshot = txn.log.snapshot
        if snapshot.version == version:
            txn.log.write_checksum(snapshot)

    def handle_error(self, txn: CommittedTransaction, error: Exception, version: int) -> None:
        """Ignore it: the file is optional."""


class CheckpointHook(PostCommitHook):
    """Writes a checkpoint of every ``delta.checkpointInterval``-th version, then deletes expired log files.

    While another process of this machine writes one, a due checkpoint is left to that process.

    :param always: write one of every version that it runs for, whoever else writes one.
    """

    name = "Post commit checkpoint trigger"

    def __init__(self, *, always: bool = False) -> None:
        self._always = always

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:  # noqa: ARG002
        """Write a checkpoint if one is due."""
        if txn.policy.checkpoint == "off" or not (self._always or txn.needs_checkpoint):
            return
        with turn(txn.log.store) as free:
            if not free and not self._always:
                logger.info("Version %s of %s gets no checkpoint now: another process is writing one", version, txn.log.uri)
                return
            self._write(txn.log, version)
            later = txn.log.update().version
            due = later - later % txn.checkpoint_interval
            if due > version:
                self._write(txn.log, due)

    def _write(self, log: DeltaLog, version: int) -> None:
        if not log.store.committer.is_published(version):
            logger.info("Version %s of %s gets no checkpoint now: it is not published yet", version, log.uri)
            return
        snapshot = log.snapshot if log.snapshot.version == version else log.snapshot_at(version)
        log.checkpoint(snapshot)
        if snapshot.properties.enable_expired_log_cleanup and log.catalog is None:  # else the catalog's work
            log.clean_up_expired_logs(snapshot)

    def handle_error(self, txn: CommittedTransaction, error: Exception, version: int) -> None:
        """Ignore it: a later commit writes the next checkpoint."""


def run_hooks(hooks: Sequence[PostCommitHook], txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
    """Run hooks in the order they were registered, without an active transaction.

    :raises PostCommitHookFailedException: if a hook failed and its ``handle_error`` raises, possibly another :class:`DeltaError`.
        The commit stands, and the hooks after it have run.
    """
    failure: DeltaError | None = None
    with suspended():
        for hook in hooks:
            try:
                hook.run(txn, version, actions)
            except Exception as error:
                logger.error("Error when executing post-commit hook %s for commit %s", hook.name, version, exc_info=error)
                data = {"hook": hook.name, "version": version, "error": type(error).__name__, "message": str(error)}
                record_event("delta.commit.hook.failure", txn.log.uri, data, level=logging.WARNING)
                try:
                    hook.handle_error(txn, error, version)
                except DeltaError as raised:
                    failure = failure or raised
    if failure is not None:
        raise failure


_EVENT = "delta.commit.hooks.autoOptimize"
_MAX_PARTITIONS = 128
"""Most partitions in one request (Delta: ``autoCompact.maxNumModifiedPartitions``)."""

Partition = tuple[tuple[str, str | None], ...]


def wants_auto_compaction(configuration: Mapping[str, str], policy: CommitPolicy) -> bool:
    """Tell whether auto compaction is on: the policy decides first, then the deprecated property, then the current one."""
    if policy.auto_compact is not None:
        return policy.auto_compact
    return any(
        configuration.get(key, "false").lower() == "true" for key in ("delta.autoOptimize", "delta.autoOptimize.autoCompact")
    )


class AutoCompactHook(PostCommitHook):
    """Requests compaction of partitions that a commit wrote to, if they hold enough small files (Delta's ``AutoCompact``).

    A file is small if it is up to half the size to write. Finding out reads the table's list of files.
    """

    name = "Auto Compact"

    def __eq__(self, other: object) -> bool:
        """Equal every other: one runs, however often it is registered."""
        return isinstance(other, AutoCompactHook)

    def __hash__(self) -> int:
        """Hash like all others."""
        return hash(AutoCompactHook)

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
        """Add the request, if one is due, to the outcome of the commit, and hand it to the policy's callback."""
        written = {_key(action.partition_values) for action in actions if isinstance(action, AddFile) and action.data_change}
        if not written:
            record_event(_EVENT, txn.log.uri, {"status": "skipEmptyIngestion"})
            return
        policy = txn.policy
        min_size = policy.auto_compact_max_file_size // 2
        snapshot = txn.log.snapshot if txn.log.snapshot.version >= version else txn.log.update()
        partitions = PartitionSet.of((dict(key) for key in written), snapshot.partition_schema)
        found = small_files(partitions.select(snapshot.files(columns=["partition_values", "size"])), min_size, written)
        due = sorted(
            (key for key, (count, _size) in found.items() if count >= policy.auto_compact_min_files),
            key=lambda key: (-found[key][0], str(key)),
        )[:_MAX_PARTITIONS]
        if not due:
            record_event(_EVENT, txn.log.uri, {"status": "skipInsufficientFilesInModifiedPartitions"})
            return
        request = AutoCompactionRequest(
            table=txn.log.uri,
            version=snapshot.version,
            partitions=tuple(dict(key) for key in due),
            num_small_files=sum(found[key][0] for key in due),
            small_file_bytes=sum(found[key][1] for key in due),
            min_file_size=min_size,
            max_file_size=policy.auto_compact_max_file_size,
        )
        record_event(_EVENT, txn.log.uri, {"status": "runOnModifiedPartitions", "partitions": len(due)})
        if txn.outcome is not None:
            txn.outcome = replace(txn.outcome, auto_compaction=request)
        if policy.on_auto_compact is not None:
            policy.on_auto_compact(request)


def _key(partition_values: Mapping[str, str | None]) -> Partition:
    return tuple(sorted(partition_texts_of(partition_values).items()))


def small_files(files: pa.Table, min_size: int, partitions: set[Partition] | None = None) -> dict[Partition, tuple[int, int]]:
    """Return number and bytes of the files up to ``min_size``, by partition.

    :param files: with the columns ``partition_values`` and ``size``.
    :param partitions: only these.
    """
    import pyarrow.compute as pc

    from airflow_delta.log.arrow.arrays import scalar

    small = files.filter(pc.less_equal(files.column("size"), scalar(min_size)))
    found: dict[Partition, tuple[int, int]] = {}
    for batch in small.to_batches():
        for values, size in zip(batch.column("partition_values").to_pylist(), batch.column("size").to_pylist(), strict=True):
            key = _key(dict(values or ()))
            if partitions is None or key in partitions:
                count, total = found.get(key, (0, 0))
                found[key] = count + 1, total + size
    return found
