"""Symlink manifests: lists of a table's data files for readers that do not know the Delta log.

``_symlink_format_manifest/`` has a file ``manifest`` for each partition, with one absolute path per line (Delta's
``GenerateSymlinkManifest``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.contract.delta_names import SYMLINK_MANIFEST
from airflow_delta.exceptions import DeltaError, DeltaUnsupportedOperationException, PostCommitHookFailedException
from airflow_delta.log.actions.actions import AddFile, RemoveFile
from airflow_delta.log.schema.partition_directories import partition_directory
from airflow_delta.transaction.commit.hooks import CommittedTransaction, PostCommitHook
from airflow_delta.transaction.events import record_event
from airflow_delta.transaction.reads.partition_set import PartitionSet

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import Action
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.log.storage.base import LogStore

DIRECTORY = "_symlink_format_manifest"
MANIFEST = "manifest"
_EVENT = "delta.compatibility.symlinkFormatManifest"


def wants_symlink_manifest(configuration: Mapping[str, str]) -> bool:
    """Tell whether manifests are updated after every commit."""
    return configuration.get(SYMLINK_MANIFEST, "false").lower() == "true"


class SymlinkManifestHook(PostCommitHook):
    """Updates the manifests of the partitions that a commit touched; all of them if there are none yet."""

    name = "Generate Symlink Format Manifest"

    def __eq__(self, other: object) -> bool:
        """Equal every other: one runs, however often it is registered."""
        return isinstance(other, SymlinkManifestHook)

    def __hash__(self) -> int:
        """Hash like all others."""
        return hash(SymlinkManifestHook)

    def run(self, txn: CommittedTransaction, version: int, actions: Sequence[Action]) -> None:
        """Write the manifests of the latest known version."""
        snapshot = txn.log.snapshot if txn.log.snapshot.version >= version else txn.log.update()
        update_manifests(txn.log, txn.snapshot, snapshot, actions)

    def handle_error(self, txn: CommittedTransaction, error: Exception, version: int) -> None:
        """Raise, whatever the policy says: readers of the manifests would continue with files that are gone."""
        if isinstance(error, DeltaError) and not isinstance(error, OSError):
            raise error
        raise txn.log.error(
            PostCommitHookFailedException,
            f"Version {version} of table {txn.log.uri} is committed, but its symlink manifests could not be updated: {error} "
            "(DELTA_POST_COMMIT_HOOK_FAILED). Generate them again.",
            hook=self.name,
            version=version,
        ) from error


def generate_manifests(log: DeltaLog, snapshot: Snapshot | None = None) -> int:
    """Rewrite all manifests, delete those of partitions that are gone, and return how many there are.

    :param snapshot: version to list; default: the latest.
    :raises DeltaUnsupportedOperationException: if the table has deletion vectors or column mapping, which readers of manifests
        do not support.
    """
    snapshot = snapshot if snapshot is not None else log.update()
    _check_column_mapping(snapshot)
    columns = snapshot.metadata.partition_columns
    files = snapshot.files(columns=["path", "partition_values", "deletion_vector"])
    if files.column("deletion_vector").null_count < files.num_rows:
        raise snapshot.error(
            DeltaUnsupportedOperationException,
            f"Cannot write symlink manifests for version {snapshot.version} of table {log.uri}: it has deletion vectors, whose "
            "rows would come back (DELTA_UNSUPPORTED_GENERATE_WITH_DELETION_VECTORS). Run REORG ... PURGE first.",
        )
    paths = files.column("path").to_pylist()
    lines = _by_directory(zip(paths, files.column("partition_values").to_pylist(), strict=True), columns)
    if not columns:
        lines.setdefault("", [])
    _write(log.store, lines)
    prefix = f"{DIRECTORY}/"
    known = {
        status.path.removeprefix(prefix).rpartition("/")[0]
        for status in log.store.list_recursive(DIRECTORY)
        if status.name == MANIFEST
    }
    gone = sorted(known - lines.keys())
    _delete(log.store, gone)
    _record("full", log, len(lines), len(gone), partitioned=bool(columns))
    return len(lines)


def update_manifests(log: DeltaLog, read: Snapshot, snapshot: Snapshot, actions: Sequence[Action]) -> None:
    """Update the manifests after a commit; raises as :func:`generate_manifests` does.

    :param read: version that the commit read.
    :param snapshot: version after the commit.
    :param actions: of the commit.
    """
    _check_column_mapping(snapshot)
    columns = snapshot.metadata.partition_columns
    repartitioned = read.version >= 0 and read.metadata.partition_columns != columns  # no directory keeps its meaning
    if not columns or repartitioned or next(iter(log.store.list_recursive(DIRECTORY)), None) is None:
        generate_manifests(log, snapshot)
        return
    if any(isinstance(action, AddFile) and action.deletion_vector is not None for action in actions):
        generate_manifests(log, snapshot)  # which refuses
    partitions = list(_touched(read, actions))
    touched = {_directory(values, columns) for values in partitions}
    files = PartitionSet.of(partitions, snapshot.partition_schema).select(snapshot.files(columns=["path", "partition_values"]))
    rows = zip(files.column("path").to_pylist(), files.column("partition_values").to_pylist(), strict=True)
    lines = {directory: paths for directory, paths in _by_directory(rows, columns).items() if directory in touched}
    _write(log.store, lines)
    gone = sorted(touched - lines.keys())
    _delete(log.store, gone)
    _record("incremental", log, len(lines), len(gone), partitioned=True)


def _touched(read: Snapshot, actions: Sequence[Action]) -> Iterable[Mapping[str, str | None]]:
    unknown = set()
    for action in actions:
        if isinstance(action, AddFile) or (isinstance(action, RemoveFile) and action.partition_values):
            yield action.partition_values or {}
        elif isinstance(action, RemoveFile):
            unknown.add(action.path)
    if unknown and read.version >= 0:  # an old tombstone does not name its partition
        files = read.files(columns=["path", "partition_values"])
        rows = zip(files.column("path").to_pylist(), files.column("partition_values").to_pylist(), strict=True)
        yield from (dict(values or ()) for path, values in rows if path in unknown)


def _check_column_mapping(snapshot: Snapshot) -> None:
    if snapshot.properties.column_mapping_mode != "none":
        raise snapshot.error(
            DeltaUnsupportedOperationException,
            f"Cannot write symlink manifests for table {snapshot.log.uri}: with column mapping, its files have other column "
            "names than the table (DELTA_UNSUPPORTED_MANIFEST_GENERATION_WITH_COLUMN_MAPPING). Read it with an engine that "
            "supports Delta.",
        )


def _directory(values: Mapping[str, str | None], columns: Sequence[str]) -> str:
    return partition_directory(values, list(columns))


def _by_directory(
    rows: Iterable[tuple[str, Sequence[tuple[str, str | None]] | None]], columns: Sequence[str]
) -> dict[str, list[str]]:
    known: dict[tuple[tuple[str, str | None], ...], str] = {}
    lines: dict[str, list[str]] = {}
    for path, values in rows:
        key = tuple(values or ())
        directory = known.get(key)
        if directory is None:
            directory = known[key] = _directory(dict(key), columns)
        lines.setdefault(directory, []).append(path)
    return lines


def _write(store: LogStore, lines: Mapping[str, Sequence[str]]) -> None:
    for directory, paths in lines.items():
        content = "".join(f"{absolute_path(store, path)}\n" for path in paths)
        store.put("/".join(part for part in (DIRECTORY, directory, MANIFEST) if part), content.encode())


def _delete(store: LogStore, directories: Iterable[str]) -> None:
    for directory in directories:
        if directory:
            store.delete_tree(f"{DIRECTORY}/{directory}")
        else:  # from before the table was partitioned
            store.delete([f"{DIRECTORY}/{MANIFEST}"])


def absolute_path(store: LogStore, path: str) -> str:
    """Return the path of a file for other file systems: absolute, and not URL-encoded."""
    decoded = unquote(path)
    if "://" in decoded or decoded.startswith(("/", "file:")):
        return decoded
    root = f"file:{store.local_root}" if store.local_root is not None else store.root
    return f"{root}/{decoded}"


def _record(kind: str, log: DeltaLog, written: int, deleted: int, *, partitioned: bool) -> None:
    data = {"filesWritten": written, "filesDeleted": deleted, "partitioned": partitioned}
    record_event(f"{_EVENT}.{kind}.stats", log.uri, data)
