"""Transactions of the worker and of Spark at once: every version is what a serial order leaves, or the later one is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from support.mixed_histories import KINDS, concurrent_pair, random_history
from support.slow import slow_except

PAIRS = tuple(product(KINDS, KINDS))
MIXED = (("worker", "Spark"), ("Spark", "worker"))


@pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])
@pytest.mark.parametrize("detection", slow_except(["rows", "delta"], "rows"))
def test_pairs_in_the_worker(tmp_path: Path, vectors: bool, detection: str) -> None:
    counts = {"committed": 0, "refused": 0}
    for number, kinds in enumerate(PAIRS):
        table = concurrent_pair(
            None,
            tmp_path / str(number),
            kinds,
            ("worker", "worker"),
            number,
            vectors=vectors,
            detection=detection,
            tracked=number % 2 == 0,
            feed=number % 3 == 0,
        )
        assert not table.wrong, (kinds, table.wrong)
        for name in counts:
            counts[name] += table.counts[name]
    assert counts["refused"], "some of them do conflict"
    assert counts["committed"] > len(PAIRS), "and some do not"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kinds", "engines"),
    slow_except(
        list(product(PAIRS, MIXED)),
        (("delete", "update"), MIXED[0]),
        (("optimize", "merge"), MIXED[1]),
    ),
    ids=lambda names: " ".join(names),
)
def test_pairs_of_both_engines(spark: Any, tmp_path: Path, kinds: tuple[str, str], engines: tuple[str, str]) -> None:
    for vectors, detection in ((True, "rows"), (False, "delta")):
        path = tmp_path / f"{vectors}-{detection}"
        table = concurrent_pair(spark, path, kinds, engines, 0, vectors=vectors, detection=detection, tracked=True, feed=True)
        assert not table.wrong, table.wrong


@pytest.mark.spark
@pytest.mark.parametrize("seed", slow_except(range(8), 1))
def test_histories_of_both_engines(spark: Any, tmp_path: Path, seed: int) -> None:
    assert not random_history(spark, tmp_path / "table", seed).wrong
