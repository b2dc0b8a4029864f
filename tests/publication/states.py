"""How many states each scenario of the model has, and their exploration."""

from __future__ import annotations

import time

from publication.model import SCENARIOS, Model, explore

STATES = {
    "2 tables, rw, opposite orders": 119_935,
    "2 tables, rw, opposite orders, no intents": 78_063,
    "2 tables, rw + add, opposite orders": 142_372,
    "2 tables, rw + add, opposite orders, no intents": 28_655,
    "2 tables, two workers of one publication": 80_438,
    "3 tables, two workers of one publication": 268_378,
    "3 tables, two workers of one publication, keep": 30_598,
    "3 tables, overlap in the last": 37_289,
    "3 tables, overlap in the last, no intents": 23_334,
    "3 tables, opposite orders": 7_592,
    "3 tables, one publication, two foreign": 19_578,
    "2 tables, add + rw, one anchor": 5_525,
    "2 tables, add, one anchor, one foreign": 40_049,
    "2 tables, three publications": 59_397,
    "3 tables, two that pass over each other": 266_182,
    "4 tables, two that pass over each other": 93_569,
}
"""How many there are: one more or less is another protocol."""


LARGE = [name for name, count in STATES.items() if count > 70_000]
"""Explored with the faults (``tests/faults/publications``): together they take minutes."""


def explore_all(name: str) -> None:
    """Explore a scenario to its last state."""
    count, result, trace, ends = explore(Model(SCENARIOS[name], "good"), 1_000_000, time.monotonic() + 600)
    assert (result, trace) == ("exhausted", [])
    assert count == STATES[name]
    assert ends["published"]
