"""Which read is next: in separate processes, a few at a time for each connection, so that a slow storage delays only its pages.

A thread of the API server waits for each reader without holding the interpreter. At most two reads of a connection run at a time,
or one while its storage does not answer. Some readers are reserved for connections that have answered, so that dead endpoints do
not block them. Equal requests share one read, and commits are cached by version. Threads and processes start with the first read,
so none exist when a server process forks.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_delta.exceptions import ReadLimitException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui.place import Place
from airflow_delta.ui.problems import PageProblem, busy, of_error, of_kinds, overloaded, timed_out
from airflow_delta.ui.reader.cache import Remembered
from airflow_delta.ui.reader.messages import encode_json
from airflow_delta.ui.reader.pool import ReaderDiedError, readers

if TYPE_CHECKING:
    from airflow_delta.ui.known import KnownTable


T = TypeVar("T")

READERS = 8
"""Concurrent reads in one process of the API server."""

READERS_OF_A_CONNECTION = 2
WAITING_FOR_A_CONNECTION = 100
READ_TIMEOUT = 15.0
"""Seconds that a page waits for a storage."""

READERS_FOR_UNKNOWN = 6
"""How many of them may be for connections that have not answered yet, or no longer do."""

FRESH_FOR = 2.0
"""Seconds for which a page is reused."""

LISTED_FOR = 10.0
"""The same for slow reads."""

WEB_THREADS = 2
"""Threads that query Airflow's database and render pages; few, since they hold the interpreter."""

WAITING_FOR_A_THREAD = 50
"""Calls that wait for these threads while requests are still admitted: about a second of work."""

PLACES = 32
"""Threads that get the credentials of connections: they only wait."""

PLACES_OF_A_CONNECTION = 8

LISTING, ROWS, STAGED = "transactions", "rows", "staged"
SLOW = frozenset({LISTING, ROWS, STAGED})
"""The slow reads; only one for each connection runs at a time, so that its histories need not wait."""

logger = logging.getLogger(__name__)


async def history_of_table(place: Place, *, limit: int, before: int | None) -> dict[str, Any]:
    """Return a page of a table's history, see :func:`airflow_delta.ui.data.history`."""
    of = place.id

    def ask(ask_reader: AskReader) -> dict[str, Any]:
        known = remembered().commits(of)
        page = ask_reader("history", {"limit": limit, "before": before, "known": known.stamps()})
        return {**page, "commits": known.completed(page["commits"])}

    return await _read(place, ("history", of, limit, before), ask)


async def state(place: Place) -> dict[str, Any]:
    """Return what a table is now, see :func:`airflow_delta.ui.table_state.table_state`."""
    return await _read(place, ("state", place.id), lambda ask_reader: ask_reader("state", {}))


async def read_commit(place: Place, version: int, *, offset: int) -> dict[str, Any]:
    """Return one commit, see :func:`airflow_delta.ui.data.commit_detail`."""
    of = place.id
    key = ("commit", of, version, offset)

    def ask(ask_reader: AskReader) -> dict[str, Any]:
        before: dict[str, Any] | None = remembered().result(key)
        known = remembered().commits(of)
        stamp = before["stamp"] if before is not None else None
        page = ask_reader("commit", {"version": version, "offset": offset, "known": known.stamps(), "stamp": stamp})
        if before is not None and page.get("same"):
            return {**before, "latest": page["latest"]}
        return {**page, "winners": known.completed(page["winners"])}

    return await _read(place, key, ask)


async def read_open_transactions(place: Place) -> list[dict[str, Any]]:
    """Return the uncommitted transactions, see :func:`airflow_delta.ui.data.open_transactions`."""
    return await _read(place, (LISTING, place.id), lambda ask_reader: ask_reader(LISTING, {}))


async def commit_rows(place: Place, version: int, *, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a commit did to rows, see :func:`airflow_delta.ui.commit_rows.rows_of_commit`."""
    asked = {"version": version, "keys": list(keys)}
    return await _read(place, (ROWS, place.id, version, tuple(keys)), lambda ask_reader: ask_reader(ROWS, asked))


async def read_staged(
    place: Place, handle: Mapping[str, Any], staged: Sequence[Mapping[str, Any]], *, rows: bool
) -> dict[str, Any]:
    """Return what an open transaction would do, see :func:`airflow_delta.ui.staged_rows.staged_rows`."""
    asked = {"handle": handle, "staged": staged, "rows": rows}
    told = hashlib.sha256(encode_json(asked)).digest()
    return await _read(place, (STAGED, place.id, told), lambda ask_reader: ask_reader(STAGED, asked))


async def in_plugin_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call a function that queries Airflow's database or renders a page, in one of the plugin's own threads.

    In the framework's threads it would block Airflow's own API. For a request that :func:`admitted` has let in: half of its work
    is done.
    """
    return await asyncio.wrap_future(_process().web.submit(lambda: function(*arguments, **named)))


async def admitted(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call the first function of a request as :func:`in_plugin_thread` does, unless too many requests are waiting.

    :raises PageProblem: if they are: the browser is asked to come back.
    """
    if _process().web.waiting >= WAITING_FOR_A_THREAD:
        raise overloaded()
    return await in_plugin_thread(function, *arguments, **named)


async def place_of(known: KnownTable) -> Place:
    """Return where a table is and how it is reached, in a thread that may wait for a server of credentials.

    :raises PageProblem: if the connection cannot be used, or too many wait for it already.
    """
    process, waits_for = _process(), known.conn_id or ""
    with process.lock:
        if process.places[waits_for] >= PLACES_OF_A_CONNECTION:
            raise busy(known.uri)
        process.places[waits_for] += 1
    found = process.credentials.submit(known.place)
    found.add_done_callback(lambda _: process.left(waits_for))
    waiting = asyncio.wrap_future(found)
    waiting.add_done_callback(_look_at)
    try:
        return await asyncio.wait_for(asyncio.shield(waiting), READ_TIMEOUT)
    except TimeoutError:
        raise timed_out(known.uri, READ_TIMEOUT) from None


AskReader = Callable[[str, dict[str, Any]], Any]


async def _read(place: Place, key: tuple[Any, ...], ask: Callable[[AskReader], T]) -> T:
    process = _process()
    fresh = process.remembered.fresh(key, LISTED_FOR if key[0] in SLOW else FRESH_FOR)
    if fresh is not None:
        result: T = fresh
        return result
    waiting = asyncio.wrap_future(process.schedule.submit(place, key, ask))
    waiting.add_done_callback(_look_at)
    try:
        return await asyncio.wait_for(asyncio.shield(waiting), READ_TIMEOUT + 1)
    except TimeoutError:
        raise timed_out(place.uri, READ_TIMEOUT) from None


def _look_at(late: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting a late error as never retrieved."""
    if not late.cancelled():
        late.exception()


@dataclass(slots=True)
class _Job:
    place: Place
    key: tuple[Any, ...]
    ask: Callable[[AskReader], Any]
    deadline: float
    future: Future[Any] = field(default_factory=Future)


class _Schedule:
    """Decides which read is next, within the limits in total and for each connection."""

    def __init__(self, keep: Callable[[tuple[Any, ...], Any], None]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="delta-tables-read")
        self._jobs: dict[tuple[Any, ...], _Job] = {}
        self._waiting: dict[str, deque[_Job]] = {}
        self._running: Counter[str] = Counter()
        self._busy: set[str] = set()
        self._answered: set[str] = set()
        self._slow: set[str] = set()

    def submit(self, place: Place, key: tuple[Any, ...], ask: Callable[[AskReader], Any]) -> Future[Any]:
        """Return the future answer; equal requests share it.

        :raises PageProblem: if too many are waiting.
        """
        with self._lock:
            if (job := self._jobs.get(key)) is not None:
                return job.future
            waiting = self._waiting.setdefault(place.connection, deque())
            if len(waiting) >= WAITING_FOR_A_CONNECTION:
                raise busy(place.uri)
            job = self._jobs[key] = _Job(place, key, ask, time.monotonic() + READ_TIMEOUT)
            waiting.append(job)
            self._start()
            return job.future

    def _start(self) -> None:
        """Start the reads that may start, connection by connection."""
        for connection in list(self._waiting):
            waiting = self._waiting.pop(connection)
            allowed = 1 if connection in self._slow else READERS_OF_A_CONNECTION
            while self._running[connection] < allowed and self._has_room(connection):
                job = next((job for job in waiting if connection not in self._busy or job.key[0] not in SLOW), None)
                if job is None:
                    break
                waiting.remove(job)
                self._running[connection] += 1
                if job.key[0] in SLOW:
                    self._busy.add(connection)
                self._threads.submit(self._run, job)
            if not self._running[connection]:
                del self._running[connection]
            if waiting:  # at the end: the others come first next time
                self._waiting[connection] = waiting

    def _has_room(self, connection: str) -> bool:
        if self._running.total() >= READERS or connection in self._answered:
            return self._running.total() < READERS
        unknown = sum(count for name, count in self._running.items() if name not in self._answered)
        return unknown < READERS_FOR_UNKNOWN

    def _run(self, job: _Job) -> None:
        try:
            if time.monotonic() >= job.deadline:  # nobody is waiting any more
                raise timed_out(job.place.uri, READ_TIMEOUT)
            result = job.ask(lambda what, arguments: _ask(job.place, what, arguments))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._ended(job, slow=True if isinstance(error, PageProblem) and error.status == 504 else None)
            job.future.set_exception(error)
        else:
            self._keep(job.key, result)
            self._ended(job, slow=False)
            job.future.set_result(result)

    def _ended(self, job: _Job, *, slow: bool | None) -> None:
        connection = job.place.connection
        with self._lock:
            self._jobs.pop(job.key, None)
            if job.key[0] in SLOW:
                self._busy.discard(connection)
            self._running[connection] -= 1
            if not self._running[connection]:
                del self._running[connection]
            if slow:
                self._answered.discard(connection)
                self._slow.add(connection)
            elif slow is False:
                self._answered.add(connection)
                self._slow.discard(connection)
            self._start()


def _ask(place: Place, what: str, arguments: dict[str, Any]) -> Any:
    """Ask a reader.

    :raises PageProblem: if the reader failed.
    """
    request = {"what": what, "uri": place.uri, "options": dict(place.options), "within": place.within, "arguments": arguments}
    try:
        answer = readers().ask(request, READ_TIMEOUT)
    except TimeoutError:
        raise timed_out(place.uri, READ_TIMEOUT) from None
    except (ReadLimitException, ReaderDiedError) as error:
        problem = of_error(error, place.uri)
        logger.warning("Table %s cannot be shown: %s", place.uri, problem.detail)
        raise problem from None
    if "result" not in answer:
        problem = of_kinds(answer["kinds"], str(answer["detail"]), place.uri)
        if problem.status != 404:
            logger.warning("Table %s cannot be shown: %s", place.uri, problem.detail)
        raise problem
    return answer["result"]


class _Threads:
    """The threads that query and render, and how many calls wait for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(WEB_THREADS, thread_name_prefix="delta-tables")
        self._lock = threading.Lock()
        self.waiting = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Return the future result of a call; one that is cancelled waits no longer."""
        with self._lock:
            self.waiting += 1
        future = self._threads.submit(call)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Future[Any]) -> None:
        with self._lock:
            self.waiting -= 1


class _Process:
    """The state of one process of the API server."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.remembered = Remembered()
        self.schedule = _Schedule(self.remembered.keep)
        self.web = _Threads()
        self.credentials = ThreadPoolExecutor(PLACES, thread_name_prefix="delta-tables-credentials")
        self.lock = threading.Lock()
        self.places: Counter[str] = Counter()

    def left(self, connection: str) -> None:
        """Count a request less that waits for the credentials of a connection."""
        with self.lock:
            self.places[connection] -= 1
            if not self.places[connection]:
                del self.places[connection]


_lock = threading.Lock()
_own: _Process | None = None


def _process() -> _Process:
    global _own
    with _lock:
        if _own is None or _own.pid != os.getpid():
            _own = _Process()
        return _own


def remembered() -> Remembered:
    """Return the cache of this process."""
    return _process().remembered
