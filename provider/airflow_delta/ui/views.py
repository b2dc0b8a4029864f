"""The data of a page for one user: from the log and from Airflow, without what the user may not see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from airflow_delta.airflow_internals import database
from airflow_delta.contract.tags import DAG_ID_TAG, DETECTION_TAG, RUN_ID_TAG
from airflow_delta.transaction.conflict_detection import resolved_by
from airflow_delta.ui.addresses import commit_url, diff_command, rows_url, table_url
from airflow_delta.ui.checks import checks_shown
from airflow_delta.ui.commit_events import facts_by_version, intervals, listed_commits, recent_events
from airflow_delta.ui.formats import operation_group
from airflow_delta.ui.freshness import freshness
from airflow_delta.ui.key_warnings import MetKeys, earlier_of_key, met_keys, warned
from airflow_delta.ui.known import KnownTable, known_tables
from airflow_delta.ui.problems import cannot_be_shown, kept_elsewhere
from airflow_delta.ui.publications import PUBLICATION_KEYS, publication_rows
from airflow_delta.ui.selection import Selection
from airflow_delta.ui.task_runs import run_of, task_run
from airflow_delta.ui.transaction_rows import FAILED, OPEN, TRANSACTIONS, transaction_row, transactions_of, transactions_of_tables
from airflow_delta.ui.transaction_values import Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer


logger = logging.getLogger(__name__)

Found = TypeVar("Found")

TABLES = 50
"""Tables on one page of the list."""

NO_HISTORY: Mapping[str, Any] = {"version": None, "commits": [], "older": None, "newer": None, "begins_at": None}
"""The history of a table that no commit has created yet."""

NOTHING_SELECTED = Selection()

_RUNS = 3

TRIES, EVENTS, INTERVALS = "Transactions without a commit", "Attempts and rows of commits", "Data intervals"
KEYS = "Keys that another run has committed"
DEADLINES = "Deadlines of tasks that wait for the table"
"""What pages take from Airflow's own records."""


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
    with database.create_session(scoped=False) as session:
        airflow = FromAirflow(session)
        recent = airflow.read(EVENTS, {}, recent_events, shown)
        found = airflow.read(TRIES, {}, transactions_of_tables, viewer, shown, recent)
    tables = [
        _row(viewer, table, listed_commits(viewer, table, recent), found.get(table.key, []), root, prefix) for table in shown
    ]
    connections = [
        {"conn_id": connection.conn_id, "base_path": connection.base_path, "error": connection.error}
        for connection in known.connections
        if viewer.may_read_connection(connection.conn_id)
    ]
    more = len(visible) > (page + 1) * TABLES
    return {
        "tables": tables,
        "connections": connections,
        "search": search,
        "page": page,
        "more": more,
        "notices": [*known.notices, *airflow.notices],
    }


class FromAirflow:
    """What pages show of Airflow's own records; what cannot be read is left out, and the page says so.

    The tables of Airflow's database are its own: another version may not have them (:mod:`airflow_delta.airflow_internals`).
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._missing: dict[str, None] = {}
        self._more: list[str] = []

    @property
    def notices(self) -> list[str]:
        """Return what the page lacks, in sentences."""
        return [*map(cannot_be_shown, self._missing), *self._more]

    def look_at(self, found: Sequence[Transaction]) -> None:
        """Notice transactions of which an XCom backend keeps the handle."""
        if any(one.is_kept_elsewhere for one in found):
            self._more = [kept_elsewhere()]

    def read(self, what: str, default: Any, function: Callable[..., Found], *arguments: Any) -> Found:
        """Return what a function reads with a session, or the default.

        :param what: what is missing then, in words.
        """
        try:
            return function(self._session, *arguments)
        except (ImportError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError, SQLAlchemyError):
            logger.exception("%s cannot be read from Airflow's database", what)
            self._missing[what] = None
            self._session.rollback()
            missing: Found = default
            return missing


def _row(
    viewer: Viewer,
    table: KnownTable,
    events: Sequence[Mapping[str, Any]],
    found: Sequence[Transaction],
    root: str,
    prefix: str,
) -> dict[str, Any]:
    latest = events[0] if events else {}
    operation = _words(latest.get("operation"))
    runs = list(dict.fromkeys((event["dag_id"], event["run_id"]) for event in events if event["dag_id"] and event["run_id"]))
    return {
        "table": table.uri,
        "name": table.name,
        "url": table_url(prefix, table.uri),
        "version": latest.get("version"),
        "operation": operation,
        "kind": operation_group(operation),
        "timestamp": _whole(latest.get("timestamp")),
        "commit_url": commit_url(prefix, table.uri, latest["version"]) if latest else None,
        **_summary(viewer, table, found, events, root, prefix),
        "runs": [task_run(root, *run) for run in runs[:_RUNS]],
        "num_runs": len(runs),
        "rows": [_whole(event.get("num_records")) for event in reversed(events)],
        "bytes": [_whole(event.get("num_bytes")) for event in reversed(events)],
    }


def history_page(
    viewer: Viewer,
    table: KnownTable,
    history: Mapping[str, Any],
    root: str,
    prefix: str,
    *,
    selected: Selection = NOTHING_SELECTED,
    state: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a page of a table's history with the runs that committed, and the transactions without a commit.

    :param selected: which commits of the history, and in which order.
    :param state: what the table is now, see :func:`airflow_delta.ui.table_state.table_state`.
    """
    with database.create_session(scoped=False) as session:
        airflow = FromAirflow(session)
        facts = airflow.read(EVENTS, {}, facts_by_version, viewer, table, history["commits"])
        # These are recent: older pages omit them.
        found = airflow.read(TRIES, [], transactions_of, viewer, table, history) if history["newer"] is None else []
        expected = airflow.read(DEADLINES, [], freshness, viewer, table, root, prefix) if history["newer"] is None else []
        runs = {run for commit in history["commits"] if (run := _run(commit)) is not None}
        known = airflow.read(INTERVALS, {}, intervals, runs)
        airflow.look_at(found)
        # Runs that skip their commit may be routine: they push out nothing else.
        chosen = sorted(found, key=lambda one: (one.ending.state == "skipped", -one.at))[:TRANSACTIONS]
        keys = airflow.read(KEYS, MetKeys(), met_keys, viewer, table)
        met = airflow.read(KEYS, set(), warned, viewer, chosen) if chosen else set()
    commits = [_commit(viewer, table, commit, facts.get(commit["version"]), known, root, prefix) for commit in history["commits"]]
    _tell_keys(commits, keys, root)
    rows = [
        {**transaction_row(viewer, table, one, root, prefix), "met_key": one.key in met}
        for one in sorted(chosen, key=lambda one: -one.at)
    ]
    return {
        **history,
        **table_head(table, prefix),
        "state": state,
        "latest": commits[0] if commits and history["newer"] is None else None,
        "commits": selected.of(commits),
        "selected": selected.to_dict(),
        "publications": publication_rows(viewer, table, commits, prefix),
        "searched": {"newest": commits[0]["version"], "oldest": commits[-1]["version"]} if commits else None,
        **_summary(viewer, table, found, commits, root, prefix),
        "transactions": rows,
        "num_transactions": len(found),
        "freshness": expected,
        "notices": airflow.notices,
    }


def _tell_keys(commits: Sequence[dict[str, Any]], keys: MetKeys, root: str) -> None:
    """Add to commits what runs said of their keys.

    ``key_met`` is ``None``, or says which earlier commit of the key this one replaced: ``version`` and ``run``, as far as the
    page and the user know it.
    """
    for commit in commits:
        version = commit["version"]
        commit["key_found_again"] = [task_run(root, *task) for task in keys.found_again.get(version, ())]
        commit["key_met"] = None
        if version in keys.met:
            before = earlier_of_key(commit, commits) or {}
            commit["key_met"] = {"version": before.get("version"), "run": before.get("run")}


def _summary(
    viewer: Viewer,
    table: KnownTable,
    found: Sequence[Transaction],
    commits: Sequence[Mapping[str, Any]],
    root: str,
    prefix: str,
) -> dict[str, Any]:
    """Return the last failure or rejection of a table, and how many transactions are open.

    Its ``followed_by`` is the newest version since then that has changed rows: the table's newest rows are good ones.

    :param commits: newest first, with ``version``, ``operation`` and ``timestamp``.
    """
    failed = next((one for one in found if one.ending.state in FAILED), None)
    open_transactions = sum(1 for one in found if one.ending.state in OPEN)
    if failed is None:
        return {"last_failure": None, "open_transactions": open_transactions}
    version = newer_rows(commits, since=failed.at)
    followed_by = None if version is None else {"version": version, "url": commit_url(prefix, table.uri, version)}
    row = {**transaction_row(viewer, table, failed, root, prefix), "followed_by": followed_by}
    return {"last_failure": row, "open_transactions": open_transactions}


def newer_rows(commits: Sequence[Mapping[str, Any]], *, since: int) -> int | None:
    """Return the newest version after a time that changes rows: not one that only moves them, or sets something.

    :param commits: newest first, with ``version``, ``operation`` and ``timestamp``.
    :param since: in milliseconds.
    """
    for commit in commits:
        kind = operation_group(_words(commit.get("operation")))
        if (_whole(commit.get("timestamp")) or 0) > since and kind not in ("upkeep", "metadata"):
            return int(commit["version"])
    return None


def commit_page(viewer: Viewer, table: KnownTable, detail: Mapping[str, Any], root: str, prefix: str) -> dict[str, Any]:
    """Return one commit with the run that made it and the commits that it was checked against."""
    with database.create_session(scoped=False) as session:
        airflow = FromAirflow(session)
        facts = airflow.read(EVENTS, {}, facts_by_version, viewer, table, [detail["commit"]])
        run = _run(detail["commit"])
        known = airflow.read(INTERVALS, {}, intervals, set() if run is None else {run})
        keys = airflow.read(KEYS, MetKeys(), met_keys, viewer, table)
    commit = _commit(viewer, table, detail["commit"], facts.get(detail["commit"]["version"]), known, root, prefix)
    _tell_keys([commit], keys, root)
    winners = [_commit(viewer, table, winner, None, {}, root, prefix) for winner in detail["winners"]]
    rows = rows_url(prefix, table.uri, commit["version"]) if viewer.may_read_rows(table.conn_id) else None
    head = table_head(table, prefix)
    checks = checks_shown(commit["tags"], root)
    return {
        **detail,
        **head,
        "commit": commit,
        "winners": winners,
        "rows_url": rows,
        "notices": airflow.notices,
        "checks": checks,
    }


def rows_page(table: KnownTable, found: Mapping[str, Any], prefix: str, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the rows of a commit, with the command that shows more of them.

    :param keys: columns that the user named.
    """
    version = found["version"]
    return {
        **found,
        **table_head(table, prefix),
        "commit_url": commit_url(prefix, table.uri, version),
        "rows_url": rows_url(prefix, table.uri, version),
        "command": diff_command(table.uri, version, table.conn_id, keys),
    }


def transactions_page(
    viewer: Viewer, table: KnownTable, transactions: list[dict[str, Any]], root: str, prefix: str
) -> dict[str, Any]:
    """Return the uncommitted transactions in the storage, with their Dag runs, as far as the user may see them."""
    with database.create_session(scoped=False) as session:
        airflow = FromAirflow(session)
        found = airflow.read(TRIES, [], transactions_of, viewer, table, NO_HISTORY) if transactions else []
        airflow.look_at(found)
    by_id = {one.transaction_id: task_run(root, *one.key) for one in found}
    shown = [
        {
            **transaction,
            "app_id": app_id if app_id and viewer.may_read_app_id(app_id) else None,
            "run": by_id.get(transaction["transaction_id"]),
        }
        for transaction in transactions
        for app_id in [transaction["app_id"]]
    ]
    staged_bytes = sum(found["num_bytes"] for found in shown)
    return {**table_head(table, prefix), "transactions": shown, "staged_bytes": staged_bytes, "notices": airflow.notices}


def _run(commit: Mapping[str, Any]) -> tuple[str, str] | None:
    dag_id, run_id = (commit["tags"].get(name) for name in (DAG_ID_TAG, RUN_ID_TAG))
    return (dag_id, run_id) if dag_id and run_id else None


def table_head(table: KnownTable, prefix: str) -> dict[str, Any]:
    """Return what every page says of its table."""
    return {"table": table.uri, "name": table.name, "url": table_url(prefix, table.uri)}


def _commit(
    viewer: Viewer,
    table: KnownTable,
    commit: Mapping[str, Any],
    facts: Mapping[str, Any] | None,
    known: Mapping[tuple[str, str], tuple[int, int]],
    root: str,
    prefix: str,
) -> dict[str, Any]:
    shown = viewer.without_hidden_dags(commit)
    keys = {key: value for key, value in shown["app_transactions"].items() if not key.startswith(PUBLICATION_KEYS)}
    read_version = shown["read_version"]
    # Also without an event: others committed every version between the one that was read and its own.
    winners = max(shown["version"] - read_version - 1, 0) if read_version is not None else None
    return {
        **shown,
        "app_transactions": keys,
        "kind": operation_group(shown["operation"]),
        "url": commit_url(prefix, table.uri, shown["version"]),
        "run": run_of(shown["tags"], root),
        "interval": known.get(run) if (run := _run(shown)) is not None else None,
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
