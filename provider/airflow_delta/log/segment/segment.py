"""The files that make up a version of the table: a checkpoint, if there is one, and later commits (Delta's LogSegment)."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace

from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.checkpoint.last_checkpoint import read_last_checkpoint
from airflow_delta.log.storage.base import UNKNOWN, FileStatus, LogStore
from airflow_delta.log.storage.file_names import (
    CHECKPOINT_SUFFIX,
    CHECKSUM_SUFFIX,
    COMMIT_SUFFIX,
    LOG_DIRECTORY,
    commit_file,
    compaction_end,
    is_uuid_checkpoint,
    multi_part,
    split_version,
    version_prefix,
)

logger = logging.getLogger(__name__)

MAX_MISSING = 1_000
"""Maximum number of missing commits to look for: a stray file may have any number as its version."""


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A checkpoint with all of its files in ``_delta_log`` itself.

    :param parts: these files: one, the parts of a multi-part checkpoint in order, or the manifest of a V2 checkpoint. The
        names of sidecars are in its content.
    """

    version: int
    parts: tuple[FileStatus, ...]


@dataclass(frozen=True, slots=True)
class CompactedCommits:
    """A log compaction file: the reconciled actions of a run of commits (protocol, "Log Compaction Files")."""

    first: int
    last: int
    status: FileStatus


@dataclass(frozen=True, slots=True)
class LogSegment:
    """The files that make up one version.

    :param checkpoint: newest complete checkpoint up to the version, or ``None``.
    :param checksum_versions: versions of the checksum files from the checkpoint on, newest first.
    :param statuses: statuses of commits, as far as they are known from the listing.
    :param compactions: log compaction files for runs of the commits after the checkpoint, in order, without overlaps.
    """

    version: int
    checkpoint: CheckpointFiles | None
    checksum_versions: tuple[int, ...] = ()
    statuses: Mapping[int, FileStatus] = field(default_factory=dict)
    compactions: tuple[CompactedCommits, ...] = ()

    @property
    def first_commit(self) -> int:
        """Return the version of the first commit after the checkpoint."""
        return self.checkpoint.version + 1 if self.checkpoint is not None else 0

    @property
    def commit_versions(self) -> range:
        """Return the versions of the commits after the checkpoint."""
        return range(self.first_commit, self.version + 1)

    def advanced(self, version: int, statuses: Mapping[int, FileStatus]) -> LogSegment:
        """Return the segment of a later version with the same checkpoint."""
        return replace(self, version=version, statuses={**self.statuses, **statuses} if statuses else self.statuses)


@dataclass(slots=True)
class LogListing:
    """The files of ``_delta_log`` by kind."""

    commits: dict[int, FileStatus] = field(default_factory=dict)
    checksums: list[int] = field(default_factory=list)
    single: dict[int, FileStatus] = field(default_factory=dict)
    multi: dict[int, dict[int, dict[int, FileStatus]]] = field(default_factory=dict)
    v2: dict[int, list[FileStatus]] = field(default_factory=dict)
    compactions: list[CompactedCommits] = field(default_factory=list)

    @classmethod
    def of(cls, statuses: Iterable[FileStatus]) -> LogListing:
        """Sort a listing by kind; names that are not of the log are left out."""
        listing = cls()
        for status in statuses:
            split = split_version(status.name)
            if split is None:
                continue
            version, rest = split
            if rest == COMMIT_SUFFIX:
                listing.commits[version] = status
            elif rest == CHECKSUM_SUFFIX:
                listing.checksums.append(version)
            elif rest == CHECKPOINT_SUFFIX:
                listing.single[version] = status
            elif (part := multi_part(rest)) is not None:
                listing.multi.setdefault(version, {}).setdefault(part[1], {})[part[0]] = status
            elif is_uuid_checkpoint(rest):
                listing.v2.setdefault(version, []).append(status)
            elif (last := compaction_end(rest)) is not None:
                listing.compactions.append(CompactedCommits(version, last, status))
        return listing

    def latest(self) -> int:
        """Return the latest version of any file, or -1."""
        return max((max(kind, default=-1) for kind in (self.commits, self.single, self.multi, self.v2)), default=-1)

    def checkpoint_versions(self) -> list[int]:
        """Return the versions that have checkpoint files (complete or not), newest first."""
        return sorted({*self.single, *self.multi, *self.v2}, reverse=True)

    def complete_checkpoint(self, store: LogStore, version: int) -> CheckpointFiles | None:
        """Return a version's checkpoint if all of its files are there and none is empty.

        Of several, a V2 checkpoint comes first, then the one with most parts, then the single file (Delta's CheckpointInstance).
        """
        candidates = [[status] for status in sorted(self.v2.get(version, ()), key=lambda status: status.name, reverse=True)]
        candidates += [
            [parts[number] for number in range(1, total + 1)]
            for total, parts in sorted(self.multi.get(version, {}).items(), reverse=True)
            if set(parts) >= set(range(1, total + 1))
        ]
        if version in self.single:
            candidates.append([self.single[version]])
        for candidate in candidates:
            known = [_with_size(store, status) for status in candidate]
            complete = tuple(status for status in known if status is not None and status.size > 0)
            if len(complete) == len(candidate):
                return CheckpointFiles(version, complete)
            logger.warning("Table %s: ignoring the checkpoint of version %s, which has an empty file", store.root, version)
        return None

    def newest_checkpoint(
        self, store: LogStore, up_to: int | None = None, exclude: frozenset[int] = frozenset()
    ) -> CheckpointFiles | None:
        """Return the newest complete checkpoint up to a version."""
        for version in self.checkpoint_versions():
            if (up_to is None or version <= up_to) and version not in exclude:
                checkpoint = self.complete_checkpoint(store, version)
                if checkpoint is not None:
                    return checkpoint
        return None

    def usable_compactions(self, first: int, last: int) -> tuple[CompactedCommits, ...]:
        """Return the compaction files to read in place of commits of a range, chosen as in Delta's SnapshotManagement.

        In listing order, each is chosen that starts after the end of the previous choice and does not end after the range.
        """
        chosen: list[CompactedCommits] = []
        covered = first - 1
        for run in sorted(self.compactions, key=lambda run: (run.first, run.last)):
            if covered < run.first <= run.last <= last:
                chosen.append(run)
                covered = run.last
        return tuple(chosen)


def _with_size(store: LogStore, status: FileStatus) -> FileStatus | None:
    return status if status.size != UNKNOWN else store.head(status.path)


def list_log(store: LogStore, start: int = 0) -> LogListing:
    """List the log from a version on, without sizes and times if each costs a separate call."""
    return LogListing.of(store.list_from(LOG_DIRECTORY, version_prefix(start), stat=False))


def load_segment(store: LogStore, version: int | None = None, *, exclude: frozenset[int] = frozenset()) -> LogSegment | None:
    """Find the files that make up a version.

    An object store is listed from the checkpoint in ``_last_checkpoint``; if the listing does not show that checkpoint, the
    whole log is listed. A local directory is always listed as a whole, which costs the same and needs no hint.

    :param version: requested version; ``None`` for the latest.
    :param exclude: versions of checkpoints not to use (found to be corrupt).
    :returns: ``None`` if there is no table.
    """
    if not store.probes and not exclude:
        hint = read_last_checkpoint(store)
        if hint is not None and (version is None or hint.version <= version):
            listing = list_log(store, hint.version)
            if version is not None and version > listing.latest():
                return _build(store, list_log(store), version, exclude)  # for the error message
            if listing.newest_checkpoint(store, version) is not None:
                return _build(store, listing, version, exclude)
            logger.warning(
                "Table %s: _last_checkpoint names version %s, which has no complete checkpoint; listing the whole log",
                store.root,
                hint.version,
            )
    return _build(store, list_log(store), version, exclude)


def missing_versions(present: Container[int], first: int, last: int) -> list[int]:
    """Return the missing versions of a range, at most :data:`MAX_MISSING`."""
    missing: list[int] = []
    for version in range(first, last + 1):
        if version not in present:
            missing.append(version)
            if len(missing) == MAX_MISSING:
                break
    return missing


def earliest_version(store: LogStore, listing: LogListing) -> int | None:
    """Return the earliest version that can be rebuilt, given a full listing, or ``None`` if none can."""
    candidates = [0] if 0 in listing.commits else []
    for version in reversed(listing.checkpoint_versions()):
        if listing.complete_checkpoint(store, version) is not None:
            candidates.append(version)
            break
    return min(candidates, default=None)


def _build(store: LogStore, listing: LogListing, wanted: int | None, exclude: frozenset[int]) -> LogSegment | None:
    newest = listing.newest_checkpoint(store)
    latest = max(max(listing.commits, default=-1), newest.version if newest is not None else -1)
    if latest < 0:
        return None
    if wanted is not None and not 0 <= wanted <= latest:
        raise _not_found(store, listing, wanted, latest)
    target = latest if wanted is None else wanted
    _check_end(store, listing, target)
    checkpoint = listing.newest_checkpoint(store, target, exclude)
    first = checkpoint.version + 1 if checkpoint is not None else 0
    missing = missing_versions(listing.commits, first, target)
    if len(missing) < MAX_MISSING:
        # A directory listing is not atomic: it may miss a commit written meanwhile, and yet show a later one.
        missing = [version for version in missing if store.head(commit_file(version)) is None]
    if missing:
        _refuse_missing(store, listing, target, latest, missing, wanted=wanted, has_checkpoint=checkpoint is not None)
    statuses = (
        {version: listing.commits[version] for version in range(first, target + 1) if version in listing.commits}
        if not store.probes
        else {}
    )
    if not store.probes and target in listing.commits:
        statuses[target] = listing.commits[target]
    checksums = sorted((version for version in listing.checksums if first - 1 <= version <= target), reverse=True)
    return LogSegment(target, checkpoint, tuple(checksums), statuses, listing.usable_compactions(first, target))


def _check_end(store: LogStore, listing: LogListing, target: int) -> None:
    """Refuse a checkpoint after the last commit: cleanup removes the oldest commits first, so this one does not belong there."""
    last = max(listing.commits, default=target)
    if target <= last or store.head(commit_file(target)) is not None:
        return
    raise store.error(
        VersionsNotContiguousException,
        f"Table {store.root} has a checkpoint of version {target}, but its commits end at version {last}. If commits were lost, "
        f"restore them to {LOG_DIRECTORY} from a backup; if the checkpoint was copied there, delete it. Do this before anything "
        "else is committed.",
        version=last + 1,
    )


def _refuse_missing(
    store: LogStore,
    listing: LogListing,
    target: int,
    latest: int,
    missing: list[int],
    *,
    wanted: int | None,
    has_checkpoint: bool,
) -> None:
    lowest = min(listing.commits, default=None)
    starts_late = not has_checkpoint and (lowest is None or missing[-1] < lowest or target < lowest)
    if wanted is not None and starts_late:
        raise _not_found(store, listing, target, latest)
    span = str(missing[0]) if len(missing) == 1 else f"{missing[0]} (and {len(missing) - 1} or more after it)"
    why = ", and there is no usable checkpoint after it" if starts_late else ""
    raise store.error(
        VersionsNotContiguousException,
        f"Version {target} of table {store.root} cannot be rebuilt: commit {span} is missing{why}. Restore the missing files "
        f"of {LOG_DIRECTORY} from a backup before anything else is committed.",
        version=missing[0],
    )


def _not_found(store: LogStore, listing: LogListing, version: int, latest: int) -> VersionNotFoundException:
    earliest = earliest_version(store, listing)
    held = f"It holds versions {earliest} to {latest}." if earliest is not None else f"Its latest version is {latest}."
    return store.error(
        VersionNotFoundException,
        f"Version {version} of table {store.root} is not in its log. {held} Log cleanup removes older ones "
        "(table property delta.logRetentionDuration).",
        earliest=earliest,
        latest=latest,
        version=version,
    )
