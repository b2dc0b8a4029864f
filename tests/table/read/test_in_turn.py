"""Iterators in order, computed ahead by threads: the same items and errors as one after the other, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain

import pytest

from airflow_delta.table.read.read_ahead import Demand, in_turn


def numbers(first: int, count: int) -> Iterator[int]:
    for number in range(first, first + count):
        time.sleep(0.0001 * (number % 3))
        yield number


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("delta-read")]


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 3], [1], [5, 0, 7, 1], [100] * 5])
@pytest.mark.parametrize("most", [0, 3, 1000])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("everything", [False, True])
def test_the_items_of_all_in_order(counts: list[int], most: int, workers: int, everything: bool) -> None:
    def sources() -> Iterator[Iterator[int]]:
        return (numbers(1000 * at, count) for at, count in enumerate(counts))

    found = list(in_turn(sources(), workers=workers, size=lambda _item: 1, most=most, demand=Demand(everything)))
    assert found == list(chain.from_iterable(sources()))
    assert not threads()


def test_threads_begin_with_the_first_items_if_all_are_wanted() -> None:
    both = threading.Barrier(2, timeout=60)

    def meeting(at: int) -> Iterator[int]:
        both.wait()
        yield at

    found = in_turn(map(meeting, range(2)), workers=2, size=lambda _item: 1, most=10, demand=Demand(everything=True))
    assert list(found) == [0, 1]


def test_an_error_comes_where_its_item_was_wanted() -> None:
    def failing() -> Iterator[int]:
        yield 10
        raise ValueError("damaged")

    found = in_turn(iter([numbers(0, 9), failing(), numbers(20, 3)]), workers=3, size=lambda _item: 1, most=100)
    assert [next(found) for _ in range(10)] == [*range(9), 10], "those before the error"
    with pytest.raises(ValueError, match="damaged"):
        next(found)
    assert not threads()


def test_an_error_of_the_sources_themselves() -> None:
    def sources() -> Iterator[Iterator[int]]:
        yield numbers(0, 3)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(in_turn(sources(), workers=2, size=lambda _item: 1, most=10))
    assert not threads()


def test_no_more_waits_than_allowed() -> None:
    """However long nobody takes the items, and none is computed after the iteration has ended."""
    computed: list[int] = []

    def counted(at: int) -> Iterator[int]:
        for number in range(1000):
            computed.append(at)
            yield number

    found = in_turn(map(counted, range(10)), workers=2, size=lambda _item: 10, most=50)
    assert next(found) == 0
    assert computed == [0], "no thread begins for one item"
    assert next(found) == 1
    time.sleep(0.1)
    assert set(computed) == {0, 1}
    assert len(computed) <= 2 + 2 * 7
    found.close()
    before = len(computed)
    time.sleep(0.05)
    assert len(computed) == before
    assert not threads()


def test_a_process_ends_that_has_not_taken_all() -> None:
    code = (
        "from airflow_delta.table.read.read_table import Demand, in_turn\n"
        "found = in_turn(map(iter, [range(10**9)] * 3), workers=2, size=lambda _: 1, most=10)\n"
        "print(next(found), next(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["0", "1"]
