"""Wait for versions of a Delta table in the triggerer: once for a deferred sensor, continuously for an asset watcher."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_delta import engine
from airflow_delta.assets.delta import dedupe_key, watched_extras
from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    VersionNotFoundException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log.storage.base import StoreRefusedError

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import CommitConditions, Match, Watermark

_BATCH = 100
"""Maximum number of commits in one event."""

HANDED_OVER = 10.0
"""Seconds after which an event counts as delivered: the triggerer passes on what its triggers yield about once a second."""

_REOPEN = 3600.0
"""Seconds after which the table is reopened: the credentials of its connection may have been renewed."""

_FAILURES = 5
"""Consecutive failures after which a deferred sensor fails, and a watcher if none of their errors passes by itself."""


def operation_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the operations in an argument that is one name or several."""
    return (value,) if isinstance(value, str) and value else tuple(value or ())


def commit_conditions(operation: str | Sequence[str] | None, partitions: str | None, data_change_only: bool) -> CommitConditions:
    """Return the conditions for the arguments of the sensor or the trigger."""
    names = operation_names(operation)
    return engine.CommitConditions(operations=names, partitions=partitions or None, data_change_only=data_change_only)


def commit_report(match: Match) -> dict[str, Any]:
    """Return what a sensor returns for a commit, as plain JSON."""
    return {
        **match.summary.to_dict(),
        "observed_version": match.observed_version,
        "table": match.table,
        "table_identity": match.table_id,
        "dedupe_key": dedupe_key(match.table_id, match.summary.version),
    }


class DeltaTableVersionTrigger(BaseEventTrigger):
    """Fire for versions of a Delta table, committed by any engine: this provider, Spark, delta-rs.

    As the trigger of an ``AssetWatcher`` it reports each matching version, in order and at least once: one event for each poll
    that found any. It keeps its position in the asset state store, after the events have been delivered; after a restart of the
    triggerer the latest events may repeat, and consumers recognise them by ``dedupe_key``. Errors are logged, and the next poll
    tries again: for as long as it takes if the storage does not answer, five times if the error does not pass by itself (no
    permission, no such bucket, a damaged log, a wrong argument, a table that is gone). Then the trigger ends with the error; the
    triggerer begins it again. A table that does not exist yet is waited for; one that was created again is entirely new.

    ``payload`` of an event: ``version``, ``read_version`` (``None`` if the writer did not record it), ``observed_version`` (the
    latest one at that time), ``table``, ``table_identity`` (its id), ``operation``, ``timestamp`` (milliseconds),
    ``transaction_id``, ``num_files``, ``num_removed_files``, ``num_records``, ``num_bytes``, ``num_partitions``, ``partitions``
    (at most 100), ``data_change``, ``dedupe_key``. If a poll found several commits, these describe the last one, and ``commits``
    has all of them, oldest first: ``commits_of_events`` reads both forms.

    Airflow runs equal triggers once. If several assets have equal triggers, their states clash: give each a ``label``.

    :param table: URI, absolute path, or name below the connection's base path.
    :param delta_conn_id: connection of type ``delta``.
    :param after_version: fire for versions after this one; default: after the table's version when the trigger first runs. A
        watcher with a stored state continues from that.
    :param operation: Delta operations to report, one or several, such as ``WRITE``; default: all.
    :param partitions: Spark SQL predicate over partition columns: only commits that touched a partition that may satisfy it.
    :param data_change_only: ignore commits that changed no rows (OPTIMIZE, ALTER TABLE), even if ``operation`` names them.
    :param poll_interval: seconds between two polls of the log.
    :param label: distinguishes triggers that are otherwise equal.
    :param version: with ``single_event``: fire when the table has this version, whatever its operation.
    :param table_id: id of the table that ``after_version`` belongs to; all versions of another table at that place are later.
    :param single_event: fire once and end, for a deferred task; it then runs in the trigger queue of its task.
    :param queue: trigger queue of a watcher, from Airflow 3.4 on.
    """

    def __init__(
        self,
        table: str,
        *,
        delta_conn_id: str = DeltaHook.default_conn_name,
        after_version: int | None = None,
        operation: str | Sequence[str] | None = None,
        partitions: str | None = None,
        data_change_only: bool = True,
        poll_interval: float = 60.0,
        label: str | None = None,
        version: int | None = None,
        table_id: str | None = None,
        single_event: bool = False,
        queue: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.trigger_queue_inherited_from_task = single_event
        self.table = table
        self.delta_conn_id = delta_conn_id
        self.after_version = after_version
        self.operation = operation
        self.partitions = partitions
        self.data_change_only = data_change_only
        self.poll_interval = poll_interval
        self.label = label
        self.version = version
        self.table_id = table_id
        self.single_event = single_event
        self._opened: tuple[float, DeltaLog] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments. Watchers whose arguments are equal share one trigger."""
        return (
            "airflow_delta.triggers.delta.DeltaTableVersionTrigger",
            {
                "table": self.table,
                "delta_conn_id": self.delta_conn_id,
                "after_version": self.after_version,
                "operation": list(operation_names(self.operation)),
                "partitions": self.partitions,
                "data_change_only": self.data_change_only,
                "poll_interval": float(self.poll_interval),
                "label": self.label,
                "version": self.version,
                "table_id": self.table_id,
                "single_event": self.single_event,
            },
        )

    @property
    def state_key(self) -> str:
        """Key of the watermark in the asset state store; it changes with what the trigger looks for."""
        looks_for = {name: value for name, value in self.serialize()[1].items() if name != "poll_interval"}
        return f"delta_table_version.{hashlib.sha256(json.dumps(looks_for, sort_keys=True).encode()).hexdigest()[:16]}"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for the versions; storage is read in threads."""
        events = self._wait() if self.single_event else self._watch()
        async for event in events:
            yield event

    # -- for a deferred sensor ------------------------------------------------------------------------------------------------

    async def _wait(self) -> AsyncIterator[TriggerEvent]:
        seen = None if self.after_version is None else engine.Watermark(self.after_version, self.table_id)
        failures = 0
        while True:
            try:
                match, seen = await asyncio.to_thread(self._look, seen)
                failures = 0
            except (DeltaError, OSError) as error:
                failures += 1
                if failures >= _FAILURES or not isinstance(error, (OSError, DeltaTableNotFoundException)):
                    if not isinstance(error, DeltaError):
                        raise
                    # An event, so that the task fails with this error and not only with that of a failed trigger.
                    yield _event({"status": "error", **_description(error)})
                    return
                self.log.info("Could not read table %s (%s of %s): %s", self.table, failures, _FAILURES, error)
                self._opened = None
            else:
                if match is not None:
                    yield _event({"status": "success", "commit": commit_report(match)})
                    return
            await asyncio.sleep(self.poll_interval)

    def _look(self, seen: Watermark | None) -> tuple[Match | None, Watermark | None]:
        log = self._open()
        if self.version is not None:
            match, now_seen = engine.version_reached(log, self.version), engine.watermark_read(log)
        else:
            match, now_seen = engine.first_match(log, seen if seen is not None else engine.watermark_now(log), self._conditions())
        if seen is not None:
            engine.check_not_gone(log, seen)
        return match, now_seen

    # -- for a watcher --------------------------------------------------------------------------------------------------------

    async def _watch(self) -> AsyncIterator[TriggerEvent]:
        seen: Watermark | None = None
        due: deque[tuple[float, Watermark]] = deque()
        failures = lasting = 0
        while True:
            matches: list[Match] = []
            try:
                if seen is None:
                    seen = await self._begin()
                await self._remember_handed_over(due)
                matches, now_seen = await asyncio.to_thread(self._look_further, seen)
            except Exception as error:
                self._opened = None
                failures += 1
                lasting = 0 if _may_pass(error) else lasting + 1
                if lasting >= _FAILURES:
                    raise
                what = f"{type(error).__name__}: {error}"
                self.log.error(
                    "Could not read table %s (%s in a row); trying again in %s s: %s",
                    self.table,
                    failures,
                    self.poll_interval,
                    what,
                )
            else:
                failures = lasting = 0
                if matches:
                    yield _event(watched_extras(matches))
                if now_seen != seen:
                    # Not before the events are safe: they are passed on after the yield, and a triggerer may die at any time.
                    seen = now_seen
                    due.append((time.monotonic(), now_seen))
            if len(matches) < _BATCH:
                await asyncio.sleep(self.poll_interval)

    async def _begin(self) -> Watermark:
        if (stored := await self._stored()) is not None:
            return stored
        if self.after_version is not None:
            seen = engine.Watermark(self.after_version, self.table_id)
        else:
            seen = await asyncio.to_thread(self._present)
        # At once: after a restart, commits before the first event must not count as old.
        await self._remember(seen)
        return seen

    async def _stored(self) -> Watermark | None:
        if self.asset_state_store is None:
            return None
        try:
            return engine.Watermark.from_dict(await self._state("get", self.state_key))
        except ValueError as error:  # with several assets the store asks which one, and a trigger does not know them
            raise DeltaIllegalArgumentException(
                f"Several assets share one trigger for table {self.table}, but each has its own state. Give the trigger of each "
                "asset its own label=, or use one asset (delta_asset) for the table.",
                table=self.table,
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

    def _present(self) -> Watermark:
        return engine.watermark_now(self._open())

    def _look_further(self, seen: Watermark) -> tuple[list[Match], Watermark]:
        log = self._open()
        found: list[Match] = []
        try:
            for match, now_seen in engine.matches_after(log, seen, self._conditions()):
                seen = now_seen
                if match is not None:
                    found.append(match)
                    if len(found) == _BATCH:
                        break
        except VersionNotFoundException as error:
            snapshot = log.snapshot
            gone = -1 if error.version is None else error.version
            following = error.earliest if error.earliest is not None and error.earliest > gone else snapshot.version + 1
            self.log.error("%s Continuing with version %s; earlier ones get no event.", error, following)
            # Of the current table, which may not be the one that was seen.
            seen = engine.Watermark(following - 1, snapshot.metadata.id)
        engine.check_not_gone(log, seen)
        return found, seen

    # -- the table ------------------------------------------------------------------------------------------------------------

    def _open(self) -> DeltaLog:
        now = time.monotonic()
        if self._opened is None or now - self._opened[0] > _REOPEN:
            self._opened = (now, DeltaHook(self.delta_conn_id).get_log(self.table))
        return self._opened[1]

    def _conditions(self) -> CommitConditions:
        return commit_conditions(self.operation, self.partitions, self.data_change_only)


def _may_pass(error: Exception) -> bool:
    """Return whether an error may pass by itself: the storage does not answer. What it refuses for good does not."""
    return isinstance(error, OSError) and not isinstance(error, (PermissionError, NotADirectoryError, StoreRefusedError))


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _description(error: DeltaError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message, "table": error.table, "version": error.version}
