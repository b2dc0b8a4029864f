"""The interface of log stores: the few operations that the log needs of a storage system (Delta's LogStore).

Paths are storage keys relative to the table root, ``/``-separated and not URL-encoded. Three stores exist: local files through
``os`` (:mod:`airflow_delta.log.storage.local`), object stores (:mod:`airflow_delta.log.storage.object`) and HDFS
(:mod:`airflow_delta.log.storage.hdfs`).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

from airflow_delta.exceptions import Subject
from airflow_delta.log.storage.committer import FileSystemCommitter, LogCommitter
from airflow_delta.log.storage.errors import StoreUnavailableError
from airflow_delta.log.storage.object_input import ObjectInput

Ranges = Mapping[int, bytes]
"""Parts of a file by position; they do not overlap."""

_COPIED_AT_ONCE = 8 << 20

UNKNOWN = -1
"""A size or time that a listing did not ask the store for."""


@dataclass(frozen=True, slots=True)  # the standard library's: a listing makes many, and these are made in half the time
class FileStatus:
    """A file on storage.

    :param path: key relative to the table root.
    :param size: bytes, or :data:`UNKNOWN`.
    :param modification_time: milliseconds since the epoch, or :data:`UNKNOWN`.
    :param etag: what an object store calls this content, if it says.
    :param is_link: whether :meth:`LogStore.list_recursive` found a symbolic link; size and time are those of its target.
    """

    path: str
    size: int
    modification_time: int
    is_link: bool = False
    etag: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Return the file name, without directory."""
        return self.path.rpartition("/")[2]


class LogStore(Subject, ABC):
    """Storage of one table.

    Nothing is read, written or deleted through a symbolic link that leads out of the table; in the log and below ``staged/`` no
    link is followed at all (:class:`~airflow_delta.exceptions.PathOutsideTableException`). The table directory itself may be a
    link.

    :ivar root: URI of the table as given by the user, without a trailing slash.
    :ivar local_root: absolute path if the table is on a local file system, else ``None``.
    :ivar options: settings for stores of other locations that the log refers to.
    :ivar connection: name of the connection that they come from, for errors.
    :ivar probes: whether the next version is found by trying to read it (local, HDFS) rather than by listing (object
        stores).
    """

    probes: ClassVar[bool]

    @property
    def lists_in_pieces(self) -> bool:
        """Whether the store lists between given paths concurrently."""
        return False

    root: str
    local_root: str | None = None
    options: Mapping[str, str] = MappingProxyType({})
    connection: str | None = None

    def _about(self) -> tuple[str, int | None]:
        return self.root, None

    def fresh_options(self) -> Mapping[str, str]:
        """Return the settings for a process that cannot renew credentials: with those that are valid for longest."""
        return self.options

    @property
    def committer(self) -> LogCommitter:
        """What makes a commit a version of this table."""
        return FileSystemCommitter(self)

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: if it does not exist.
        """

    @abstractmethod
    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several files' contents in the given order; an object store reads them concurrently."""

    @abstractmethod
    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``start``; fewer where the file ends."""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of a file, each given as start and length; an object store reads them concurrently."""
        return [self.read_range(path, start, length) for start, length in ranges]

    @abstractmethod
    def head(self, path: str) -> FileStatus | None:
        """Return a file's status, or ``None`` if it does not exist."""

    @abstractmethod
    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        """Return the direct children of a directory from ``start_name`` on, sorted by name.

        :param stat: with ``False``, sizes and times may be :data:`UNKNOWN` if each would cost a separate call.
        :returns: an empty list if the directory does not exist.
        """

    @abstractmethod
    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        """Yield all files below a directory, in no particular order; none if it does not exist. Links are not followed.

        :param cuts: paths that split it evenly, for a store that :attr:`lists_in_pieces`.
        """

    def list_readable(self, directory: str) -> Iterator[FileStatus]:
        """Yield files as :meth:`list_recursive` does, but pass over those that an odd name beside them hides, with a warning.

        For a listing that may lack files, which does not delete what it lacks.
        """
        return self.list_recursive(directory)

    @abstractmethod
    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the subdirectories of a directory, sorted, without listing their contents."""

    @abstractmethod
    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the subdirectories in a directory, each sorted."""

    @abstractmethod
    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the files of the table as they are found.

        :param skip: tells which top-level names to leave out, with everything below them.
        """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file with this content, unless it exists. Readers see all of it or nothing.

        :param durable: ``False`` for files that may be lost if the machine crashes (hints, checksums).
        :raises FileExistsError: if the file already exists; it is not touched.
        :raises AmbiguousPutError: if the store did not say whether it was written.
        :raises StoreRefusedError: if the store refused it.
        """

    @abstractmethod
    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace a file atomically.

        :param durable: as for :meth:`put_if_absent`; after a crash of the machine the file may be the old one, empty, or gone.
        """

    @contextlib.contextmanager
    def new_files(self, directory: str) -> Iterator[NewFiles]:
        """Yield what puts many new files below a directory of the caller's own; they are durable when the ``with`` block ends.

        Until then, nobody else may write to it or read it.
        """
        yield NewFiles(self, directory)

    def scratch_file(self) -> BinaryIO:
        """Return an unnamed temporary file for :meth:`put_file`; it is deleted when it is closed."""
        import tempfile

        return tempfile.TemporaryFile(prefix="delta-log-")

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace a file atomically with the content of an open file, from its position on."""
        self.put(path, file.read())

    def copy_from(self, source: LogStore, source_path: str, path: str) -> int:
        """Create or replace a file atomically with the content of one of another store, and return its bytes.

        The content passes through a temporary file, in parts: a client cannot send what it has to ask another client for.

        :raises FileNotFoundError: if it does not exist.
        """
        status = source.head(source_path)
        if status is None:
            raise FileNotFoundError(f"{source.root}/{source_path}")
        with self.scratch_file() as file:
            for start in range(0, status.size, _COPIED_AT_ONCE):
                file.write(source.read_range(source_path, start, min(_COPIED_AT_ONCE, status.size - start)))
            if file.tell() != status.size:
                raise StoreUnavailableError(
                    f"{source.root}/{source_path} became shorter while it was copied to {self.root}/{path}."
                )
            file.seek(0)
            self.put_file(path, file)
        return status.size

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""

    @abstractmethod
    def delete_tree(self, directory: str) -> int:
        """Delete a directory with everything below it, and return the number of files deleted."""

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any:
        """Open a file for random access, for ``pyarrow.parquet``; a remote one is read in ranges.

        :param size: its size, if known; the store then need not be asked for it.
        :param ranges: content that is already in memory, by position.
        :raises FileNotFoundError: if it does not exist.
        """
        import pyarrow as pa

        if size is None:
            status = self.head(path)
            if status is None:
                raise FileNotFoundError(f"{self.root}/{path}")
            size = status.size
        return pa.PythonFile(ObjectInput(self, path, size, ranges), mode="r")


class NewFiles:
    """New files below a directory: those of :meth:`LogStore.new_files`."""

    def __init__(self, store: LogStore, directory: str) -> None:
        self._store = store
        self._directory = directory

    def put(self, path: str, data: bytes) -> None:
        """Create a file.

        :param path: relative to the directory.
        """
        self._store.put(f"{self._directory}/{path}" if self._directory else path, data)
