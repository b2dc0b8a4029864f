"""The transactions that have left files under ``staged/``, and which of them are over.

Storage tells: a listing, the commits that may hold one of them, and the paths of the table's files. Start writes nothing to
storage, so the app id of an open transaction is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.clocks import CLOCKS_DIFFER_BY
from airflow_delta.contract.staging_directory import (
    ABORT_MARKER,
    REQUEST_NAME,
    STAGING_DIRECTORY,
    is_marker,
    is_preview,
    transaction_directory,
)
from airflow_delta.contract.tags import APP_ID_TAG, DAG_ID_TAG, RUN_ID_TAG, part_of, takes_back
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import read_commit_info
from airflow_delta.log.storage.progress import tracked
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import newest_first
from airflow_delta.table.state.markers import read_markers

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.reconciliation import TailFiles
    from airflow_delta.log.checkpoint.reader import CheckpointReader
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus

STATES = ("open", "committed", "aborted", "abandoned")
"""States of a transaction: it may still be published, the log holds it, it is fenced off, or it has long been idle."""

ABANDONED_AFTER = timedelta(days=7)
"""Idle time after which an open transaction counts as abandoned; VACUUM's grace time."""

_REQUEST_HEAD = 4096
_LISTED_ONE_BY_ONE = 50
_ATTEMPT = lazy_pattern(r"\d+-[0-9a-f]{8}")
_READ_VERSION = lazy_pattern(rb'"readVersion": ?(-?\d+)')
_TRANSACTION_OF_PATH = rf"(?:^|/){STAGING_DIRECTORY}/(?P<id>[^/]+)/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """A transaction with files under ``staged/``.

    :param state: one of :data:`STATES`.
    :param app_id: its key; known for committed ones only, from the commit.
    :param dag_id: Dag of the task that committed it, from the commit.
    :param run_id: run of that Dag.
    :param read_version: version that it read: from the commit, else from the request of a stage that ran on a cluster.
    :param version: version that holds it; ``None`` also if the commit has left the log.
    :param stages: directories below the transaction's: stages, or what other jobs wrote.
    :param attempts: attempts of stages that left something.
    :param num_files: files, without the markers of commit and abort, and without previews.
    :param num_bytes: their bytes.
    :param first_modified: milliseconds since the epoch: when its oldest file was written.
    :param last_modified: the same of its newest file, or marker.
    :param reason: one sentence: why it is in this state.
    """

    transaction_id: str
    state: str
    app_id: str | None
    read_version: int | None
    version: int | None
    stages: tuple[str, ...]
    attempts: int
    num_files: int
    num_bytes: int
    first_modified: int | None
    last_modified: int | None
    reason: str
    dag_id: str | None = None
    run_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "stages": list(self.stages)}


@dataclass(slots=True)
class _Staged:
    """What a listing shows below ``staged/<transactionId>``."""

    stages: set[str] = field(default_factory=set)
    attempts: set[str] = field(default_factory=set)
    num_files: int = 0
    num_bytes: int = 0
    first: int | None = None
    last: int | None = None
    commit_markers: int = 0
    aborted: bool = False
    request: str | None = None

    def add(self, status: FileStatus, name: str) -> None:
        time = status.modification_time
        self.first = time if self.first is None else min(self.first, time)
        self.last = time if self.last is None else max(self.last, time)
        if name == ABORT_MARKER:
            self.aborted = True
            return
        if is_marker(name):
            self.commit_markers += 1
            return
        if is_preview(status.path):  # nothing of it is published
            return
        self.num_files += 1
        self.num_bytes += max(status.size, 0)
        stage, *below = name.split("/")
        if below and not stage.startswith("_"):
            self.stages.add(stage)
            if len(below) > 1 and _ATTEMPT.fullmatch(below[0]):
                self.attempts.add(f"{stage}/{below[0]}")
                if below[1] == REQUEST_NAME:
                    self.request = status.path

    def is_void(self) -> bool:
        """Return whether only markers of the abort are left, which stay for a long time: no commit has begun."""
        return self.aborted and not self.num_files and not self.commit_markers


@dataclass(frozen=True, slots=True)
class TransactionCommit:
    """What the log says about a committed transaction; all ``None`` if only the paths of its files tell.

    :param version: version that holds it.
    :param dag_id: Dag of the task that committed it, with ``run_id``; ``None`` if no task of Airflow did.
    :param taken_back: a later commit took it back.
    """

    version: int | None = None
    read_version: int | None = None
    app_id: str | None = None
    dag_id: str | None = None
    run_id: str | None = None
    taken_back: bool = False


def list_transactions(
    log: DeltaLog, *, abandoned_after: timedelta = ABANDONED_AFTER, states: Collection[str] = STATES
) -> list[TransactionState]:
    """Return the transactions that have files under ``staged/``, last touched first.

    Reads the commits back to the time of the oldest file in question. Files of committed transactions stay where they were
    staged, so this lists most of the table; without ``committed``, only transactions without files in the table are listed and
    looked for in the log.

    :param abandoned_after: idle time after which an open one counts as abandoned.
    :param states: only these.
    :raises DeltaIllegalArgumentException: if a state is not one of :data:`STATES`.
    """
    unknown = sorted(set(states) - set(STATES))
    if unknown:
        raise log.error(
            DeltaIllegalArgumentException, f"A transaction is {', '.join(STATES)}, got {', '.join(map(repr, unknown))}."
        )
    if "committed" in states:
        result = _states(log, _group(log.store.list_recursive(STAGING_DIRECTORY)), abandoned_after=abandoned_after)
    else:
        result = _without_committed(log, abandoned_after=abandoned_after)
    wanted = [transaction for transaction in result if transaction.state in states]
    return sorted(wanted, key=lambda transaction: (-(transaction.last_modified or 0), transaction.transaction_id))


def transaction_state(
    log: DeltaLog, transaction_id: str, *, abandoned_after: timedelta = ABANDONED_AFTER
) -> TransactionState | None:
    """Return the state of one transaction, ``None`` if it has nothing under ``staged/``."""
    found = _group(log.store.list_recursive(transaction_directory(transaction_id)))
    return next(iter(_states(log, found, abandoned_after=abandoned_after)), None)


def _group(listing: Iterable[FileStatus]) -> dict[str, _Staged]:
    """Return what is below each ``staged/<transactionId>``."""
    found: dict[str, _Staged] = {}
    for status in tracked(listing, f"Listing {STAGING_DIRECTORY}"):
        _, _, rest = status.path.partition("/")
        transaction, _, name = rest.partition("/")
        if name:
            found.setdefault(transaction, _Staged()).add(status, name)
    return found


def _without_committed(log: DeltaLog, *, abandoned_after: timedelta) -> list[TransactionState]:
    """Return the states of transactions without files in the table; the others are not listed."""
    names = log.store.list_directories(STAGING_DIRECTORY)
    if not names:
        return []
    snapshot = log.update()
    in_table = _in_table(snapshot)
    left = [name for name in names if name not in in_table]
    if len(left) > _LISTED_ONE_BY_ONE:
        found = _group(log.store.list_recursive(STAGING_DIRECTORY))
        found = {name: found[name] for name in left if name in found}
    else:
        found = _group(status for name in left for status in log.store.list_recursive(f"{STAGING_DIRECTORY}/{name}"))
    return _states(log, found, abandoned_after=abandoned_after, in_table=(snapshot.version, in_table))


def _states(
    log: DeltaLog, found: dict[str, _Staged], *, abandoned_after: timedelta, in_table: tuple[int, set[str]] | None = None
) -> list[TransactionState]:
    """Return the states; the listing must be older than the log that is read now.

    :param in_table: a version and the transactions that its files belong to, if known.
    """
    if not found:
        return []
    log.update()
    for transaction, staged in found.items():
        if staged.aborted and not staged.num_files and staged.commit_markers:
            markers = read_markers(log.store, transaction)
            if not (markers.alive or markers.committed):  # the numbers of deletions, and of attempts that wrote nothing
                staged.commit_markers = 0
    commits = find_commits(log, {transaction: staged.first or 0 for transaction, staged in found.items() if not staged.is_void()})
    if missing := found.keys() - commits.keys():
        version = log.snapshot.version
        held = in_table[1] if in_table is not None and in_table[0] == version else _in_table(log.snapshot)
        for transaction in missing & held:
            commits[transaction] = TransactionCommit()
        for transaction in missing - held:
            if found[transaction].commit_markers:
                markers = read_markers(log.store, transaction)
                found[transaction].commit_markers = len(markers.alive)
                if markers.committed:
                    commits[transaction] = TransactionCommit(markers.version)
    now = int(time.time() * 1000)
    return [
        _state(log, transaction, staged, commits.get(transaction), now=now, grace=_milliseconds(abandoned_after))
        for transaction, staged in found.items()
    ]


def _state(
    log: DeltaLog, transaction_id: str, staged: _Staged, committed: TransactionCommit | None, *, now: int, grace: int
) -> TransactionState:
    idle = max(now - (staged.last or 0), 0)
    markers = staged.commit_markers
    commit = committed or TransactionCommit()
    if committed is not None:
        state = "committed"
        since = ", and a later one took it back" if committed.taken_back else ""
        reason = (
            f"Version {committed.version} of the table holds it{since}."
            if committed.version is not None
            else "Files of it are in the table; the log no longer holds its commit."
        )
    elif staged.aborted:
        state = "aborted"
        reason = (
            f"It was aborted while {markers} attempts of its commit may have been alive; its files stay until VACUUM's "
            "grace time is over."
            if markers
            else "It was aborted and can no longer be published."
        )
    elif idle >= grace:
        state, reason = "abandoned", f"It has not changed for {_span(idle)}."
    else:
        state = "open"
        reason = (
            f"It changed {_span(idle)} ago, and {markers} attempts of its commit are running or ended in an unknown state."
            if markers
            else f"It changed {_span(idle)} ago and may still be published."
        )
    return TransactionState(
        transaction_id=transaction_id,
        state=state,
        app_id=commit.app_id,
        read_version=commit.read_version if committed is not None else _requested_version(log, staged.request),
        version=commit.version,
        stages=tuple(sorted(staged.stages)),
        attempts=len(staged.attempts),
        num_files=staged.num_files,
        num_bytes=staged.num_bytes,
        first_modified=staged.first,
        last_modified=staged.last,
        reason=reason,
        dag_id=commit.dag_id,
        run_id=commit.run_id,
    )


def find_commits(log: DeltaLog, list_transactions: Mapping[str, int]) -> dict[str, TransactionCommit]:
    """Return the commits with one of these ids, reading the log back to the time of the oldest one still missing.

    :param transactions: id, and when its oldest file was written.
    """
    return search_commits(log, list_transactions)[0]


def search_commits(log: DeltaLog, list_transactions: Mapping[str, int]) -> tuple[dict[str, TransactionCommit], bool]:
    """Return what :func:`find_commits` does, and whether the log reaches back far enough: if not, missing commits may be gone."""
    remaining = dict(list_transactions)
    found: dict[str, TransactionCommit] = {}
    if not remaining:
        return found, True
    log.update()
    oldest = min(remaining.values())
    last, times, undone = log.snapshot.version + 1, CommitTimes(log), set[str | None]()
    for commit in newest_first(log):
        last = commit.version
        info: dict[str, Any] = read_commit_info(commit.version, commit.data, table=log.uri) or {}
        tags: dict[str, Any] = info.get("tags") or {}
        whole = part_of(tags)
        if takes_back(tags):
            undone.add(whole)
        transaction = str(info.get("txnId"))
        if remaining.pop(transaction, None) is not None:
            names = (tags.get(name) for name in (APP_ID_TAG, DAG_ID_TAG, RUN_ID_TAG))
            app_id, dag_id, run_id = (None if name is None else str(name) for name in names)
            taken_back = whole is not None and whole in undone
            found[transaction] = TransactionCommit(commit.version, info.get("readVersion"), app_id, dag_id, run_id, taken_back)
            if not remaining:
                return found, True
            oldest = min(remaining.values())
        if times.all_before(commit, oldest - CLOCKS_DIFFER_BY, info):
            return found, True
    return found, last <= 0


def _in_table(snapshot: Snapshot) -> set[str]:
    """Return the transactions that files, deletion vectors or tombstones of a version belong to, by their paths.

    In batches: a checkpoint of a few hundred kilobytes may repeat a long path millions of times.
    """
    if snapshot.version < 0:
        return set()
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_delta.log.checkpoint.file_columns import from_actions, projected
    from airflow_delta.log.replay.live_files import live_batches, tombstone_batches

    schema = projected(["path", "deletion_vector"])
    cutoff = int(time.time() * 1000) - snapshot.properties.deleted_file_retention

    def batches(reader: CheckpointReader | None, tail: TailFiles) -> Iterator[pa.RecordBatch]:
        if reader is not None:
            yield from live_batches(reader, tail, schema)
        yield from_actions(list(tail.adds.values()), schema)
        yield from tombstone_batches(reader, tail, retained_after=cutoff)

    def ids(reader: CheckpointReader | None, tail: TailFiles) -> set[str]:
        found: set[str] = set()
        for batch in batches(reader, tail):
            vectors = pc.struct_field(batch.column("deletion_vector"), "path_or_inline_dv")
            for paths in (batch.column("path"), vectors):
                named = pc.struct_field(pc.extract_regex(paths.unique().cast(pa.string()), _TRANSACTION_OF_PATH), "id")
                found.update(named.unique().drop_null().to_pylist())
        return found

    return snapshot.read_with_checkpoint(ids)


def _requested_version(log: DeltaLog, path: str | None) -> int | None:
    """Return the version that a stage's request reads, from its head only: a scan plan may be long."""
    if path is None:
        return None
    try:
        match = _READ_VERSION.search(log.store.read_range(path, 0, _REQUEST_HEAD))
    except FileNotFoundError:  # just cleaned up
        return None
    return int(match[1]) if match is not None else None


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _span(milliseconds: int) -> str:
    """Return a duration in its largest unit: ``9 days``."""
    for unit, length in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if (count := milliseconds // length) > 0:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a second"
