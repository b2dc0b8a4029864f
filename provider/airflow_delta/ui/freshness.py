"""When a table is expected to change, and when it last did: from the deadlines of Dags that wait for it, or write it.

Airflow has a deadline for each run, and deletes it when the run succeeds in time. Which table a sensor waits for is in its
rendered fields, so a templated name is found as well.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, or_, select, tuple_

from airflow_delta.airflow_internals import database
from airflow_delta.ui.known import KnownTable, commit_url, location_key
from airflow_delta.ui.tries import Run, TaskKey, milliseconds, outlets, results, task_run

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer

SENSORS = frozenset({"DeltaTableVersionSensor", "DeltaPartitionSensor"})
"""Operators that wait for a table."""

DAGS = 200
"""Dags with deadlines that are looked at."""

ROWS = 50
"""Tasks that are shown."""

_RUNS = 10
_RUNS_AT_ONCE = 400
_MAX_INSTANCES = 5_000
_CONDITIONS = ("partitions", "operation", "version")
_COMMIT = "return_value"


@dataclass(frozen=True, slots=True)
class _Instance:
    """A task instance that waits for a table, or writes it.

    :param number: id of its run.
    """

    key: TaskKey
    number: int
    state: str | None
    end: int | None
    operator: str | None

    @property
    def arrived(self) -> bool:
        return self.state == "success" and self.end is not None


@dataclass(frozen=True, slots=True)
class _Deadline:
    at: int
    missed: bool


def freshness(session: Session, viewer: Viewer, table: KnownTable, root: str, prefix: str) -> list[dict[str, Any]]:
    """Return what waits for a table, or writes it, in Dags with a deadline: tasks that the user may see, late ones first.

    Each has ``state`` (``waiting``, ``late``, ``in_time``, ``came_late``, or how its task ended), ``expected`` (the deadline of
    the newest run, or of the next one if this run has what it waits for), ``missed`` (Airflow has called the callback of that
    run), and ``last``.

    :param root: path of Airflow's UI.
    :param prefix: path of these pages.
    """
    dag_ids = _dags_with_deadlines(session)
    if not dag_ids:
        return []
    writers = {task for tasks in outlets(session, table.asset_ids).values() for task in tasks if task[0] in dag_ids}
    found = _instances(session, dag_ids, writers)
    waits_for = _conditions(session, table, [one for one in found if one.operator in SENSORS])
    groups: dict[tuple[str, str, int], list[_Instance]] = {}
    for one in found:
        dag_id, _, task_id, map_index = one.key
        if one.key in waits_for if one.operator in SENSORS else (dag_id, task_id) in writers:
            groups.setdefault((dag_id, task_id, map_index), []).append(one)
    shown = {
        place: several for place, several in groups.items() if viewer.may_read_run(place[0]) and viewer.may_read_task(place[0])
    }
    deadlines = _deadlines(session, {one.number for several in shown.values() for one in several})
    following = _next_deadlines(session, {dag_id for dag_id, _, _ in shown})
    versions = _versions(session, viewer, shown)
    rows = [
        _row(several, waits_for, deadlines, following.get(dag_id), versions, table, root, prefix)
        for (dag_id, _, _), several in sorted(shown.items())
    ]
    rows.sort(key=lambda row: (row["state"] != "late", row["expected"] is None, row["expected"] or 0))
    return rows[:ROWS]


def _row(
    several: Sequence[_Instance],
    waits_for: Mapping[TaskKey, Mapping[str, Any]],
    deadlines: Mapping[int, _Deadline],
    following: int | None,
    versions: Mapping[TaskKey, int],
    table: KnownTable,
    root: str,
    prefix: str,
) -> dict[str, Any]:
    newest = max(several, key=lambda one: one.number)
    arrived = [one for one in several if one.arrived]
    last = max(arrived, key=lambda one: one.end or 0, default=None)
    deadline = deadlines.get(newest.number)
    version = None if last is None else versions.get(last.key)
    return {
        **task_run(root, *newest.key),
        "writes": newest.operator not in SENSORS,
        "waits_for": dict(waits_for.get(newest.key, {})),
        "state": _state(newest, deadline),
        "expected": following if newest.arrived else None if deadline is None else deadline.at,
        "missed": deadline is not None and deadline.missed,
        "last": None
        if last is None
        else {
            "timestamp": last.end,
            "late": _is_late(last, deadlines.get(last.number)),
            "waits_for": dict(waits_for.get(last.key, {})),
            "run": task_run(root, *last.key),
            "version": version,
            "url": None if version is None else commit_url(prefix, table.uri, version),
        },
    }


def _state(newest: _Instance, deadline: _Deadline | None) -> str:
    late = _is_late(newest, deadline)
    if newest.arrived:
        return "came_late" if late else "in_time"
    if late:
        return "late"
    return newest.state if newest.state in ("failed", "upstream_failed", "skipped", "removed") else "waiting"


def _is_late(one: _Instance, deadline: _Deadline | None) -> bool:
    """Return whether the deadline is over without it; of a run that had none left, it is not."""
    arrived = one.end if one.arrived and one.end is not None else int(time.time() * 1000)
    return deadline is not None and arrived > deadline.at


def _dags_with_deadlines(session: Session) -> set[str]:
    """Return the Dags that have a deadline now: not those that are gone, or had one in an earlier version."""
    alert_table, serialized_table, dag_table = database.DeadlineAlert, database.SerializedDagModel, database.DagModel
    newest = _newest_versions().subquery()
    wanted = (
        select(serialized_table.dag_id)
        .join(newest, and_(newest.c.dag_id == serialized_table.dag_id, newest.c.newest == serialized_table.created_at))
        .join(alert_table, alert_table.serialized_dag_id == serialized_table.id)
        .join(dag_table, dag_table.dag_id == serialized_table.dag_id)
        .where(dag_table.is_stale.is_(False))
    )
    return set(session.scalars(wanted.distinct().order_by(serialized_table.dag_id).limit(DAGS)))


def _newest_versions() -> Any:
    """Return a query of Dags, and of when the newest version of each was made."""
    serialized_table = database.SerializedDagModel
    newest = func.max(serialized_table.created_at).label("newest")
    return select(serialized_table.dag_id, newest).group_by(serialized_table.dag_id)


def _instances(session: Session, dag_ids: Collection[str], writers: Collection[tuple[str, str]]) -> list[_Instance]:
    """Return the instances of sensors, and of tasks that write the table, in the latest runs of some Dags."""
    run_table, instance_table = database.DagRun, database.latest_tries().table
    started = func.coalesce(run_table.start_date, run_table.queued_at, run_table.run_after)
    rank = func.row_number().over(partition_by=run_table.dag_id, order_by=(started.desc(), run_table.id.desc()))
    columns = (run_table.id, run_table.dag_id, run_table.run_id, rank.label("rank"))
    ranked = select(*columns).where(run_table.dag_id.in_(sorted(dag_ids))).subquery()
    waits = instance_table.operator.in_(sorted(SENSORS))
    writes = tuple_(instance_table.dag_id, instance_table.task_id).in_(sorted(writers))
    place = (instance_table.dag_id, instance_table.run_id, instance_table.task_id, instance_table.map_index)
    wanted = (
        select(ranked.c.id, *place, instance_table.state, instance_table.end_date, instance_table.operator)
        .join(ranked, and_(ranked.c.dag_id == instance_table.dag_id, ranked.c.run_id == instance_table.run_id))
        .where(ranked.c.rank <= _RUNS, or_(waits, writes) if writers else waits)
        .order_by(ranked.c.id.desc())
        .limit(_MAX_INSTANCES)
    )
    return [
        _Instance(
            (dag_id, run_id, task_id, map_index), number, None if state is None else str(state), milliseconds(end), operator
        )
        for number, dag_id, run_id, task_id, map_index, state, end, operator in session.execute(wanted)
    ]


def _conditions(session: Session, table: KnownTable, sensors: Sequence[_Instance]) -> dict[TaskKey, dict[str, Any]]:
    """Return what sensors wait for, of those that wait for the table: known once a task has begun."""
    fields_table, run_table = database.RenderedTaskInstanceFields, database.DagRun
    instance_table = database.latest_tries().table
    found: dict[TaskKey, dict[str, Any]] = {}
    keys: dict[tuple[str, str | None], str | None] = {}
    numbers = sorted({one.number for one in sensors})
    of_run = and_(run_table.dag_id == instance_table.dag_id, run_table.run_id == instance_table.run_id)
    place = (instance_table.dag_id, instance_table.run_id, instance_table.task_id, instance_table.map_index)
    wanted = (
        select(*place, fields_table.rendered_fields)
        .select_from(fields_table)
        .join(instance_table, database.rendered_by(fields_table, instance_table))
        .join(run_table, of_run)
        .where(instance_table.operator.in_(sorted(SENSORS)), instance_table.task_id.in_(sorted({one.key[2] for one in sensors})))
    )
    for start in range(0, len(numbers), _RUNS_AT_ONCE):
        for *key, fields in session.execute(wanted.where(run_table.id.in_(numbers[start : start + _RUNS_AT_ONCE]))):
            location, conn_id = fields.get("table"), fields.get("delta_conn_id")
            if not isinstance(location, str):  # a template that gives a list: its task fails
                continue
            named = (location, conn_id if isinstance(conn_id, str) else None)
            if named not in keys:
                keys[named] = location_key(*named)
            if keys[named] == table.key:
                told = {name: fields[name] for name in _CONDITIONS if fields.get(name) not in (None, "", "None", [])}
                if "partitions" in told and isinstance(values := fields.get("parameters"), Mapping):
                    told["parameters"] = [f":{name} = {value}" for name, value in values.items()]
                found[key[0], key[1], key[2], key[3]] = told
    return found


def _deadlines(session: Session, numbers: Collection[int]) -> dict[int, _Deadline]:
    """Return the deadline of each run, the first one if it has several."""
    deadline_table = database.Deadline
    wanted = select(deadline_table.dagrun_id, deadline_table.deadline_time, deadline_table.missed)
    found: dict[int, _Deadline] = {}
    rows = session.execute(wanted.where(deadline_table.dagrun_id.in_(sorted(numbers)))) if numbers else ()
    for number, at, missed in rows:
        told = _Deadline(milliseconds(at) or 0, bool(missed))
        if number not in found or told.at < found[number].at:
            found[number] = told
    return found


def _next_deadlines(session: Session, dag_ids: Collection[str]) -> dict[str, int]:
    """Return the deadline of the run that the scheduler makes next, where it follows from the schedule."""
    alert_table, serialized_table, dag_table = database.DeadlineAlert, database.SerializedDagModel, database.DagModel
    if not dag_ids:
        return {}
    newest = _newest_versions().where(serialized_table.dag_id.in_(sorted(dag_ids))).subquery()
    wanted = (
        select(
            serialized_table.dag_id,
            alert_table.reference,
            alert_table.interval,
            dag_table.next_dagrun,
            dag_table.next_dagrun_create_after,
        )
        .join(newest, and_(newest.c.dag_id == serialized_table.dag_id, newest.c.newest == serialized_table.created_at))
        .join(alert_table, alert_table.serialized_dag_id == serialized_table.id)
        .join(dag_table, dag_table.dag_id == serialized_table.dag_id)
        .where(dag_table.is_paused.is_(False), dag_table.is_stale.is_(False))
    )
    found: dict[str, int] = {}
    for dag_id, reference, interval, logical_date, created in session.execute(wanted):
        kind = reference.get("reference_type") if isinstance(reference, Mapping) else None
        begins = {"DagRunLogicalDateDeadline": logical_date, "DagRunQueuedAtDeadline": created}.get(str(kind))
        seconds = interval.get("__data__") if isinstance(interval, Mapping) else interval
        if isinstance(begins, datetime) and isinstance(seconds, (int, float)):
            with suppress(OverflowError):  # an interval beyond the calendar
                deadline = milliseconds(begins + timedelta(seconds=seconds)) or 0
                found[dag_id] = min(deadline, found.get(dag_id, deadline))
    return found


def _versions(session: Session, viewer: Viewer, shown: Mapping[tuple[str, str, int], Iterable[_Instance]]) -> dict[TaskKey, int]:
    """Return the versions that tasks have found or committed, as their XComs say."""
    last = [
        max((one for one in several if one.arrived), key=lambda one: one.end or 0, default=None)
        for (dag_id, _, _), several in shown.items()
        if viewer.may_read_xcom(dag_id)
    ]
    wanted = {one.key: Run(one.number, *one.key[:2], "success", None) for one in last if one is not None}
    told = results(session, wanted.values(), {key[2] for key in wanted}, _COMMIT)
    versions = {key: _version(told[key]) for key in wanted if key in told}
    return {key: version for key, version in versions.items() if version is not None}


def _version(value: Any) -> int | None:
    if not isinstance(value, Mapping):
        return None
    several = value.get("versions")
    version = several[-1] if isinstance(several, list) and several else value.get("version")
    return version if isinstance(version, int) and not isinstance(version, bool) and version >= 0 else None
