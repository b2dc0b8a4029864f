"""What Airflow's metadata say about a table: the runs that committed to it, their attempts, and failed commits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_delta.links.delta import FAILURE_KEY, masked
from airflow_delta.plugins.known import KnownTable, commit_of_event, is_about

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.plugins.access import Viewer

RECENT_EVENTS = 30
MAX_FAILURES = 20
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
        for said, dag_id, run_id in _events(session, table, asset_id, limit=2 * RECENT_EVENTS):
            if dag_id is not None and not viewer.may_read_run(dag_id):
                continue
            # A watcher reports the same commit as the task that made it, without the run.
            if found.get(said["version"], {}).get("dag_id") is None:
                found[said["version"]] = {**said, "dag_id": dag_id, "run_id": run_id}
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
        for said, dag_id, _ in _events(session, table, asset_id, limit=_MAX_EVENTS, since=since, until=until):
            # An event of a rerun that found its commit in the log says nothing about how the commit was made.
            if said["version"] not in wanted or said.get("committed_before") or not isinstance(said.get("attempts"), int):
                continue
            if dag_id is None or viewer.may_read_run(dag_id):
                told = {name: said.get(name) for name in ("attempts", "versions_checked")}
                facts[said["version"]] = {name: value for name, value in told.items() if isinstance(value, int)}
    return facts


def failed_commits(session: Session, viewer: Viewer, table: KnownTable, root: str) -> list[dict[str, Any]]:
    """Return failed tries of tasks with this table as outlet, newest first, only of Dags that the user may see."""
    from airflow.models.asset import TaskOutletAssetReference
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.taskinstancehistory import TaskInstanceHistory
    from sqlalchemy import or_, select

    if not table.asset_ids:
        return []
    outlets = select(TaskOutletAssetReference.dag_id, TaskOutletAssetReference.task_id).where(
        TaskOutletAssetReference.asset_id.in_(table.asset_ids)
    )
    tasks = sorted({(dag_id, task_id) for dag_id, task_id in session.execute(outlets) if viewer.may_read_task(dag_id)})
    if not tasks:
        return []
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    model: Any
    for model, failed in ((TaskInstance, ("failed", "up_for_retry")), (TaskInstanceHistory, ("failed",))):
        columns = (model.dag_id, model.run_id, model.task_id, model.map_index, model.try_number)
        rows = session.execute(
            select(*columns, model.state, model.end_date, model.operator, model.retry_reason)
            .where(or_(*((model.dag_id == dag_id) & (model.task_id == task_id) for dag_id, task_id in tasks)))
            .where(model.state.in_(failed), model.end_date.is_not(None))
            .order_by(model.end_date.desc())
            .limit(MAX_FAILURES)
        )
        for *key, state, end_date, operator, reason in rows:
            if tuple(key) not in found:
                found[tuple(key)] = {
                    **task_run(root, key[0], key[1], key[2], key[3], key[4]),
                    "state": str(state),
                    "timestamp": int(end_date.timestamp() * 1000),
                    "operator": operator,
                    "reason": reason,
                    "exception": None,
                    "message": None,
                    "conflict_version": None,
                }
    failures = sorted(found.values(), key=lambda failure: failure["timestamp"], reverse=True)[:MAX_FAILURES]
    _add_exceptions(
        session, [failure for failure in failures if failure["state"] == "failed" and viewer.may_read_xcom(failure["dag_id"])]
    )
    return failures


def _add_exceptions(session: Session, failures: Sequence[dict[str, Any]]) -> None:
    """Add the errors that tasks pushed as XCom, which are those of their last try."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import and_, or_, select

    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for failure in failures:
        key = (failure["dag_id"], failure["run_id"], failure["task_id"], failure["map_index"])
        if key not in latest or latest[key]["try_number"] < failure["try_number"]:
            latest[key] = failure
    if not latest:
        return
    columns = (XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index)
    rows = session.execute(
        select(*columns, XComModel.value)
        .where(XComModel.key == FAILURE_KEY)
        .where(or_(*(and_(*(column == value for column, value in zip(columns, key, strict=True))) for key in latest)))
    )
    for *key_columns, raw in rows:
        try:
            value = json.loads(raw) if isinstance(raw, str | bytes) else raw
        except ValueError:
            continue
        if isinstance(value, Mapping):
            failure = latest[tuple(key_columns)]
            failure["exception"] = _text(value.get("exception"))
            failure["message"] = masked(_text(value.get("message")) or "") or None
            failure["conflict_version"] = _number(value.get("version"), None)


def _events(
    session: Session,
    table: KnownTable,
    asset_id: int,
    *,
    limit: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Iterable[tuple[Mapping[str, Any], str | None, str | None]]:
    from airflow.models.asset import AssetEvent
    from sqlalchemy import select

    wanted = select(AssetEvent.extra, AssetEvent.source_dag_id, AssetEvent.source_run_id).where(AssetEvent.asset_id == asset_id)
    if since is not None and until is not None:
        wanted = wanted.where(AssetEvent.timestamp >= since, AssetEvent.timestamp <= until)
    for extra, dag_id, run_id in session.execute(wanted.order_by(AssetEvent.timestamp.desc()).limit(limit)):
        said = commit_of_event(extra)
        if said is None or not is_about(said, table.key):
            continue
        several = said.get("commits")
        for commit in several if isinstance(several, list) and several else [said]:
            if isinstance(commit, Mapping) and isinstance(commit.get("version"), int):
                yield commit, dag_id, run_id


def _times(first: int, last: int) -> tuple[datetime, datetime] | None:
    """Return when the events of commits were recorded; ``None`` if the times in the log are out of range."""
    try:
        since, until = (datetime.fromtimestamp(milliseconds / 1000, UTC) for milliseconds in (first, last))
        return since - _BEFORE, until + _AFTER
    except (OverflowError, OSError, ValueError):
        return None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any, default: int | None) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
