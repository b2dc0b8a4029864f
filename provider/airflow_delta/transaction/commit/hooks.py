"""Post-commit hooks: the checksum, the checkpoint when one is due, and those that a caller registers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from airflow_delta.exceptions import DeltaError, PostCommitHookFailedException
from airflow_delta.log.storage.turns import turn
from airflow_delta.transaction.commit.active_transaction import suspended
from airflow_delta.transaction.events import record_event
from airflow_delta.transaction.policy import CommitPolicy

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.policy import CommitOutcome


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
        if snapshot.properties.enable_expired_log_cleanup and log.managed_as is None:
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
