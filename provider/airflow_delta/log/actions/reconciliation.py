"""Reconciling the file actions of the commits after a checkpoint: the last action of each logical file counts.

A logical file is a path together with the unique id of its deletion vector (protocol, "Action Reconciliation"; Delta's
InMemoryLogReplay). Writers spell one path in several ways: Delta Spark leaves letters beyond ASCII as they are, delta-rs encodes
them when it removes the file. Paths that decode to the same file are one file here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import quote_from_bytes, unquote_to_bytes

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import AddFile, RemoveFile

FileKey = tuple[str, str | None]

MARKS = "_-!.~'(),;:$&+=@/"
"""What a path holds unencoded beside ASCII letters and digits: RFC 2396's "pchar" without ``*``, as delta-rs, and the slash."""

_RELATIVE_MARKS = MARKS.replace(":", "")
_PLAIN = lazy_pattern(r"[A-Za-z0-9_\-!.~'(),;$&+=@/]*")
_URI = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*)(?![^/])|(?=/))(.*)", re.DOTALL)


class FileActions(Protocol):
    """The part of a decoded commit that is needed here."""

    @property
    def adds(self) -> list[AddFile]: ...

    @property
    def removes(self) -> list[RemoveFile]: ...


def has_one_spelling(path: str) -> bool:
    """Tell whether a path is its own canonical spelling: it has no scheme, and nothing that is or should be encoded."""
    return _PLAIN.fullmatch(path) is not None


def canonical_path(path: str) -> str:
    """Return the canonical spelling of a URI: ASCII, only encoded where it must be, scheme and host in lower case.

    A colon in a relative path is encoded, so that it does not look like the end of a scheme.
    """
    if _PLAIN.fullmatch(path) is not None:  # is_plain, without another call for each file
        return path
    uri = _URI.fullmatch(path)
    if uri is None:
        return _encoded(path, _RELATIVE_MARKS)
    scheme, authority, rest = uri.groups()
    # An empty authority (file:///x) means the same as none (file:/x).
    prefix = f"{scheme.lower()}://{_lower_host(authority)}" if authority else f"{scheme.lower()}:"
    return prefix + _encoded(rest, MARKS)


def _encoded(path: str, marks: str) -> str:
    # As bytes: what is not UTF-8 stays what it is.
    return quote_from_bytes(unquote_to_bytes(path.encode("utf-8", "surrogatepass")), safe=marks)


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
