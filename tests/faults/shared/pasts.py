"""A store that serves the past: what another client has written shows up to a minute later, by a clock that the test sets.

As NFS and object stores without strong consistency do: a listing may be old, and a name that was looked up may still be missing.
What a client wrote or deleted itself it sees at once. Puts are decided by the store, so they are never wrong about what exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from airflow_delta.log.storage.base import FileStatus, LogStore
from faults.shared.layers import Remote

WINDOW = 60.0


@dataclass
class World:
    """What all clients share.

    :ivar now: seconds, by the test's clock.
    :ivar born: when a file came to be, and by which client; of files that are there.
    """

    now: float = 0.0
    born: dict[str, tuple[float, object]] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        """Stand for ``time.sleep``."""
        self.now += seconds


class Past(Remote):
    """A client of such a store, at its worst: everything of the last minute that another client made is missing.

    A log entry that it could not put twice it sees: the commit loop puts again and again without waiting for long.
    """

    def __init__(self, below: LogStore, world: World) -> None:
        super().__init__(below)
        self._world = world
        self._refused: Counter[str] = Counter()

    def _hidden(self, path: str) -> bool:
        time, by = self._world.born.get(path, (float("-inf"), None))
        seen = path.startswith("_delta_log/") and self._refused[path] > 1
        return by is not self and self._world.now - time < WINDOW and not seen

    def _made(self, path: str) -> None:
        self._world.born[path] = (self._world.now, self)

    # -- reading ----------------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes:
        if self._hidden(path):
            raise FileNotFoundError(path)
        return self.below.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        if self._hidden(path):
            raise FileNotFoundError(path)
        return self.below.read_range(path, start, length)

    def head(self, path: str) -> FileStatus | None:
        return None if self._hidden(path) else self.below.head(path)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        found = self.below.list_from(directory, start_name, stat=stat)
        return [status for status in found if not self._hidden(status.path)]

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        for status in self.below.list_recursive(directory, cuts=cuts):
            if not self._hidden(status.path):
                yield status

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        for status in self.below.list_visible(skip):
            if not self._hidden(status.path):
                yield status

    def open_input(self, path: str, size: int | None = None, ranges: Any = None) -> Any:
        if self._hidden(path):
            raise FileNotFoundError(path)
        return self.below.open_input(path, size, ranges)

    # -- writing ----------------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        try:
            self.below.put_if_absent(path, data, durable=durable)
        except FileExistsError:
            self._refused[path] += 1
            raise
        self._made(path)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.below.put(path, data, durable=durable)
        self._made(path)

    def put_file(self, path: str, file: BinaryIO) -> None:
        self.below.put_file(path, file)
        self._made(path)

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self.below.delete(paths)
        for path in paths:
            self._world.born.pop(path, None)

    def delete_tree(self, directory: str) -> int:
        paths = [status.path for status in self.list_recursive(directory)]
        self.delete(paths)
        return len(paths)
