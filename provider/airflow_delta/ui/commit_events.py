"""The commits of a table in its asset events, and what only Airflow knows of them: intervals of runs, attempts, outlets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, or_, select

from airflow_delta.airflow_internals import database
from airflow_delta.ui.known import KnownTable, commit_of_event, is_about
from airflow_delta.ui.tries import interval

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer

RECENT_EVENTS = 30

_MAX_EVENTS = 1000

# An event is recorded when the task ends, some time after its commit.
_BEFORE, _AFTER = timedelta(hours=1), timedelta(days=2)


def recent_events(session: Session, tables: Sequence[KnownTable]) -> dict[int, list[Event]]:
    """Return the latest commits in the events of the assets of some tables, latest first: by asset, for any user."""
    return {
        asset_id: list(events(session, table, asset_id, limit=2 * RECENT_EVENTS))
        for table in tables
        for asset_id in table.asset_ids
    }


def listed_commits(viewer: Viewer, table: KnownTable, recent: Mapping[int, Sequence[Event]]) -> list[dict[str, Any]]:
    """Return the latest commits of a table, newest first, one for each version.

    :param recent: as :func:`recent_events` returns them.
    """
    found: dict[int, dict[str, Any]] = {}
    for asset_id in table.asset_ids:
        for event in recent.get(asset_id, ()):
            if event.dag_id is not None and not viewer.may_read_run(event.dag_id):
                continue
            version = event.said["version"]
            # A watcher reports the same commit as the task that made it, without the run.
            if found.get(version, {}).get("dag_id") is None:
                found[version] = {**event.said, "dag_id": event.dag_id, "run_id": event.run_id}
    return [found[version] for version in sorted(found, reverse=True)[:RECENT_EVENTS]]


def facts_by_version(
    session: Session, viewer: Viewer, table: KnownTable, commits: Sequence[Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return what only the events say about commits: attempts, and versions checked for conflicts."""
    if not commits or not table.asset_ids:
        return {}
    times = [commit["timestamp"] for commit in commits if commit["timestamp"]]
    if not times:
        return {}
    recorded = _times(min(times), max(times))
    if recorded is None:
        return {}
    since, until = recorded
    wanted = {commit["version"] for commit in commits}
    facts: dict[int, dict[str, Any]] = {}
    for asset_id in table.asset_ids:
        for event in events(session, table, asset_id, limit=_MAX_EVENTS, since=since, until=until):
            said, dag_id = event.said, event.dag_id
            # An event of a rerun that found its commit in the log says nothing about how the commit was made.
            if said["version"] not in wanted or said.get("committed_before") or not isinstance(said.get("attempts"), int):
                continue
            if dag_id is None or viewer.may_read_run(dag_id):
                told = {name: said.get(name) for name in ("attempts", "versions_checked")}
                facts[said["version"]] = {name: value for name, value in told.items() if isinstance(value, int)}
    return facts


def outlets(session: Session, asset_ids: Sequence[int]) -> dict[int, set[tuple[str, str]]]:
    """Return the tasks that have assets as outlets, by asset."""
    outlet_table = database.TaskOutletAssetReference
    found: dict[int, set[tuple[str, str]]] = {}
    wanted = select(
        outlet_table.asset_id,
        outlet_table.dag_id,
        outlet_table.task_id,
    ).where(outlet_table.asset_id.in_(list(asset_ids)))
    for asset_id, dag_id, task_id in session.execute(wanted) if asset_ids else ():
        found.setdefault(asset_id, set()).add((dag_id, task_id))
    return found


def intervals(session: Session, runs: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the data intervals of Dag runs that Airflow still has, in milliseconds.

    :param runs: Dag id and run id.
    """
    run_table = database.DagRun
    if not runs:
        return {}
    columns = (
        run_table.dag_id,
        run_table.run_id,
        run_table.data_interval_start,
        run_table.data_interval_end,
    )
    named = or_(*(and_(run_table.dag_id == dag_id, run_table.run_id == run_id) for dag_id, run_id in sorted(runs)))
    rows = session.execute(select(*columns).where(named))
    found = {(dag_id, run_id): interval(start, end) for dag_id, run_id, start, end in rows}
    return {run: told for run, told in found.items() if told is not None}


class Event(NamedTuple):
    """A commit in an asset event, with the task instance that emitted it; ``at`` is when Airflow recorded it."""

    said: Mapping[str, Any]
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int
    at: int


def events(
    session: Session,
    table: KnownTable,
    asset_id: int,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterable[Event]:
    """Yield the commits in the events of an asset of a table, latest first."""
    event_table = database.AssetEvent
    source = (
        event_table.source_dag_id,
        event_table.source_run_id,
        event_table.source_task_id,
        event_table.source_map_index,
    )
    wanted = select(event_table.extra, *source, event_table.timestamp).where(event_table.asset_id == asset_id)
    if since is not None and until is not None:
        wanted = wanted.where(event_table.timestamp >= since, event_table.timestamp <= until)
    for extra, dag_id, run_id, task_id, map_index, at in session.execute(
        wanted.order_by(event_table.timestamp.desc()).limit(limit)
    ):
        said = commit_of_event(extra)
        if said is None or not is_about(said, table.key):
            continue
        several = said.get("commits")
        for commit in several if isinstance(several, list) and several else [said]:
            if isinstance(commit, Mapping) and isinstance(commit.get("version"), int):
                index = -1 if map_index is None else map_index
                yield Event(commit, dag_id, run_id, task_id, index, int(at.timestamp() * 1000))


def _times(first: int, last: int) -> tuple[datetime, datetime] | None:
    """Return when the events of commits were recorded; ``None`` if the times in the log are out of range."""
    try:
        since, until = (datetime.fromtimestamp(milliseconds / 1000, UTC) for milliseconds in (first, last))
        return since - _BEFORE, until + _AFTER
    except (OverflowError, OSError, ValueError):
        return None
