"""How much work something is, in calls: a limit on them holds on a busy machine, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(work: Callable[[], object]) -> int:
    """Count the functions that are called in this thread, those written in C too, until the work is done."""
    number = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number
