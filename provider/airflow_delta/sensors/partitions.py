"""Wait until partitions of a Delta table have changed, by any writer, and emit the same events as our own commits would."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from airflow.sdk import Asset, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.airflow_internals.tasks import add_keyed_events
from airflow_delta.assets.events import watched_extras
from airflow_delta.contract.kinds import LOCATION, WHOLE_NUMBER
from airflow_delta.contract.partition_events import MANY, PartitionEvents
from airflow_delta.contract.tags import PARTITION_EVENTS_TAG
from airflow_delta.exceptions import VersionNotFoundException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.sensors.watching import LogSensor
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.outlets import table_outlets
from airflow_delta.tasks.partition_events import check_outlets, read_column, with_keys
from airflow_delta.triggers.commits import commit_conditions
from airflow_delta.triggers.delta import DeltaTableVersionTrigger
from airflow_delta.triggers.watching import refuse_previews

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Match, Watermark
    from airflow_delta.tasks.declared import Taken

STATE_KEY = "delta_partitions"
"""Beginning of the keys of positions in the asset state store; the rest names the table: tables may share an outlet."""

_COMMITS = 100
"""Commits that one task reports."""


class _Found(NamedTuple):
    matches: list[Match]
    keys: list[str]
    seen: Watermark


class DeltaPartitionSensor(LogSensor):
    """Wait until a commit, by any writer, has changed rows of a table, and emit an event for each partition that it changed.

    A watcher cannot: Airflow gives its events no partition key. Commits that emitted such events themselves are passed over
    (tasks of this provider with ``partition_events``). The outlets get one event for each partition of all commits since the last
    time, and no event without a key; a mapped sensor must name them.

    The version up to which events were emitted is in the asset state store of the first outlet. Airflow
    registers the events together with the success of the task, so each commit is reported once, whatever dies: what a task
    instance found that has not succeeded, the next one reports. Several runs must not wait for one table at a time: make
    ``max_active_runs=1`` of the Dag, for example with ``schedule="@continuous"``.

    Returns ``keys``, ``versions`` (reported by this task) and ``observed_version`` (the latest one).

    :param table: URI, absolute path, or name below the connection's base path. The table need not exist yet. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    :param partition_events: keys, as :class:`~airflow_delta.contract.partition_events.PartitionEvents` describes them. A function
        that returns ``None`` for a partition leaves it out. A task reports up to 100 commits, and ``max_keys`` keys of more than
        one; the next one reports what is left.
    :param changed_since: the first time: report the commits after this version; -1 for all. Default: those after the version of
        the table at the first look. (templated)
    :param wait: if nothing has changed at the first look, wait; otherwise the task is skipped, as after the event of a watcher
        that comes twice.
    :param outlets: the assets that get the events; default: that of the table, unless its name is templated.
    :param deferrable: wait in the triggerer; default: ``[operators] default_deferrable``.

    The other parameters are those of Airflow's ``BaseSensorOperator``.

    :raises DeltaIllegalArgumentException: if no outlet is an asset.
    """

    ui_color = "#e6f1f2"

    table: str = parameter(templated=True, kind=LOCATION)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)
    partition_events: Any = parameter(default=True)
    changed_since: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    wait: bool = parameter(default=True)
    deferrable: bool = parameter(default=conf.getboolean("operators", "default_deferrable", fallback=False))

    def __init__(self, *, outlets: Sequence[Any] | None = None, **kwargs: Any) -> None:
        of_table = kwargs.get("table"), kwargs.get("delta_conn_id", DeltaHook.default_conn_name)
        told = table_outlets(*of_table) if outlets is None else list(outlets)
        check_outlets(kwargs.get("partition_events", True), told, f"The sensor {kwargs.get('task_id')!r}")
        super().__init__(outlets=told, **kwargs)
        self._opened: DeltaLog | None = None
        self._seen: Watermark | None = None
        self._found: _Found | None = None

    @classmethod  # type: ignore[misc] # Airflow's is an attribute
    def partial(cls, **kwargs: Any) -> Any:
        """Return a sensor to be mapped: Airflow registers the outlets that it names here, and no others.

        :raises DeltaIllegalArgumentException: if no outlet is an asset.
        """
        check_outlets(kwargs.get("partition_events", True), kwargs.get("outlets") or (), f"The sensor {kwargs.get('task_id')!r}")
        return super().partial(**kwargs)

    def watched(self) -> Sequence[str]:
        """Return the table."""
        return (self.table,)

    def execute(self, context: Context) -> Any:
        """Wait, emit the events, and return the keys.

        :raises AirflowSkipException: if nothing has changed, and ``wait`` is off.
        :raises DeltaIllegalArgumentException: if the table is the preview of a transaction.
        :raises VersionNotFoundException: if commits were cleaned up before they were reported.
        """
        refuse_previews(self.watched())
        if not self.wait or self.deferrable:
            if self.look_once(context).is_done:
                return self._tell(context)
            if not self.wait:
                raise AirflowSkipException(f"No partition of table {self.table} has changed since version {self._version}.")
            self._defer()
        super().execute(context)
        return self._tell(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Report what the trigger has seen; if others have reported these commits, keep waiting."""
        self.check_event(event)
        if not self.look_once(context).is_done:
            self._defer()
        return self._tell(context)

    def _defer(self) -> NoReturn:
        seen = self._seen
        self.defer(
            trigger=DeltaTableVersionTrigger(
                self.table,
                delta_conn_id=self.delta_conn_id,
                after_version=None if seen is None else seen.version,
                table_id=None if seen is None else seen.table_id,
                poll_interval=self.seconds_between_looks,
                single_event=True,
            ),
            method_name="execute_complete",
            timeout=self.longest_wait,
        )

    @property
    def _version(self) -> int | None:
        return None if self._seen is None else self._seen.version

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        if self._opened is None:
            self._opened = DeltaHook(self.delta_conn_id).get_log(self.table)
        log = self._opened
        if self._seen is None:
            self._seen = self._begin(context, log)
        found = self._look(log, self._seen)
        if found.keys:
            self._found = found
            return PokeReturnValue(is_done=True)
        if found.seen != self._seen:
            self._seen = found.seen
            self._remember(context, found.seen)
        self.log.info("Nothing to report of table %s after version %s.", log.uri, self._version)
        return PokeReturnValue(is_done=False)

    def _look(self, log: DeltaLog, seen: Watermark) -> _Found:
        events = PartitionEvents.of(self.partition_events) or PartitionEvents()
        matches: list[Match] = []
        keys: dict[str, None] = {}
        for match, now_seen in engine.matches_after(log, seen, commit_conditions(None, None, data_change_only=True)):
            if match is None or PARTITION_EVENTS_TAG in match.summary.tags:
                seen = now_seen
                continue
            try:
                changed = engine.changed_partitions(log, match.summary.version, events, read=read_column)
            except FileNotFoundError as error:
                version = match.summary.version
                message = f"Version {version} of table {log.uri} left the log while it was read. Clear the task."
                raise log.error(VersionNotFoundException, message, version=version) from error
            if matches and (len(matches) >= _COMMITS or len({*keys, *changed}) > events.max_keys):
                break  # the rest next time: each event of a task has what is said of all its commits
            seen = now_seen
            if changed:
                matches.append(match)
                keys |= dict.fromkeys(changed)
        return _Found(matches, list(keys), seen)

    def _tell(self, context: Context) -> dict[str, Any]:
        found, before = self._found, self._seen
        if found is None or before is None:
            raise RuntimeError("The sensor has found nothing.")  # does not happen: it waits until it has
        self._remember(context, before, telling=found.seen)
        keys = tuple(found.keys)
        extra = with_keys(watched_extras(found.matches), (MANY,) if MANY in keys else keys)
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(extra)
                add_keyed_events(context["outlet_events"][outlet], keys, whole=False)
        versions = [match.summary.version for match in found.matches]
        self.log.info("Table %s: versions %s changed the partitions %s.", self.table, versions, found.keys)
        return {"keys": found.keys, "versions": versions, "observed_version": found.matches[-1].observed_version}

    # -- up to where events exist ---------------------------------------------------------------------------------------------

    def _begin(self, context: Context, log: DeltaLog) -> Watermark:
        """Return after which version to look: what a task instance has reported counts once it has succeeded."""
        kept = self._store(context).get(self._key)
        seen = engine.Watermark.from_dict(kept)
        if seen is None or not isinstance(kept, dict):
            given = self.changed_since
            seen = engine.watermark_now(log) if given is None else engine.Watermark(given)
            self._remember(context, seen)
            return seen
        telling = engine.Watermark.from_dict(kept.get("telling"))
        by = kept.get("by")
        if telling is None or by == self._me(context) or not self._has_succeeded(context, by):
            return seen
        return telling

    def _has_succeeded(self, context: Context, by: Any) -> bool:
        """Return whether a task instance has succeeded; one that Airflow no longer knows is taken for one that has."""
        dag_id, run_id, task_id, map_index = by
        states = context["ti"].get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id]).get(run_id, {})
        name = task_id if map_index < 0 else f"{task_id}_{map_index}"
        return bool(states.get(name, "success") == "success")

    def _remember(self, context: Context, seen: Watermark, telling: Watermark | None = None) -> None:
        more = {} if telling is None else {"telling": telling.to_dict(), "by": self._me(context)}
        self._store(context).set(self._key, {**seen.to_dict(), **more})

    @property
    def _key(self) -> str:
        assert self._opened is not None
        return f"{STATE_KEY}_{hashlib.sha256(self._opened.uri.encode()).hexdigest()[:16]}"

    def _store(self, context: Context) -> Any:
        return context["asset_state_store"][next(outlet for outlet in self.outlets if isinstance(outlet, Asset))]

    @staticmethod
    def _me(context: Context) -> list[Any]:
        ti = context["ti"]
        return [ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index]
