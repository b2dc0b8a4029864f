"""Which commit holds a transaction: found by reading the log backwards, decoding only commits that name it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_delta.exceptions import HandleMismatchException, TransactionExpiredException, VersionsNotContiguousException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.actions.decode import Commit, CommitFile, decode_commit, read_commit_info
from airflow_delta.staging.contract import CommitResult, TransactionHandle
from airflow_delta.staging.paths import STAGING_DIRECTORY

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog

_CHUNK = 64
MAX_PARTITIONS = 1000
"""Partitions that a result lists; a commit that touches more lists the first ones."""


INSTANCE_TAGS = ("airflow.dagId", "airflow.runId", "airflow.taskId", "airflow.mapIndex")
TRY_NUMBER, MAX_TRIES = "airflow.tryNumber", "airflow.maxTries"


@dataclass(frozen=True, slots=True)
class TryChain:
    """A try of a task instance, and the tries that it is a retry of: those since the instance was last cleared.

    Airflow counts tries over clears. A clear moves the last try that there may be (``max_tries``), a retry does not: commits of
    one chain carry the same.

    :param tags: ``commitInfo.tags`` of a commit by this try.
    :param first_try: number of the first try of the chain, for commits that do not tell ``max_tries``.
    :param since: milliseconds since the epoch; no other try of the chain committed before. (A run that is deleted and made anew
        has tries with the same numbers.)
    """

    tags: Mapping[str, str]
    first_try: int = 1
    since: int | None = None

    @property
    def is_retry(self) -> bool:
        """Whether an earlier try of the chain may have committed."""
        return self._number(self.tags) > self.first_try

    def is_instance(self, tags: Mapping[str, Any]) -> bool:
        """Tell whether a commit is of the same task instance, before or after a clear."""
        return all(tags.get(name) == self.tags.get(name) for name in INSTANCE_TAGS)

    def holds(self, tags: Mapping[str, Any]) -> bool:
        """Tell whether a commit is of this chain."""
        if not self.is_instance(tags):
            return False
        if MAX_TRIES in tags and MAX_TRIES in self.tags:
            return bool(tags[MAX_TRIES] == self.tags[MAX_TRIES])
        return self._number(tags) >= self.first_try

    @staticmethod
    def _number(tags: Mapping[str, Any]) -> int:
        return _integer(tags.get(TRY_NUMBER), 0)


def commit_of_chain(log: DeltaLog, app_id: str, tries: TryChain | None) -> CommitResult | None:
    """Find the commit that another try of the same chain has put: an earlier one that could not tell of it, or a later one,
    where Airflow had given this one up.

    :param app_id: an application that the log knows.
    :raises TransactionExpiredException: the log no longer holds the commits that would tell.
    """
    if tries is None:
        return None
    oldest = None
    for file in newest_first(log):
        oldest = file.version
        if tries.since is not None and _committed_before(log, file, tries.since):
            return None
        commit = holds_app_id(log, file, app_id)
        if commit is None:
            continue
        tags = (commit.commit_info or {}).get("tags") or {}
        if tries.is_instance(tags):  # the newest one of the instance: what is older is of no later chain
            return result_of_commit(log, commit, app_id=app_id) if tries.holds(tags) else None
    if tries.is_retry and oldest != 0:
        raise TransactionExpiredException(
            f"Application {app_id!r} has committed to table {log.uri}, in a version that the log no longer holds (it was cleaned "
            "up): whether an earlier try of this task did so cannot be told. Nothing is committed. Look at the table; clear the "
            "task under rerun_policy='append' to do the operation again.",
            table=log.uri,
            version=log.snapshot.version,
        )
    return None


def own_after_conflict(log: DeltaLog, app_id: str, tries: TryChain | None) -> CommitResult | None:
    """Find the commit of another try of the same chain that was faster than this one."""
    snapshot = log.update()
    if snapshot.version < 0 or snapshot.transaction_version(app_id) is None:
        return None
    return commit_of_chain(log, app_id, tries)


def _committed_before(log: DeltaLog, file: CommitFile, time: int) -> bool:
    info = read_commit_info(file.version, file.data, table=log.uri) or {}
    written = info.get("inCommitTimestamp", info.get("timestamp"))
    return isinstance(written, int) and written < time


def find_commit(
    log: DeltaLog, *, app_id: str, txn_version: int | None = None, transaction_id: str | None = None, since: int = 0
) -> CommitResult | None:
    """Find the newest commit that holds an identity, reading the log backwards.

    :param txn_version: only a commit with this ``txnVersion`` or a higher one.
    :param transaction_id: only the commit of this execution (``commitInfo.txnId``).
    :param since: the oldest version to look at.
    :return: ``None`` when the log does not hold it (any more).
    """
    for commit in commits_of(log, app_id, since=since):
        version = next(txn.version for txn in commit.txns if txn.app_id == app_id)
        if txn_version is not None and version < txn_version:
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
    """Look for an execution of start by its id and by the paths of its files, whatever its key is said to be.

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


def commits_of(log: DeltaLog, app_id: str, *, since: int = 0) -> Iterator[Commit]:
    """Yield the commits with a ``txn`` action of an application, newest first, as far back as the log goes.

    :param since: the oldest version to look at.
    """
    for file in newest_first(log, since):
        commit = holds_app_id(log, file, app_id)
        if commit is not None:
            yield commit


def holds_app_id(log: DeltaLog, file: CommitFile, app_id: str) -> Commit | None:
    """Return a commit, decoded, if it has a ``txn`` action of an application."""
    # Other writers may escape characters of the id: what could be escaped is not searched for.
    plain = app_id.isascii() and app_id.isprintable() and not set(app_id) & set("\"\\/<>&'")
    needle = json.dumps(app_id).encode() if plain else b'"txn"'
    if b'"txn"' not in file.data or needle not in file.data:
        return None
    commit = decode_commit(file.version, file.data, table=log.uri)
    return commit if any(txn.app_id == app_id for txn in commit.txns) else None


def newest_first(log: DeltaLog, since: int = 0) -> Iterator[CommitFile]:
    """Yield the commits that the log holds, newest first, in chunks; ends quietly where it was cleaned up."""
    end = log.snapshot.version + 1
    while end > since:
        start = max(end - _CHUNK, since)
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


def result_of_commit(
    log: DeltaLog, commit: Commit, *, app_id: str | None, committed_before: bool = True, table_id: str | None = None
) -> CommitResult:
    """Return the result of a commit as the log has it."""
    info = commit.commit_info or {}
    txn = next((txn for txn in commit.txns if txn.app_id == app_id), None)
    metrics = info.get("operationMetrics") or {}
    return CommitResult(
        table=log.uri,
        table_id=table_id if table_id is not None else log.snapshot.metadata.id,
        version=commit.version,
        read_version=_integer(info.get("readVersion"), -1),
        transaction_id=str(info.get("txnId") or ""),
        app_id=app_id,
        txn_version=txn.version if txn is not None else None,
        operation=str(info.get("operation") or ""),
        committed_before=committed_before,
        isolation_level=info.get("isolationLevel"),
        is_blind_append=info.get("isBlindAppend"),
        timestamp=_integer(info.get("timestamp"), 0) or None,
        num_files=len(commit.adds),
        num_removed_files=len(commit.removes),
        num_records=_records(metrics, commit.adds),
        num_bytes=sum(add.size for add in commit.adds),
        partitions=touched_partitions(commit.adds),
    )


def result_without_commit(log: DeltaLog, handle: TransactionHandle) -> CommitResult:
    """Return the result of a transaction whose commit the log no longer holds: the latest version contains it."""
    txn = log.snapshot.set_transaction(handle.app_id, expired=True)
    return CommitResult(
        table=log.uri,
        table_id=log.snapshot.metadata.id,
        version=log.snapshot.version,
        read_version=handle.read_version,
        transaction_id="",
        app_id=handle.app_id,
        txn_version=txn.version if txn is not None else handle.txn_version,
        operation="",
        committed_before=True,
        timestamp=txn.last_updated if txn is not None else None,
    )


def committed_earlier(log: DeltaLog, handle: TransactionHandle) -> CommitResult:
    """Return the commit that ``handle.committed`` claims, as the log has it: what travels between tasks is not believed.

    :raises HandleMismatchException: the log does not hold the key, or no longer does.
    """
    snapshot = log.update()
    last = snapshot.transaction_version(handle.app_id) if snapshot.version >= 0 else None
    if last is None or last < handle.txn_version:
        claimed = "" if handle.committed is None else f" in version {handle.committed.version}"
        raise HandleMismatchException(
            f"The transaction handle says that the key {handle.app_id!r} was committed{claimed} of table {handle.table}, and the "
            f"log, at version {snapshot.version}, holds {'no such key' if last is None else f'only its version {last}'}: the "
            "handle was altered, or the key has expired (delta.setTransactionRetentionDuration). Clear the start task.",
            table=handle.table,
            version=snapshot.version,
        )
    return find_commit(log, app_id=handle.app_id, txn_version=handle.txn_version) or result_without_commit(log, handle)


def touched_partitions(adds: Iterable[AddFile]) -> tuple[dict[str, Any], ...]:
    """Return the distinct partitions of files, in order of appearance."""
    found: dict[tuple[tuple[str, str | None], ...], dict[str, Any]] = {}
    for add in adds:
        if add.partition_values and len(found) < MAX_PARTITIONS:
            found.setdefault(tuple(add.partition_values.items()), dict(add.partition_values))
    return tuple(found.values())


class _Rows(msgspec.Struct, rename="camel"):
    num_records: int | None = None


_rows = msgspec.json.Decoder(_Rows)


def num_records(stats: str | None) -> int | None:
    """Return the number of rows that a file's statistics tell."""
    try:
        return _rows.decode(stats).num_records if stats else None
    except msgspec.DecodeError:
        return None


def live_records(file: AddFile | RemoveFile) -> int | None:
    """Return the rows of a file that no deletion vector marks, ``None`` when its statistics do not tell."""
    rows = num_records(file.stats)
    return rows if rows is None or file.deletion_vector is None else rows - file.deletion_vector.cardinality


def _records(metrics: Mapping[str, Any], adds: Iterable[AddFile]) -> int | None:
    rows = _integer(metrics.get("numOutputRows"), -1)
    if rows >= 0:
        return rows
    counts = [num_records(add.stats) for add in adds]
    return None if any(count is None for count in counts) else sum(count or 0 for count in counts)


def _integer(value: Any, default: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
