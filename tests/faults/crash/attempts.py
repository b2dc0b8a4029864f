"""Attempts of tasks that stop at a point, while others go on, and wake up later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.base import LogStore
from faults.crash.points import Points, Watched

TIMEOUT = 60.0


class Stopping(Points):
    """Stops at a point until it is told to go on.

    :param stop_at: number of the point; ``None``: count only.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at
        self.arrived, self.may_go = threading.Event(), threading.Event()

    def reach(self, name: str, site: str = "") -> None:
        if len(self.trail) == self.stop_at:
            self.arrived.set()
            assert self.may_go.wait(TIMEOUT), "nobody woke the attempt up"
        super().reach(name, site)


class Attempt:
    """A task in a thread of its own, with its own client of the store.

    :param task: gets the table's log.
    :ivar result: what it returned.
    :ivar error: what it raised.
    """

    def __init__(self, store: LogStore, task: Callable[[DeltaLog], Any], *, stop_at: int | None = None) -> None:
        self.points = Stopping(stop_at)
        self.result: Any = None
        self.error: Exception | None = None
        self._log = self.log_on(store)
        self._task: Callable[[Any], Any] = task
        self._thread = threading.Thread(target=self._run, daemon=True)

    def log_on(self, store: LogStore) -> DeltaLog:
        """Return a log whose effects are points."""
        log = DeltaLog(Watched(store, self.points))
        log.stale_listing_pauses = ()
        return log

    @property
    def given(self) -> Any:
        """What the task gets."""
        return self._log

    def _run(self) -> None:
        try:
            self.result = self._task(self.given)
        except Exception as error:
            self.error = error
        finally:
            self.points.arrived.set()

    def begin(self) -> Attempt:
        """Run until it stops, or ends."""
        self._thread.start()
        assert self.points.arrived.wait(TIMEOUT), "the attempt neither stops nor ends"
        return self

    def wake(self) -> Attempt:
        """Let it go on to its end."""
        self.points.may_go.set()
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "the attempt does not end"
        return self

    def run(self) -> Attempt:
        return self.begin().wake()
