"""What a snapshot knows without its list of files: protocol, metadata, transactions, domains and totals.

Comes from the newest checksum file and the commits after it, else from the commits since the checkpoint; the checkpoint itself is
opened only for what neither of them says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.actions.decode import (
    CommitFile,
    CommitHead,
    SmallState,
    decode_commits,
    has_file_actions,
    read_small_state,
)
from airflow_delta.log.checksum.checksum import VersionChecksum, read_checksum
from airflow_delta.log.checksum.totals import Totals
from airflow_delta.log.segment.segment import LogSegment
from airflow_delta.log.storage.base import LogStore

if TYPE_CHECKING:
    from airflow_delta.log.actions.reconciliation import TailFiles

ReadCommits = Callable[[range], list[CommitFile]]

_CHECKSUMS_TRIED = 3
_TOTALS_COMMITS = 100
_WAITING_COMMITS = 1_000
_WAITING_BYTES = 16 << 20
_RETENTION = "delta.settransactionretentionduration"


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State of one version beside its files.

    :param overlay: what the commits after ``base_version`` say.
    :param base_version: version that the bases below describe: of a checksum, of the checkpoint, or -1 for an empty log.
    :param base_transactions: complete transactions at the base, or ``None`` when they must be read from older files.
    :param base_domains: complete domains at the base, or ``None``.
    :param totals: of the version ``totals_version``, which is not above the snapshot's; ``None`` when only ``checksum`` can tell.
    :param checksum: of the version ``base_version``, when the state was read from it.
    """

    overlay: SmallState
    base_version: int
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    base_transactions: dict[str, SetTransaction] | None = None
    base_domains: dict[str, DomainMetadata] | None = None
    totals: Totals | None = None
    totals_version: int = -1
    checksum: VersionChecksum | None = None

    def advanced(self, commits: Sequence[CommitFile], *, table: str) -> SnapshotState:
        """Return the state after some more commits."""
        later = read_small_state(commits, table=table)
        # The list at the base lacks what had expired then. Under another retention that may be alive again.
        pruned = later.metadata is not None and self.metadata is not None and _retention(self.metadata) is not None
        stale = pruned and _retention(self.metadata) != _retention(later.metadata)
        return replace(
            self,
            overlay=self.overlay.apply(later),
            protocol=later.protocol or self.protocol,
            metadata=later.metadata or self.metadata,
            base_transactions=None if stale else self.base_transactions,
        )

    def transactions(self) -> dict[str, SetTransaction] | None:
        """Return all transactions, also expired ones, or ``None`` when older files must be read."""
        if self.base_transactions is None:
            return None
        return {**self.base_transactions, **self.overlay.transactions}

    def domains(self) -> dict[str, DomainMetadata] | None:
        """Return the live domains, or ``None`` when older files must be read."""
        if self.base_domains is None:
            return None
        merged = {**self.base_domains, **self.overlay.domains}
        return {name: domain for name, domain in merged.items() if not domain.removed}

    def totals_at(self, version: int, read_commits: ReadCommits, *, table: str) -> tuple[Totals | None, CommitHead | None]:
        """Return the totals of a version from known ones and the commits since, and what its commit says about itself.

        The totals are ``None`` when they cannot be derived, the other where its commit was not looked at. Never reads more than a
        bounded number of commits.
        """
        if version - self.totals_version > _TOTALS_COMMITS:
            return None, None
        totals = self.totals
        if totals is None and self.checksum is not None and self.totals_version == self.base_version:
            totals = self.checksum.totals()
        if totals is None or version == self.totals_version:
            return totals, None
        return totals.after(read_commits(range(self.totals_version + 1, version + 1)), table=table)


def _retention(metadata: Metadata | None) -> str | None:
    """Return the retention of transactions as it stands in the metadata."""
    configuration = metadata.configuration if metadata is not None else {}
    return next((value for key, value in configuration.items() if key.lower() == _RETENTION), None)


class ReadOnce:
    """Reads of commits that are known to exist, each commit once: state and file actions come from the same ones."""

    def __init__(self, read: ReadCommits) -> None:
        self._read = read
        self._known: dict[int, CommitFile] = {}

    def __call__(self, versions: range) -> list[CommitFile]:
        """Return the commits of a range."""
        unknown = [version for version in versions if version not in self._known]
        if unknown:
            self._known |= {commit.version: commit for commit in self._read(range(unknown[0], unknown[-1] + 1))}
        return [self._known[version] for version in versions]


def resolve_state(store: LogStore, segment: LogSegment, read_commits: ReadCommits) -> SnapshotState:
    """Read the state of a segment's version from its checksum and commits; the checkpoint is not opened.

    ``protocol`` and ``metadata`` stay ``None`` where only the checkpoint can say.
    """
    table = store.root
    for version in segment.checksum_versions[:_CHECKSUMS_TRIED]:
        checksum = read_checksum(store, version)
        if checksum is not None:
            return _from_checksum(version, checksum).advanced(read_commits(range(version + 1, segment.version + 1)), table=table)
    base_version = segment.first_commit - 1
    empty = segment.checkpoint is None
    base = SnapshotState(
        overlay=SmallState(),
        base_version=base_version,
        base_transactions={} if empty else None,
        base_domains={} if empty else None,
        totals=Totals.empty() if empty else None,
        totals_version=base_version,
    )
    return base.advanced(read_commits(segment.commit_versions), table=table)


def _from_checksum(version: int, checksum: VersionChecksum) -> SnapshotState:
    transactions = checksum.all_transactions
    domains = checksum.domain_metadata
    return SnapshotState(
        overlay=SmallState(),
        base_version=version,
        protocol=checksum.protocol,
        metadata=checksum.metadata,
        base_transactions=None if transactions is None else {txn.app_id: txn for txn in transactions},
        base_domains=None if domains is None else {domain.domain: domain for domain in domains},
        totals_version=version,
        checksum=checksum,
    )


class TailCache:
    """The reconciled file actions after a checkpoint, kept over updates; new commits wait undecoded until somebody asks.

    :param base: reconciled actions; never changed.
    """

    def __init__(self, base: TailFiles, waiting: tuple[CommitFile, ...] = ()) -> None:
        self._base = base
        self._waiting = waiting

    def files(self, *, table: str) -> TailFiles:
        """Return the reconciled actions."""
        if self._waiting:
            files = self._base.copy()
            for commit in decode_commits(self._waiting, table=table):
                files.apply(commit)
            self._base, self._waiting = files, ()
        return self._base

    def advanced(self, commits: Sequence[CommitFile]) -> TailCache | None:
        """Return the cache of a later version, or ``None`` when too much waits to be held in memory."""
        waiting = (*self._waiting, *(commit for commit in commits if has_file_actions(commit.data)))
        if len(waiting) > _WAITING_COMMITS or sum(len(commit.data) for commit in waiting) > _WAITING_BYTES:
            return None
        return TailCache(self._base, waiting)


def missing_actions(
    version: int, *, table: str, protocol: Protocol | None, metadata: Metadata | None
) -> DeltaLogCorruptedException:
    """Return the error of a log that lacks a protocol or metadata action."""
    lacking = " and ".join(name for name, action in (("protocol", protocol), ("metaData", metadata)) if action is None)
    return DeltaLogCorruptedException(
        f"Version {version} of table {table} cannot be rebuilt: its log holds no {lacking} action. Every table has both since "
        "its first commit, so files of the log are missing or damaged; restore them from a backup.",
        table=table,
        version=version,
    )
