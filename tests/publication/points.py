"""The puts of a publication as points at which a test can do something: kill the worker, or let others work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_delta.log.storage.base import LogStore
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.log.storage.object import ObjectStore
from publication.lake import KilledError

_ENTRY = re.compile(r"_delta_log/[0-9]{20}\.json")
_PLAN = re.compile(r"staged/[^/]+/publication-[0-9a-f]{16}\.json")
_STATE = re.compile(rb'"airflow\.publicationState":"([a-z]+)"')

Visit = Callable[[str, str], None]
"""Called ``before`` and ``after`` each put with its name, such as ``intent lines`` or ``plan orders``."""


@contextmanager
def visited(visit: Visit) -> Iterator[None]:
    """Call ``visit`` around every put of a publication inside the block, on the local file system and on object stores."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (LocalStore, ObjectStore):
            patch.setattr(kind, "put_if_absent", _visiting(visit, kind.put_if_absent))
        yield


def _visiting(visit: Visit, real: Callable[..., None]) -> Callable[..., None]:
    def put(store: LogStore, path: str, data: bytes, **options: Any) -> None:
        name = _name(store, path, data)
        if name is not None:
            visit("before", name)
        real(store, path, data, **options)
        if name is not None:
            visit("after", name)

    return put


def _name(store: LogStore, path: str, data: bytes) -> str | None:
    table = store.root.rstrip("/").rpartition("/")[2]
    if _PLAN.fullmatch(path):
        return f"plan {table}"
    state = _STATE.search(data) if _ENTRY.fullmatch(path) else None
    return None if state is None else f"{state[1].decode()} {table}"


def at(point: str, when: str, action: Callable[[], object]) -> Visit:
    """Return a visit that does something once."""
    done = []

    def visit(now: str, name: str) -> None:
        if (now, name) == (when, point) and not done:
            done.append(name)
            action()

    return visit


def over(point: str, begin: Callable[[], Any], end: Callable[[Any], object]) -> Visit:
    """Return a visit that begins something before a put and ends it after the put, once."""
    begun: list[Any] = []

    def visit(when: str, name: str) -> None:
        if name == point and when == "before" and not begun:
            begun.append(begin())
        elif name == point and len(begun) == 1:
            begun.append(None)
            end(begun[0])

    return visit


def kill() -> None:
    raise KilledError


def killed(work: Callable[[], object], point: str, when: str) -> None:
    """Run a worker that is killed at a point."""
    with visited(at(point, when, kill)), pytest.raises(KilledError):
        work()


def seen(work: Callable[[], object]) -> list[str]:
    """Run a worker, and return the names of its puts."""
    names: list[str] = []
    with visited(lambda when, name: names.append(name) if when == "after" else None):
        work()
    return names
