"""The file actions of the JSON commits after a checkpoint, reconciled: the last action of every logical file counts.

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
    """What is needed of a decoded commit."""

    @property
    def adds(self) -> list[AddFile]: ...

    @property
    def removes(self) -> list[RemoveFile]: ...


def is_plain(path: str) -> bool:
    """Tell whether a path has one spelling only: neither escapes nor a scheme."""
    return "%" not in path and ":" not in path


def canonical_path(path: str) -> str:
    """Return the spelling that all spellings of one URI share: digits of escapes in upper case, scheme and host in lower case."""
    if is_plain(path):
        return path
    path = _ESCAPE.sub(lambda match: match[0].upper(), path)
    uri = _URI.fullmatch(path)
    if uri is None:
        return path
    scheme, authority, rest = uri.groups()
    # An empty authority (file:///x) is no authority (file:/x).
    return f"{scheme.lower()}://{_lower_host(authority)}{rest}" if authority else f"{scheme.lower()}:{rest}"


def _lower_host(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    return f"{user}{at}{host.lower()}"


def file_key(action: AddFile | RemoveFile) -> FileKey:
    """Return what identifies the logical file of an action."""
    vector = action.deletion_vector
    return canonical_path(action.path), None if vector is None else vector.unique_id


class TailFiles:
    """What the commits after a checkpoint (or all commits, where there is none) leave of files.

    :ivar adds: files that are live because of these commits, by key, in the order of their commits.
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
        """Return a copy that can go on without changing this one."""
        other = TailFiles()
        other.adds = dict(self.adds)
        other.removes = dict(self.removes)
        return other

    def apply(self, commit: FileActions) -> None:
        """Go on by one commit. Within a commit no two actions share a key (protocol), so their order does not matter."""
        for remove in commit.removes:
            key = file_key(remove)
            self.adds.pop(key, None)
            self.removes[key] = remove
        for add in commit.adds:
            key = file_key(add)
            self.removes.pop(key, None)
            self.adds[key] = add
