"""The scenarios of publications with most states, each explored to the last one."""

from __future__ import annotations

import pytest

from publication.states import LARGE, explore_all


@pytest.mark.parametrize("name", LARGE)
def test_every_state_holds(name: str) -> None:
    explore_all(name)
