"""Log lines about a stage's Spark job: when it starts, from time to time while it runs, and when it ends.

What is known while it runs depends on where it runs: Spark's own counts for a session of the task, finished tasks for a Spark
Connect session, and the files in the attempt's directory for a submitted application. A thread asks; its failures are debug
messages, and it never delays the job.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.staging_directory import REPORT_DIRECTORY, REQUEST_NAME

if TYPE_CHECKING:
    from logging import Logger

    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog

INTERVAL = 30.0
"""Minimum seconds between two lines."""

_SHARE_OF_TIME = 0.05
_MAX_FILES = 100_000


@contextmanager
def spark_work(
    logger: Logger | Any,
    log: DeltaLog,
    request: StageRequest,
    *,
    session: Any = None,
    directory: Callable[[], str] | None = None,
    interval: float | None = None,
) -> Iterator[None]:
    """Log the start and the end of the Spark work on a request, and its progress in between.

    :param session: this process's Spark session that does the work; ``None`` if it runs elsewhere.
    :param directory: returns the directory that is written to, if it is not the request's: after a reconnect.
    :param interval: seconds between two lines; default: :data:`INTERVAL`.
    """
    what = f"Transaction {request.transaction_id}: Spark job of stage {request.stage}, attempt {request.attempt},"
    logger.info("%s started, writing to %s.", what, request.path)
    began = time.monotonic()
    done = threading.Event()
    look = _looker(log, session, directory or (lambda: request.directory))
    watch = threading.Thread(
        target=_watch,
        args=(logger, what, look, done, began, INTERVAL if interval is None else interval),
        name="delta-stage-progress",
        daemon=True,
    )
    watch.start()
    try:
        yield
    except BaseException as error:
        logger.info("%s failed after %.1f s: %s.", what, time.monotonic() - began, type(error).__name__)
        raise
    finally:
        done.set()
        look.close()
        watch.join(timeout=1.0)  # it may be waiting for storage or for the JVM; the task does not wait for it
    logger.info("%s finished after %.1f s.", what, time.monotonic() - began)


def _watch(logger: Logger | Any, what: str, look: _Look, done: threading.Event, began: float, interval: float) -> None:
    pause = interval
    while not done.wait(pause):
        asked = time.monotonic()
        try:
            text = look()
        except Exception as error:  # noqa: BLE001 - nobody waits for this line
            logger.debug("%s progress is unknown: %s", what, error)
            text = None
        if done.is_set():
            return
        if text:
            logger.info("%s running for %.0f s: %s.", what, time.monotonic() - began, text)
        pause = max(interval, (time.monotonic() - asked) / _SHARE_OF_TIME)


class _Look:
    """What is known about the job now, as text; empty if nothing is."""

    def __call__(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """Release what it holds."""


def _looker(log: DeltaLog, session: Any, directory: Callable[[], str]) -> _Look:
    if session is None:
        return _StorageLook(log, directory)
    if hasattr(session, "_jsparkSession"):
        return _SessionLook(session)
    return _ConnectLook(session)


class _StorageLook(_Look):
    """The data files in the attempt's directory: finished ones, and those being written."""

    def __init__(self, log: DeltaLog, directory: Callable[[], str]) -> None:
        self._log = log
        self._directory = directory

    def __call__(self) -> str:
        directory = self._directory()
        finished = writing = size = 0
        for number, status in enumerate(self._log.store.list_recursive(directory)):
            if number >= _MAX_FILES:
                return f"more than {_MAX_FILES} files"
            inside = status.path.removeprefix(f"{directory}/")
            if status.name.startswith((".", "_")) or status.name == REQUEST_NAME or inside.startswith(f"{REPORT_DIRECTORY}/"):
                continue
            # A committer that renames keeps files being written below _temporary/<n>/_temporary.
            if "_temporary/" in inside.partition("_temporary/")[2]:
                writing += 1
            else:
                finished += 1
                size += status.size
        if not finished and not writing:
            return "no files on storage yet (some committers show them only at the end)"
        return f"{finished} files ({size} bytes) on storage" + (f", {writing} being written" if writing else "")


class _SessionLook(_Look):
    """Counts of the running Spark stages of this process's session, from its status store."""

    def __init__(self, session: Any) -> None:
        self._context = session.sparkContext

    def __call__(self) -> str:
        try:
            stages = self._context._jsc.sc().statusStore().activeStages()
            found = [stages.apply(number) for number in range(stages.size())]
            tasks, completed = sum(s.numTasks() for s in found), sum(s.numCompleteTasks() for s in found)
            rows, size = sum(s.outputRecords() for s in found), sum(s.outputBytes() for s in found)
            read = sum(s.inputRecords() for s in found)
        except Exception:  # noqa: BLE001 - the status store is not a public interface; the tracker is
            return self._tracked()
        if not found:
            return "no stage is running"
        return f"{completed} of {tasks} tasks done, {read} rows read, {rows} rows ({size} bytes) written"

    def _tracked(self) -> str:
        tracker = self._context.statusTracker()
        found = [info for number in tracker.getActiveStageIds() if (info := tracker.getStageInfo(number)) is not None]
        if not found:
            return "no stage is running"
        return f"{sum(s.numCompletedTasks for s in found)} of {sum(s.numTasks for s in found)} tasks done"


class _ConnectLook(_Look):
    """The last progress that a Spark Connect server reported for this client's operation."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._last = ""
        try:
            session.registerProgressHandler(self._note)
        except Exception:  # noqa: BLE001 - other sessions report nothing
            self._session = None

    def _note(self, stages: Any = (), inflight_tasks: int = 0, done: bool = False, **_more: Any) -> None:
        with contextlib.suppress(Exception):  # the client calls this in the thread that waits for its result
            found = list(stages or ())
            completed, tasks = sum(s.num_completed_tasks for s in found), sum(s.num_tasks for s in found)
            read = sum(s.num_bytes_read for s in found)
            self._last = "" if done else f"{completed} of {tasks} tasks done, {inflight_tasks} running, {read} bytes read"

    def __call__(self) -> str:
        return self._last

    def close(self) -> None:
        """Remove the handler from the session."""
        if self._session is not None:
            with contextlib.suppress(Exception):  # the session may be gone
                self._session.removeProgressHandler(self._note)
            self._session = None
