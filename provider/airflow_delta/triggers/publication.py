"""Wait in the triggerer until several tables show a publication: once for a deferred sensor, or for each event of a watcher."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_delta import engine
from airflow_delta import publication as publications
from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.triggers.delta import HANDED_OVER

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark

_FAILURES = 5
"""Consecutive failures after which the trigger ends with the error."""


def watched_tables(tables: Any) -> list[str]:
    """Return the tables in an argument, the first of which is watched.

    :raises DeltaIllegalArgumentException: if there is none, or one is there twice.
    """
    names = [tables] if isinstance(tables, str) else list(tables or ())
    if not names or not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise DeltaIllegalArgumentException(f"tables must be one or more names of tables, each once, got {tables!r}.")
    return names


def next_publication(logs: Mapping[str, DeltaLog], seen: Watermark) -> tuple[dict[str, Any] | None, Watermark]:
    """Return the first publication on all tables after a watermark of the first one, and the watermark to keep.

    One that is on its way is waited for; one that was taken back, or that is not about all of the tables, is passed over.

    :param logs: by the name of the table.
    :return: ``publication`` (its id), ``versions`` of the tables that show it and belong together, and ``table_uris``.
    :raises VersionNotFoundException: if commits since the watermark were cleaned up unseen.
    """
    first = next(iter(logs.values()))
    uris = {log.uri for log in logs.values()}
    for match, now_seen in engine.matches_after(first, seen, engine.CommitConditions(data_change_only=False)):
        tags = match.summary.tags if match is not None else {}
        publication = tags.get("airflow.publication")
        if publication is not None and tags.get("airflow.publicationState") == "published":
            on_it = tags.get("airflow.publicationTables", "[]")
            if uris <= set(json.loads(on_it)):
                states = [_state(log, publication) for log in logs.values()]
                if all(state == 1 for state in states):
                    return _found(logs, publication), now_seen
                if all(state in (None, 0, 1) for state in states):
                    return None, seen  # on its way: look again from here
        seen = now_seen
    return None, seen


def _state(log: DeltaLog, publication: str) -> int | None:
    log.update()
    return publications.publication_states(log).get(publication)


def _found(logs: Mapping[str, DeltaLog], publication: str) -> dict[str, Any]:
    vector = publications.get_versions(logs)
    return {
        "publication": publication,
        "versions": dict(vector.versions),
        "table_uris": {name: log.uri for name, log in logs.items()},
    }


class DeltaPublicationTrigger(BaseEventTrigger):
    """Fire when all of some tables show a publication that they took part in.

    As the trigger of an ``AssetWatcher`` it reports each such publication, in the order of the first table, at least once. The
    payload of an event is ``publication`` (its id), ``versions`` (by table: they belong together, and show it) and
    ``table_uris``. It keeps its position in the asset state store.

    :param tables: URIs, absolute paths, or names below the connection's base path; the first one's log is watched.
    :param delta_conn_id: connection of type ``delta``.
    :param after_version: fire for publications after this version of the first table; default: the one when the trigger first
        runs.
    :param table_id: id of the table that ``after_version`` belongs to.
    :param poll_interval: seconds between two looks.
    :param single_event: fire once and end, for a deferred task.
    :param queue: trigger queue of a watcher, from Airflow 3.4 on.
    """

    def __init__(
        self,
        tables: Sequence[str],
        *,
        delta_conn_id: str = DeltaHook.default_conn_name,
        after_version: int | None = None,
        table_id: str | None = None,
        poll_interval: float = 60.0,
        single_event: bool = False,
        queue: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.trigger_queue_inherited_from_task = single_event
        self.tables = watched_tables(tables)
        self.delta_conn_id = delta_conn_id
        self.after_version = after_version
        self.table_id = table_id
        self.poll_interval = poll_interval
        self.single_event = single_event

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments. Watchers whose arguments are equal share one trigger."""
        return (
            "airflow_delta.triggers.publication.DeltaPublicationTrigger",
            {
                "tables": self.tables,
                "delta_conn_id": self.delta_conn_id,
                "after_version": self.after_version,
                "table_id": self.table_id,
                "poll_interval": float(self.poll_interval),
                "single_event": self.single_event,
            },
        )

    @property
    def state_key(self) -> str:
        """Key of the watermark in the asset state store; it changes with what the trigger looks for."""
        looks_for = {name: value for name, value in self.serialize()[1].items() if name != "poll_interval"}
        return f"delta_publication.{hashlib.sha256(json.dumps(looks_for, sort_keys=True).encode()).hexdigest()[:16]}"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for the publications; storage is read in threads."""
        logs: dict[str, DeltaLog] | None = None
        seen: Watermark | None = None
        due: deque[tuple[float, Watermark]] = deque()
        failures = 0
        while True:
            found = None
            try:
                if logs is None:  # again after a failure: the credentials may have been renewed
                    logs = await asyncio.to_thread(self._open)
                if seen is None:
                    seen = await self._begin(logs)
                await self._remember_handed_over(due)
                found, now_seen = await asyncio.to_thread(next_publication, logs, seen)
                failures = 0
            except (DeltaError, OSError) as error:
                failures += 1
                if failures >= _FAILURES or not isinstance(error, OSError):
                    if not self.single_event or not isinstance(error, DeltaError):
                        raise
                    # An event, so that the task fails with this error and not only with that of a failed trigger.
                    yield _event({"status": "error", **_description(error)})
                    return
                self.log.info("Could not look at %s (%s of %s): %s", ", ".join(self.tables), failures, _FAILURES, error)
                logs = None
            else:
                if found is not None and self.single_event:
                    yield _event({"status": "success", "publication": found})
                    return
                if found is not None:
                    yield _event(found)
                if now_seen != seen:
                    # Not before the event is safe: it is passed on after the yield, and a triggerer may die at any time.
                    seen = now_seen
                    due.append((time.monotonic(), seen))
                if found is not None:
                    continue
            await asyncio.sleep(self.poll_interval)

    def _open(self) -> dict[str, DeltaLog]:
        hook = DeltaHook(self.delta_conn_id)
        return {name: hook.get_log(name) for name in self.tables}

    async def _begin(self, logs: Mapping[str, DeltaLog]) -> Watermark:
        if self.asset_state_store is not None:
            stored = engine.Watermark.from_dict(await self._state_store("get", self.state_key))
            if stored is not None:
                return stored
        if self.after_version is not None:
            seen = engine.Watermark(self.after_version, self.table_id)
        else:
            seen = await asyncio.to_thread(engine.watermark_now, logs[self.tables[0]])
        await self._remember(seen)
        return seen

    async def _remember_handed_over(self, due: deque[tuple[float, Watermark]]) -> None:
        while due and time.monotonic() - due[0][0] >= HANDED_OVER:
            await self._remember(due.popleft()[1])

    async def _remember(self, seen: Watermark) -> None:
        if self.asset_state_store is not None:
            await self._state_store("set", self.state_key, seen.to_dict())

    async def _state_store(self, name: str, *arguments: Any) -> Any:
        """Call the state store: it has no coroutines before Airflow 3.3.2, and its functions wait for this thread's loop."""
        coroutine = getattr(self.asset_state_store, f"a{name}", None)
        if coroutine is not None:
            return await coroutine(*arguments)
        return await asyncio.to_thread(getattr(self.asset_state_store, name), *arguments)


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _description(error: DeltaError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message, "table": error.table, "version": error.version}
