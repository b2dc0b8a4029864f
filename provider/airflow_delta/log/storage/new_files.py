"""Many new files in a local directory that is one writer's own.

What the files have in common is done once: the way to the directory is opened, and directories that get subdirectories are synced
at the end. A file gets its name before its content, as nobody looks for it before the writer is done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from airflow_delta.log.storage.base import LogStore, NewFiles
from airflow_delta.log.storage.folders import FOLDER, write_all


class LocalNewFiles(NewFiles):
    """New files in a local directory, from any number of threads.

    :param folder: the open directory, which the caller closes.
    :param open_directory: opens a directory of the table, which is created if it is missing.
    :param durable: sync what is written.
    """

    def __init__(
        self, store: LogStore, directory: str, folder: int, open_directory: Callable[[str], int], *, durable: bool
    ) -> None:
        super().__init__(store, directory)
        self._open_directory = open_directory
        self._folder = folder
        self._durable = durable
        self._made: set[str] = set()
        self._grown: set[str] = set()

    def put(self, path: str, data: bytes) -> None:
        """Create a file; raises if there is one."""
        directory, _, name = path.rpartition("/")
        folder = self._open(directory) if directory else self._folder
        try:
            self._create(folder, name, data)
            if self._durable:
                os.fsync(folder)
        finally:
            if directory:
                os.close(folder)

    def sync(self) -> None:
        """Make the names of new subdirectories durable."""
        if not self._durable:
            return
        for directory in sorted(self._grown):
            folder = self._open_directory(self._below(directory)) if directory else self._folder
            try:
                os.fsync(folder)
            finally:
                if directory:
                    os.close(folder)

    def _below(self, directory: str) -> str:
        return f"{self._directory}/{directory}" if self._directory else directory

    def _open(self, directory: str) -> int:
        """Open a subdirectory, which is created if it is missing, following no link."""
        folder, above, parts = self._folder, "", directory.split("/")
        if ".." in parts:
            return self._open_directory(self._below(directory))
        try:
            for part in parts:
                path = f"{above}/{part}" if above else part
                if path not in self._made:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                    self._grown.add(above)
                    self._made.add(path)
                inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                if above:
                    os.close(folder)
                folder, above = inner, path
        except OSError:  # which this makes an error that says what to do
            if above:
                os.close(folder)
            return self._open_directory(self._below(directory))
        return folder

    def _create(self, folder: int, name: str, data: bytes) -> None:
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            try:
                write_all(descriptor, data)
                if self._durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise
