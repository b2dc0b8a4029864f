"""Which commit holds a transaction: found by reading the log backwards, decoding only commits that name it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.clocks import CLOCKS_DIFFER_BY
from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.contract.tags import INSTANCE_TAGS, MAX_TRIES_TAG, TRY_NUMBER_TAG
from airflow_delta.exceptions import HandleMismatchException, TransactionExpiredException, VersionsNotContiguousException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import CommitFile, DecodedCommit, decode_commit, read_commit_info
from airflow_delta.table.state.commit_result import integer, result_of_commit, result_without_commit
from airflow_delta.table.state.commit_times import CommitTimes

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


_CHUNK = 64


@dataclass(frozen=True, slots=True)
class TryChain:
    """A try of a task instance with its earlier tries since the instance was last cleared.

    Airflow keeps counting tries after a clear. A clear raises ``max_tries``, a retry does not: commits of one chain have the same
    value.

    :param tags: ``commitInfo.tags`` of a commit by this try.
    :param first_try: number of the first try of the chain, for commits without ``max_tries``.
    :param since: milliseconds since the epoch, by the clocks of the workers; no other try of the chain committed before that.
        (A run that is deleted and created again has tries with the same numbers.)
    """

    tags: Mapping[str, str]
    first_try: int = 1
    since: int | None = None

    @property
    def is_retry(self) -> bool:
        """Whether an earlier try of the chain may have committed."""
        return self._number(self.tags) > self.first_try

    def is_instance(self, tags: Mapping[str, Any]) -> bool:
        """Return whether a commit is of the same task instance, before or after a clear."""
        return all(tags.get(name) == self.tags.get(name) for name in INSTANCE_TAGS)

    def holds(self, tags: Mapping[str, Any]) -> bool:
        """Return whether a commit is of this chain."""
        if not self.is_instance(tags):
            return False
        if MAX_TRIES_TAG in tags and MAX_TRIES_TAG in self.tags:
            return bool(tags[MAX_TRIES_TAG] == self.tags[MAX_TRIES_TAG])
        return self._number(tags) >= self.first_try

    @staticmethod
    def _number(tags: Mapping[str, Any]) -> int:
        return integer(tags.get(TRY_NUMBER_TAG), 0)


def commit_of_chain(log: DeltaLog, app_id: str, tries: TryChain | None) -> CommitResult | None:
    """Find the commit of another try of the same chain: an earlier one that could not report it, or a later one, if Airflow had
    given this one up.

    :param app_id: an application that the log knows.
    :raises TransactionExpiredException: if the log no longer holds the commits that would show it.
    """
    if tries is None:
        return None
    oldest, times = None, CommitTimes(log)
    for file in newest_first(log):
        oldest = file.version
        if tries.since is not None and times.all_before(file, tries.since - CLOCKS_DIFFER_BY):
            return None
        commit = holds_app_id(log, file, app_id)
        if commit is None:
            continue
        tags = (commit.commit_info or {}).get("tags") or {}
        if tries.is_instance(tags):  # the newest commit of the instance: older ones belong to no later chain
            of_another_run = tries.since is not None and times.all_before(file, tries.since)
            return result_of_commit(log, commit, app_id=app_id) if tries.holds(tags) and not of_another_run else None
    if tries.is_retry and oldest != 0:
        raise log.error(
            TransactionExpiredException,
            f"Application {app_id!r} has committed to table {log.uri}, in a version that has left the log (it was cleaned "
            "up), so it cannot be known whether an earlier try of this task did so. Nothing is committed. Look at the table; to "
            "repeat the operation, clear the task under rerun_policy='append'.",
            version=log.snapshot.version,
        )
    return None


def own_after_conflict(log: DeltaLog, app_id: str, tries: TryChain | None) -> CommitResult | None:
    """Find the commit of another try of the same chain that was faster than this one."""
    snapshot = log.update()
    if snapshot.version < 0 or snapshot.transaction_version(app_id) is None:
        return None
    return commit_of_chain(log, app_id, tries)


def find_commit(
    log: DeltaLog,
    *,
    app_id: str,
    txn_version: int | None = None,
    transaction_id: str | None = None,
    since: int = 0,
    until: int | None = None,
) -> CommitResult | None:
    """Find the newest commit that holds an identity, reading the log backwards.

    :param txn_version: only a commit with this ``txnVersion`` or a higher one.
    :param transaction_id: only the commit of this execution (``commitInfo.txnId``).
    :param since: the oldest version to look at.
    :param until: only a commit with this ``txnVersion`` or a lower one.
    :return: ``None`` if the log does not hold it, or no longer does.
    """
    for commit in commits_of(log, app_id, since=since):
        version = next(txn.version for txn in commit.txns if txn.app_id == app_id)
        if (txn_version is not None and version < txn_version) or (until is not None and version > until):
            continue
        if transaction_id is None or (commit.commit_info or {}).get("txnId") == transaction_id:
            return result_of_commit(log, commit, app_id=app_id)
    return None


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """What the commits of a range say about one execution of start.

    :param version: version that holds it, or names files of it; ``None``: no commit that was read does.
    :param complete: the log still holds every commit of the range.
    """

    version: int | None
    complete: bool


def commit_of_transaction(log: DeltaLog, transaction_id: str, *, since: int) -> FoundCommit:
    """Look for an execution of start by its id and the paths of its files, whatever key it claims.

    :param since: the oldest version to look at.
    """
    needle = transaction_id.encode()
    path = re.compile(rb"%s(?:/|\\/|%%2[Ff])%s(?:/|\\/|%%2[Ff])" % (STAGING_DIRECTORY.encode(), re.escape(needle)))
    oldest = log.snapshot.version + 1
    for commit in newest_first(log, since):
        oldest = commit.version
        if needle in commit.data:
            info: Mapping[str, Any] = read_commit_info(commit.version, commit.data, table=log.uri) or {}
            if info.get("txnId") == transaction_id or path.search(commit.data):
                return FoundCommit(commit.version, True)
    return FoundCommit(None, oldest <= since)


def commits_of(log: DeltaLog, app_id: str, *, since: int = 0) -> Iterator[DecodedCommit]:
    """Yield the commits with a ``txn`` action of an application, newest first, as far back as the log goes.

    :param since: the oldest version to look at.
    """
    for file in newest_first(log, since):
        commit = holds_app_id(log, file, app_id)
        if commit is not None:
            yield commit


def holds_app_id(log: DeltaLog, file: CommitFile, app_id: str) -> DecodedCommit | None:
    """Return a commit, decoded, if it has a ``txn`` action of an application."""
    # Other writers may escape characters: ids with such characters are not searched for as text.
    plain = app_id.isascii() and app_id.isprintable() and not set(app_id) & set("\"\\/<>&'")
    needle = json.dumps(app_id).encode() if plain else b'"txn"'
    if b'"txn"' not in file.data or needle not in file.data:
        return None
    commit = decode_commit(file.version, file.data, table=log.uri)
    return commit if any(txn.app_id == app_id for txn in commit.txns) else None


def newest_first(log: DeltaLog, since: int = 0, *, at_once: int = _CHUNK) -> Iterator[CommitFile]:
    """Yield the commits that the log holds, newest first, read in chunks; stop where it was cleaned up.

    :param at_once: commits in the first chunk; the next ones are larger.
    """
    end = log.snapshot.version + 1
    while end > since:
        start = max(end - at_once, since)
        at_once = min(4 * at_once, _CHUNK)
        try:
            yield from reversed(log.read_commit_range(range(start, end)))
        except VersionsNotContiguousException:
            for version in reversed(range(start, end)):
                try:
                    data = log.read_commit(version)
                except FileNotFoundError:
                    return
                yield CommitFile(version, data)
        end = start


def committed_earlier(log: DeltaLog, handle: TransactionHandle) -> CommitResult:
    """Return the commit that ``handle.committed`` claims, as the log has it; what travels between tasks is not trusted.

    :raises HandleMismatchException: if the log does not hold the key, or no longer does.
    """
    snapshot = log.update()
    last = snapshot.transaction_version(handle.app_id) if snapshot.version >= 0 else None
    if last is None or last < handle.txn_version or not stands(snapshot, handle.app_id, handle.txn_version):
        claimed = "" if handle.committed is None else f" in version {handle.committed.version}"
        holds = "holds no such key" if last is None else f"holds only its version {last}"
        why = "the handle was altered, or the key has expired (delta.setTransactionRetentionDuration)"
        if last is not None and last >= handle.txn_version:
            holds, why = "says that this was taken back", "what it was part of could not be completed"
        raise handle.error(
            HandleMismatchException,
            f"The transaction handle says that the key {handle.app_id!r} was committed{claimed} of table {handle.table}, but the "
            f"log, at version {snapshot.version}, {holds}: {why}. Clear the start task.",
            version=snapshot.version,
        )
    standing = standing_version(snapshot, handle.app_id, last)
    found = find_commit(log, app_id=handle.app_id, txn_version=handle.txn_version, until=standing)
    return found or result_without_commit(log, handle)


UNDONE_SUFFIX = "#undone"
"""Of a key: the application id with the last version of the key that was taken back."""
STANDING_SUFFIX = "#standing"
"""Of a key: the application id with the version that the key had before that; -1 if it had none."""


def standing_version(snapshot: Snapshot, app_id: str, last: int | None) -> int | None:
    """Return the last version of a key that was not taken back; ``None`` if there is none.

    :param last: its last version.
    """
    if last is None:
        return None
    if stands(snapshot, app_id, last):
        return last
    before = snapshot.set_transaction(f"{app_id}{STANDING_SUFFIX}", expired=True)
    return before.version if before is not None and before.version >= 0 else None


def stands(snapshot: Snapshot, app_id: str, version: int) -> bool:
    """Tell whether a version of a key that was committed still counts: it was not taken back."""
    undone = snapshot.set_transaction(f"{app_id}{UNDONE_SUFFIX}", expired=True)
    if undone is None or version > undone.version:
        return True
    before = snapshot.set_transaction(f"{app_id}{STANDING_SUFFIX}", expired=True)
    return before is not None and version <= before.version
