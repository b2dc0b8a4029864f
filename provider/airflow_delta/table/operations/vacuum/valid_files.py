"""The files that VACUUM must keep, and those that only commits name for deletion."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.exceptions import DeltaIllegalStateException, VersionNotFoundException
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.decode import decode_commit
from airflow_delta.log.actions.deletion_vectors import vector_path
from airflow_delta.log.actions.moved_rows import file_of_record, size_of_moved_rows
from airflow_delta.log.features.protocol import features
from airflow_delta.log.replay.live_files import tombstones
from airflow_delta.log.segment.segment import list_log
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.table_paths import keys_to_keep, relative_key
from airflow_delta.log.time_travel import version_at_timestamp

if TYPE_CHECKING:
    from airflow_delta.log import AddFile, Snapshot
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import LogStore


logger = logging.getLogger(__name__)

LAST_VACUUM_INFO = f"{LOG_DIRECTORY}/_last_vacuum_info"
_COMMITS_AT_ONCE = 100


class _LastVacuumInfo(msgspec.Struct, rename="camel", omit_defaults=True):
    latest_commit_version_outside_of_retention_window: int | None = None


def valid_files(snapshot: Snapshot, *, deleted_before: int) -> set[str]:
    """Return the keys of what must stay: live files, recent tombstones, and the deletion vectors of both.

    Files outside of the table (of a shallow clone's source) are left out: VACUUM does not look there.

    :param deleted_before: milliseconds since the epoch; files removed before that are not kept.
    """
    store = snapshot.log.store
    live = snapshot.files(columns=["path", "deletion_vector"])
    removed = snapshot.read_with_checkpoint(lambda reader, tail: tombstones(reader, tail, retained_after=deleted_before - 1))
    valid: set[str] = set()
    for table in (live, removed):
        for path in table.column("path").to_pylist():
            valid |= keys_to_keep(store, path)
        vectors = table.column("deletion_vector")
        valid |= kept_vectors(store, vectors.filter(vectors.is_valid()).to_pylist())
    return valid


def needs_commits(snapshot: Snapshot, files: Sequence[FileStatus], *, longer: bool) -> bool:
    """Return whether commits must be read (:func:`committed_within`) before these files are deleted.

    :param longer: the retention is above ``delta.deletedFileRetentionDuration``.
    """
    if longer:
        return bool(files)
    return "changeDataFeed" in features(snapshot.protocol) and any(s.path.startswith(f"{STAGING_DIRECTORY}/") for s in files)


def committed_within(log: DeltaLog, snapshot: Snapshot, last: int | None) -> set[str]:
    """Return the keys of what commits within the retention removed, and of their change data.

    The snapshot does not have them all: change files are not part of a table's state, and checkpoints leave out tombstones older
    than ``delta.deletedFileRetentionDuration``. A staged change file may be much older than its commit.

    :param last: last version outside of the retention, from :func:`last_version_before`.
    """
    versions = sorted(v for v in list_log(log.store).commits if (last is None or v > last) and v <= snapshot.version)
    kept: set[str] = set()
    steps = range(0, len(versions), _COMMITS_AT_ONCE)
    what = f"Reading what commits of {log.uri} removed"
    for start in tracked(steps, what, len(versions), "commits", _COMMITS_AT_ONCE):
        some = versions[start : start + _COMMITS_AT_ONCE]
        for file in log.read_commit_range(range(some[0], some[-1] + 1)):
            if b'"remove"' not in file.data and b'"cdc"' not in file.data:
                continue
            commit = decode_commit(file.version, file.data, table=log.uri)
            for path in (*(remove.path for remove in commit.removes), *(change.path for change in commit.cdcs)):
                kept |= keys_to_keep(log.store, path)
            vectors = [msgspec.structs.asdict(r.deletion_vector) for r in commit.removes if r.deletion_vector is not None]
            kept |= kept_vectors(log.store, vectors)
    return kept


def last_version_before(log: DeltaLog, deleted_before: int) -> int | None:
    """Return the last version committed at or before a time, ``None`` if there is none."""
    latest = log.update()
    if latest.timestamp <= deleted_before:
        return latest.version
    try:
        return version_at_timestamp(latest, deleted_before)
    except VersionNotFoundException:
        return None


def removed_files(log: DeltaLog, last: int | None, *, deleted_before: int) -> list[FileStatus]:
    """Return the files that commits removed since the last VACUUM, with their deletion vectors, and change files (VACUUM LITE).

    Records of where a compaction moved rows are among them: nobody needs those of commits outside of the retention.

    :param last: last version outside of the retention, from :func:`last_version_before`.
    :raises DeltaIllegalStateException: if commits since the last VACUUM are gone from the log (Delta: DELTA_CANNOT_VACUUM_LITE).
    """
    if last is None:
        return []
    earliest = min(list_log(log.store).commits, default=last + 1)
    before = _last_vacuum(log)
    if earliest != 0 and (before is None or before < earliest):
        raise log.error(
            DeltaIllegalStateException,
            f"VACUUM LITE cannot find every file to delete of table {log.uri}: its log begins with version {earliest}, and no "
            "earlier VACUUM got that far (DELTA_CANNOT_VACUUM_LITE). Run a full VACUUM.",
            version=last,
        )
    found: dict[str, FileStatus] = {}
    start = earliest if before is None else before + 1
    steps = range(start, last + 1, _COMMITS_AT_ONCE)
    what = f"Reading what commits of {log.uri} removed"
    for first in tracked(steps, what, last + 1 - start, "commits", _COMMITS_AT_ONCE):
        for file in log.read_commit_range(range(first, min(first + _COMMITS_AT_ONCE, last + 1))):
            commit = decode_commit(file.version, file.data, table=log.uri)
            for remove in commit.removes:
                time = remove.deletion_timestamp or 0
                if time >= deleted_before:
                    continue
                if (key := relative_key(log.store, unquote(remove.path))) is not None:
                    found[key] = FileStatus(key, remove.size or 0, time)
                if remove.deletion_vector is not None:
                    size = remove.deletion_vector.size_in_bytes
                    vectors = _vector_keys(log.store, [msgspec.structs.asdict(remove.deletion_vector)])
                    found.update((key, FileStatus(key, size, time)) for key in vectors)
            for change in commit.cdcs:
                if (key := relative_key(log.store, unquote(change.path))) is not None:
                    found[key] = FileStatus(key, change.size, 0)
            found.update(_records_of_moved_rows(commit.adds, deleted_before))
    return list(found.values())


def _records_of_moved_rows(adds: Iterable[AddFile], before: int) -> dict[str, FileStatus]:
    old = [(file_of_record(add), add) for add in adds if add.modification_time < before]
    return {path: FileStatus(path, size_of_moved_rows(add), add.modification_time) for path, add in old if path is not None}


def remember_vacuum(log: DeltaLog, last: int | None) -> None:
    """Note how far VACUUM got, for the next VACUUM LITE; a hint, like Delta's ``_last_vacuum_info``."""
    if last is None:
        return
    try:
        log.store.put(LAST_VACUUM_INFO, msgspec.json.encode(_LastVacuumInfo(last)) + b"\n")
    except OSError as error:
        logger.warning("Could not write %s of table %s: %s", LAST_VACUUM_INFO, log.uri, error)


def _last_vacuum(log: DeltaLog) -> int | None:
    try:
        data = log.store.read(LAST_VACUUM_INFO)
        return msgspec.json.decode(data, type=_LastVacuumInfo).latest_commit_version_outside_of_retention_window
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("%s of table %s is damaged and ignored: %s", LAST_VACUUM_INFO, log.uri, error)
        return None


def kept_vectors(store: LogStore, vectors: Iterable[dict[str, Any]]) -> set[str]:
    return {key for path in _vector_paths(store, vectors) for key in keys_to_keep(store, path)}


def _vector_keys(store: LogStore, vectors: Iterable[dict[str, Any]]) -> set[str]:
    return {key for path in _vector_paths(store, vectors) if (key := relative_key(store, path)) is not None}


def _vector_paths(store: LogStore, vectors: Iterable[dict[str, Any]]) -> set[str]:
    descriptors = [DeletionVectorDescriptor(**vector) for vector in vectors]
    return {vector_path(store, descriptor) for descriptor in descriptors if descriptor.storage_type != "i"}
