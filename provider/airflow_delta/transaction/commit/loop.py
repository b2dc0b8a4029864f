"""Puts the log entry: the next free version, conflict checks against whoever was faster, bounded retries.

A lost race for a version is contention and is retried here; only the log entry is written again. A logical conflict is final. If
the answer to a put is ambiguous, the log is read to find out whether it landed; if that fails too, the error says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import (
    CommitCancelledException,
    CommitStateUnknownException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MaxCommitRetriesExceededException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import CommitFile
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY, commit_file
from airflow_delta.log.storage.progress import tracked
from airflow_delta.transaction import events
from airflow_delta.transaction.commit.fairness import crowd_of
from airflow_delta.transaction.commit.observer import TransactionObserver
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from airflow_delta.transaction.conflicts.errors import conflict
from airflow_delta.transaction.conflicts.winning_commit import TXN_KEY, WinningCommit, read_back
from airflow_delta.transaction.intents import OpenIntents
from airflow_delta.transaction.policy import CommitPolicy

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from airflow_delta.log.actions.actions import Action, CommitInfo, Metadata
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

_SETTLING_PAUSES = (0.0, 0.1, 0.3, 1.0)
"""Seconds before each attempt to read back a version after an ambiguous put."""

_MAX_AMBIGUOUS_PUTS = 10
_JUST_NOW = 1.0
"""Seconds since the log was read in which few commits come in, so that a put tells sooner than another look."""
_SMALL = 1 << 18
"""Bytes of a log entry that may be sent in vain."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The log entry to put.

    :param data: its bytes, which change if winning commits require it (row ids, timestamps).
    :param num_actions: for messages.
    :param may_retry: ``False`` for a commit that is valid at its first version only (Delta's ``commitLarge``).
    :param may_skip: not put if winning commits leave nothing to commit.
    :param before: the metadata at the version that was read, if the entry may replace them.
    """

    txn_id: str
    read_version: int
    data: bytes
    num_actions: int
    isolation_level: str
    may_retry: bool = True
    may_skip: bool = False
    before: Metadata | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """Where the entry landed.

    :param recognised: the log says so, not the answer to the last put.
    :param commits: every commit since the version that was read, as far as the loop knows them, the entry last.
    :param write_seconds: duration of the last put.
    """

    version: int
    attempts: int
    versions_checked: int
    recognised: bool
    commits: list[CommitFile]
    write_seconds: float


class _HeldUpError(Exception):
    """An intent is open that the commit does not pass over."""


class NothingLeftError(Exception):
    """Winning commits leave nothing to commit. Nothing was written."""


class CommitLoop:
    """One run of the loop for one entry.

    :param checker: of the transaction's reads and actions.
    :param intents: open in the version that was read.
    """

    def __init__(
        self,
        log: DeltaLog,
        entry: Entry,
        checker: ConflictChecker,
        policy: CommitPolicy,
        observer: TransactionObserver,
        intents: OpenIntents,
    ) -> None:
        self.log = log
        self.entry = entry
        self.version = entry.read_version + 1
        self.attempts = 0
        self._checker = checker
        self._policy = policy
        self._observer = observer
        self._intents = intents
        self._winners: list[CommitFile] = []
        self._started = time.monotonic()
        self._write_seconds = 0.0
        self._crowd = crowd_of(log)
        self._found_at_first = 0
        self._fresh = False
        self._unsettled = False
        self._ambiguous_puts = 0

    def run(self) -> Landed | None:
        """Put the entry at the next free version that it does not conflict with (Delta's ``doCommitRetryIteratively``).

        ``None`` if an intent is open: the caller lets it end, without the table's lock, and runs the
        loop again.

        :raises DeltaConcurrentModificationException: if there is a logical conflict.
        :raises MaxCommitRetriesExceededException: if the policy's limits are reached. Nothing was written.
        :raises CommitCancelledException: if the policy says so. Nothing was written.
        :raises CommitStateUnknownException: if the entry may or may not be in the log.
        :raises NothingLeftError: if winning commits leave nothing to commit, and the entry may be skipped.
        """
        try:
            landed = self._first_try()
            return landed if landed is not None else self._contend()
        except _HeldUpError:
            return None
        except (CommitStateUnknownException, NothingLeftError):
            raise
        except Exception as error:
            if isinstance(error, DeltaConcurrentModificationException):
                self._record_conflict(error)
            if self._unsettled:
                raise self._unknown(str(error)) from error
            raise

    @property
    def elapsed(self) -> float:
        """Seconds since the loop started."""
        return time.monotonic() - self._started

    def _contend(self) -> Landed:
        """Continue after a loss. Contention is rare, so a fresh process does not import tenacity before."""
        if self._exhausted():
            raise self._max_retries()
        from tenacity import RetryError, Retrying, retry_if_result

        retrying = Retrying(
            retry=retry_if_result(lambda landed: landed is None), wait=self._wait, stop=lambda _state: self._exhausted()
        )
        time.sleep(self._pause())
        try:
            landed: Landed | None = retrying(self._try)
        except RetryError:
            raise self._max_retries() from None
        if landed is None:
            raise self._max_retries()
        return landed

    def _exhausted(self) -> bool:
        timeout = self._policy.total_timeout
        return self.attempts >= self._policy.max_attempts or (timeout is not None and self.elapsed >= timeout)

    def _wait(self, _state: RetryCallState) -> float:
        return self._pause()

    def _pause(self) -> float:
        age = len(self._winners) - self._found_at_first
        seconds = self._crowd.pause(age, self.attempts, self._policy.min_wait, self._policy.max_wait)
        if self._ambiguous_puts:  # a store that gives ambiguous answers needs time, not speed
            seconds = max(seconds, min(self._policy.max_wait, 0.01 * 2**self._ambiguous_puts))
        self._fresh = self._fresh and seconds == 0
        return seconds

    # -- one try ---------------------------------------------------------------------------------------------------------------

    def _first_try(self) -> Landed | None:
        """Make the first try, unless others are known to be waiting: after a pause that leaves them time."""
        seconds = self._pause()
        if seconds:  # even a sleep of 0 s gives the processor away
            time.sleep(seconds)
        landed = self.next_attempt_version(self.log.read_new_commits if seconds else self._look)
        if landed is not None:
            return landed
        self._found_at_first = len(self._winners)
        return self._try()

    def _look(self, version: int) -> list[CommitFile]:
        """Read new commits, unless this process has just done so: then the put tells sooner whether there are more."""
        known = self.log.known_commits(version, within=_JUST_NOW) if self._is_small else None
        return known if known is not None else self.log.read_commits(version)

    def _try(self) -> Landed | None:
        """Check new commits and put the entry; after a loss, check the winners. ``None`` is a loss without a logical conflict."""
        if not self._fresh:
            landed = self.next_attempt_version(self.log.read_new_commits)
            if landed is not None:
                return landed
        if self._intents:
            raise _HeldUpError
        landed = self._put()
        return landed if landed is not None else self.next_attempt_version(self._read_winners)

    def next_attempt_version(self, read: Callable[[int], list[CommitFile]]) -> Landed | None:
        """Read and check new commits, and move on to the version after them (Delta's ``getNextAttemptVersion``).

        :param read: returns the commits from a version on.
        :returns: where the entry landed, if one of them turns out to be it.
        """
        found = read(self.version)
        self._fresh = True
        if not found:
            return None
        winners = [WinningCommit(file, table=self.log.uri) for file in found]
        for index, winner in enumerate(winners):
            if winner.is_of(self.entry.txn_id):
                self._unsettled = False
                logger.info("Version %s of %s is this transaction's own commit", winner.version, self.log.uri)
                return self._landed(winner.version, [*self._winners, *found[: index + 1]], recognised=True)
        self._unsettled = False  # another writer has the version, so an entry still under way cannot land
        self.check_for_conflicts(winners)
        for winner in winners:
            if winner.may_hold(TXN_KEY):
                self._intents.note(winner.set_transactions)
        if self.attempts:
            self._crowd.lost_to(winners)
        self._winners += found
        self.version += len(found)
        return None

    def _read_winners(self, version: int) -> list[CommitFile]:
        """Read the commit that made a put fail; whether there are more, the next put tells sooner than another look."""
        if self._is_small and self.log.ended_recently_at(version - 1):
            winner = self.log.read_next_commit(version)
            if winner is not None:
                return [winner]
        return self.log.read_commits(version)

    @property
    def _is_small(self) -> bool:
        return len(self.entry.data) <= _SMALL

    def check_for_conflicts(self, winners: Sequence[WinningCommit]) -> None:
        """Check winning commits one by one, and rebuild the log entry if they require it (Delta's ``checkForConflicts``).

        :param winners: all that were found together, in ascending order.
        :raises DeltaConcurrentModificationException: if there is a logical conflict.
        """
        if not self.entry.may_retry:
            raise conflict(
                ConcurrentWriteException,
                winners[0],
                "Another writer took the version that this commit must be",
                current=self._checker.current,
            )
        started = time.monotonic()
        self._checker.begin(winners)
        what = f"Checking for conflicts with commits of {self.log.uri}"
        for winner in tracked(winners, what, len(winners), "commits"):
            self._checker.check(winner)
            if logger.isEnabledFor(logging.INFO):
                milliseconds = int((time.monotonic() - started) * 1000)
                logger.info(
                    "Completed checking for conflicts Version: %s Attempt: %s Time: %s ms",
                    winner.version,
                    self.attempts,
                    milliseconds,
                )
        next_version = winners[-1].version + 1
        if self._checker.rebase(next_version):
            current = self._checker.current
            self.entry = replace(self.entry, data=current.encode(), num_actions=len(current.actions) + 1)
        if self.entry.may_skip and self._checker.has_nothing_left:  # another writer has the version: none of ours can land
            raise NothingLeftError
        if self._policy.check_winners is not None:
            self._policy.check_winners(winners, self._checker.current.actions)
        logger.info("No logical conflicts with deltas [%s, %s), retrying.", winners[0].version, next_version)
        self._record_lost_race(winners[0].version, winners[-1].version)

    def _record_lost_race(self, first: int, last: int) -> None:
        """Record that others were faster (``delta.commit.retry``, ours), so that whoever waits knows why the commit takes long.

        Commits found before the first put are not a lost race.
        """
        if self.attempts and events.enabled(name=events.RETRY):
            data = {"txnId": self.entry.txn_id, "attempts": self.attempts, "firstWinner": first, "lastWinner": last}
            events.record_event(events.RETRY, self.log.uri, data)

    def _record_conflict(self, error: DeltaConcurrentModificationException) -> None:
        """Record Delta's event ``delta.commit.conflict.<Type>``."""
        kind = type(error).__name__.removesuffix("Exception")
        events.record_event(
            f"{events.CONFLICT}{kind}",
            self.log.uri,
            {
                "txnId": self.entry.txn_id,
                "readVersion": self.entry.read_version,
                "attempts": self.attempts,
                "isolationLevel": self.entry.isolation_level,
                "condition": error.condition,
                "winningVersion": error.winning_version,
                "winningTxnOperation": error.operation,
                "partition": error.partition,
            },
            level=logging.INFO,
        )

    def _put(self) -> Landed | None:
        version = self.version
        if self._policy.cancelled is not None and self._policy.cancelled():
            raise self.log.error(
                CommitCancelledException,
                f"The commit to table {self.log.uri} was cancelled before version {version} was put. Nothing was written.",
                version=version,
            )
        self.attempts += 1
        self._fresh = False
        self._observer.before_put(version, self.attempts)
        logger.debug(
            "Attempting to commit version %s with %s actions with %s isolation level",
            version,
            self.entry.num_actions,
            self.entry.isolation_level,
        )
        started = time.monotonic()
        try:
            self.log.write_commit(version, self.entry.data, self.entry.before)
        except FileExistsError:
            self._unsettled = True  # perhaps by ourselves: the store may have lost an answer in its own retries
            landed = False
        except AmbiguousPutError as error:
            logger.info("The answer to the put of version %s of %s is ambiguous: %s", version, self.log.uri, error)
            self._unsettled = True
            landed = self._settle(version, error)
            if not landed:
                self._count_ambiguous(error)
        except self.log.store.committer.refusals:
            raise
        except Exception as error:
            landed = self._settle(version, error)
            if not landed:
                raise
            self._unsettled = True
        else:
            landed = True
            self._unsettled = False
            self._observer.written(version)
        self._write_seconds = time.monotonic() - started
        self._crowd.put_took(self._write_seconds)
        self._observer.after_put(version, landed)
        if not landed:
            return None
        recognised = self._unsettled
        self._unsettled = False
        return self._landed(version, [*self._winners, CommitFile(version, self.entry.data, None)], recognised=recognised)

    # -- after an ambiguous answer ---------------------------------------------------------------------------------------------

    def _settle(self, version: int, error: Exception) -> bool:
        """Read the version to find out whether it is ours.

        :raises CommitStateUnknownException: if it cannot be read.
        """
        for seconds in _SETTLING_PAUSES:
            time.sleep(seconds)
            try:
                data = self.log.store.read(commit_file(version))
            except FileNotFoundError:
                return False
            except OSError as read_error:
                logger.info("Cannot read back version %s of %s: %s", version, self.log.uri, read_error)
                continue
            return WinningCommit(CommitFile(version, data, None), table=self.log.uri).is_of(self.entry.txn_id)
        raise self._unknown(str(error)) from error

    def _count_ambiguous(self, error: Exception) -> None:
        self._ambiguous_puts += 1
        if self._ambiguous_puts >= _MAX_AMBIGUOUS_PUTS:
            raise self._unknown(f"{self._ambiguous_puts} puts had ambiguous answers, the last: {error}") from error

    def _unknown(self, why: str) -> CommitStateUnknownException:
        return self.log.error(
            CommitStateUnknownException,
            f"It is unknown whether transaction {self.entry.txn_id} was committed as version {self.version} of table "
            f"{self.log.uri} ({why}). Do not delete any of its files. Run the commit again: it first looks for this transaction "
            "in the log.",
            version=self.version,
        )

    def committed(self, landed: Landed) -> tuple[CommitInfo, Sequence[Action]]:
        """Return ``commitInfo`` and the actions in the log, which may be those of an earlier attempt."""
        file = landed.commits[-1]
        if file.data == self.entry.data:
            return self._checker.current.commit_info, self._checker.current.actions
        return read_back(file, table=self.log.uri)

    # -- the end ---------------------------------------------------------------------------------------------------------------

    def _landed(self, version: int, commits: list[CommitFile], *, recognised: bool) -> Landed:
        self._crowd.won(len(self._winners) - self._found_at_first)
        logger.info("Committed delta #%s to %s/%s", version, self.log.uri, LOG_DIRECTORY)
        return Landed(version, self.attempts, len(self._winners), recognised, commits, self._write_seconds)

    def _max_retries(self) -> MaxCommitRetriesExceededException:
        return self.log.error(
            MaxCommitRetriesExceededException,
            f"This commit has failed as it has been tried {self.attempts} times but did not succeed.\n"
            "This can be caused by the Delta table being committed continuously by many concurrent commits.\n\n"
            f"Table: {self.log.uri}\n"
            f"Commit started at version: {self.entry.read_version + 1}\n"
            f"Commit failed at version: {self.version}\n"
            f"Number of actions attempted to commit: {self.entry.num_actions}\n"
            f"Total time spent attempting this commit: {int(self.elapsed * 1000)} ms\n"
            "Nothing was written. Commit again, or allow more attempts (max_attempts) or a longer total_timeout.",
            version=self.version,
        )
