"""The data of a page for one user: from the log and from Airflow, without what the user may not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.utils.session import create_session

from airflow_delta.plugins.formats import kind_of
from airflow_delta.plugins.known import KnownTable, known_tables
from airflow_delta.plugins.runs import facts_by_version, failed_commits, recent_events, run_of, task_run
from airflow_delta.transaction.policy.conflict_detection import DETECTION_TAG, resolved_by

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.plugins.access import Viewer

TABLES = 50
"""Tables on one page of the list."""

_RUNS = 3


def table_list(viewer: Viewer, root: str, prefix: str, *, search: str = "", page: int = 0) -> dict[str, Any]:
    """Return a page of the tables that the user may see, and the ``delta`` connections; storage is not accessed.

    :param root: path of Airflow's UI.
    :param prefix: path of these pages.
    :param search: part of a location.
    """
    known = known_tables()
    wanted = [table for table in known.tables.values() if search.lower() in table.uri.lower()]
    # One more than shown tells whether there is another page.
    visible: list[KnownTable] = []
    for table in wanted:
        if (seen := known.seen_by(viewer, table)) is not None:
            visible.append(seen)
        if len(visible) > (page + 1) * TABLES:
            break
    shown = visible[page * TABLES : (page + 1) * TABLES]
    with create_session(scoped=False) as session:
        tables = [_row(session, viewer, table, root, prefix) for table in shown]
    connections = [
        {"conn_id": connection.conn_id, "base_path": connection.base_path, "error": connection.error}
        for connection in known.connections
        if viewer.may_read_connection(connection.conn_id)
    ]
    more = len(visible) > (page + 1) * TABLES
    return {"tables": tables, "connections": connections, "search": search, "page": page, "more": more}


def _row(session: Session, viewer: Viewer, table: KnownTable, root: str, prefix: str) -> dict[str, Any]:
    events = recent_events(session, viewer, table)
    latest = events[0] if events else {}
    operation = _words(latest.get("operation"))
    runs = {
        (event["dag_id"], event["run_id"]): task_run(root, event["dag_id"], event["run_id"])
        for event in events
        if event["dag_id"] and event["run_id"]
    }
    return {
        "table": table.uri,
        "name": table.name,
        "url": table_url(prefix, table.uri),
        "version": latest.get("version"),
        "operation": operation,
        "kind": kind_of(operation),
        "timestamp": _whole(latest.get("timestamp")),
        "commit_url": commit_url(prefix, table.uri, latest["version"]) if latest else None,
        "runs": list(runs.values())[:_RUNS],
        "num_runs": len(runs),
        "rows": [_whole(event.get("num_records")) for event in reversed(events)],
        "bytes": [_whole(event.get("num_bytes")) for event in reversed(events)],
    }


def history_page(viewer: Viewer, table: KnownTable, history: Mapping[str, Any], root: str, prefix: str) -> dict[str, Any]:
    """Return a page of a table's history with the runs that committed, and the commits that failed."""
    with create_session(scoped=False) as session:
        facts = facts_by_version(session, viewer, table, history["commits"])
        # Failures are recent: older pages omit them.
        failures = failed_commits(session, viewer, table, root) if history["newer"] is None else []
    commits = [_commit(viewer, table, commit, facts.get(commit["version"]), root, prefix) for commit in history["commits"]]
    return {**history, **_head(table, prefix), "commits": commits, "failures": failures}


def commit_page(viewer: Viewer, table: KnownTable, detail: Mapping[str, Any], root: str, prefix: str) -> dict[str, Any]:
    """Return one commit with the run that made it and the commits that it was checked against."""
    with create_session(scoped=False) as session:
        facts = facts_by_version(session, viewer, table, [detail["commit"]])
    commit = _commit(viewer, table, detail["commit"], facts.get(detail["commit"]["version"]), root, prefix)
    winners = [_commit(viewer, table, winner, None, root, prefix) for winner in detail["winners"]]
    return {**detail, **_head(table, prefix), "commit": commit, "winners": winners}


def transactions_page(viewer: Viewer, table: KnownTable, transactions: list[dict[str, Any]], prefix: str) -> dict[str, Any]:
    """Return the uncommitted transactions, without the keys of Dags that the user may not see."""
    shown = [
        {**transaction, "app_id": app_id if app_id and viewer.may_read_app_id(app_id) else None}
        for transaction in transactions
        for app_id in [transaction["app_id"]]
    ]
    return {**_head(table, prefix), "transactions": shown, "staged_bytes": sum(found["num_bytes"] for found in shown)}


def table_url(prefix: str, table: str, **parameters: Any) -> str:
    """Return the URL of a table's page."""
    return f"{prefix}/table?{urlencode({'table': table, **parameters})}"


def commit_url(prefix: str, table: str, version: int, **parameters: Any) -> str:
    """Return the URL of a commit's page."""
    return f"{prefix}/commit?{urlencode({'table': table, 'version': version, **parameters})}"


def _head(table: KnownTable, prefix: str) -> dict[str, Any]:
    return {"table": table.uri, "name": table.name, "url": table_url(prefix, table.uri)}


def _commit(
    viewer: Viewer,
    table: KnownTable,
    commit: Mapping[str, Any],
    facts: Mapping[str, Any] | None,
    root: str,
    prefix: str,
) -> dict[str, Any]:
    shown = viewer.without_hidden_dags(commit)
    read_version = shown["read_version"]
    # Also without an event: others committed every version between the one that was read and its own.
    winners = max(shown["version"] - read_version - 1, 0) if read_version is not None else None
    return {
        **shown,
        "kind": kind_of(shown["operation"]),
        "url": commit_url(prefix, table.uri, shown["version"]),
        "run": run_of(shown["tags"], root),
        "attempts": (facts or {}).get("attempts"),
        "versions_checked": (facts or {}).get("versions_checked", winners),
        "num_winners": winners,
        # Not from the tags that are shown: they name no Dag.
        "conflict_detection": commit["tags"].get(DETECTION_TAG),
        "resolved": resolved_by(commit["tags"]),
    }


def _words(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
