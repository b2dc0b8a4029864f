"""How far a long operation is: a line in the log at most every ten seconds, or whatever a display shows.

There is no thread: whoever works says what is done, which costs a look at the clock. An operation that ends sooner says nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL = 10.0
"""Minimum seconds before the first line, and between two lines of this process."""


class Display(Protocol):
    """Shows progress in place of the log, such as a bar on a terminal."""

    @property
    def interval(self) -> float:
        """Minimum seconds between two updates."""

    def update(self, progress: Progress) -> None:
        """Show how far an operation is."""

    def end(self, progress: Progress) -> None:
        """Stop showing an operation, which may never have been shown."""


class _Log:
    """Lines in the log, of all operations of this process together: one may be part of another."""

    def __init__(self) -> None:
        self._last = float("-inf")

    @property
    def interval(self) -> float:
        return INTERVAL

    def update(self, progress: Progress) -> None:
        if (now := time.monotonic()) - self._last >= INTERVAL:
            self._last = now
            progress.told = True
            logger.info("%s.", str(progress))  # a handler may write it later

    def end(self, progress: Progress) -> None:
        if progress.told and progress.finished:
            logger.info("%s: %s %s, done in %s.", progress.what, _count(progress.done), progress.unit, _span(progress.seconds))


_display: Display = _Log()


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Show progress on a display instead of in the log."""
    global _display
    before, _display = _display, display
    try:
        yield
    finally:
        _display = before


class Progress:
    """An operation that may take minutes; its text is how far it is.

    :param what: what is being done, and to which table.
    :param total: how many there are, if that is known.
    :param unit: what is counted, in the plural.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "files") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self.told = self.finished = False
        self._display = _display
        self._begun = time.monotonic()
        self._next = self._begun + self._display.interval

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finished = kind is None
        self._display.end(self)

    def advance(self, count: int = 1) -> None:
        """Record that more is done; from one thread at a time."""
        self.done += count
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._display.interval
            self._display.update(self)

    def over(self, items: Iterable[T], count: Callable[[T], int] | int = 1) -> Iterator[T]:
        """Yield items, and say that each is done; the operation may go on with others.

        :param count: how many an item counts for.
        """
        for item in items:
            yield item
            self.advance(count if isinstance(count, int) else count(item))

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end, at the rate so far; ``None`` if that is unknown."""
        if self.total is None or not 0 < self.done <= self.total:
            return None
        return self.seconds * (self.total - self.done) / self.done

    def __str__(self) -> str:
        seconds, left = self.seconds, self.seconds_left
        done = _count(self.done)
        if self.total:
            done += f" of {_count(self.total)} {self.unit} ({min(self.done * 100 // self.total, 100)} %)"
        else:
            done += f" {self.unit}"
        rate = f"{_count(round(self.done / seconds))} a second, " if seconds else ""
        rest = f", {_span(left)} left" if left is not None else ""
        return f"{self.what}: {done}, {rate}{_span(seconds)} so far{rest}"


def tracked(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    unit: str = "files",
    count: Callable[[T], int] | int = 1,
) -> Iterator[T]:
    """Yield items, and tell how many there were; parameters as for :class:`Progress`.

    :param count: how many an item counts for.
    """
    with Progress(what, total, unit) as progress:
        yield from progress.over(items, count)


def _count(number: int) -> str:
    return f"{number:,}"


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
