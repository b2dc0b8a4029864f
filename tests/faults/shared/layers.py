"""Stores in front of a real one: what they are asked for passes through, and a subclass changes the little that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from airflow_delta.log.storage.base import FileStatus, LogStore

EFFECTS = ("put_if_absent", "put", "put_file", "copy_from", "delete", "delete_tree")
"""What changes a table."""

READS = (
    "read", "read_many", "read_range", "read_ranges", "head", "list_from", "list_recursive", "list_readable", "list_directories",
    "list_children", "list_visible", "lists_in_pieces", "open_input", "scratch_file", "new_files",
)  # fmt: skip
"""What does not."""


class Layer(LogStore):
    """Passes everything on."""

    def __init__(self, below: LogStore) -> None:
        self.below = below
        self.root, self.local_root = below.root, below.local_root
        self.options: Mapping[str, str] = below.options
        self.connection = below.connection
        self.probes = below.probes  # type: ignore[misc]

    def read(self, path: str) -> bytes:
        return self.below.read(path)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.below.read_range(path, start, length)

    def head(self, path: str) -> FileStatus | None:
        return self.below.head(path)

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[FileStatus]:
        return self.below.list_from(directory, start_name, stat=stat)

    def list_recursive(self, directory: str, *, cuts: Sequence[str] = ()) -> Iterator[FileStatus]:
        return self.below.list_recursive(directory, cuts=cuts)

    def list_directories(self, directory: str) -> list[str]:
        return self.below.list_directories(directory)

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        return self.below.list_children(directory)

    def list_visible(self, skip: Callable[[str], bool]) -> Iterator[FileStatus]:
        return self.below.list_visible(skip)

    def open_input(self, path: str, size: int | None = None, ranges: Any = None) -> Any:
        return self.below.open_input(path, size, ranges)

    def scratch_file(self) -> BinaryIO:
        return self.below.scratch_file()

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.below.put_if_absent(path, data, durable=durable)

    def put(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self.below.put(path, data, durable=durable)

    def put_file(self, path: str, file: BinaryIO) -> None:
        self.below.put_file(path, file)

    def delete(self, paths: Iterable[str]) -> None:
        self.below.delete(paths)

    def delete_tree(self, directory: str) -> int:
        return self.below.delete_tree(directory)


class Remote(Layer):
    """Looks like an object store: no local path, no directories of its own, and the next version is found by listing."""

    def __init__(self, below: LogStore) -> None:
        super().__init__(below)
        self.local_root = None
        self.probes = False  # type: ignore[misc]

    def list_directories(self, directory: str) -> list[str]:
        names = self.below.list_directories(directory)
        return [name for name in names if any(self.list_recursive(f"{directory}/{name}" if directory else name))]

    def list_children(self, directory: str) -> tuple[list[str], list[str]]:
        return self.below.list_children(directory)[0], self.list_directories(directory)
