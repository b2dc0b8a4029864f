"""Iterators one after the other, of which threads compute the next items while the ones before are used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from airflow_delta.light_dataclasses import dataclass

T = TypeVar("T")

_END = object()


class _Source(Generic[T]):
    """An iterator, and its items that nobody has taken yet."""

    def __init__(self, iterator: Iterator[T]) -> None:
        self.iterator = iterator
        self.items: deque[T] = deque()
        self.size = 0
        self.computing = self.ended = False
        self.error: BaseException | None = None


@dataclass(slots=True)
class Demand:
    """What a consumer has said about how much it takes.

    :ivar everything: it takes all items; until it says so, it may take only the first.
    """

    everything: bool = False


def in_turn(
    sources: Iterable[Iterator[T]], *, workers: int, size: Callable[[T], int], most: int, demand: Demand | None = None
) -> Iterator[T]:
    """Yield the items of iterators in order, as ``itertools.chain`` does, from up to ``workers`` of them at once.

    Unless everything is wanted, the first item is computed before any thread begins. The threads end with the iteration; no item
    is computed after it.

    :param size: of an item.
    :param most: sum of the sizes of items of an iterator that wait; one item more may.
    :param demand: looked at when the first item is asked for; default: no more than that may be taken.
    """
    demand = demand or Demand()
    remaining = iter(sources)
    first = next(remaining, None)
    while first is not None and not demand.everything:
        item = next(first, _END)
        if item is not _END:
            yield item  # type: ignore[misc]
            break
        first = next(remaining, None)
    if first is not None:
        yield from _Turns(first, remaining, workers, size, most)


class _Turns(Generic[T]):
    def __init__(
        self, first: Iterator[T], remaining: Iterator[Iterator[T]], workers: int, size: Callable[[T], int], most: int
    ) -> None:
        self._remaining = remaining
        self._workers = workers
        self._size = size
        self._most = most
        self._begun = deque([_Source(first)])
        self._changed = threading.Condition()
        self._stopped = False

    def __iter__(self) -> Iterator[T]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="delta-read") as pool:
            try:
                while self._begin(pool):
                    source = self._begun[0]
                    while not self._is_empty(source):
                        item = source.items.popleft()
                        self._go_on(pool, source, self._size(item))
                        yield item
                    self._begun.popleft()
                    if source.error is not None:
                        raise source.error
            finally:
                self._stopped = True

    def _begin(self, pool: ThreadPoolExecutor) -> bool:
        """Keep all workers busy, and return whether there is a source."""
        while len(self._begun) < self._workers and (iterator := next(self._remaining, None)) is not None:
            self._begun.append(_Source(iterator))
        for source in self._begun:
            self._go_on(pool, source, 0)
        return bool(self._begun)

    def _go_on(self, pool: ThreadPoolExecutor, source: _Source[T], taken: int) -> None:
        with self._changed:
            source.size -= taken
            if source.computing or source.ended or source.size > self._most // 2:
                return
            source.computing = True
        pool.submit(self._compute, source)

    def _is_empty(self, source: _Source[T]) -> bool:
        """Wait for an item or for the end of a source, and return which."""
        with self._changed:
            while not source.items and not source.ended:
                self._changed.wait()
            return not source.items

    def _compute(self, source: _Source[T]) -> None:
        """Compute items until enough of them wait; no thread waits itself, so that none is left if nobody takes them."""
        while True:
            item, error = None, None
            try:
                item = _END if self._stopped else next(source.iterator, _END)
            except BaseException as caught:  # noqa: BLE001 - raised again where the item was wanted
                error = caught
            with self._changed:
                if error is not None or item is _END:
                    source.error, source.ended = error, True
                else:
                    source.items.append(item)  # type: ignore[arg-type]
                    source.size += self._size(item)  # type: ignore[arg-type]
                source.computing = not source.ended and source.size <= self._most
                self._changed.notify()
                if not source.computing:
                    return
