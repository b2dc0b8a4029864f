"""Work on several tables at a time: looks, checks and what need not be in an order run beside each other, puts take turns.

A store answers in its own time, so what waits for one table's answer asks for the others' meanwhile. Each piece of work touches
the log of its own table only. What has an order, such as the log entries of a publication, waits for its turn: until every table
before it has passed on. So the logs go through the same states as if one table came after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_delta.log.delta_log import DeltaLog

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Tables that are worked on at a time."""


class StoppedError(Exception):
    """A table before this one has failed, or the task is ending: nothing more is to be put."""


class _Line:
    """Who has passed on, and where it has stopped.

    :param length: pieces of work.
    """

    def __init__(self, length: int) -> None:
        self._changed = threading.Condition()
        self._passed = [False] * length
        self._stopped_at = length

    def wait(self, place: int) -> None:
        self.await_open(place)
        if self._stopped_at < place:
            raise StoppedError

    def await_open(self, place: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.is_open(place))

    def is_open(self, place: int) -> bool:
        return self._stopped_at < place or all(self._passed[:place])

    def pass_on(self, place: int) -> None:
        with self._changed:
            self._passed[place] = True
            self._changed.notify_all()

    def stop(self, place: int) -> None:
        """Let nobody behind a place have its turn."""
        with self._changed:
            self._stopped_at = min(self._stopped_at, place)
            self._changed.notify_all()


class Turn:
    """The place of one piece of work in the order of all."""

    def __init__(self, line: _Line, place: int) -> None:
        self._line = line
        self._place = place

    def wait(self) -> None:
        """Wait until all before have passed on.

        :raises StoppedError: if one of them has failed instead.
        """
        self._line.wait(self._place)

    def pass_on(self) -> None:
        """Let the next have its turn: what had to come before it is there. The end of the work passes on, too."""
        self._line.pass_on(self._place)


def asks_a_network(logs: Iterable[DeltaLog]) -> bool:
    """Tell whether a table is on a store that is asked over a network. Local files answer sooner than threads take turns."""
    return any(not log.store.probes for log in logs)


def side_by_side(work: Callable[[T, Turn], R], items: Sequence[T], *, beside: bool) -> list[R]:
    """Do something with each of several items, at most :data:`AT_ONCE` at a time; return the results in their order.

    Each runs in a copy of the caller's context. Nothing is left running when this returns or raises.

    :param work: called with an item and its turn; an error stops those behind it from having theirs.
    :param beside: otherwise one item comes after the other, up to the first error.
    :raises BaseException: the error of the first item that has one, in their order, after all have ended.
    """
    line = _Line(len(items))

    def run(place: int) -> R:
        try:
            found = work(items[place], Turn(line, place))
        except BaseException:
            line.stop(place)
            raise
        line.pass_on(place)
        return found

    if not beside or len(items) < 2:
        return [run(place) for place in range(len(items))]
    # In their order: whoever waits for its turn waits for one that has begun.
    with _threads(min(AT_ONCE, len(items))) as pool:
        futures: list[Future[R]] = []
        try:
            futures.extend(pool.submit(copy_context().run, run, place) for place in range(len(items)))
            wait(futures)
        except BaseException:  # the task is to end
            line.stop(-1)
            for future in futures:
                future.cancel()
            raise
    errors = [future.exception() for future in futures]
    first = next((error for error in errors if error is not None and not isinstance(error, StoppedError)), None)
    if first is not None:
        raise first
    return [future.result() for future in futures]


def _threads(number: int) -> Executor:
    return ThreadPoolExecutor(number, thread_name_prefix="delta-tables")
