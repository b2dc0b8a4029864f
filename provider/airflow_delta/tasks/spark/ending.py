"""End Spark work when Airflow ends a task: within the 5 seconds from SIGTERM to SIGKILL, even if something hangs.

``on_kill`` runs in the SIGTERM handler, in the thread that waits for Spark; ``execute`` continues after it. So nothing here uses
that thread's connection to a JVM, and no wait is unbounded. What has not ended in time ends with the process: a driver JVM that
PySpark started exits when the pipe to its parent breaks.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger


WAIT = 3.0
"""Seconds to wait for work to end before it is killed; Airflow's SIGKILL comes 5 seconds after its SIGTERM."""


def within(seconds: float, work: Callable[[], object], *, what: str, logger: Logger | Any) -> bool:
    """Run something that may hang in a thread of its own, and wait at most this long.

    If it takes longer, it continues in the background as long as the process lives.

    :return: whether it has ended.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the task ends whatever this does
            logger.warning("%s failed: %s", what, error)

    thread = threading.Thread(target=run, name="delta-on-kill", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        logger.info("%s takes longer than %.1f s; the task does not wait for it.", what, seconds)
        return False
    return True


class SessionKiller:
    """Ends the work of a Spark session: interrupts its jobs, and kills a JVM that does not respond.

    :param session: the session.
    :param owned: whether this task made it; other code of this process may need the JVM otherwise.
    """

    def __init__(self, session: Any, *, owned: bool, logger: Logger | Any) -> None:
        self._session = session
        self._process = _gateway_process(session) if owned else None
        self._logger = logger
        self._done = threading.Event()

    def done(self) -> None:
        """Note that the session's work has ended."""
        self._done.set()

    def kill(self) -> None:
        """Begin to end the work; returns at once."""
        threading.Thread(target=self._kill, name="delta-on-kill", daemon=True).start()

    def _kill(self) -> None:
        end = time.monotonic() + WAIT
        within(WAIT, self._session.interruptAll, what="Interrupting the Spark jobs", logger=self._logger)
        if self._done.wait(max(end - time.monotonic(), 0)) or self._process is None or self._process.poll() is not None:
            return
        self._logger.info("The Spark jobs did not end within %.0f s: killing their driver, process %s.", WAIT, self._process.pid)
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            self._process.kill()


def has_ended(session: Any) -> bool:
    """Return whether the driver JVM that PySpark started for a session of this process has ended."""
    process = _gateway_process(session)
    return process is not None and process.poll() is not None


def _gateway_process(session: Any) -> Any:
    """Return the driver JVM that PySpark started for this process; ``None`` for Spark Connect or another JVM."""
    gateway = getattr(getattr(session, "_sc", None), "_gateway", None)
    return getattr(gateway, "proc", None)
