"""Tables of a lake for the tests of publications."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from publication.lake import LakeTable
from publication.world import NAMES, PART, World


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], LakeTable]:
    """Return a table of the lake by its name."""
    return lambda name: LakeTable(tmp_path / name)


@pytest.fixture
def orders(table: Callable[[str], LakeTable]) -> LakeTable:
    """A table with three rows of partition ``a``."""
    found = table("orders")
    found.fill([1, 2, 3])
    return found


@pytest.fixture
def lines(table: Callable[[str], LakeTable]) -> LakeTable:
    """A table with three rows of partition ``a``."""
    found = table("lines")
    found.fill([10, 20, 30])
    return found


@pytest.fixture
def world(table: Callable[[str], LakeTable]) -> World:
    tables = [table(name) for name in NAMES]
    for one in tables:
        one.fill([1, 2, 3])
    members = [one.member("k", [77], replaces=None if one is tables[2] else PART) for one in tables]
    return World(tables, members)
