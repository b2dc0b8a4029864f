"""Tables on a local (or mounted) file system, through ``os``: safe across forks, with atomic and durable puts."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Self
from urllib.parse import unquote, urlsplit

from airflow_delta.exceptions import DeltaIllegalArgumentException, LocationNotWritableException, PathOutsideTableException
from airflow_delta.log.storage.base import UNKNOWN, FileStatus, Ranges
from airflow_delta.log.storage.errors import AmbiguousPutError
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.folders import FOLDER, LINK, LocalFolders, files_below, is_there, parts_of, status_of, write_all
from airflow_delta.log.storage.new_files import LocalNewFiles
from airflow_delta.log.storage.progress import tracked

_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EPERM, errno.EACCES}
_NO_LINK = {errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK, errno.EXDEV}

_COPIED_AT_ONCE = 4 << 20
_READ_AT_ONCE = 16 << 20

_NOT_CREATED = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS}


def local_path(table_uri: str) -> str:
    """Return the absolute path of a local table URI (``file:///x``, ``file:/x``, ``/x`` or a relative path)."""
    if table_uri[:5].lower() != "file:":
        return os.path.abspath(table_uri)
    parts = urlsplit(table_uri)
    if parts.netloc not in ("", "localhost"):
        raise DeltaIllegalArgumentException(
            f"Table location {table_uri} names the host '{parts.netloc}'. A local URI has three slashes: file:///path.",
            table=table_uri,
        )
    return os.path.abspath(unquote(table_uri[5:].removeprefix("//").removeprefix("localhost") if parts.netloc else parts.path))


def _creates(opened: Callable[[LocalStore, str], int]) -> Callable[[LocalStore, str], int]:
    """Raise a typed error if a directory cannot be created for its path or its owner; a full or broken disk stays as it is."""

    @functools.wraps(opened)
    def open_directory(store: LocalStore, directory: str) -> int:
        try:
            return opened(store, directory)
        except OSError as error:
            if error.errno not in _NOT_CREATED:
                raise
            path = os.path.join(store.local_root or "", directory)
            raise store.error(
                LocationNotWritableException,
                f"The directory {path} of table {store.root} cannot be created ({error.strerror}: {error.filename or path}). "
                f"Check the path, that the file system is mounted on this worker, and that {_user()} may write there.",
            ) from error

    return open_directory


def _user() -> str:
    return f"the worker's user (uid {os.geteuid()})" if hasattr(os, "geteuid") else "the worker's user"


class LocalStore(LocalFolders):
    """A table in a local directory.

    :param table_uri: path or ``file:`` URI.
    :param options: ``durable``: ``"false"`` skips fsync (for tests and throw-away tables).
    """

    probes = True

    def __init__(self, table_uri: str, options: Mapping[str, str] | None = None) -> None:
        self.root = table_uri.rstrip("/") or "/"
        self.local_root = local_path(table_uri)
        durable = str((options or {}).get("durable", "true")).strip().lower()
        if durable not in ("true", "false"):
            raise self.error(
                DeltaIllegalArgumentException,
                f"Storage option durable={durable!r} of table {self.root} must be 'true' or 'false'.",
            )
        self._durable = durable == "true"
        self._anonymous_files = hasattr(os, "O_TMPFILE")
        self._scratch: weakref.WeakSet[BinaryIO] = weakref.WeakSet()

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        descriptor = self._open(path)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size + 1)
            if len(data) != size:  # one read returns at most 2 GiB, and the file may have grown
                chunks = [data]
                while chunk := os.read(descriptor, 1 << 24):
                    chunks.append(chunk)
                data = b"".join(chunks)
            return data
        finally:
            os.close(descriptor)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several files' contents in the given order."""
        return [self.read(path) for path in tracked(paths, f"Reading files of {self.root}", len(paths))]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``start``."""
        descriptor = self._open(path)
        try:
            chunks: list[bytes] = []
            # In pieces, so that no memory is allocated beyond the end of the file.
            while length > 0 and (chunk := os.pread(descriptor, min(length, _READ_AT_ONCE), start)):
                chunks.append(chunk)
                start, length = start + len(chunk), length - len(chunk)
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            os.close(descriptor)

    def head(self, path: str) -> FileStatus | None:
        """Return a file's status, or ``None``."""
        directory, _, name = path.rpartition("/")
        try:
            folder = self._open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return status_of(folder, directory, name)
        finally:
            os.close(folder)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        """Return the direct children of a directory from ``start_name`` on."""
        try:
            folder = self._open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            names = sorted(name for name in os.listdir(folder) if name >= start_name)
            if not stat:
                return [FileStatus(f"{directory}/{name}", UNKNOWN, UNKNOWN) for name in names]
            found = (status_of(folder, directory, name) for name in names)
            return [status for status in found if status is not None]
        finally:
            os.close(folder)

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:  # noqa: ARG002 - disks are fast
        """Yield all files below a directory; a link is marked, with the size and time of its target."""
        try:
            folder = self._open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield from files_below(folder, directory)

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the subdirectories of a directory."""
        return self.list_children(directory)[1]

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the subdirectories in a directory, from one look: others may be making some."""
        try:
            folder = self._open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        names: tuple[list[str], list[str]] = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    names[entry.is_dir(follow_symlinks=False)].append(entry.name)
        finally:
            os.close(folder)
        return sorted(names[0]), sorted(names[1])

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the files of the table, except those below skipped names."""
        files, directories = self.list_children("")
        for name in files:
            if not skip(name):
                yield FileStatus(name, UNKNOWN, UNKNOWN)
        for name in directories:
            if not skip(name):
                yield from self.list_recursive(name)

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any:  # noqa: ARG002 - all there
        """Open a file for random access."""
        import pyarrow as pa

        file = os.fdopen(self._open(path), "rb")
        try:
            opened = pa.OSFile(f"/proc/self/fd/{file.fileno()}", mode="r")
        except OSError:  # /proc is not mounted
            return pa.PythonFile(file, mode="r")
        file.close()
        return opened

    # -- writing --------------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file, unless it exists: an unnamed file is written, synced and then linked to its name."""
        target = self._absolute(path)
        directory, name = os.path.split(path)
        durable = durable and self._durable
        folder = self._open_directory(directory)
        try:
            if is_there(folder, name):  # spares writing it
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            if not (self._anonymous_files and self._link_anonymous(folder, name, data, durable)):
                self._link_named(folder, name, data, durable)
            if durable:
                self._sync_directory(folder, target)
        finally:
            os.close(folder)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace a file by renaming a complete one over it."""
        self._replace(path, (data,), durable=durable)

    @contextlib.contextmanager
    def new_files(self, directory: str) -> Iterator[LocalNewFiles]:
        """Hold a directory open for many new files inside a ``with`` block."""
        folder = self._open_directory(directory)
        try:
            files = LocalNewFiles(self, directory, folder, self._open_directory, durable=self._durable)
            yield files
            files.sync()
        finally:
            os.close(folder)

    def scratch_file(self) -> BinaryIO:
        """Return an unnamed file of the table's file system if the system supports it, so that putting it copies nothing."""
        if self._anonymous_files:
            # Then any other place is fine.
            with contextlib.suppress(OSError, PathOutsideTableException, LocationNotWritableException):
                try:
                    folder = self._open_folder(LOG_DIRECTORY)
                except FileNotFoundError:  # the first files of a table are staged before its log
                    folder = self._open_directory("")
                try:
                    descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666, dir_fd=folder)
                finally:
                    os.close(folder)
                file = os.fdopen(descriptor, "w+b")
                self._scratch.add(file)
                return file
        return super().scratch_file()

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace a file with another's content, by linking a :meth:`scratch_file` or else copying in parts."""
        if file in self._scratch and file.tell() == 0 and self._replace(path, file):
            return
        self._replace(path, iter(lambda: file.read(_COPIED_AT_ONCE), b""))

    def _replace(self, path: str, content: Iterable[bytes] | BinaryIO, *, durable: bool = True) -> bool:
        """Replace a file by a complete new one; ``False`` if ``content`` is a file that cannot be linked."""
        directory, name = os.path.split(path)
        folder = self._open_directory(directory)
        temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            try:
                if isinstance(content, io.IOBase):
                    if not self._link_scratch(folder, temporary, content):
                        return False
                else:
                    self._write_new(folder, temporary, content, durable and self._durable)
                # Hadoop's checksum of the replaced file, by which its readers would consider the new one damaged.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f".{name}.crc", dir_fd=folder)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            if durable and self._durable:
                os.fsync(folder)
            return True
        finally:
            os.close(folder)

    def _link_scratch(self, folder: int, name: str, file: io.IOBase) -> bool:
        """Link an unnamed file to a name; ``False`` if it is on another file system or the system cannot do it."""
        file.flush()
        if self._durable:
            os.fsync(file.fileno())
        try:
            os.link(f"/proc/self/fd/{file.fileno()}", name, dst_dir_fd=folder, follow_symlinks=True)
        except OSError:
            return False
        return True

    @_creates
    def _open_directory(self, directory: str) -> int:
        """Open a directory, which is created if it is missing."""
        parts = parts_of(directory)
        try:
            folder, there = self._open_deepest(parts)
        except OSError as error:  # the table's own directory is missing, or there are links on the way
            if error.errno != errno.ENOENT and error.errno not in LINK:
                raise
            folder, there = self._open_above(directory)
        for name in parts[there:]:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                    if self._durable:
                        os.fsync(folder)
                inner = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                if error.errno in LINK:
                    raise self._outside(directory, "is replaced by a symbolic link") from error
                raise
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _open_above(self, directory: str) -> tuple[int, int]:
        """Do as :meth:`_open_deepest`, through links inside the table; the table's own directory is created if it is missing."""
        parts = parts_of(directory)
        with contextlib.suppress(FileNotFoundError):
            return self._open_folder(directory), len(parts)
        if self._held is None:
            self._make_root()
        there = len(parts)
        while True:
            there = max(there - 1, 0)
            try:
                return self._open_folder("/".join(parts[:there])), there
            except FileNotFoundError:
                if there == 0:
                    raise

    def _make_root(self) -> None:
        missing, directory = [], self.local_root.rstrip("/")
        while directory and not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            if self._durable:
                parent = os.open(os.path.dirname(path), FOLDER)
                try:
                    os.fsync(parent)
                finally:
                    os.close(parent)

    def _link_anonymous(self, folder: int, name: str, data: bytes, durable: bool) -> bool:
        """Put through ``O_TMPFILE`` and ``linkat``; return ``False`` if the file system does not support it."""
        try:
            descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            self._anonymous_files = False
            return False
        try:
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
            try:
                os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
            except FileExistsError:
                raise
            except OSError as error:
                if error.errno not in _NO_LINK and not isinstance(error, FileNotFoundError):
                    raise
                self._anonymous_files = False  # /proc is not mounted, or unnamed files cannot be linked here
                return False
        finally:
            os.close(descriptor)
        return True

    def _link_named(self, folder: int, name: str, data: bytes, durable: bool) -> None:
        """Put through a temporary file and a hard link."""
        temporary = f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            self._write_new(folder, temporary, (data,), durable)
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                # Over NFS the reply to a successful link may be lost; the link count then shows the second name.
                if os.stat(temporary, dir_fd=folder).st_nlink == 2:
                    return
                if error.errno in _NO_LINK:
                    raise OSError(
                        error.errno,
                        f"The file system of {self.local_root} does not support hard links, so commits cannot be atomic. "
                        "Move the table to a file system with hard links, or to an object store",
                    ) from error
                raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)

    def _write_new(self, folder: int, name: str, chunks: Iterable[bytes], durable: bool) -> None:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def _sync_directory(folder: int, target: str) -> None:
        try:
            os.fsync(folder)
        except OSError as error:  # the file is visible, but its name may not survive a crash
            raise AmbiguousPutError(error.errno, f"The directory entry of {target} could not be synced") from error

    # -- deleting -------------------------------------------------------------------------------------------------------------

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        with _Folders(self) as folders:
            for path in tracked(paths, f"Deleting from {self.root}"):
                directory, _, name = path.rpartition("/")
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(name, dir_fd=folders.open(directory))

    def delete_tree(self, directory: str) -> int:
        """Delete a directory with everything below it; symbolic links are unlinked, not followed."""
        if not directory.strip("/"):
            raise self.error(DeltaIllegalArgumentException, f"Refusing to delete the whole table directory of {self.root}.")
        try:
            folder = self._open_folder(directory)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        count = 0
        try:
            for _, folders, files, base in os.fwalk(".", topdown=False, dir_fd=folder):
                for name in files:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=base)
                        count += 1
                for name in folders:
                    try:
                        os.rmdir(name, dir_fd=base)
                    except NotADirectoryError:
                        os.unlink(name, dir_fd=base)
                        count += 1
                    except OSError:  # another process created a file there meanwhile
                        continue
        finally:
            os.close(folder)
        self.remove_directory(directory)
        return count

    def remove_directory(self, directory: str) -> bool:
        """Delete a directory if it is empty, and return whether it was."""
        parent, _, name = directory.rstrip("/").rpartition("/")
        try:
            folder = self._open_folder(parent)
        except OSError:
            return False
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError:  # not empty, or gone
            return False
        finally:
            os.close(folder)
        return True


class _Folders:
    """Keeps the last directory open: consecutive deletions are mostly in the same one."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._directory: str | None = None
        self._folder = -1

    def open(self, directory: str) -> int:
        """Return a descriptor of a directory, valid until the next call."""
        if directory != self._directory:
            self.close()
            self._folder = self._store._open_folder(directory)
            self._directory = directory
        return self._folder

    def close(self) -> None:
        """Close the open directory, if any."""
        if self._directory is not None:
            self._directory = None
            os.close(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
