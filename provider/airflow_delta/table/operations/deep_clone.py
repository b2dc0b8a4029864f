"""Deep clones: a table with copies of another one's files, brought up to date by copying what is new.

Delta Spark has shallow clones only, so the rules are this provider's. The path of a copy says what it is a copy of
(``staged/<transaction>/clone-<source>/<path in the source>``), so neither table remembers files. The clone's properties say
which version of which table it is, and at which version of its own: a later commit by anybody else is noticed.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

import msgspec

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY, transaction_directory
from airflow_delta.exceptions import (
    DeltaFileNotFoundException,
    DeltaIllegalStateException,
    VersionNotFoundException,
    VersionsNotContiguousException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG
from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.log.actions.deletion_vectors import INLINE, UUID_RELATIVE, vector_path, z85_encode
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.table_paths import locate, relative_key
from airflow_delta.table.files.partitions import url_encode
from airflow_delta.transaction.prepare import row_tracking

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import Action, AddFile, DeletionVectorDescriptor, Metadata
    from airflow_delta.log.storage.base import FileStatus, LogStore
    from airflow_delta.transaction import OptimisticTransaction

SOURCE_TABLE = "airflow.clone.sourceTableId"
SOURCE_VERSION = "airflow.clone.sourceVersion"
TABLE = "airflow.clone.tableId"
VERSION = "airflow.clone.version"
ORIGIN = (SOURCE_TABLE, SOURCE_VERSION, TABLE, VERSION)
"""Table properties of a deep clone: whose version it is, and which version of which table says so."""

VECTOR_TAG = "airflow.clonedVector"
"""Tag of an ``add`` of a deep clone: the id that its deletion vector has in the source."""

_THREADS = 16
_LOCAL_THREADS = 4
_COMMITS_AT_ONCE = 100
_TRUSTED = 12 * 3_600_000
"""Milliseconds for which a copy that no version refers to is used by a later try: VACUUM may be about to delete older ones."""


@dataclass(frozen=True)
class Origin:
    """What a deep clone says of itself.

    :param source: table id of the source.
    :param source_version: version of the source.
    :param table: table id of the clone; another clone of it, which copies its properties, has another one.
    :param version: version of the clone that says so.
    """

    source: str
    source_version: int
    table: str
    version: int

    @classmethod
    def of(cls, metadata: Metadata) -> Self | None:
        """Return what a table says, or ``None`` if it is not a deep clone, or only a copy of one."""
        source, source_version, table, version = (metadata.configuration.get(key) for key in ORIGIN)
        if not source or table != metadata.id or not _is_version(source_version) or not _is_version(version):
            return None
        return cls(source, int(source_version or 0), table, int(version or 0))

    @property
    def properties(self) -> dict[str, str]:
        """The table properties."""
        values = (self.source, str(self.source_version), self.table, str(self.version))
        return dict(zip(ORIGIN, values, strict=True))


def _is_version(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit()


@dataclass(frozen=True)
class EarlierClone:
    """The deep clone that a transaction brings up to date.

    :param changed: whether others have committed to it since.
    """

    origin: Origin
    changed: bool


def earlier_clone(txn: OptimisticTransaction, source: Snapshot, *, replace: bool) -> EarlierClone | None:
    """Return the deep clone at a location; ``None`` if the table there is not a deep clone, or there is no table.

    :param replace: what others have committed since is replaced as well.
    :raises DeltaIllegalStateException: if it is a clone of another table, or has changed and is not to be replaced.
    """
    origin = Origin.of(txn.snapshot.metadata) if txn.read_version >= 0 else None
    if origin is None:
        return None
    table, version = txn.log.uri, txn.read_version
    if origin.source != source.metadata.id:
        raise DeltaIllegalStateException(
            f"Table {table} version {version} is a deep clone of the table with the id {origin.source}, not of "
            f"{source.log.uri}, whose id is {source.metadata.id}: another table, or that table created again. Clone to another "
            "location.",
            table=table,
            version=version,
        )
    if version != origin.version and not replace:
        _refuse_changes(txn, origin)
    return EarlierClone(origin, version != origin.version)


def _refuse_changes(txn: OptimisticTransaction, origin: Origin) -> None:
    table, version = txn.log.uri, txn.read_version
    found = None
    if origin.version > version:
        found = f"is version {version}, but says that it was cloned as version {origin.version}"
    for start in range(origin.version + 1, version + 1, _COMMITS_AT_ONCE):
        if found is not None:
            break
        versions = range(start, min(start + _COMMITS_AT_ONCE, version + 1))
        try:
            commits = decode_commits(txn.log.read_commit_range(versions), table=table)
        except (VersionNotFoundException, VersionsNotContiguousException):
            found = f"has later versions than that of the clone ({origin.version}), which its log no longer has"
            break
        for commit in commits:
            if commit.adds or commit.removes or commit.cdcs or commit.metadata or commit.protocol or commit.domains:
                operation = (commit.commit_info or {}).get("operation", "an unknown operation")
                found = f"has changed since it was cloned (version {commit.version}: {operation})"
                break
    if found is not None:
        raise DeltaIllegalStateException(
            f"Table {table} is a deep clone and {found}. Set replace=True to make it the source's version again, without these "
            "changes, or clone to another location.",
            table=table,
            version=version,
        )


# -- files --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Copy:
    """A file to be copied.

    :param path: path of the source's log, not URL-encoded.
    :param target: key in the clone.
    :param size: bytes by the log; ``None`` if it does not say.
    """

    path: str
    target: str
    size: int | None


class ClonedFiles:
    """The files of a version of the source as files of the clone.

    :param txn: transaction on the clone.
    :param source: version of the source.
    :param transaction_id: of this try and of earlier ones, whose copies are used.
    :param earlier: the clone so far, if there is one.

    :ivar actions: ``add`` and ``remove`` actions that make the clone that version.
    :ivar metrics: Delta's metrics of CLONE.
    """

    def __init__(self, txn: OptimisticTransaction, source: Snapshot, transaction_id: str, earlier: EarlierClone | None) -> None:
        self._txn, self._source, self._earlier = txn, source, earlier
        self._tracks_rows = row_tracking.is_supported(txn.protocol) and not row_tracking.is_suspended(txn.metadata)
        digest = hashlib.sha256((source.metadata.id or "").encode()).hexdigest()[:12]
        self._folder = f"clone-{digest}"
        self._new = f"{transaction_directory(transaction_id)}/{self._folder}"
        live = [] if txn.read_version < 0 else txn.snapshot.add_files()
        self._live = {key: file for file in live if (key := self._key_of_copy(unquote(file.path))) is not None}
        self._vectors: dict[str, str] = {}
        self._copies: list[_Copy] = []
        self._left = self._left_behind()
        files = source.add_files()
        clone = [self._cloned(file) for file in files]
        self._copy()
        before = {file.path: file for file in live}
        after = {file.path: file for file in clone}
        now = int(time.time() * 1000)
        adds = [self._added(file, old) for file in clone if (old := before.get(file.path)) is None or self._differs(old, file)]
        removes = [
            file.remove(now)
            for file in live
            if (new := after.get(file.path)) is None or new.deletion_vector != file.deletion_vector
        ]
        self.actions: list[Action] = [*removes, *adds]
        brought = [file for file in adds if file.path not in before]
        self.metrics: Mapping[str, int] = {
            "sourceTableSize": sum(file.size for file in files),
            "sourceNumOfFiles": len(files),
            "numRemovedFiles": len(removes),
            "numCopiedFiles": len(brought),
            "removedFilesSize": sum(remove.size or 0 for remove in removes),
            "copiedFilesSize": sum(file.size for file in brought),
        }

    def _cloned(self, file: AddFile) -> AddFile:
        key = self._key(unquote(file.path))
        old = self._live.get(key)
        if old is not None and (old.size, old.modification_time) != (file.size, file.modification_time):
            old = None
        tags = {name: value for name, value in (file.tags or {}).items() if name not in (MOVED_ROWS_TAG, VECTOR_TAG)}
        vector = file.deletion_vector
        if vector is not None and vector.storage_type != INLINE:
            tags[VECTOR_TAG] = vector.unique_id
            same = old is not None and (old.tags or {}).get(VECTOR_TAG) == vector.unique_id
            vector = old.deletion_vector if same and old is not None and not self._changed else self._copied_vector(vector)
        return msgspec.structs.replace(
            file,
            path=old.path if old is not None else url_encode(self._copied(file, key)),
            data_change=True,
            tags=tags if tags or file.tags is not None else None,
            deletion_vector=vector,
            base_row_id=None if old is None else old.base_row_id,
            default_row_commit_version=None if old is None else old.default_row_commit_version,
        )

    def _added(self, file: AddFile, old: AddFile | None) -> AddFile:
        # Readers of changes would take a file for new that only has other statistics: nothing removes it.
        same_rows = old is not None and old.deletion_vector == file.deletion_vector
        return msgspec.structs.replace(file, data_change=False) if same_rows else file

    def _differs(self, old: AddFile, file: AddFile) -> bool:
        return _content(old) != _content(file) or (self._tracks_rows and file.base_row_id is None)

    @property
    def _changed(self) -> bool:
        return self._earlier is not None and self._earlier.changed

    def _key(self, path: str) -> str:
        """Return where a file of the source is below the directory of a clone's transaction."""
        key = relative_key(self._source.log.store, path)
        if key is not None:
            return key
        directory, _, name = path.rpartition("/")
        return f"elsewhere-{hashlib.sha256(directory.encode()).hexdigest()[:16]}/{name}"

    def _key_of_copy(self, path: str) -> str | None:
        """Return :meth:`_key` of a file of the clone; ``None`` if it is not a copy."""
        parts = path.split("/", 3)
        return parts[3] if len(parts) > 3 and (parts[0], parts[2]) == (STAGING_DIRECTORY, self._folder) else None

    def _copied(self, file: AddFile, key: str) -> str:
        left = self._left.get(key)
        if left is not None and left.size == file.size:
            return left.path
        target = f"{self._new}/{key}"
        self._copies.append(_Copy(unquote(file.path), target, file.size))
        return target

    def _copied_vector(self, vector: DeletionVectorDescriptor) -> DeletionVectorDescriptor:
        """Return a vector in a copy of its file; one copy for all vectors of the file, never one of an earlier try."""
        path = vector_path(self._source.log.store, vector)
        if path not in self._vectors:
            name = uuid.uuid4()
            self._vectors[path] = f"{self._new}{z85_encode(name.bytes)}"
            copied = msgspec.structs.replace(vector, storage_type=UUID_RELATIVE, path_or_inline_dv=self._vectors[path])
            self._copies.append(_Copy(path, vector_path(self._txn.log.store, copied), None))
        return msgspec.structs.replace(vector, storage_type=UUID_RELATIVE, path_or_inline_dv=self._vectors[path])

    def _left_behind(self) -> dict[str, FileStatus]:
        """Return the copies of a try that was cut off, by key, unless VACUUM may delete them soon."""
        snapshot = self._txn.snapshot
        retention = snapshot.properties.deleted_file_retention if self._txn.read_version >= 0 else 2 * _TRUSTED
        oldest = int(time.time() * 1000) - min(_TRUSTED, retention // 2)
        found: dict[str, FileStatus] = {}
        for status in self._txn.log.store.list_recursive(self._new):
            key = self._key_of_copy(status.path)
            if key is not None and not status.is_link and status.modification_time > oldest:
                found[key] = status
        return found

    def _copy(self) -> None:
        store, source = self._txn.log.store, self._source.log.store
        local = store.local_root is not None and source.local_root is not None
        holders: dict[str, LogStore] = {}

        def one(copy: _Copy) -> None:
            holder, key = locate(source, copy.path, holders)
            try:
                size = store.copy_from(holder, key, copy.target)
            except FileNotFoundError as error:
                raise self._gone(copy.path) from error
            if copy.size not in (None, size):
                raise self._source.log.error(
                    DeltaIllegalStateException,
                    f"The file {copy.path} of table {self._source.log.uri} has {size} bytes, but {copy.size} by version "
                    f"{self._source.version}: it was changed outside Delta. Restore it from a backup.",
                    version=self._source.version,
                )

        for copy in self._copies:
            locate(source, copy.path, holders)  # refuses a file in another account or bucket before anything is copied
        with ThreadPoolExecutor(_LOCAL_THREADS if local else _THREADS, thread_name_prefix="delta-clone") as pool:
            done = pool.map(one, self._copies)
            try:
                for _ in tracked(done, f"Copying files of {self._source.log.uri} to {self._txn.log.uri}", len(self._copies)):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _gone(self, path: str) -> DeltaFileNotFoundException:
        return self._source.log.error(
            DeltaFileNotFoundException,
            f"The file {path} of table {self._source.log.uri} version {self._source.version} is gone, deleted by VACUUM or by "
            "hand, so the version cannot be cloned. Clone a later version.",
            version=self._source.version,
        )


def _content(file: AddFile) -> AddFile:
    return msgspec.structs.replace(file, data_change=True)


def is_unchanged(before: Metadata, after: Metadata) -> bool:
    """Return whether metadata differ only in which version of the source they are of."""
    plain = [
        msgspec.structs.replace(
            metadata, configuration={key: value for key, value in metadata.configuration.items() if key not in ORIGIN}
        )
        for metadata in (before, after)
    ]
    return plain[0] == plain[1]
