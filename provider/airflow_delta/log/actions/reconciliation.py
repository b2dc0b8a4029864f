"""Reconciling the file actions of the commits after a checkpoint: the last action of each logical file counts.

A logical file is a path together with the unique id of its deletion vector (protocol, "Action Reconciliation"; Delta's
InMemoryLogReplay). Paths are compared as URIs, as ``java.net.URI`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from airflow_delta.log.actions.actions import AddFile, RemoveFile

FileKey = tuple[str, str | None]

_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?(.*)", re.DOTALL)


class FileActions(Protocol):
    """The part of a decoded commit that is needed here."""

    @property
    def adds(self) -> list[AddFile]: ...

    @property
    def removes(self) -> list[RemoveFile]: ...


def is_plain(path: str) -> bool:
    """Tell whether a path has only one spelling: no escapes and no scheme."""
    return "%" not in path and ":" not in path


def canonical_path(path: str) -> str:
    """Return the canonical spelling of a URI: hex digits of escapes in upper case, scheme and host in lower case."""
    if is_plain(path):
        return path
    path = _ESCAPE.sub(lambda match: match[0].upper(), path)
    uri = _URI.fullmatch(path)
    if uri is None:
        return path
    scheme, authority, rest = uri.groups()
    # An empty authority (file:///x) means the same as none (file:/x).
    return f"{scheme.lower()}://{_lower_host(authority)}{rest}" if authority else f"{scheme.lower()}:{rest}"


def _lower_host(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}"


def file_key(action: AddFile | RemoveFile) -> FileKey:
    """Return the key of the logical file of an action."""
    vector = action.deletion_vector
    return canonical_path(action.path), None if vector is None else vector.unique_id


class TailFiles:
    """The outcome, for files, of the commits after a checkpoint, or of all commits if there is none.

    :ivar adds: live files added by these commits, by key, in commit order.
    :ivar removes: tombstones of these commits, by key.
    """

    __slots__ = ("adds", "removes")

    def __init__(self) -> None:
        self.adds: dict[FileKey, AddFile] = {}
        self.removes: dict[FileKey, RemoveFile] = {}

    @classmethod
    def of(cls, commits: Iterable[FileActions]) -> TailFiles:
        """Reconcile commits, oldest first."""
        tail = cls()
        for commit in commits:
            tail.apply(commit)
        return tail

    def copy(self) -> TailFiles:
        """Return an independent copy."""
        other = TailFiles()
        other.adds = dict(self.adds)
        other.removes = dict(self.removes)
        return other

    def apply(self, commit: FileActions) -> None:
        """Apply one more commit. Within a commit no two actions share a key (protocol), so their order does not matter."""
        for remove in commit.removes:
            key = file_key(remove)
            self.adds.pop(key, None)
            self.removes[key] = remove
        for add in commit.adds:
            key = file_key(add)
            self.removes.pop(key, None)
            self.adds[key] = add
