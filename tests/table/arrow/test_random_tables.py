"""Random statements on random tables, of all types, rules and writers: Spark and the worker leave the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.both_engines import search
from support.slow import slow_except

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("seed", slow_except(range(30), 1, 3))
def test_statements_leave_the_same_table(spark: Any, tmp_path: Path, seed: int) -> None:
    found, _counts = search(spark, tmp_path, seed)
    assert not found, found
