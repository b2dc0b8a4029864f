"""The protocol, explored to the last state; without any of its rules it breaks."""

from __future__ import annotations

import time

import pytest

from publication.model import SCENARIOS, VARIANTS, Model, explore
from publication.states import LARGE, explore_all
from support.slow import slow_except


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in LARGE])
def test_every_state_holds(name: str) -> None:
    explore_all(name)


SHOWN_BY = {"gap": "2 tables, add + rw, one anchor", "unordered": "3 tables, two that pass over each other"}
"""The scenario that notices the lack of a rule, where the others are large without it."""

QUICK = ("naive", "notxn", "lastwins", "nofence", "unchecked", "gap")


@pytest.mark.parametrize("variant", slow_except([name for name in VARIANTS if name != "good"], *QUICK))
def test_without_a_rule_it_breaks(variant: str) -> None:
    for name in [SHOWN_BY[variant]] if variant in SHOWN_BY else SCENARIOS:
        _, result, trace, _ = explore(Model(SCENARIOS[name], variant), 1_000_000, time.monotonic() + 600)
        if result in ("violated", "circles"):
            assert result == "circles" or len(trace) > 1
            return
    pytest.fail("no scenario notices that the rule is missing")
