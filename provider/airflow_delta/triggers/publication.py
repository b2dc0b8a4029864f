"""Wait in the triggerer until several tables show a publication: once for a deferred sensor, or for each event of a watcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.triggers.next_publication import next_publication, watched_tables
from airflow_delta.triggers.watching import LogTrigger, refuse_previews

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark


class DeltaPublicationTrigger(LogTrigger[dict[str, Any]]):
    """Fire when all of some tables show a publication that they took part in.

    As the trigger of an ``AssetWatcher`` it reports each such publication, in the order of the first table, at least once. The
    payload of an event is ``publication`` (its id), ``versions`` (by table: they belong together, and show it) and
    ``table_uris``. Position, restarts and errors are as in :class:`~airflow_delta.triggers.delta.DeltaTableVersionTrigger`.

    :param tables: URIs, absolute paths, or names below the connection's base path; the first one's log is watched.
    :param delta_conn_id: connection of type ``delta``.
    :param after_version: fire for publications after this version of the first table; default: the one when the trigger first
        runs.
    :param table_id: id of the table that ``after_version`` belongs to.
    :param poll_interval: seconds between two looks.
    :param single_event: fire once and end, for a deferred task.
    :param queue: trigger queue of a watcher, from Airflow 3.4 on.
    """

    state_name = "delta_publication"
    result_name = "publication"
    several_assets = "Use one asset for what they watch."

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
        super().__init__(
            delta_conn_id=delta_conn_id,
            after_version=after_version,
            table_id=table_id,
            poll_interval=poll_interval,
            single_event=single_event,
            queue=queue,
        )
        self.tables = watched_tables(tables)
        refuse_previews(self.tables)

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

    def _look(self, logs: dict[str, DeltaLog], seen: Watermark | None) -> tuple[dict[str, Any] | None, Watermark | None]:
        return next_publication(logs, seen if seen is not None else engine.watermark_now(logs[self.tables[0]]))

    def _findings(self, logs: dict[str, DeltaLog], seen: Watermark) -> Iterator[tuple[dict[str, Any] | None, Watermark]]:
        found: dict[str, Any] | None = {}
        while found is not None:
            found, seen = next_publication(logs, seen)
            yield found, seen

    def _payloads(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return found
