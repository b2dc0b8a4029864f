"""The cache of the API server: commits by table and version, and pages for a moment.

A commit never changes; if its size or time differs, it is another one (the table was deleted and recreated). Everything is kept
as text up to a limit of bytes, and the least recently used goes first.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_delta.light_dataclasses import dataclass

MAX_BYTES = 32 << 20
"""Characters of JSON."""

_MAX_COMMITS_OF_A_TABLE = 500

_LARGEST = 2 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    text: str
    at: float


class KnownCommits:
    """Some cached commits of a table at one moment.

    :param kept: by version: size and time, and the summary as text.
    """

    def __init__(self, owner: Remembered, of: str, kept: Mapping[int, tuple[Sequence[int], str]]) -> None:
        self._owner = owner
        self._of = of
        self._kept = kept

    def stamps(self) -> dict[str, list[int]]:
        """Return size and time of the commits, by version."""
        return {str(version): list(stamp) for version, (stamp, _) in self._kept.items()}

    def completed(self, commits: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the commits of an answer, with known ones filled in; new ones are cached."""
        told = []
        for commit in commits:
            version = commit["version"]
            if commit.get("known"):
                told.append(json.loads(self._kept[version][1]))
                continue
            self._owner.keep_commit(self._of, version, commit)
            told.append(dict(commit))
        return told


class Remembered:
    """The cache of one API server process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()
        self._commits: OrderedDict[str, dict[int, tuple[Sequence[int], str]]] = OrderedDict()
        self._bytes = 0

    def fresh(self, key: tuple[Any, ...], seconds: float) -> Any:
        """Return a result cached less than ``seconds`` ago, otherwise ``None``."""
        with self._lock:
            kept = self._results.get(key)
        return json.loads(kept.text) if kept is not None and time.monotonic() - kept.at < seconds else None

    def result(self, key: tuple[Any, ...]) -> Any:
        """Return a cached result, otherwise ``None``."""
        with self._lock:
            kept = self._results.get(key)
            if kept is not None:
                self._results.move_to_end(key)
        return json.loads(kept.text) if kept is not None else None

    def keep(self, key: tuple[Any, ...], result: Any) -> None:
        """Cache a result."""
        text = json.dumps(result)
        if len(text) > _LARGEST:
            return
        with self._lock:
            self._drop_result(key)
            self._results[key] = _Kept(text, time.monotonic())
            self._bytes += len(text)
            self._make_room()

    def commits(self, of: str) -> KnownCommits:
        """Return the cached commits of a table.

        :param of: its :attr:`~airflow_delta.ui.place.Place.id`.
        """
        with self._lock:
            kept = self._commits.get(of)
            if kept is not None:
                self._commits.move_to_end(of)
            return KnownCommits(self, of, dict(kept or {}))

    def keep_commit(self, of: str, version: int, commit: Mapping[str, Any]) -> None:
        """Cache a commit with its ``stamp``."""
        text = json.dumps(commit)
        if len(text) > _LARGEST:
            return
        with self._lock:
            kept = self._commits.setdefault(of, {})
            self._bytes -= len(kept.pop(version, ((), ""))[1])
            while len(kept) >= _MAX_COMMITS_OF_A_TABLE:
                self._bytes -= len(kept.pop(next(iter(kept)))[1])
            kept[version] = (tuple(commit["stamp"]), text)
            self._bytes += len(text)
            self._make_room()

    def _drop_result(self, key: tuple[Any, ...]) -> None:
        if (kept := self._results.pop(key, None)) is not None:
            self._bytes -= len(kept.text)

    def _make_room(self) -> None:
        while self._bytes > MAX_BYTES and self._results:
            self._drop_result(next(iter(self._results)))
        while self._bytes > MAX_BYTES and self._commits:
            _, commits = self._commits.popitem(last=False)
            self._bytes -= sum(len(text) for _, text in commits.values())
