"""Computing the next item of an iterator while the last one is used: Arrow's work runs without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable, always one ahead, computed in a thread that ends with the iteration."""
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
