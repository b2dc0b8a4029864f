"""A part of the tests, for machines that have no time for all of them at once."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

import pytest


def keep_part(config: pytest.Config, items: list[pytest.Item], variable: str, name: Callable[[pytest.Item], str | None]) -> None:
    """Deselect what is not in the part that an environment variable asks for: ``2/4`` is the second of four; default: all.

    :param name: of an item, which decides in which part it is; ``None``: it stays in any case.
    """
    if not (asked := os.environ.get(variable)):
        return
    part, parts = map(int, asked.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"{variable} must be a part of parts such as 2/4, got {asked!r}")
    named = [(item, name(item)) for item in items]
    others = [item for item, text in named if text is not None and zlib.crc32(text.encode()) % parts != part - 1]
    left = set(others)
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=others)
