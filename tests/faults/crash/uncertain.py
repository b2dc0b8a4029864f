"""A store whose answer to one request is wrong, or cannot be trusted, as it reaches the engine behind the store's client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from airflow_delta.log.storage.base import FileStatus, LogStore
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreUnavailableError
from faults.shared.layers import Remote

PUT = ("500 after it took effect", "timed out, took no effect", "takes effect later", "repeated by the client")
LIST = ("listing misses the newest object",)
READ = ("torn read", "read of an object that is being written")
FAULTS = (*PUT, *LIST, *READ)

LATER = 3
"""How many requests later a put takes effect whose answer was lost."""


class Uncertain(Remote):
    """Fails once.

    :param fault: one of :data:`FAULTS`.
    :param at: number of the request that it happens to, of those that it can happen to; ``None``: only count these.
    :ivar count: of those requests.
    :ivar hit: the request it happened to.
    """

    def __init__(self, below: LogStore, fault: str, at: int | None) -> None:
        super().__init__(below)
        self._fault, self._at = fault, at
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._requests = 0
        self.count = 0
        self.hit: str | None = None

    def _fails(self, kinds: Sequence[str], what: str) -> bool:
        """Count a request of a kind, and tell whether the fault happens to it."""
        self._requests += 1
        for due, effect in [entry for entry in self._late if entry[0] <= self._requests]:
            self._late.remove((due, effect))
            effect()
        if self._fault not in kinds:
            return False
        self.count += 1
        if self.count - 1 != self._at:
            return False
        self.hit = what
        return True

    # -- writing ----------------------------------------------------------------------------------------------------------------

    def _change(self, what: str, effect: Callable[[], Any], error: type[OSError] = StoreUnavailableError) -> Any:
        if not self._fails(PUT, what):
            return effect()
        if self._fault == "takes effect later" and error is AmbiguousPutError:
            self._late.append((self._requests + LATER, lambda: _unless_there(effect)))
        elif self._fault != "timed out, took no effect":
            effect()
        if self._fault == "repeated by the client":
            if error is AmbiguousPutError:
                raise FileExistsError(what)
            return effect()
        raise error(what)

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._change(f"put_if_absent {path}", lambda: self.below.put_if_absent(path, data, durable=durable), AmbiguousPutError)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._change(f"put {path}", lambda: self.below.put(path, data, durable=durable))

    def put_file(self, path: str, file: BinaryIO) -> None:
        data = file.read()
        self._change(f"put_file {path}", lambda: self.below.put(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self._change(f"delete {paths}", lambda: self.below.delete(paths))

    def delete_tree(self, directory: str) -> int:
        return int(self._change(f"delete_tree {directory}", lambda: self.below.delete_tree(directory)) or 0)

    # -- reading ----------------------------------------------------------------------------------------------------------------

    def _content(self, path: str, data: bytes) -> bytes:
        if not self._fails(READ, f"read {path}"):
            return data
        return data[: len(data) // 2 - 1] if self._fault == "torn read" else b""

    def read(self, path: str) -> bytes:
        return self._content(path, self.below.read(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._content(path, self.below.read_range(path, start, length))

    def open_input(self, path: str, size: int | None = None, ranges: Any = None) -> Any:
        import pyarrow as pa

        with self.below.open_input(path, size, ranges) as file:
            return pa.BufferReader(self._content(path, file.read()))

    def _listed(self, directory: str, found: list[FileStatus]) -> list[FileStatus]:
        if not self._fails(LIST, f"list {directory}") or not found:
            return found
        newest = max(found, key=lambda status: (status.modification_time, status.path))
        return [status for status in found if status != newest]

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        return self._listed(directory, self.below.list_from(directory, start_name, stat=stat))

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        yield from self._listed(directory, list(self.below.list_recursive(directory, cuts=cuts)))

    def head(self, path: str) -> FileStatus | None:
        self._fails((), path)
        return self.below.head(path)


def _unless_there(effect: Callable[[], Any]) -> None:
    with contextlib.suppress(FileExistsError):
        effect()
