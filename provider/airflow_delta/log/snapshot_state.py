"""The state of a snapshot without its list of files: protocol, metadata, transactions, domains and totals.

It is read from the newest checksum file and later commits, else from the commits after the checkpoint; the checkpoint itself is
opened only for what these do not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.actions.decode import (
    CommitFile,
    CommitHead,
    SmallState,
    read_small_state,
)
from airflow_delta.log.actions.intents import PREFIXES, open_intents
from airflow_delta.log.checksum.checksum import VersionChecksum, read_checksum
from airflow_delta.log.checksum.totals import Totals
from airflow_delta.log.segment.segment import LogSegment
from airflow_delta.log.storage.base import LogStore

ReadCommits = Callable[[range], list[CommitFile]]

_CHECKSUMS_TRIED = 3
_TOTALS_COMMITS = 100
_RETENTION = "delta.settransactionretentionduration"


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """State of one version, apart from its files.

    :param overlay: state from the commits after ``base_version``.
    :param base_version: version of the base: of a checksum, of the checkpoint, or -1 for an empty log.
    :param base_transactions: all transactions at the base, or ``None`` if they must be read from older files.
    :param base_intents: open intents at the base; ``None`` if ``base_transactions`` has them, or older files.
    :param base_domains: all domains at the base, or ``None``.
    :param totals: totals at ``totals_version``, at or below the snapshot's version; ``None`` if only ``checksum`` may have them.
    :param checksum: checksum of ``base_version``, if the state was read from it.
    :param asked: transactions at the base that were looked up in older files one by one; ``None``: it has none.
    """

    overlay: SmallState
    base_version: int
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    base_transactions: dict[str, SetTransaction] | None = None
    base_intents: tuple[SetTransaction, ...] | None = None
    base_domains: dict[str, DomainMetadata] | None = None
    totals: Totals | None = None
    totals_version: int = -1
    checksum: VersionChecksum | None = None
    asked: dict[str, SetTransaction | None] = field(default_factory=dict)

    def advanced(self, commits: Sequence[CommitFile], *, table: str) -> SnapshotState:
        """Return the state after further commits."""
        later = read_small_state(commits, table=table)
        # The list at the base lacks expired transactions, which may be valid again under another retention.
        pruned = later.metadata is not None and self.metadata is not None and _retention(self.metadata) is not None
        stale = pruned and _retention(self.metadata) != _retention(later.metadata)
        return replace(
            self,
            overlay=self.overlay.apply(later),
            protocol=later.protocol or self.protocol,
            metadata=later.metadata or self.metadata,
            base_transactions=None if stale else self.base_transactions,
            base_intents=self.open_at_base if stale else self.base_intents,
        )

    @property
    def open_at_base(self) -> tuple[SetTransaction, ...] | None:
        """Return the open intents at the base, or ``None`` if older files must be read."""
        if self.base_transactions is None:
            return self.base_intents
        return tuple(open_intents(self.base_transactions.values()).values())

    def intents(self) -> list[SetTransaction] | None:
        """Return the intents and what has ended them, the latest last; before the base only intents that were open.

        ``None`` if older files must be read.
        """
        before = self.open_at_base
        if before is None:
            return None
        return [*before, *(txn for app_id, txn in self.overlay.transactions.items() if app_id.startswith(PREFIXES))]

    def transactions(self) -> dict[str, SetTransaction] | None:
        """Return all transactions, expired ones included, or ``None`` if older files must be read."""
        if self.base_transactions is None:
            return None
        return {**self.base_transactions, **self.overlay.transactions}

    def knows(self, app_id: str) -> bool:
        """Tell whether the transaction of an application at the base is known without older files, if it has one."""
        return self.base_transactions is not None or app_id in self.asked

    def domains(self) -> dict[str, DomainMetadata] | None:
        """Return the live domains, or ``None`` if older files must be read."""
        if self.base_domains is None:
            return None
        merged = {**self.base_domains, **self.overlay.domains}
        return {name: domain for name, domain in merged.items() if not domain.removed}

    def totals_at(self, version: int, read_commits: ReadCommits, *, table: str) -> tuple[Totals | None, CommitHead | None]:
        """Return the totals of a version, derived from known ones and the commits since, and the head of its commit.

        The totals are ``None`` if they cannot be derived, the head if the commit was not read. Reads only a bounded number of
        commits.
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
    """Return the retention of transactions in the metadata, unparsed."""
    configuration = metadata.configuration if metadata is not None else {}
    return next((value for key, value in configuration.items() if key.lower() == _RETENTION), None)


class ReadOnce:
    """Reads each commit only once, for both state and file actions; the commits must exist."""

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
    """Read the state of a segment's version from its checksum and commits, without opening the checkpoint.

    ``protocol`` and ``metadata`` are ``None`` if only the checkpoint has them.
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


def earlier_intents(store: LogStore, segment: LogSegment, version: int, read_commits: ReadCommits) -> list[SetTransaction] | None:
    """Return what :meth:`SnapshotState.intents` does at a version, from one of the checksums before it, if they tell."""
    for base in [known for known in segment.checksum_versions[:_CHECKSUMS_TRIED] if known < version]:
        checksum = read_checksum(store, base)
        if checksum is not None and checksum.open_intents is not None:
            return _from_checksum(base, checksum).advanced(read_commits(range(base + 1, version + 1)), table=store.root).intents()
    return None


def _from_checksum(version: int, checksum: VersionChecksum) -> SnapshotState:
    transactions = checksum.all_transactions
    domains = checksum.domain_metadata
    return SnapshotState(
        overlay=SmallState(),
        base_version=version,
        protocol=checksum.protocol,
        metadata=checksum.metadata,
        base_transactions=None if transactions is None else {txn.app_id: txn for txn in transactions},
        base_intents=None if transactions is not None or (known := checksum.open_intents) is None else tuple(known),
        base_domains=None if domains is None else {domain.domain: domain for domain in domains},
        totals_version=version,
        checksum=checksum,
    )


def with_prefix(transactions: Mapping[str, SetTransaction], prefix: str) -> dict[str, int]:
    """Return the versions of the applications whose id begins so, by what follows in it."""
    return {app_id[len(prefix) :]: txn.version for app_id, txn in transactions.items() if app_id.startswith(prefix)}


def no_text(version: int, *, table: str, error: UnicodeDecodeError) -> DeltaLogCorruptedException:
    """Return the error for a checkpoint with invalid UTF-8."""
    return DeltaLogCorruptedException(
        f"The checkpoint of version {version} of table {table} is damaged: it has invalid UTF-8 ({error}).",
        table=table,
        version=version,
    )


def missing_actions(
    version: int, *, table: str, protocol: Protocol | None, metadata: Metadata | None
) -> DeltaLogCorruptedException:
    """Return the error for a log that lacks a protocol or metadata action."""
    lacking = " and ".join(name for name, action in (("protocol", protocol), ("metaData", metadata)) if action is None)
    return DeltaLogCorruptedException(
        f"Version {version} of table {table} cannot be rebuilt: its log has no {lacking} action. Every table has both since "
        "its first commit, so files of the log are missing or damaged. Restore them from a backup.",
        table=table,
        version=version,
    )
