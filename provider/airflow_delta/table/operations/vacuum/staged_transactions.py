"""Staged transactions whose files VACUUM may delete: never those that may still be published."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.clocks import CLOCKS_DIFFER_BY
from airflow_delta.contract.staging_directory import ABORT_MARKER, STAGING_DIRECTORY, is_marker, is_plan, is_preview, kept_until
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import read_commit_info
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.table.operations.vacuum.plans import unfinished_publications
from airflow_delta.table.state.commit_times import CommitTimes
from airflow_delta.table.state.find_commit import newest_first
from airflow_delta.table.state.markers import NO_MARKERS, read_markers
from airflow_delta.table.state.open_transactions import search_commits

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.operations.vacuum.listing import Listing


@dataclass
class _Staged:
    """What is below ``staged/<transactionId>``."""

    files: list[FileStatus] = field(default_factory=list)
    directories: list[int] = field(default_factory=list)  # modification times

    def markers(self, transaction: str) -> set[str]:
        """Return the names of the markers that the listing shows."""
        prefix = f"{STAGING_DIRECTORY}/{transaction}/"
        return {name for status in self.files if is_marker(name := status.path.removeprefix(prefix))}

    def plans(self, transaction: str) -> dict[str, int]:
        """Return the names that are of plans of publications, with the times when they were written."""
        prefix = f"{STAGING_DIRECTORY}/{transaction}/"
        names = ((status.path.removeprefix(prefix), status.modification_time) for status in self.files)
        return {name: written for name, written in names if is_plan(name)}

    def times(self) -> list[int]:
        return [status.modification_time for status in self.files] or self.directories


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedTransaction:
    """A transaction that was neither committed nor aborted, and has long been idle: its rows will never be published.

    :param stages: directories below its own: its stages.
    :param num_files: staged files, markers excepted.
    :param num_bytes: bytes of these files.
    :param last_modified: milliseconds since the epoch: when its newest file was written.
    """

    transaction_id: str
    stages: tuple[str, ...]
    num_files: int
    num_bytes: int
    last_modified: int

    @classmethod
    def of(cls, transaction_id: str, files: Sequence[FileStatus]) -> AbandonedTransaction:
        """Return the transaction that staged these files."""
        below = [status.path.split("/")[2:] for status in files]
        return cls(
            transaction_id=transaction_id,
            stages=tuple(sorted({path[0] for path in below if len(path) > 1 and not path[0].startswith("_")})),
            num_files=len(files),
            num_bytes=sum(max(status.size, 0) for status in files),
            last_modified=max(status.modification_time for status in files),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON for XCom."""
        return {
            "transactionId": self.transaction_id,
            "stages": list(self.stages),
            "numFiles": self.num_files,
            "numBytes": self.num_bytes,
            "lastModified": self.last_modified,
        }


@dataclass(frozen=True)
class StagedTransactions:
    """Which staged transactions are over.

    :ivar live: those that may still be published and must not be touched.
    :ivar aborted: those whose markers must stay for a late commit to find.
    :ivar in_table: those whose files the table names; their markers stay as long.
    :ivar committed: those that are committed, by the log or their own marker.
    :ivar kept: those whose previews stay for now.
    :ivar planned: those of publications, whose plans stay: who settles a publication has nothing else.
    :ivar abandoned: those that nobody committed or aborted, as far as the log reaches back.
    """

    live: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    in_table: frozenset[str] = frozenset()
    committed: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    planned: frozenset[str] = frozenset()
    abandoned: tuple[AbandonedTransaction, ...] = ()

    def protects(self, path: str) -> bool:
        """Return whether a file or directory must stay, however old it is."""
        transaction, name = _split(path)
        if transaction is None:
            return path == STAGING_DIRECTORY and bool(self.live)
        return (
            transaction in self.live
            or (transaction in self.aborted and (name == "" or is_marker(name)))
            or (transaction in self.in_table and is_marker(name))
            or (transaction in self.kept and is_preview(path))
            or (transaction in self.planned and (name == "" or is_plan(name)))
        )


def staged_transactions(
    log: DeltaLog, listing: Listing, valid: Iterable[str], *, dead_before: int, planned_after: int | None = None
) -> StagedTransactions:
    """Find out which staged transactions of a listing are over.

    A transaction is over if the log holds it (its id or its files), if it was aborted and no attempt of its commit can be alive,
    or if all its files are older than any transaction can be. ``log.snapshot`` must be newer than the listing: a transaction that
    is committed later counts as live.

    :param valid: files that the table's present version or a retained tombstone names.
    :param dead_before: milliseconds since the epoch; files written before that belong to no live transaction, unless it is of a
        publication, which another table may have decided.
    :param planned_after: milliseconds since the epoch: of publications whose plans were written before that, only what has no
        end yet stays (:mod:`airflow_delta.table.operations.vacuum.plans`); default: ``dead_before``.
    """
    staged: dict[str, _Staged] = defaultdict(_Staged)
    for status in listing.files:
        transaction, name = _split(status.path)
        if transaction is not None and name:
            staged[transaction].files.append(status)
    for path, modified in listing.directories.items():
        transaction, _ = _split(path)
        if transaction is not None:
            staged[transaction].directories.append(modified)
    in_table = {transaction for path in valid if (transaction := _split(path)[0]) is not None}
    plans_from = dead_before if planned_after is None else planned_after
    plans = {transaction: written for transaction, found in staged.items() if (written := found.plans(transaction))}
    planned = {transaction for transaction, written in plans.items() if max(written.values()) >= plans_from}
    needed = unfinished_publications(log, {transaction: plans[transaction].keys() for transaction in plans.keys() - planned})
    dead = {transaction for transaction, found in staged.items() if all(written < dead_before for written in found.times())}
    dead -= planned | needed.staged
    asked = {transaction: found for transaction, found in staged.items() if transaction not in in_table | dead | needed.staged}
    unknown = _not_in_log(log, asked)
    committed = in_table | (asked.keys() - unknown.keys())
    aborted: set[str] = set()
    live: set[str] = set()
    for transaction, found in unknown.items():
        names = found.markers(transaction)
        markers = read_markers(log.store, transaction) if names - {ABORT_MARKER} else NO_MARKERS
        if markers.committed:
            committed.add(transaction)
            continue
        (aborted if ABORT_MARKER in names and not markers.alive else live).add(transaction)
    abandoned = _abandoned(log, {transaction: staged[transaction].files for transaction in dead - in_table})
    now = int(time.time() * 1000)
    kept = {transaction for transaction, found in staged.items() if any((kept_until(s.path) or 0) > now for s in found.files)}
    return StagedTransactions(
        live=needed.staged.union(live),
        aborted=frozenset(aborted),
        in_table=frozenset(in_table),
        committed=frozenset(committed),
        kept=frozenset(kept),
        planned=needed.plans.union(planned),
        abandoned=abandoned,
    )


def _abandoned(log: DeltaLog, dead: Mapping[str, Sequence[FileStatus]]) -> tuple[AbandonedTransaction, ...]:
    """Return those of the dead transactions that were neither committed nor aborted, as far as the log shows."""
    unfinished = {}
    for transaction, files in dead.items():
        names = {status.path.removeprefix(f"{STAGING_DIRECTORY}/{transaction}/") for status in files}
        data = [status for status in files if not (is_marker(name := status.path.rpartition("/")[2]) or is_plan(name))]
        if data and ABORT_MARKER not in names:
            unfinished[transaction] = data
    if not unfinished:
        return ()
    oldest = {transaction: min(status.modification_time for status in files) for transaction, files in unfinished.items()}
    committed, complete = search_commits(log, oldest)
    if not complete:
        return ()
    return tuple(
        AbandonedTransaction.of(transaction, files)
        for transaction, files in sorted(unfinished.items())
        if transaction not in committed and not read_markers(log.store, transaction).committed
    )


def transaction_of(path: str) -> str | None:
    """Return the transaction that a file is staged for, ``None`` if it is not."""
    transaction, name = _split(path)
    return transaction if name else None


def _not_in_log(log: DeltaLog, staged: Mapping[str, _Staged]) -> dict[str, _Staged]:
    """Return those whose id is in no commit since their oldest file was written."""
    remaining = dict(staged)
    if not remaining:
        return remaining
    times = CommitTimes(log)
    for commit in newest_first(log):
        info: Mapping[str, Any] = read_commit_info(commit.version, commit.data, table=log.uri) or {}
        remaining.pop(str(info.get("txnId")), None)
        if not remaining:
            break
        oldest = min(min(found.times(), default=0) for found in remaining.values())
        if times.all_before(commit, oldest - CLOCKS_DIFFER_BY, info):
            break
    return remaining


def _split(path: str) -> tuple[str | None, str]:
    """Return the transaction of a path and what comes below it; ``None`` when it is not below one."""
    first, _, rest = path.partition("/")
    if first != STAGING_DIRECTORY or not rest:
        return None, ""
    transaction, _, name = rest.partition("/")
    return transaction, name
