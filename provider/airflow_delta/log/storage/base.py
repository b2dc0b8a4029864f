"""Where a table's files are: the few operations that the log needs of a storage system (Delta's LogStore).

Paths are storage keys relative to the table root, ``/``-separated and not URL-encoded. Two stores exist: local files
through ``os`` (:mod:`airflow_delta.log.storage.local`) and object stores (:mod:`airflow_delta.log.storage.object`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.masking import has_user_info, masked

UNKNOWN = -1
"""Size or time that a listing did not ask the store for."""


class AmbiguousPutError(OSError):
    """The store did not say whether a put was written (timeout, lost connection, server error).

    Only reading tells. A definite refusal is a :class:`FileExistsError` or another :class:`OSError`.
    """


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file on storage.

    :param path: key relative to the table root.
    :param size: bytes, or :data:`UNKNOWN`.
    :param modification_time: milliseconds since the epoch, or :data:`UNKNOWN`.
    :param is_link: :meth:`LogStore.list_recursive` found a symbolic link there; size and time are those of what it leads to.
    """

    path: str
    size: int
    modification_time: int
    is_link: bool = False

    @property
    def name(self) -> str:
        """Return the bare file name."""
        return self.path.rpartition("/")[2]


class LogStore(ABC):
    """Storage of one table.

    Nothing is read, written or deleted through a symbolic link that leads out of the table; in the log and below ``staged/`` no
    link is followed at all (:class:`~airflow_delta.exceptions.PathOutsideTableException`). The table itself may lie behind one.

    :ivar root: URI of the table as the user gave it, without trailing slash.
    :ivar local_root: absolute path when the table is on a local file system, else ``None``.
    :ivar options: settings that stores of other locations, which the log names, are opened with.
    :ivar probes: whether the next version is found by asking for it (local) rather than by listing (object stores).
    """

    probes: ClassVar[bool]
    root: str
    local_root: str | None = None
    options: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: it does not exist.
        """

    @abstractmethod
    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several files' contents in the order given; concurrently where a read is a round trip."""

    @abstractmethod
    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``start``; fewer where the file ends."""

    @abstractmethod
    def head(self, path: str) -> FileStatus | None:
        """Return a file's status, or ``None`` when it does not exist."""

    @abstractmethod
    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        """Return the direct children of a directory whose name is not below ``start_name``, sorted by name.

        :param stat: ``False`` lets a store leave sizes and times :data:`UNKNOWN` where each would cost a call of its own.
        :returns: an empty list when the directory does not exist.
        """

    @abstractmethod
    def list_recursive(self, directory: str) -> Iterator[FileStatus]:
        """Yield all files below a directory, in no particular order; nothing when it does not exist. Links are not followed."""

    @abstractmethod
    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the directories right below a directory, sorted; what is in them is not listed."""

    @abstractmethod
    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the directories right below a directory, sorted."""

    @abstractmethod
    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the files of the table, one after the other as they are found.

        :param skip: says which names right below the table are left out, with all that is below them.
        """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file with this content, unless one is there. A reader sees all of it or none.

        :param durable: ``False`` for files that may get lost in a crash of the machine (hints, checksums).
        :raises FileExistsError: the file is there already; it was not touched.
        :raises AmbiguousPutError: the store did not say whether it was written.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file atomically."""

    def scratch_file(self) -> BinaryIO:
        """Return a nameless file for what :meth:`put_file` is to put; it is gone when it is closed."""
        import tempfile

        return tempfile.TemporaryFile(prefix="delta-log-")

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace a file atomically with what another one, open for reading, holds from its position on."""
        self.put(path, file.read())

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; one that is missing is no error."""

    @abstractmethod
    def delete_tree(self, directory: str) -> int:
        """Delete a directory with all that is below it, and return the number of files deleted."""

    @abstractmethod
    def open_input(self, path: str) -> Any:
        """Open a file for random access, as ``pyarrow.parquet`` accepts it.

        :raises FileNotFoundError: it does not exist.
        """


def check_no_user_info(uri: str) -> None:
    """Refuse a location that brings credentials: it stands in the log, in XCom, in the names of assets and on pages.

    :raises DeltaIllegalArgumentException: there is a user or a password before its host.
    """
    if has_user_info(uri):
        raise DeltaIllegalArgumentException(
            f"The location {masked(uri)} has credentials in it. Locations are stored and shown as they are: give the credentials "
            "as login and password of the connection, or as storage options.",
            table=masked(uri),
        )
