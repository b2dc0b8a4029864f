"""Deleting expired commits, checkpoints and checksums after a checkpoint (Delta's MetadataCleanup)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_delta.log.file_names import (
    CHECKPOINT_SUFFIX,
    CHECKSUM_SUFFIX,
    COMMIT_SUFFIX,
    LOG_DIRECTORY,
    is_uuid_checkpoint,
    multi_part,
    split_version,
    version_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.store import FileStatus

logger = logging.getLogger(__name__)

DAY = 24 * 60 * 60 * 1000


def clean_up_expired_logs(snapshot: Snapshot, *, now: int | None = None) -> list[str]:
    """Delete what no restorable version needs any more, and return the paths.

    A file is expired when it is below the snapshot's checkpoint and its (monotonically adjusted) time is not after the midnight
    (UTC) that precedes ``now - delta.logRetentionDuration``. Expired files are deleted only in runs that end right before a
    complete checkpoint, so what is left starts with one. Nothing happens when ``delta.enableExpiredLogCleanup`` is false, or
    when the table protects its checkpoints.

    :param now: milliseconds since the epoch; the present for ``None``.
    """
    properties = snapshot.properties
    if not properties.enable_expired_log_cleanup:
        return []
    if snapshot.segment.checkpoint is None and not _own_checkpoint(snapshot):
        return []
    protected = "checkpointProtection" in (snapshot.protocol.writer_features or [])
    if protected:
        logger.info("Table %s: the log is not cleaned up, because the table protects its checkpoints", snapshot.log.uri)
        return []
    present = int(time.time() * 1000) if now is None else now
    cutoff = (present - properties.log_retention) // DAY * DAY
    versions = _by_version(snapshot.log.store.list_from(LOG_DIRECTORY, version_prefix(0)))
    expired = expired_files(versions, newest_checkpoint(versions, snapshot.version), cutoff)
    if expired:
        paths = [status.path for status in expired]
        snapshot.log.store.delete(paths)
        logger.info(
            "Table %s: deleted %s expired files of the log, up to version %s", snapshot.log.uri, len(paths), _version(expired[-1])
        )
        return paths
    return []


def _own_checkpoint(snapshot: Snapshot) -> bool:
    return newest_checkpoint(_by_version(snapshot.log.store.list_from(LOG_DIRECTORY, version_prefix(0))), snapshot.version) >= 0


@dataclass(slots=True)
class VersionFiles:
    """The files of one version.

    :param v2: a checkpoint under a UUID name exists; it restarts nothing for readers of classic checkpoints.
    """

    commit: FileStatus | None = None
    checkpoints: list[FileStatus] = field(default_factory=list)
    others: list[FileStatus] = field(default_factory=list)
    complete: bool = False

    def all(self) -> list[FileStatus]:
        """Return all of them, commit last: whatever was deleted when a run is cut short, no commit is missing below one."""
        return [*self.others, *self.checkpoints, *([self.commit] if self.commit is not None else [])]


def _by_version(statuses: Iterable[FileStatus]) -> dict[int, VersionFiles]:
    versions: dict[int, VersionFiles] = {}
    parts: dict[tuple[int, int], int] = {}
    for status in statuses:
        split = split_version(status.name)
        if split is None:
            continue
        version, rest = split
        files = versions.setdefault(version, VersionFiles())
        part = multi_part(rest)
        if rest == COMMIT_SUFFIX:
            files.commit = status
        elif rest == CHECKSUM_SUFFIX:
            files.others.append(status)
        elif rest == CHECKPOINT_SUFFIX or is_uuid_checkpoint(rest):
            files.checkpoints.append(status)
            files.complete = files.complete or (rest == CHECKPOINT_SUFFIX and status.size != 0)
        elif part is not None:
            files.checkpoints.append(status)
            if status.size != 0:
                parts[version, part[1]] = parts.get((version, part[1]), 0) + 1
    for (version, total), found in parts.items():
        if found == total:
            versions[version].complete = True
    return dict(sorted(versions.items()))


def newest_checkpoint(versions: dict[int, VersionFiles], at_most: int) -> int:
    """Return the newest version up to ``at_most`` with a complete classic checkpoint; -1 when there is none."""
    return max((version for version, files in versions.items() if files.complete and version <= at_most), default=-1)


def expired_files(versions: dict[int, VersionFiles], last_checkpoint: int, cutoff: int) -> list[FileStatus]:
    """Return the files to delete, oldest version first.

    :param versions: the log, by version, in order.
    :param last_checkpoint: version of the checkpoint that must stay.
    :param cutoff: milliseconds since the epoch; what is newer stays.
    """
    expired: list[FileStatus] = []
    run: list[FileStatus] = []
    previous = -1
    for version, files in versions.items():
        if files.complete and version <= last_checkpoint:
            # A version can be restored from here on, so all that came before may go.
            expired += run
            run = []
        time_of = max((status.modification_time for status in _timed(files)), default=previous)
        # A commit cannot be older than the one before it (Delta's BufferingLogDeletionIterator adjusts clocks alike).
        previous = max(time_of, previous + 1)
        if version >= last_checkpoint or previous > cutoff:
            break
        run += files.all()
    return expired


def _timed(files: VersionFiles) -> list[FileStatus]:
    return [files.commit] if files.commit is not None else [*files.checkpoints, *files.others]


def _version(status: FileStatus) -> int:
    split = split_version(status.name)
    return -1 if split is None else split[0]
