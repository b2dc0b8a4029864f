"""What Airflow's metadata say about the commits of a table: the runs that made them, and their attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from sqlalchemy import and_, or_, select

from airflow_delta.airflow_internals.database import AssetEvent, DagRun
from airflow_delta.airflow_internals.database import TaskOutletAssetReference as Outlet
from airflow_delta.ui.known import KnownTable, commit_of_event, is_about
from airflow_delta.ui.tries import interval

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer

RECENT_EVENTS = 30
_MAX_EVENTS = 1000
# An event is recorded when the task ends, some time after its commit.
_BEFORE, _AFTER = timedelta(hours=1), timedelta(days=2)


def run_of(tags: Mapping[str, str], root: str) -> dict[str, Any] | None:
    """Return the Airflow task instance that the tags of a commit name, with its links.

    :param root: path below which Airflow's UI is served.
    """
    dag_id, run_id = tags.get("airflow.dagId"), tags.get("airflow.runId")
    if not dag_id or not run_id:
        return None
    return task_run(
        root,
        dag_id,
        run_id,
        tags.get("airflow.taskId"),
        _number(tags.get("airflow.mapIndex"), -1),
        _number(tags.get("airflow.tryNumber"), None),
    )


def task_run(
    root: str, dag_id: str, run_id: str, task_id: str | None = None, map_index: int | None = -1, try_number: int | None = None
) -> dict[str, Any]:
    """Return a task instance with the URLs of its run and of itself in Airflow's UI."""
    url = f"{root}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    task_url = None
    if task_id:
        mapped = f"/mapped/{map_index}" if map_index is not None and map_index >= 0 else ""
        task_url = f"{url}/tasks/{quote(task_id, safe='')}{mapped}"
    return {
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        "map_index": map_index,
        "try_number": try_number,
        "url": url,
        "task_url": task_url,
    }


def recent_events(session: Session, viewer: Viewer, table: KnownTable) -> list[dict[str, Any]]:
    """Return the latest commits of a table from its events, newest first, one for each version."""
    found: dict[int, dict[str, Any]] = {}
    for asset_id in table.asset_ids:
        for event in events(session, table, asset_id, limit=2 * RECENT_EVENTS):
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
    found: dict[int, set[tuple[str, str]]] = {}
    wanted = select(Outlet.asset_id, Outlet.dag_id, Outlet.task_id).where(Outlet.asset_id.in_(list(asset_ids)))
    for asset_id, dag_id, task_id in session.execute(wanted) if asset_ids else ():
        found.setdefault(asset_id, set()).add((dag_id, task_id))
    return found


def intervals(session: Session, runs: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the data intervals of Dag runs that Airflow still has, in milliseconds.

    :param runs: Dag id and run id.
    """
    if not runs:
        return {}
    columns = (DagRun.dag_id, DagRun.run_id, DagRun.data_interval_start, DagRun.data_interval_end)
    named = or_(*(and_(DagRun.dag_id == dag_id, DagRun.run_id == run_id) for dag_id, run_id in sorted(runs)))
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
    source = (AssetEvent.source_dag_id, AssetEvent.source_run_id, AssetEvent.source_task_id, AssetEvent.source_map_index)
    wanted = select(AssetEvent.extra, *source, AssetEvent.timestamp).where(AssetEvent.asset_id == asset_id)
    if since is not None and until is not None:
        wanted = wanted.where(AssetEvent.timestamp >= since, AssetEvent.timestamp <= until)
    for extra, dag_id, run_id, task_id, map_index, at in session.execute(
        wanted.order_by(AssetEvent.timestamp.desc()).limit(limit)
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


def _number(value: Any, default: int | None) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
