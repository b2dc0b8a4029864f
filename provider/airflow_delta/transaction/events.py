"""Events of the engine under Delta's names (``delta.commit.stats``, ``delta.commit.conflict.*``, ...), for logs and metrics.

An event is a log record of this module's logger with the fields ``delta_event``, ``delta_table`` and ``delta_data``; a process
that counts rather than logs registers a listener. If nobody listens, events cost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any

from airflow_delta.light_dataclasses import dataclass

logger = logging.getLogger(__name__)

FAILURE = "delta.commit.failure"
RETRY = "delta.commit.retry"
"""Ours: others were faster, so that whoever waits knows why the commit takes long."""
RESOLVED = "delta.commit.resolved"
"""Ours: which winners turned out not to conflict."""
CONFLICT = "delta.commit.conflict."
"""Prefix of the events of conflicts; the name of the exception follows, without ``Exception``."""

Listener = Callable[[str, str, Mapping[str, Any]], None]

_listeners: dict[Listener, tuple[str, ...]] = {}


@dataclass
class Held:
    """Events that are not reported yet.

    :param only: prefix of their names.
    """

    only: str
    _events: list[tuple[str, str, Mapping[str, Any], int]] = field(default_factory=list)

    def forget(self) -> None:
        """Drop the events so far: they turned out to be wrong."""
        self._events.clear()


_held: ContextVar[Held | None] = ContextVar("delta_held_events", default=None)


@contextmanager
def held_back(only: str) -> Iterator[Held]:
    """Hold back the events of a block, and report them at its end, unless they are dropped.

    :param only: prefix of their names.
    """
    held = Held(only)
    token = _held.set(held)
    try:
        yield held
    finally:
        _held.reset(token)
        for name, table, data, level in held._events:
            record_event(name, table, data, level=level)


def add_listener(listener: Listener, *, only: tuple[str, ...] = ("",)) -> None:
    """Call ``listener(name, table, data)`` for the events of this process, in the thread that records them.

    Registering a listener twice has no effect. Its exceptions are logged and go no further.

    :param only: prefixes of the names it is called for; default: every event. Events whose data is costly to compute are not
        computed for a listener that does not ask for them.
    """
    _listeners.setdefault(listener, only)


def remove_listener(listener: Listener) -> None:
    """Stop calling ``listener``, if it is registered."""
    _listeners.pop(listener, None)


def enabled(name: str = "") -> bool:
    """Tell whether anybody would see an event, for callers whose ``data`` is costly to compute.

    :param name: of the event; default: any event.
    """
    heard = any(name.startswith(only) for only in _listeners.values()) if name else bool(_listeners)
    return heard or logger.isEnabledFor(logging.DEBUG)


def record_event(name: str, table: str, data: Mapping[str, Any], *, level: int = logging.DEBUG) -> None:
    """Record an event.

    :param name: Delta's name for it, such as ``delta.commit.stats``.
    :param table: URI of the table.
    :param data: facts, as JSON values.
    :param level: of the log record.
    """
    facts = dict(data)
    held = _held.get()
    if held is not None and name.startswith(held.only):
        held._events.append((name, table, facts, level))
        return
    if logger.isEnabledFor(level):
        fields = {"delta_event": name, "delta_table": table, "delta_data": facts}
        logger.log(level, "%s on %s %s", name, table, facts, extra=fields)
    for listener, only in tuple(_listeners.items()):
        if not name.startswith(only):
            continue
        try:
            listener(name, table, facts)
        except Exception:
            logger.exception("A listener failed on event %s of table %s", name, table)
