"""Deleting expired commits, checkpoints and checksums after a checkpoint (Delta's MetadataCleanup)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from airflow_delta.contract.intents import INTENT_KINDS
from airflow_delta.exceptions import DeltaLogCorruptedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.decode import required_timestamp
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.log.checkpoint.reader import CheckpointReader
from airflow_delta.log.checkpoint_write.checkpoint_protection import protected_before
from airflow_delta.log.checkpoint_write.v2 import write_compatibility_checkpoint
from airflow_delta.log.features.protocol import check_can_write, features
from airflow_delta.log.intent_rules import rules_of
from airflow_delta.log.segment.segment import CheckpointFiles, LogListing
from airflow_delta.log.storage.file_names import (
    CHECKPOINT_SUFFIX,
    CHECKSUM_SUFFIX,
    COMMIT_SUFFIX,
    LOG_DIRECTORY,
    SIDECAR_DIRECTORY,
    compaction_end,
    is_uuid_checkpoint,
    multi_part,
    split_version,
    version_prefix,
)
from airflow_delta.log.time_travel import first_recorded_version

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import FileStatus


logger = logging.getLogger(__name__)

MINUTE = 60 * 1000
DAY = 24 * 60 * MINUTE


def clean_up_expired_logs(
    snapshot: Snapshot, *, now: int | None = None, retention: int | None = None, granularity: int = DAY
) -> list[str]:
    """Delete files that no restorable version needs any more, and return their paths.

    A file is expired if it is below the snapshot's checkpoint and its version was committed by the midnight (UTC) before
    ``now - delta.logRetentionDuration``: by the in-commit timestamp if the table has them, else by the (monotonically adjusted)
    time of the file. Expired files are deleted only up to a complete checkpoint, so that the rest of the log starts with one.
    Sidecars are deleted if they are older than the same midnight and no checkpoint refers to them. Nothing is deleted if
    ``delta.enableExpiredLogCleanup`` is false.

    What an intent needs stays until it has ended everywhere, however old it is (:func:`needed_by_intents`).

    ``delta.requireCheckpointProtectionBeforeVersion`` adds no condition: history may be cut off at any existing checkpoint, and
    no new one is written below that version (protocol, "Checkpoint Protection").

    :param now: milliseconds since the epoch; ``None`` for the current time.
    :param retention: instead of ``delta.logRetentionDuration``, in milliseconds.
    :param granularity: to which the time is rounded down, instead of to midnight, in milliseconds.
    """
    if snapshot.version >= 0:
        check_can_write(snapshot.protocol, snapshot.metadata, snapshot.log.uri, snapshot.version, provided=snapshot.log.provided)
    properties = snapshot.properties
    if not properties.enable_expired_log_cleanup or snapshot.version < 0:
        return []
    present = int(time.time() * 1000) if now is None else now
    kept_for = properties.log_retention if retention is None else retention
    cutoff = (present - kept_for) // granularity * granularity
    store = snapshot.log.store
    statuses = store.list_from(LOG_DIRECTORY, version_prefix(0))
    restart = _RestartPoints(snapshot, LogListing.of(statuses))
    versions = files_by_version(statuses)
    is_new = _later_commits(snapshot, versions, snapshot.version, cutoff)
    kept = first_kept(versions, snapshot.version, cutoff, is_new=is_new)
    if all(version >= kept for version in versions):
        return []
    # Everything before a restorable version may be deleted. With sidecars it is expensive to find out which ones are restorable.
    first = newest_checkpoint(versions, kept, restart.usable)
    if (needed := needed_by_intents(snapshot, versions, first, now=present)) is not None:
        first = newest_checkpoint(versions, min(needed, first), restart.usable)
    expired = [status for version, files in versions.items() if version < first for status in files.all()]
    if not expired:
        return []
    restart.keep_classic(newest_checkpoint(versions, snapshot.version, restart.usable))
    paths = [status.path for status in expired]
    store.delete(paths)
    logger.info(
        "Table %s: deleted %s expired files of the log, up to version %s", snapshot.log.uri, len(paths), _version(expired[-1])
    )
    if any(_is_checkpoint(status) for status in expired):
        paths += restart.delete_unreferenced_sidecars(cutoff)
    return paths


def needed_by_intents(snapshot: Snapshot, versions: Mapping[int, VersionFiles], end: int, *, now: int) -> int | None:
    """Return the first version that an intent still needs; ``None`` if none does.

    Where one is open, that is all there are: whoever goes on checks everything since the version that its transaction read.
    Where it has ended, its kind knows.

    :param end: versions from here on are ignored.
    """
    is_open = open_intents(snapshot.intents)
    commits = {version: files.commit for version, files in versions.items() if version < end and files.commit is not None}
    needed = []
    for kind in INTENT_KINDS:
        own = next((intent for intent, txn in is_open.items() if txn.app_id.startswith(kind.begins)), None)
        found = (0, own) if own is not None else rules_of(kind).first_needed(snapshot, commits, now=now)
        if found is not None:
            version, intent = found
            needed.append(version)
            logger.warning(
                "Table %s: not deleting what %s needs: nothing says that it has ended everywhere. %s",
                snapshot.log.uri,
                kind.name.format(id=intent),
                kind.remedy.format(id=intent),
            )
    return min(needed, default=None)


def _later_commits(
    snapshot: Snapshot, versions: Mapping[int, VersionFiles], end: int, cutoff: int
) -> Callable[[int], bool | None]:
    """Return a function that tells whether a version was committed after ``cutoff``, ``None`` without in-commit timestamp.

    These timestamps increase with the version, so that reading a few commits is enough.

    :param end: versions from here on are ignored.
    """
    first = first_recorded_version(snapshot)
    if first is None:
        return lambda _version: None
    recorded = [v for v, files in versions.items() if first <= v < end and files.commit is not None]
    low, high = 0, len(recorded)
    while low < high:
        middle = (low + high) // 2
        version = recorded[middle]
        if required_timestamp(version, snapshot.log.read_commit(version), table=snapshot.log.uri) <= cutoff:
            low = middle + 1
        else:
            high = middle
    old = frozenset(recorded[:low])
    new = frozenset(recorded[low:])
    return lambda version: False if version in old else (True if version in new else None)


class _RestartPoints:
    """The checkpoints of a log from which versions can be rebuilt, with their sidecars.

    :param listing: the whole log.
    """

    def __init__(self, snapshot: Snapshot, listing: LogListing) -> None:
        self._snapshot = snapshot
        self._store = snapshot.log.store
        self._listing = listing
        self._has_sidecars = "v2Checkpoint" in features(snapshot.protocol) or bool(listing.v2)
        self._sidecars: dict[str, FileStatus] | None = None

    def usable(self, version: int) -> bool:
        """Tell whether a version can be rebuilt from its checkpoint alone, sidecars included."""
        checkpoint = self._listing.complete_checkpoint(self._store, version)
        if checkpoint is None:
            return False
        if not self._has_sidecars:
            return True
        try:
            needed = self._sidecars_of(checkpoint)
        except DeltaLogCorruptedException:
            return False
        present = self._present()
        return all(path in present and present[path].size == size for path, size in needed.items())

    def _sidecars_of(self, checkpoint: CheckpointFiles) -> dict[str, int]:
        reader = CheckpointReader(self._store, checkpoint.parts, version=checkpoint.version, table=self._snapshot.log.uri)
        return {sidecar.status.path: sidecar.size_in_bytes for sidecar in reader.sidecars}

    def _present(self) -> dict[str, FileStatus]:
        if self._sidecars is None:
            self._sidecars = {status.path: status for status in self._store.list_from(SIDECAR_DIRECTORY, "")}
        return self._sidecars

    def keep_classic(self, version: int) -> None:
        """Copy a V2 checkpoint to a classic name, since old readers must find a protocol to see that they cannot read the table.

        This is done before anything is deleted, if a table has only V2 checkpoints (Delta's compatibility checkpoint).
        """
        listing = self._listing
        checkpoint = listing.complete_checkpoint(self._store, version)
        protected = protected_before(self._snapshot)
        if checkpoint is None or not is_uuid_checkpoint(checkpoint.parts[0].name[20:]) or version < protected:
            return
        if version in listing.single or version in listing.multi:
            return
        write_compatibility_checkpoint(self._store, checkpoint, table=self._snapshot.log.uri)

    def delete_unreferenced_sidecars(self, cutoff: int) -> list[str]:
        """Delete sidecars older than ``cutoff`` that no checkpoint refers to any more, and return their paths."""
        old = [path for path, status in self._present().items() if status.modification_time < cutoff]
        if not old:
            return []
        listing = LogListing.of(self._store.list_from(LOG_DIRECTORY, version_prefix(0)))
        named: set[str] = set()
        try:
            for version in listing.checkpoint_versions():
                top = [*listing.v2.get(version, ())]
                if version in listing.single:
                    top.append(listing.single[version])
                for status in top:
                    named.update(self._sidecars_of(CheckpointFiles(version, (status,))))
        except DeltaLogCorruptedException as error:
            logger.warning(
                "Table %s: not deleting any sidecars, because it is unknown which are needed: %s",
                self._snapshot.log.uri,
                error.message,
            )
            return []
        unreferenced = [path for path in old if path not in named]
        self._store.delete(unreferenced)
        return unreferenced


@dataclass(slots=True)
class VersionFiles:
    """The files of one version; a log compaction file belongs to its first version."""

    commit: FileStatus | None = None
    checkpoints: list[FileStatus] = field(default_factory=list)
    others: list[FileStatus] = field(default_factory=list)

    def all(self) -> list[FileStatus]:
        """Return all files, the commit last, so that an interrupted cleanup never deletes a commit but leaves an earlier one."""
        return [*self.others, *self.checkpoints, *([self.commit] if self.commit is not None else [])]


def files_by_version(statuses: Iterable[FileStatus]) -> dict[int, VersionFiles]:
    """Sort a listing by version."""
    versions: dict[int, VersionFiles] = {}
    for status in statuses:
        split = split_version(status.name)
        if split is None:
            continue
        version, rest = split
        files = versions.setdefault(version, VersionFiles())
        if rest == COMMIT_SUFFIX:
            files.commit = status
        elif _is_checkpoint(status):
            files.checkpoints.append(status)
        elif rest == CHECKSUM_SUFFIX or compaction_end(rest) is not None:
            files.others.append(status)
    return dict(sorted(versions.items()))


def _is_checkpoint(status: FileStatus) -> bool:
    rest = status.name[20:]
    return rest == CHECKPOINT_SUFFIX or is_uuid_checkpoint(rest) or multi_part(rest) is not None


def newest_checkpoint(versions: Mapping[int, VersionFiles], at_most: int, usable: Callable[[int], bool]) -> int:
    """Return the newest version up to ``at_most`` that can be rebuilt from its checkpoint; -1 if there is none.

    :param usable: tells whether a version with checkpoint files can be rebuilt.
    """
    candidates = sorted((v for v, files in versions.items() if files.checkpoints and v <= at_most), reverse=True)
    return next((version for version in candidates if usable(version)), -1)


def first_kept(
    versions: Mapping[int, VersionFiles],
    last: int,
    cutoff: int,
    *,
    is_new: Callable[[int], bool | None] = lambda _version: None,
) -> int:
    """Return the first version that has not expired.

    :param versions: the log, by version, in order.
    :param last: this version is kept, however old it is.
    :param cutoff: milliseconds since the epoch; newer versions are kept.
    :param is_new: tells whether a version is newer, ``None`` to decide by the times of its files.
    """
    previous = -1
    for version, files in versions.items():
        time_of = max((status.modification_time for status in _timed(files)), default=previous)
        # A commit cannot be older than the one before it (Delta's BufferingLogDeletionIterator adjusts times in the same way).
        previous = max(time_of, previous + 1)
        recorded = is_new(version)
        if version >= last or (previous > cutoff if recorded is None else recorded):
            return min(version, last)
    return last


def _timed(files: VersionFiles) -> list[FileStatus]:
    return [files.commit] if files.commit is not None else [*files.checkpoints, *files.others]


def _version(status: FileStatus) -> int:
    split = split_version(status.name)
    return -1 if split is None else split[0]
