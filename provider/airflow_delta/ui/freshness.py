"""When a table is expected to change, and when it last did: from the deadlines of Dags that wait for it, or write it.

Airflow has a deadline for each run, and deletes it when the run succeeds in time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, func, select

from airflow_delta.airflow_internals import database
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui.addresses import commit_url
from airflow_delta.ui.commit_events import outlets
from airflow_delta.ui.known import KnownTable
from airflow_delta.ui.table_tasks import SENSORS, TableTask, table_tasks, waited_for
from airflow_delta.ui.task_runs import task_run
from airflow_delta.ui.tries import Run, TaskKey, milliseconds, results

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer


DAGS = 200
"""Dags with deadlines that are looked at."""

ROWS = 50
"""Tasks that are shown."""

_COMMIT = "return_value"


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
    found = table_tasks(session, dag_ids, writers)
    waits_for = waited_for(session, table, [one for one in found if one.operator in SENSORS])
    groups: dict[tuple[str, str, int], list[TableTask]] = {}
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
    several: Sequence[TableTask],
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


def _state(newest: TableTask, deadline: _Deadline | None) -> str:
    late = _is_late(newest, deadline)
    if newest.arrived:
        return "came_late" if late else "in_time"
    if late:
        return "late"
    return newest.state if newest.state in ("failed", "upstream_failed", "skipped", "removed") else "waiting"


def _is_late(one: TableTask, deadline: _Deadline | None) -> bool:
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


def _versions(session: Session, viewer: Viewer, shown: Mapping[tuple[str, str, int], Iterable[TableTask]]) -> dict[TaskKey, int]:
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
