from __future__ import annotations

from collections.abc import Iterable

import pytest


def slow_except(values: Iterable[object], *quick: object) -> list[object]:
    """Return the values of a parametrized test, all but the quick ones with the marker ``slow``.

    :param values: in their order; a tuple stands for the values of several parameters.
    :param quick: those that the default tests keep.
    """
    return [
        value if value in quick else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
