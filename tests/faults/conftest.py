"""Tests that look for the next fault by themselves. ``FAULTS=long`` makes them as large as ``make test-faults-long`` does."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "build" / "faults"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.timeout(36000 if os.environ.get("FAULTS") == "long" else 900))


@pytest.fixture(scope="session")
def is_long() -> bool:
    """Whether the suite runs at full length."""
    return os.environ.get("FAULTS") == "long"


@pytest.fixture(scope="session")
def seed() -> int:
    """``FAULTS_SEED``, or another one with each run; a failure names it."""
    return int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(2**32))


@pytest.fixture
def figures() -> Callable[..., None]:
    """Note what a test tried, for benchmarks/RESULTS.md: ``figures("histories", tried=300, failed=0, seed=seed)``."""

    def note(name: str, **values: Any) -> None:
        FIGURES.mkdir(parents=True, exist_ok=True)
        (FIGURES / f"{name}.json").write_text(json.dumps(values, sort_keys=True))

    return note
