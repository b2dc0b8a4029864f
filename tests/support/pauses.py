"""What a test puts in place of ``time.sleep``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def sleep_by(monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[float], object]) -> None:
    """Let ``time.sleep`` be something else, but in threads that were there before.

    One of py4j's, which stays when Spark has stopped, looks for work each second: it would do nothing else, and be counted.
    """
    sleep, others = time.sleep, frozenset(threading.enumerate()) - {threading.current_thread()}

    def instead(seconds: float) -> None:
        (sleep if threading.current_thread() in others else stand_in)(seconds)

    monkeypatch.setattr(time, "sleep", instead)
