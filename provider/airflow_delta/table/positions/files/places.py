"""How a file that was loaded is recognised: by its place, however its directory is spelled."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from airflow_delta.contract.location import Location
from airflow_delta.lazy_patterns import lazy_pattern

_DEFAULT_CONSUMER = lazy_pattern(r"[0-9a-f]{16}")


class Recorded(Protocol):
    """A file as a record has it: its URI, and how the author spelled that if it differs."""

    @property
    def path(self) -> str: ...

    @property
    def spelled(self) -> str | None: ...


F = TypeVar("F", bound=Recorded)


class Places:
    """Recognises files by their place: records may have been written under another spelling of it, or another link to it.

    :param options: storage options under their canonical names, of where the files are.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})
        self._directories: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return what is equal for two URIs of one file, as records have them: not URL-encoded."""
        directory, _, name = path.rpartition("/")
        return f"{self.of_directory(directory)}/{name}"

    def of_directory(self, directory: str) -> str:
        """Return what is equal for two URIs of one directory."""
        found = self._directories.get(directory)
        if found is None:
            scheme, separator, rest = directory.partition("://")
            bucket, _, path = rest.partition("/")
            root = Location.parse(f"{scheme}{separator}{bucket}/", self._options)
            whole = replace(root, path=f"/{path}" if path else "")
            found = self._directories[directory] = whole.resolved(self._options).key.rstrip("/")
        return found

    def known(self, files: Mapping[str, F]) -> dict[str, F]:
        """Return files by their places, and by how they were spelled; the last one counts."""
        found: dict[str, F] = {}
        for path, file in files.items():
            found |= dict.fromkeys((path, self.of(path), file.spelled or path), file)
        return found


def default_consumer(directory: str) -> str:
    """Return the name of whoever loads files of a directory; what the rest of the pattern is does not matter."""
    return hashlib.sha256(directory.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def loads_from(consumer: str, files: Mapping[str, Recorded], directories: Collection[str], places: Places) -> bool:
    """Return whether a consumer was not named by the author, but after its directory, and that is one of these.

    :param files: that it has loaded.
    :param directories: places, or how they are spelled.
    """
    file = next(reversed(list(files.values())), None)
    directory = file.path if file is not None and _DEFAULT_CONSUMER.fullmatch(consumer) else ""
    while "://" in directory:
        directory = directory.rpartition("/")[0]
        if file is not None and default_consumer(directory) == consumer:
            spelled = file.spelled.removesuffix(file.path[len(directory) :]) if file.spelled else directory
            return not {directory, spelled, places.of_directory(directory)}.isdisjoint(directories)
    return False
