"""A part of the tests, for machines that have no time for all of them at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pytest


def keep_part(config: pytest.Config, items: list[pytest.Item], variable: str, name: Callable[[pytest.Item], str | None]) -> None:
    """Deselect what is not in the part that an environment variable asks for: ``2/4`` is the second of four; default: all.

    Call it when all else has been deselected, by marker too: it is dealt what is left.

    :param name: of an item, which decides in which part it is; ``None``: it stays in any case.
    """
    if not (asked := os.environ.get(variable)):
        return
    part, parts = map(int, asked.split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"{variable} must be a part of parts such as 2/4, got {asked!r}")
    named = [(item, name(item)) for item in items]
    kept = dealt((text for _, text in named if text is not None), part, parts)
    others = [item for item, text in named if text is not None and text not in kept]
    left = set(others)
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=others)


def dealt(names: Iterable[str], part: int, parts: int) -> set[str]:
    """Return the names of a part: dealt in turn, so that none is empty while there are enough."""
    return set(sorted(set(names))[part - 1 :: parts])
