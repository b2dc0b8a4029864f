"""Reading tables off the API server's own threads: a few threads of our own, and a limit for how long a page waits.

One read of a table's log, and one listing of its staged files, is under way at a time: that is what a storage that hangs costs
for each of its tables, however often a page is asked for. A listing that takes long holds up no page of the history. Airflow
itself goes on. The threads start with the first read, so nothing of a store is touched before a server process has forked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from airflow_delta.plugins.known import KnownTable
from airflow_delta.plugins.problems import PageProblem, of_error, timed_out

T = TypeVar("T")

THREADS = 4
READ_TIMEOUT = 15.0
"""Seconds that a page waits for a storage."""

_PAUSE = 0.02

logger = logging.getLogger(__name__)
_lock = threading.Lock()
_reading: set[tuple[str, str]] = set()
_hanging: set[tuple[str, str]] = set()
_pool: ThreadPoolExecutor | None = None
_pool_of = 0


async def read(table: KnownTable, action: Callable[[], T], *, of: str = "log") -> T:
    """Return what an action returns that reads a table.

    :param of: what is read: one such read of a table at a time.
    :raises PageProblem: it failed, or took too long; then its thread goes on until the store's own time limit ends it.
    """
    threads, key = _threads(), (table.key, of)
    deadline = time.monotonic() + READ_TIMEOUT
    while key in _reading:
        if key in _hanging or time.monotonic() > deadline:
            raise timed_out(table.uri, READ_TIMEOUT)
        await asyncio.sleep(_PAUSE)
    running = threads.submit(action)
    _reading.add(key)
    running.add_done_callback(lambda _: _ended(key))
    waiting = asyncio.wrap_future(running)
    waiting.add_done_callback(_look_at)
    try:
        return await asyncio.wait_for(asyncio.shield(waiting), READ_TIMEOUT)
    except TimeoutError as error:
        if running.done():  # the store's own timeout
            raise of_error(error, table.uri) from error
        if not running.cancel():
            _hanging.add(key)
            if running.done():
                _hanging.discard(key)
        raise timed_out(table.uri, READ_TIMEOUT) from None
    except PageProblem:
        raise
    except Exception as error:
        logger.warning("Table %s cannot be shown", table.uri, exc_info=True)
        raise of_error(error, table.uri) from error


def _ended(key: tuple[str, str]) -> None:
    _hanging.discard(key)
    _reading.discard(key)


def _look_at(late: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting a late error as one that nobody looked at."""
    if not late.cancelled():
        late.exception()


def _threads() -> ThreadPoolExecutor:
    global _pool, _pool_of
    with _lock:
        if _pool is None or _pool_of != os.getpid():
            _pool, _pool_of = ThreadPoolExecutor(THREADS, thread_name_prefix="delta-tables"), os.getpid()
            _reading.clear()  # those of the process that this one was forked from end there
            _hanging.clear()
        return _pool
