"""The storage of a catalog-managed table: its log shows the versions that the catalog has accepted, and no others.

A staged commit is read in the place of the published one, and what lies above the latest version is not shown (protocol,
"Catalog-managed tables"). All that reads the log goes through a store, so nothing else has to know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar

from airflow_delta.catalog.answers import STAGED_COMMITS, CatalogCommit
from airflow_delta.catalog.committer import CatalogCommitter
from airflow_delta.catalog.versions import CatalogVersions, KnownVersions
from airflow_delta.log.storage.base import UNKNOWN, FileStatus, LogStore, Ranges
from airflow_delta.log.storage.committer import LogCommitter
from airflow_delta.log.storage.errors import StoreRefusedError
from airflow_delta.log.storage.file_names import (
    COMMIT_SUFFIX,
    LOG_DIRECTORY,
    SIDECAR_DIRECTORY,
    commit_file,
    commit_version,
    split_version,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Below(Protocol):
    """Returns the storage at a table's location."""

    def __call__(self, *, fresh: bool = False) -> LogStore:
        """Return it.

        :param fresh: with credentials that the catalog is asked for now, rather than with those that are still valid.
        """


class CatalogLogStore(LogStore):
    """Passes everything on but what is about versions.

    :param versions: of the table.
    :param below: returns the storage at the table's location; asked each time, as credentials expire.
    :param required_properties: of a table that is only reserved, which its first commit makes a table of the catalog.
    """

    probes: ClassVar[bool] = False  # a listing asks the catalog, however many versions there are

    def __init__(self, versions: CatalogVersions, below: Below, required_properties: Mapping[str, str] | None = None) -> None:
        self.versions = versions
        self._below = below
        first = below()
        self.root, self.local_root, self.connection = first.root, first.local_root, first.connection
        self._committer = CatalogCommitter(versions, below, required_properties)

    @property
    def options(self) -> Mapping[str, str]:  # type: ignore[override]
        """Settings, with credentials that are valid now."""
        return self._below().options

    def fresh_options(self) -> Mapping[str, str]:
        """Return the settings, with credentials that the catalog is asked for now."""
        return self._below(fresh=True).options

    @property
    def committer(self) -> LogCommitter:
        """The catalog."""
        return self._committer

    # -- versions --------------------------------------------------------------------------------------------------------------

    def _staged(self, version: int) -> CatalogCommit | None:
        """Return the staged commit of a version; ``None`` if the published file is to be read.

        :raises FileNotFoundError: if the catalog has no such version.
        """
        known = self.versions.known
        if version > known.latest:
            known = self.versions.refresh()
            if version > known.latest:
                raise FileNotFoundError(f"{self.root}/{commit_file(version)}: {self.versions.name} ends at {known.latest}")
        return known.staged.get(version)

    def _file_of(self, version: int) -> str:
        staged = self._staged(version)
        return commit_file(version) if staged is None else staged.path

    def read(self, path: str) -> bytes:
        """Return a file's content; of a commit, that of the version."""
        return self._of_version(path, lambda real: self._below().read(real))

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several files' contents."""
        real = [self._file_of(version) if (version := _version_of(path)) is not None else path for path in paths]
        try:
            return self._below().read_many(real)
        except FileNotFoundError:
            if real == list(paths):
                raise
            return [self.read(path) for path in paths]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        return self._of_version(path, lambda real: self._below().read_range(real, start, length))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several parts of a file."""
        return self._of_version(path, lambda real: self._below().read_ranges(real, ranges))

    def _of_version(self, path: str, read: Callable[[str], T]) -> T:
        version = _version_of(path)
        if version is None:
            return read(path)
        real = self._file_of(version)
        try:
            return read(real)
        except FileNotFoundError:
            if real == path:
                raise
            logger.info("%s of %s is gone; reading the published commit", real, self.versions.name)
            return read(path)

    def head(self, path: str) -> FileStatus | None:
        """Return a file's status; of a staged commit without a time, as it has another one once it is published."""
        version = _version_of(path)
        if version is None:
            return self._below().head(path)
        try:
            staged = self._staged(version)
        except FileNotFoundError:
            return None
        return self._below().head(path) if staged is None else FileStatus(path, staged.file_size, UNKNOWN)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        """Return the children of a directory from a name on; of the log, those of versions that the catalog has."""
        if directory != LOG_DIRECTORY:
            return self._below().list_from(directory, start_name, stat=stat)
        known = self.versions.refresh()  # first: what it calls published is then in the listing
        found = [status for status in self._below().list_from(directory, start_name, stat=stat) if _is_shown(status, known)]
        for version, commit in known.staged.items():
            status = FileStatus(commit_file(version), commit.file_size, UNKNOWN)
            if status.name >= start_name:
                found.append(status)
        return sorted(found, key=lambda status: status.name)

    # -- writing ---------------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file.

        :raises StoreRefusedError: if it is a commit, or a checkpoint of a version that is not published.
        """
        self._check_written(path)
        self._below().put_if_absent(path, data, durable=durable)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace a file; raises as :meth:`put_if_absent` does."""
        self._check_written(path)
        self._below().put(path, data, durable=durable)

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace a file; raises as :meth:`put_if_absent` does."""
        self._check_written(path)
        self._below().put_file(path, file)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files.

        :raises StoreRefusedError: if one is a commit.
        """
        paths = list(paths)
        for path in paths:
            if _version_of(path) is not None or path.startswith(f"{STAGED_COMMITS}/"):
                raise self._refused(f"{path} is not deleted")
        self._below().delete(paths)

    def delete_tree(self, directory: str) -> int:
        """Delete a directory.

        :raises StoreRefusedError: if it holds the log.
        """
        if not directory.strip("/") or directory.split("/")[0] == LOG_DIRECTORY:
            raise self._refused(f"{directory or 'the table'} is not deleted")
        return self._below().delete_tree(directory)

    def _check_written(self, path: str) -> None:
        if _version_of(path) is not None or path.startswith(f"{STAGED_COMMITS}/"):
            raise self._refused(f"{path} is not written")
        directory, _, name = path.rpartition("/")
        if directory in (LOG_DIRECTORY, SIDECAR_DIRECTORY) and ".checkpoint." in name:
            split = split_version(name)
            if split is None or split[0] > self.versions.known.published:
                raise self._refused(f"{path} is not written, since its version is not published")

    def _refused(self, what: str) -> StoreRefusedError:
        return StoreRefusedError(f"{what}: the catalog decides on the versions of {self.versions.name} ({self.root})")

    # -- passed on -------------------------------------------------------------------------------------------------------------

    @property
    def lists_in_pieces(self) -> bool:
        """Whether the storage lists between given paths concurrently."""
        return self._below().lists_in_pieces

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        """Yield all files below a directory."""
        return self._below().list_recursive(directory, cuts=cuts)

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the subdirectories of a directory."""
        return self._below().list_directories(directory)

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of files and subdirectories in a directory."""
        return self._below().list_children(directory)

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the files of the table."""
        return self._below().list_visible(skip)

    def scratch_file(self) -> BinaryIO:
        """Return an unnamed temporary file."""
        return self._below().scratch_file()

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any:
        """Open a file for random access."""
        return self._of_version(path, lambda real: self._below().open_input(real, size, ranges))


def _is_shown(status: FileStatus, known: KnownVersions) -> bool:
    """Tell whether a file of the log is one of a version that is known, and not that of a staged commit."""
    split = split_version(status.name)
    return split is None or (split[0] <= known.latest and not (split[1] == COMMIT_SUFFIX and split[0] in known.staged))


def _version_of(path: str) -> int | None:
    """Return the version of a commit of the table's own log, not of one below a transaction's files."""
    return commit_version(path) if path.startswith(f"{LOG_DIRECTORY}/") and path.count("/") == 1 else None
