"""How a trigger looks at logs again and again: once for a deferred task, or for as long as an asset watcher runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_delta import engine
from airflow_delta.contract.staging_directory import is_preview
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log.storage.errors import StoreRefusedError
from airflow_delta.masking import masked

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark

FoundT = TypeVar("FoundT")

BATCH = 100
"""Maximum number of findings of one look."""

HANDED_OVER = 10.0
"""Seconds after which an event counts as delivered: the triggerer passes on what its triggers yield about once a second."""

_REOPEN = 3600.0
"""Seconds after which the tables are reopened: the credentials of their connection may have been renewed."""

_FAILURES = 5
"""Consecutive failures after which a deferred sensor fails, and a watcher if none of their errors passes by itself."""


def refuse_previews(tables: Sequence[str]) -> None:
    """Refuse tables that nobody should wait for.

    :raises DeltaIllegalArgumentException: if a table is the preview of a transaction.
    """
    for table in tables:
        if is_preview(table):
            raise DeltaIllegalArgumentException(
                f"{table} is the preview of a transaction, not a table to wait for. Wait for the table itself, or put what "
                "reads the preview after the task that writes it."
            )


class LogTrigger(BaseEventTrigger, Generic[FoundT]):
    """Base of the triggers that watch the log of a table, the first of ``tables``.

    A deferred task gets one event, with what was found or with the error. A watcher keeps its position in the asset state store,
    after the events have been delivered. Its errors are logged, and the next look tries again: for as long as it takes if the
    storage does not answer, five times if the error does not pass by itself.
    """

    tables: Sequence[str]
    state_name: ClassVar[str]
    result_name: ClassVar[str]
    several_assets: ClassVar[str]

    def __init__(
        self,
        *,
        delta_conn_id: str,
        after_version: int | None,
        table_id: str | None,
        poll_interval: float,
        single_event: bool,
        queue: str | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.trigger_queue_inherited_from_task = single_event
        self.delta_conn_id = delta_conn_id
        self.after_version = after_version
        self.table_id = table_id
        self.poll_interval = poll_interval
        self.single_event = single_event
        self._opened: tuple[float, dict[str, DeltaLog]] | None = None
        self._first: Watermark | None = None

    @property
    def state_key(self) -> str:
        """Key of the watermark in the asset state store; it changes with what the trigger looks for."""
        looks_for = {name: value for name, value in self.serialize()[1].items() if name != "poll_interval"}
        return f"{self.state_name}.{hashlib.sha256(json.dumps(looks_for, sort_keys=True).encode()).hexdigest()[:16]}"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for what is found; storage is read in threads."""
        payloads = self._wait() if self.single_event else self._watch()
        async for payload in payloads:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    # -- what is looked for ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _look(self, logs: dict[str, DeltaLog], seen: Watermark | None) -> tuple[dict[str, Any] | None, Watermark | None]:
        """Return the first finding after a watermark, by default that of now, and the watermark to go on from."""

    @abstractmethod
    def _findings(self, logs: dict[str, DeltaLog], seen: Watermark) -> Iterator[tuple[FoundT | None, Watermark]]:
        """Yield what is after a watermark, in order, with the watermark after it; ``None`` for what does not count."""

    @abstractmethod
    def _payloads(self, found: list[FoundT]) -> list[dict[str, Any]]:
        """Return the payloads of the events for what a look found."""

    # -- for a deferred sensor ------------------------------------------------------------------------------------------------

    async def _wait(self) -> AsyncIterator[dict[str, Any]]:
        seen = None if self.after_version is None else engine.Watermark(self.after_version, self.table_id)
        failures = 0
        while True:
            try:
                found, seen = await asyncio.to_thread(self._look_once, seen)
                failures = 0
            except (DeltaError, OSError) as error:
                failures += 1
                if failures >= _FAILURES or not isinstance(error, (OSError, DeltaTableNotFoundException)):
                    if not isinstance(error, DeltaError):
                        raise
                    # An event, so that the task fails with this error and not only with that of a failed trigger.
                    yield {"status": "error", **_description(error)}
                    return
                self.log.info("Could not read table %s (%s of %s): %s", self._names, failures, _FAILURES, error)
                self._opened = None
            else:
                if found is not None:
                    yield {"status": "success", self.result_name: found}
                    return
            await asyncio.sleep(self.poll_interval)

    def _look_once(self, seen: Watermark | None) -> tuple[dict[str, Any] | None, Watermark | None]:
        logs = self._open()
        found, now_seen = self._look(logs, seen)
        if seen is not None:
            engine.check_not_gone(logs[self.tables[0]], seen)
        return found, now_seen

    # -- for a watcher --------------------------------------------------------------------------------------------------------

    async def _watch(self) -> AsyncIterator[dict[str, Any]]:
        seen: Watermark | None = None
        due: deque[tuple[float, Watermark]] = deque()
        failures = lasting = 0
        while True:
            found: list[FoundT] = []
            try:
                if seen is None:
                    seen = await self._begin()
                await self._remember_handed_over(due)
                found, now_seen = await asyncio.to_thread(self._look_further, seen)
            except Exception as error:
                self._opened = None
                failures += 1
                lasting = 0 if _may_pass(error) else lasting + 1
                if lasting >= _FAILURES:
                    raise
                what = f"{type(error).__name__}: {error}"
                self.log.error(
                    "Could not read table %s (%s in a row); trying again in %s s: %s",
                    self._names,
                    failures,
                    self.poll_interval,
                    what,
                )
            else:
                failures = lasting = 0
                if found:
                    for payload in self._payloads(found):
                        yield payload
                if now_seen != seen:
                    # Not before the events are safe: they are passed on after the yield, and a triggerer may die at any time.
                    seen = now_seen
                    due.append((time.monotonic(), now_seen))
            if len(found) < BATCH:
                await asyncio.sleep(self.poll_interval)

    def _look_further(self, seen: Watermark) -> tuple[list[FoundT], Watermark]:
        logs = self._open()
        log = logs[self.tables[0]]
        found: list[FoundT] = []
        try:
            for finding, now_seen in self._findings(logs, seen):
                seen = now_seen
                if finding is not None:
                    found.append(finding)
                    if len(found) == BATCH:
                        break
        except VersionNotFoundException as error:
            if error.table != masked(log.uri):  # of another table, whose versions are not counted here
                raise
            snapshot = log.snapshot
            gone = -1 if error.version is None else error.version
            following = error.earliest if error.earliest is not None and error.earliest > gone else snapshot.version + 1
            self.log.error("%s Continuing with version %s; earlier ones get no event.", error, following)
            # Of the current table, which may not be the one that was seen.
            seen = engine.Watermark(following - 1, snapshot.metadata.id)
        engine.check_not_gone(log, seen)
        return found, seen

    # -- the position of a watcher --------------------------------------------------------------------------------------------

    async def _begin(self) -> Watermark:
        if (stored := await self._stored()) is not None:
            return stored
        if self._first is None and self.after_version is not None:
            self._first = engine.Watermark(self.after_version, self.table_id)
        elif self._first is None:
            self._first = await asyncio.to_thread(self._present)
        # At once: after a restart, or a failure of the state store, commits before the first event must not count as old.
        await self._remember(self._first)
        return self._first

    def _present(self) -> Watermark:
        return engine.watermark_now(self._open()[self.tables[0]])

    async def _stored(self) -> Watermark | None:
        if self.asset_state_store is None:
            return None
        try:
            return engine.Watermark.from_dict(await self._state("get", self.state_key))
        except ValueError as error:  # with several assets the store asks which one, and a trigger does not know them
            raise DeltaIllegalArgumentException(
                f"Several assets share one trigger for table {self._names}, but each has its own state. {self.several_assets}",
                table=self.tables[0],
            ) from error

    async def _remember_handed_over(self, due: deque[tuple[float, Watermark]]) -> None:
        """Store the latest watermark that is old enough: on a busy table there is always one that is not."""
        ready = [seen for since, seen in due if time.monotonic() - since >= HANDED_OVER]
        if ready:
            await self._remember(ready[-1])
            for _ in ready:
                due.popleft()

    async def _remember(self, seen: Watermark) -> None:
        if self.asset_state_store is not None:
            await self._state("set", self.state_key, seen.to_dict())

    async def _state(self, name: str, *arguments: Any) -> Any:
        """Call the state store: it has no coroutines before Airflow 3.3.2, and its functions wait for this thread's loop."""
        coroutine = getattr(self.asset_state_store, f"a{name}", None)
        if coroutine is not None:
            return await coroutine(*arguments)
        return await asyncio.to_thread(getattr(self.asset_state_store, name), *arguments)

    # -- the tables -----------------------------------------------------------------------------------------------------------

    @property
    def _names(self) -> str:
        return ", ".join(self.tables)

    def _open(self) -> dict[str, DeltaLog]:
        now = time.monotonic()
        if self._opened is None or now - self._opened[0] > _REOPEN:
            hook = DeltaHook(self.delta_conn_id)
            self._opened = (now, {name: hook.get_log(name) for name in self.tables})
        return self._opened[1]


def _may_pass(error: Exception) -> bool:
    """Return whether an error may pass by itself: the storage does not answer. What it refuses for good does not."""
    return isinstance(error, OSError) and not isinstance(error, (PermissionError, NotADirectoryError, StoreRefusedError))


def _description(error: DeltaError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message, "table": error.table, "version": error.version}
