"""Tables on HDFS, through hdfs-native: the client in Rust, without a JVM.

A commit is a rename without overwriting, one step of the name node: a complete file gets its name, unless the name is taken.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NoReturn

from airflow_delta.exceptions import DeltaIllegalArgumentException, PathOutsideTableException
from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreAccessError, StoreUnavailableError
from airflow_delta.log.storage.fork import check_runtime
from airflow_delta.log.storage.options import HDFS_USER
from airflow_delta.log.storage.progress import tracked
from airflow_delta.log.storage.refusals import panics_as_errors
from airflow_delta.log.storage.whole_reads import complete

SCHEME = "hdfs"
USER_VARIABLE = "HADOOP_USER_NAME"

_named_by_us: dict[int, str] = {}
"""By process, the user that a connection has named: it is not that of a connection which names none."""

_THREADS = 16
_COPIED_AT_ONCE = 4 << 20


class HdfsStore(LogStore):
    """A table on HDFS; the client is made on first use, never at import or in a parent process.

    :param table_uri: ``hdfs://name-node:8020/path``, or ``hdfs://nameservice/path`` with the name nodes in the options or in
        ``HADOOP_CONF_DIR``.
    :param options: settings of Hadoop's client (``dfs.*``), and ``hadoop_user_name``.
    :param connection: name of the connection that they come from, for errors.
    """

    probes = True

    def __init__(self, table_uri: str, options: Mapping[str, str] | None = None, connection: str | None = None) -> None:
        self.root = table_uri.rstrip("/")
        self.options = dict(options or {})
        self.connection = connection
        self._authority, slash, path = self.root.partition("://")[2].partition("/")
        if not self._authority or not path.strip("/"):
            raise DeltaIllegalArgumentException(
                f"Table location {table_uri} must name a name node and a directory: hdfs://name-node:8020/path.", table=table_uri
            )
        self._directory = f"{slash}{path}"
        self._made: Any = None

    # -- the client -----------------------------------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        check_runtime(self.root)
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Any:
        try:
            from hdfs_native import Client
        except ModuleNotFoundError as error:
            raise self.error(
                DeltaIllegalArgumentException,
                f"Table {self.root} is on HDFS, which needs the package hdfs-native: pip install 'airflow-provider-delta[hdfs]'.",
            ) from error
        self._become(self.options.get(HDFS_USER))
        config = {name: value for name, value in self.options.items() if "." in name}
        try:
            with panics_as_errors():
                return Client(f"{SCHEME}://{self._authority}", config)
        except (OSError, ValueError, RuntimeError) as error:
            raise self.error(
                DeltaIllegalArgumentException,
                f"The name node of table {self.root} cannot be addressed: {error}. Check the location, and the settings of "
                f"{self._whose}.",
            ) from error

    def _become(self, user: str | None) -> None:
        """Name the user in the environment, the only place where the client and Spark's driver look for it."""
        named = os.environ.get(USER_VARIABLE)
        if user and named is None:
            os.environ[USER_VARIABLE] = _named_by_us[os.getpid()] = user
            return
        ours = _named_by_us.get(os.getpid())
        if (user or (None if ours is not None else named)) != named:
            raise self.error(
                DeltaIllegalArgumentException,
                f"{self._whose} uses HDFS {f'as {user!r}' if user else 'without a user'}, but {USER_VARIABLE} of this process is "
                f"{named!r}, and a process has one user. Unset the variable on the worker, or use one user.",
            )

    @property
    def _whose(self) -> str:
        return f"the connection {self.connection!r}" if self.connection else f"table {self.root}"

    def _absolute(self, path: str) -> str:
        if ".." in path.split("/"):
            raise self.error(PathOutsideTableException, f"{path} of table {self.root} leads out of it.")
        return f"{self._directory}/{path}" if path else self._directory

    def _failed(self, error: Exception, operation: str, path: str) -> NoReturn:
        """Raise what a failed request means."""
        where = f"{self.root}/{path}"
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(where) from error
        if isinstance(error, PermissionError):
            raise StoreAccessError(
                f"{operation} {where} was refused: {_first_line(error)}. Let the user of {self._whose} read and write the table."
            ) from error
        raise StoreUnavailableError(f"{operation} {where} failed: {_first_line(error)}. Check {self._whose}.") from error

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        client = self._client

        def read() -> tuple[bytes, int]:
            try:
                with panics_as_errors():
                    file = client.read(self._absolute(path))
                    return bytes(file.read()), len(file)
            except (OSError, RuntimeError) as error:
                self._failed(error, "Reading", path)

        return complete(f"{self.root}/{path}", read)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        """Return several files' contents in the given order, read concurrently."""
        if len(paths) < 2:
            return [self.read(path) for path in paths]
        _ = self._client  # made once, not by each thread
        with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
            return list(tracked(pool.map(self.read, paths), f"Reading files of {self.root}", len(paths)))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``start``."""
        client = self._client

        def read() -> tuple[bytes, int]:
            try:
                with panics_as_errors():
                    file = client.read(self._absolute(path))
                    size = max(min(length, len(file) - start), 0)
                    return bytes(file.read_range(start, size)) if size else b"", size
            except (OSError, RuntimeError) as error:
                self._failed(error, "Reading", path)

        return complete(f"{self.root}/{path}", read)

    def head(self, path: str) -> FileStatus | None:
        """Return a file's status, or ``None``."""
        found = self._info(path)
        return None if found is None or found.isdir else FileStatus(path, found.length, found.modification_time)

    def _info(self, path: str) -> Any:
        client = self._client
        try:
            with panics_as_errors():
                return client.get_file_info(self._absolute(path))
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError) as error:
            self._failed(error, "Reading", path)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:  # noqa: ARG002 - known anyway
        """Return the files in a directory from ``start_name`` on."""
        found = (self._status(entry) for entry in self._list(directory) if not entry.isdir)
        return sorted((status for status in found if status.name >= start_name), key=lambda status: status.path)

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:  # noqa: ARG002 - one request
        """Yield all files below a directory."""
        for entry in self._list(directory, recursive=True):
            if not entry.isdir:
                yield self._status(entry)

    def list_directories(self, directory: str) -> list[str]:
        """Return the names of the subdirectories of a directory."""
        return self.list_children(directory)[1]

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the subdirectories in a directory."""
        names: tuple[list[str], list[str]] = [], []
        for entry in self._list(directory):
            names[bool(entry.isdir)].append(entry.path.rpartition("/")[2])
        return sorted(names[0]), sorted(names[1])

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        """Yield the files of the table, except those below skipped names."""
        for entry in self._list(""):
            name = entry.path.rpartition("/")[2]
            if skip(name):
                continue
            if entry.isdir:
                yield from self.list_recursive(name)
            else:
                yield self._status(entry)

    def _list(self, directory: str, *, recursive: bool = False) -> Iterator[Any]:
        client = self._client
        try:
            with panics_as_errors():
                yield from client.list_status(self._absolute(directory), recursive)
        except FileNotFoundError:
            return
        except (OSError, RuntimeError) as error:
            self._failed(error, "Listing", directory)

    def _status(self, entry: Any) -> FileStatus:
        path = str(entry.path).removeprefix(f"{SCHEME}://{self._authority}")
        return FileStatus(path[len(self._directory) + 1 :], entry.length, entry.modification_time)

    # -- writing --------------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create a file, unless it exists: a complete one is renamed to its name."""
        target = self._absolute(path)
        temporary = self._write_new(target, (data,), durable)
        try:
            with panics_as_errors():
                self._client.rename(temporary, target, overwrite=False)
        except (OSError, RuntimeError) as error:
            self._settle(temporary, path, error)

    def _settle(self, temporary: str, path: str, error: Exception) -> None:
        """Decide a rename that failed: only it takes the temporary name away, so that name tells whether it was done.

        The answer of one that was done may be lost, and its repetition finds the name taken - by itself.
        """
        where = f"{self.root}/{path}"
        try:
            with panics_as_errors():
                self._client.get_file_info(temporary)
        except FileNotFoundError:
            if self.head(path) is not None:
                return
            raise AmbiguousPutError(f"It is unknown whether {where} was written: {_first_line(error)}") from error
        except (OSError, RuntimeError):
            raise AmbiguousPutError(f"It is unknown whether {where} was written: {_first_line(error)}") from error
        self._remove(temporary)  # a rename that is still on its way cannot be done any more
        if isinstance(error, FileExistsError):
            raise FileExistsError(where) from error
        if isinstance(error, PermissionError):
            self._failed(error, "Writing", path)
        raise AmbiguousPutError(f"It is unknown whether {where} was written: {_first_line(error)}") from error

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace a file by renaming a complete one over it."""
        self._replace(path, (data,), durable=durable)

    def put_file(self, path: str, file: BinaryIO) -> None:
        """Create or replace a file with the content of an open file, in parts."""
        self._replace(path, iter(lambda: file.read(_COPIED_AT_ONCE), b""))

    def _replace(self, path: str, chunks: Iterable[bytes], *, durable: bool = True) -> None:
        target = self._absolute(path)
        temporary = self._write_new(target, chunks, durable)
        try:
            with panics_as_errors():
                self._client.rename(temporary, target, overwrite=True)
        except (OSError, RuntimeError) as error:
            self._remove(temporary)
            self._failed(error, "Writing", path)

    def _write_new(self, target: str, chunks: Iterable[bytes], durable: bool) -> str:
        """Write a file of a new name beside ``target`` and return its path."""
        from hdfs_native import WriteOptions

        directory, _, name = target.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
        client = self._client
        try:
            with panics_as_errors():
                writer = client.create(temporary, WriteOptions(overwrite=False, create_parent=True))
                for chunk in chunks:
                    writer.write(chunk)
                if durable:
                    writer.hsync()
                writer.close()
        except (OSError, RuntimeError) as error:
            self._remove(temporary)
            self._failed(error, "Writing", temporary.removeprefix(f"{self._directory}/"))
        return temporary

    def _remove(self, absolute: str) -> None:
        with contextlib.suppress(OSError, RuntimeError), panics_as_errors():
            self._client.delete(absolute, False)

    # -- deleting -------------------------------------------------------------------------------------------------------------

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        client = self._client

        def one(path: str) -> None:
            try:
                with panics_as_errors():
                    client.delete(self._absolute(path), False)
            except FileNotFoundError:
                return
            except (OSError, RuntimeError) as error:
                self._failed(error, "Deleting", path)

        wanted = list(paths)
        if len(wanted) < 2:
            for path in wanted:
                one(path)
            return
        with ThreadPoolExecutor(min(_THREADS, len(wanted))) as pool:
            list(tracked(pool.map(one, wanted), f"Deleting from {self.root}", len(wanted)))

    def delete_tree(self, directory: str) -> int:
        """Delete a directory with everything below it."""
        if not directory.strip("/"):
            raise self.error(DeltaIllegalArgumentException, f"Refusing to delete the whole table directory of {self.root}.")
        count = sum(1 for _ in self.list_recursive(directory))
        try:
            with panics_as_errors():
                self._client.delete(self._absolute(directory), True)
        except FileNotFoundError:
            return 0
        except (OSError, RuntimeError) as error:
            self._failed(error, "Deleting", directory)
        return count


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:400]
