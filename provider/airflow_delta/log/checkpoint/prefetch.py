"""Computing the next item of an iterator while the current one is used; Arrow releases the GIL while it works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable, computed one ahead in a thread that ends with the iteration."""
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="delta-checkpoint") as pool:
        waiting = pool.submit(_next, source)
        while found := waiting.result():
            waiting = pool.submit(_next, source)
            yield found[0]


def _next(source: Iterator[T]) -> tuple[T] | None:
    for item in source:
        return (item,)
    return None
