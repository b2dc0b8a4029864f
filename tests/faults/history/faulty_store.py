"""A local store that fails as remote ones do: errors, answers that are lost or late, delays, and the death of its process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from airflow_delta.log.storage.base import FileStatus, LogStore, Ranges
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreUnavailableError
from airflow_delta.log.storage.local import LocalStore


@dataclass(frozen=True)
class Chances:
    """How probable each fault is, at each request.

    :param error: the request fails.
    :param delay: it takes up to 5 ms longer.
    :param put: the put of a commit goes wrong in one of the ways of :meth:`FaultyStore.put_if_absent`.
    :param death: the process ends at the put of a commit, before or after it.
    """

    error: float = 0.0
    delay: float = 0.0
    put: float = 0.0
    death: float = 0.0


class FaultyStore(LocalStore):
    """A table in a local directory.

    :param listed: find commits by listing, as on an object store, not by probing.
    """

    def __init__(self, root: str, chances: Chances, seed: random.Random, *, listed: bool = False) -> None:
        super().__init__(root, {"durable": "false"})
        self.probes = not listed  # type: ignore[misc]
        self._chances = chances
        self._random = seed
        self._late: list[threading.Thread] = []

    def settle(self) -> None:
        """Wait until every late put has arrived."""
        for thread in self._late:
            thread.join()

    def _request(self, what: str) -> None:
        if self._random.random() < self._chances.delay:
            time.sleep(self._random.uniform(0, 0.005))
        if self._random.random() < self._chances.error:
            raise StoreUnavailableError(f"{what}: the store is overloaded")

    def read(self, path: str) -> bytes:
        self._request(path)
        return super().read(path)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self._request(path)
        return super().read_range(path, start, length)

    def head(self, path: str) -> FileStatus | None:
        self._request(path)
        return super().head(path)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        self._request(directory)
        names = [status.name for status in super().list_from(directory, start_name, stat=False)]
        # Not through head(), which is a request of its own.
        found = [LocalStore.head(self, f"{directory}/{name}") for name in names]
        return [status for status in found if status is not None]

    def open_input(self, path: str, size: int | None = None, ranges: Ranges | None = None) -> Any:
        self._request(path)
        return super().open_input(path, size, ranges)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._request(path)
        super().put(path, data, durable=durable)

    new_files = LogStore.new_files

    def put_file(self, path: str, file: BinaryIO) -> None:
        self._request(path)
        super().put_file(path, file)

    def delete(self, paths: Iterable[str]) -> None:
        self._request("delete")
        super().delete(paths)

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Put a commit, or let it go wrong: nothing is written, or it is and the answer says something else."""
        if not path.endswith(".json"):
            self._request(path)
            super().put_if_absent(path, data, durable=durable)
            return
        if self._random.random() < self._chances.delay:
            time.sleep(self._random.uniform(0, 0.005))
        if self._random.random() < self._chances.death:
            with contextlib.suppress(FileExistsError):
                if self._random.random() < 0.5:
                    super().put_if_absent(path, data)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._random.random() >= self._chances.put:
            super().put_if_absent(path, data)
            return
        faults: tuple[Callable[[str, bytes], None], ...] = (
            self._refused,
            self._lost,
            self._timeout,
            self._repeated,
            self._arrives_late,
        )
        self._random.choice(faults)(path, data)

    def _refused(self, path: str, _data: bytes) -> None:
        raise StoreUnavailableError(f"{path}: 503 Slow Down")

    def _lost(self, path: str, data: bytes) -> None:
        """Written, or not since another is there, or not at all: the answer is lost."""
        if self._random.random() < 0.7:
            with contextlib.suppress(FileExistsError):
                super().put_if_absent(path, data)
        raise AmbiguousPutError(f"{path}: 500 Internal Error")

    def _timeout(self, path: str, data: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            super().put_if_absent(path, data)
        raise StoreUnavailableError(f"{path}: timed out")

    def _repeated(self, path: str, data: bytes) -> None:
        """The client repeated the put by itself, and meets its own object."""
        super().put_if_absent(path, data)
        raise FileExistsError(path)

    def _arrives_late(self, path: str, data: bytes) -> None:
        """The request is still under way when the client gives it up."""
        wait = self._random.uniform(0.001, 0.03)

        def arrive() -> None:
            time.sleep(wait)
            with contextlib.suppress(FileExistsError):
                LocalStore.put_if_absent(self, path, data)

        self._late.append(threading.Thread(target=arrive))
        self._late[-1].start()
        raise AmbiguousPutError(f"{path}: connection reset")
