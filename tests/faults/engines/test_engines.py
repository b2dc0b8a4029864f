"""Spark and the worker carry out the same random statements on the same random tables, and run transactions at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.both_engines import search
from support.mixed_histories import random_history

pytestmark = pytest.mark.spark


def test_statements_leave_the_same_table(
    spark: Any, tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None]
) -> None:
    count, wrong, counts = 2000 if is_long else 5, list[str](), Counter[str]()
    for number in range(count):
        found, done = search(spark, tmp_path / str(number), f"{seed}-{number}")
        wrong += found
        counts += done
    outcomes = {name.replace(" ", "_"): count for name, count in counts.items()}
    figures("both_engines", tried=count, failed=len(wrong), seed=seed, **outcomes)
    assert not wrong, wrong[:3]


def test_histories_of_both_engines(spark: Any, tmp_path: Path, is_long: bool, seed: int, figures: Callable[..., None]) -> None:
    count, wrong, counts = 300 if is_long else 3, list[str](), Counter[str]()
    for number in range(count):
        table = random_history(spark, tmp_path / str(number), f"{seed}-{number}")
        wrong += table.wrong
        counts += table.counts
    outcomes = {name: counts[name] for name in ("committed", "resolved", "refused")}
    figures("mixed_histories", tried=count, failed=len(wrong), seed=seed, **outcomes)
    assert not wrong, wrong[:3]
