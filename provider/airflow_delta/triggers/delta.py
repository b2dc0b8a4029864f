"""Wait for versions of a Delta table in the triggerer: once for a deferred sensor, continuously for an asset watcher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.assets.events import watched_extras
from airflow_delta.contract.sql_parameters import with_given
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.triggers.commits import commit_conditions, commit_report, operation_names
from airflow_delta.triggers.watching import LogTrigger, refuse_previews

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import CommitConditions, Match, Watermark


class DeltaTableVersionTrigger(LogTrigger["Match"]):
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
    :param parameters: values of named parameters (``:day``) in ``partitions``, which has them as literals from then on.
    :param data_change_only: ignore commits that changed no rows (OPTIMIZE, ALTER TABLE), even if ``operation`` names them.
    :param poll_interval: seconds between two polls of the log.
    :param label: distinguishes triggers that are otherwise equal.
    :param version: with ``single_event``: fire when the table has this version, whatever its operation.
    :param table_id: id of the table that ``after_version`` belongs to; all versions of another table at that place are later.
    :param single_event: fire once and end, for a deferred task; it then runs in the trigger queue of its task.
    :param queue: trigger queue of a watcher, from Airflow 3.4 on.
    """

    state_name = "delta_table_version"
    result_name = "commit"
    several_assets = "Give the trigger of each asset its own label=, or use one asset (delta_asset) for the table."

    def __init__(
        self,
        table: str,
        *,
        delta_conn_id: str = DeltaHook.default_conn_name,
        after_version: int | None = None,
        operation: str | Sequence[str] | None = None,
        partitions: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        data_change_only: bool = True,
        poll_interval: float = 60.0,
        label: str | None = None,
        version: int | None = None,
        table_id: str | None = None,
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
        self.table = table
        self.tables = (table,)
        refuse_previews(self.tables)
        self.operation = operation
        self.partitions = with_given(partitions, parameters, whose="partitions of the trigger")
        self.data_change_only = data_change_only
        self.label = label
        self.version = version

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

    def _look(self, logs: dict[str, DeltaLog], seen: Watermark | None) -> tuple[dict[str, Any] | None, Watermark | None]:
        log = logs[self.table]
        if self.version is not None:
            match, now_seen = engine.version_reached(log, self.version), engine.watermark_read(log)
        else:
            match, now_seen = engine.first_match(log, seen if seen is not None else engine.watermark_now(log), self._conditions())
        return None if match is None else commit_report(match), now_seen

    def _findings(self, logs: dict[str, DeltaLog], seen: Watermark) -> Iterator[tuple[Match | None, Watermark]]:
        return engine.matches_after(logs[self.table], seen, self._conditions())

    def _payloads(self, found: list[Match]) -> list[dict[str, Any]]:
        return [watched_extras(found)]

    def _conditions(self) -> CommitConditions:
        return commit_conditions(self.operation, self.partitions, self.data_change_only)
