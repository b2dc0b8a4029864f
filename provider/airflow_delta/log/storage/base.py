"""The interface of log stores: the few operations that the log needs of a storage system (Delta's LogStore).

Paths are storage keys relative to the table root, ``/``-separated and not URL-encoded. Three stores exist: local files through
``os`` (:mod:`airflow_delta.log.storage.local`), object stores (:mod:`airflow_delta.log.storage.object`) and HDFS
(:mod:`airflow_delta.log.storage.hdfs`).

An object as a seekable file, read in ranges, for Arrow's Parquet reader.

Remote stores and ``fork``: a forked child refuses an inherited runtime at once, instead of hanging for ever.

The clients of object stores and of HDFS need threads, which a forked child does not inherit. They belong to the process, not to a
store, so a new store in the child hangs as well. The first use is therefore recorded per process, and children that are forked
later refuse.
"""

from __future__ import annotations

import gc
import io
import os
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Protocol

from airflow_delta.exceptions import ForkedProcessException, Subject
from airflow_delta.log.storage.committer import FileSystemCommitter, LogCommitter

Ranges = Mapping[int, bytes]
"""Parts of a file by position; they do not overlap."""

_COPIED_AT_ONCE = 8 << 20

UNKNOWN = -1
"""A size or time that a listing did not ask the store for."""


class AmbiguousPutError(OSError):
    """The store did not say whether a put was written (timeout, lost connection, server error).

    Only reading the file can tell. A definite refusal is a :class:`FileExistsError` or another :class:`OSError`.
    """


class StoreUnavailableError(OSError):
    """A request failed and may succeed later: the store is overloaded or cannot be reached, and the client gave up repeating it.

    It says nothing about the file.
    """


class IncompleteReadError(StoreUnavailableError):
    """A file came with another number of bytes than the store says that it has, however often it was read."""


class StoreRefusedError(OSError):
    """The store refused a request for good: nothing was written, and the same request would be refused again."""


class StoreAccessError(StoreRefusedError, PermissionError):
    """The store refused a request for its credentials, or there are none."""


@dataclass(frozen=True, slots=True)
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
    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically."""

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


_READ_AGAIN = (0.1, 0.5)
"""Seconds before a file is read again that did not come whole."""


def complete(where: str, read: Callable[[], tuple[bytes, int]]) -> bytes:
    """Read again what does not come whole: a store or a proxy may cut an answer and call what is left its length.

    :param where: what is read, for the error.
    :param read: returns what came, and how many bytes there should be.
    :raises IncompleteReadError: if they still differ.
    """
    data, size = read()
    for pause in _READ_AGAIN:
        if len(data) == size:
            break
        time.sleep(pause)
        data, size = read()
    require_whole(where, data, size)
    return data


def require_whole(where: str, data: bytes, size: int) -> None:
    """Refuse what did not come whole.

    :raises IncompleteReadError: if there are not ``size`` bytes.
    """
    if len(data) != size:
        raise IncompleteReadError(
            f"Reading {where} gave {len(data)} bytes of {size}: a proxy or the store cuts its answers, or the file is being "
            "replaced. Run the task again; if it stays, read the file past the proxy."
        )


_TAIL = 64 * 1024
"""Bytes read when the end is first requested: enough for most footers."""


class RangedReads(Protocol):
    """What a file is read with: a log store."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of the object."""
        ...


class ObjectInput(io.RawIOBase):
    """A read-only file over a store's ranged reads; keeps the tail of the object.

    :param size: bytes of the object.
    :param ranges: content that has been read already, by position.
    :raises IncompleteReadError: from reads, if the object is shorter.
    """

    def __init__(self, store: RangedReads, path: str, size: int, ranges: Mapping[int, bytes] | None = None) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._position = 0
        self._tail: bytes | None = None
        self._ranges = ranges or {}
        self._starts = sorted(self._ranges)

    def readable(self) -> bool:
        """Return ``True``."""
        return True

    def seekable(self) -> bool:
        """Return ``True``."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes; all remaining ones for -1."""
        left = max(self._size - self._position, 0)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        start = self._position
        tail_start = max(self._size - _TAIL, 0)
        if (known := self._known(start, length)) is not None:
            data = known
        elif start >= tail_start:
            if self._tail is None:
                self._tail = self._read(tail_start, self._size - tail_start)
            data = self._tail[start - tail_start : start - tail_start + length]
        else:
            data = self._read(start, length)
        self._position += len(data)
        return data

    def _read(self, start: int, length: int) -> bytes:
        data = self._store.read_range(self._path, start, length)
        require_whole(f"{getattr(self._store, 'root', '')}/{self._path}".lstrip("/"), data, length)
        return data

    def _known(self, start: int, length: int) -> bytes | None:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        first = self._starts[at]
        content = self._ranges[first]
        return content[start - first : start - first + length] if start - first + length <= len(content) else None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


_used_by: int | None = None
_inherited_from: int | None = None


def _after_fork_in_child() -> None:
    global _inherited_from
    if _used_by is not None and _inherited_from is None:
        _inherited_from = _used_by
        gc.freeze()  # a client that the collector found here would wait for threads of its parent for ever


os.register_at_fork(after_in_child=_after_fork_in_child)


def check_runtime(table: str) -> None:
    """Record that this process uses the runtime of a remote store.

    :raises ForkedProcessException: if this process was forked from one that had used it.
    """
    global _used_by
    if _inherited_from is not None:
        raise ForkedProcessException(
            f"Table {table} is not local, and this process ({os.getpid()}) was forked from one ({_inherited_from}) that had "
            "already used an object store or HDFS. Their clients do not survive a fork and would hang. Open tables only in the "
            "child, start the child with multiprocessing's 'spawn' or 'forkserver' method, or run a new interpreter.",
            table=table,
        )
    if _used_by is None:
        _used_by = os.getpid()
