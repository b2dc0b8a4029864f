"""What is in a local table is opened so that no link leads out of it.

Directories are opened one below the other, each relative to the descriptor of the one above: whoever replaces a directory by a
link meanwhile leads nobody elsewhere. No path is checked first and opened later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence

from airflow_delta.exceptions import DeltaLogCorruptedException, PathOutsideTableException
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.file_names import LOG_DIRECTORY

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # else opening a pipe would wait for a writer
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LINK = {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
"""Errors of systems for a link that must not be followed."""

_GONE = {errno.ENOENT, *LINK}
"""Errors of systems for a directory that was deleted, or replaced by a link, during a listing."""

_TRIES = 10
"""How often a path is opened while somebody replaces a directory of it by a link, and back."""

_NO_LINKS = (LOG_DIRECTORY, "staged")
"""Directories whose writers never create links."""


class LocalFolders(LogStore):
    """The directories of a table in a local one.

    :ivar held_within: the directory that the table, and what its log names elsewhere, must be below; ``None`` for no limit.
    """

    local_root: str
    held_within: str | None = None
    _held: _Held | None = None

    def _absolute(self, path: str) -> str:
        return f"{self.local_root}/{path}"

    def hold_within(self, base: str) -> None:
        """Open the table's directory now, and keep it, if it is below another directory; links on the way are resolved once.

        :raises FileNotFoundError: if there is no such directory.
        :raises PathOutsideTableException: if the table is not below it.
        """
        allowed, table = os.path.realpath(base), os.path.realpath(self.local_root)
        if os.path.commonpath([allowed, table]) != allowed:
            raise self._outside(self.local_root, f"is not below {base}")
        folder = os.open(allowed, FOLDER)
        try:
            self._held = _Held(_walk(folder, parts_of(os.path.relpath(table, allowed))))
            self.held_within = base
        except OSError as error:
            if error.errno in LINK:
                raise self._outside(self.local_root, f"is not below {base}") from error
            raise
        finally:
            os.close(folder)

    def _open_root(self, first: str = "") -> int:
        """Open the table's directory, or one in it."""
        if self._held is not None:
            return os.open(first or ".", FOLDER | os.O_NOFOLLOW, dir_fd=self._held.folder)
        return os.open(self._absolute(first), FOLDER | (os.O_NOFOLLOW if first else 0))  # the table itself may lie behind links

    def _open(self, path: str) -> int:
        """Open a file for reading."""
        try:
            descriptor = self._open_without_links(path)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                raise self._not_regular(path) from error
            descriptor = self._open_through_links(path, error, self._open_without_links, os.path.isfile)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._not_regular(path)
        return descriptor

    def _open_without_links(self, path: str) -> int:
        directory, _, name = path.rpartition("/")
        folder = self._open_folder(directory)
        try:
            return os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)

    def _open_folder(self, directory: str) -> int:
        """Open a directory of the table."""
        if ".." in directory.split("/"):
            raise self._outside(directory, "leads out of it")
        try:
            return self._open_folder_without_links(directory)
        except OSError as error:
            return self._open_through_links(directory, error, self._open_folder_without_links, os.path.isdir)

    def _open_deepest(self, parts: Sequence[str]) -> tuple[int, int]:
        """Open the deepest directory that is there on the way to one of the table, following no link.

        :param parts: of the path.
        :returns: it, and how many parts lead there.
        """
        if ".." in parts:
            raise self._outside("/".join(parts), "leads out of it")
        folder = self._open_root()
        for there, part in enumerate(parts):
            try:
                inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except FileNotFoundError:
                return folder, there
            except OSError:
                os.close(folder)
                raise
            os.close(folder)
            folder = inner
        return folder, len(parts)

    def _open_folder_without_links(self, directory: str) -> int:
        first, *rest = parts_of(directory) or [""]
        folder = self._open_root(first)
        return _walk(folder, rest, close=True) if rest else folder

    def _open_through_links(self, path: str, error: OSError, again: Callable[[str], int], is_one: Callable[[str], bool]) -> int:
        """Open the target of a path with links, if it is below the table and the path is not in the log or in ``staged/``.

        :param error: why the path itself was not opened; raised again if a link is not the reason.
        :param again: opens a path without links, below the table.
        :param is_one: whether a path is what is opened: then a link on the way was replaced by a directory meanwhile.
        """
        parts = path.split("/")
        places = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        for _ in range(_TRIES):
            if error.errno not in LINK:
                raise error
            if any(os.path.islink(self._absolute(place)) for place in places):
                target, root = os.path.realpath(self._absolute(path)), os.path.realpath(self.local_root)
                if parts[0] in _NO_LINKS or not target.startswith(f"{root.rstrip('/')}/"):
                    raise self._outside(path, f"leads through a symbolic link to {target}") from error
                place = target[len(root.rstrip("/")) + 1 :]
            elif is_one(self._absolute(path)):
                place = path
            else:
                raise error
            try:
                return again(place)
            except OSError as failure:
                error = failure
        raise self._outside(path, "is replaced by a symbolic link again and again") from error

    @contextlib.contextmanager
    def folder(self, directory: str) -> Iterator[int]:
        """Hold a directory of the table open inside a ``with`` block."""
        folder = self._open_folder(directory)
        try:
            yield folder
        finally:
            os.close(folder)

    def _outside(self, path: str, what: str) -> PathOutsideTableException:
        return self.error(
            PathOutsideTableException,
            f"{path} of table {self.root} {what}. Links are never followed in {' and '.join(_NO_LINKS)}, and elsewhere only to "
            "files of the table. Replace the link by the file itself, or remove it.",
        )

    def _not_regular(self, path: str) -> DeltaLogCorruptedException:
        return self.error(
            DeltaLogCorruptedException,
            f"{self._absolute(path)} of table {self.root} is not a regular file but a directory, a device, a pipe or a "
            "socket, so it is not read. If a file of the table belongs there, restore it from a backup. Before you delete "
            "what is there, find out who made it: a running transaction may use it.",
        )


class _Held:
    """A directory that is open as long as a store needs it."""

    def __init__(self, folder: int) -> None:
        self.folder = folder
        weakref.finalize(self, os.close, folder)


def parts_of(directory: str) -> list[str]:
    return [part for part in directory.split("/") if part not in ("", ".")]


def _walk(folder: int, parts: Sequence[str], *, close: bool = False) -> int:
    """Open a directory below an open one, following no link.

    :param close: close the open one.
    """
    if not parts:
        return os.dup(folder)
    for part in parts:
        try:
            inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            if close:
                os.close(folder)
        folder, close = inner, True
    return folder


def status_of(folder: int, directory: str, name: str) -> FileStatus | None:
    """Return the status of a file in an open directory, of a link that of its target."""
    try:
        status = os.stat(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileStatus(f"{directory}/{name}" if directory else name, status.st_size, status.st_mtime_ns // 1_000_000)


def is_there(folder: int, name: str) -> bool:
    """Return whether an open directory has a file or a link of a name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def files_below(folder: int, directory: str) -> Iterator[FileStatus]:
    """Yield all files below an open directory, which is closed at the end; its directories are opened one after the other."""
    try:
        with os.scandir(folder) as entries:
            children = list(entries)
        for entry in children:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if entry.is_dir(follow_symlinks=False):
                try:
                    inner = os.open(entry.name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                except OSError as error:
                    if error.errno not in _GONE:
                        raise
                    continue
                yield from files_below(inner, path)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # deleted during the listing, or a dangling link
                continue
            yield FileStatus(path, status.st_size, status.st_mtime_ns // 1_000_000, entry.is_symlink())
    finally:
        os.close(folder)


def write_all(descriptor: int, data: bytes) -> None:
    """Write to a file, in as many parts as the system takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
