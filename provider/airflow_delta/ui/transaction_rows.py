"""The transactions of a table without a commit, as rows of a page for one user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals.web import DagAccessEntity
from airflow_delta.contract.tags import DAG_ID_TAG, MAP_INDEX_TAG, RUN_ID_TAG, TASK_ID_TAG
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.task_notes import masked_by_airflow
from airflow_delta.ui.addresses import commit_url, transaction_url
from airflow_delta.ui.commit_events import Event, events, outlets
from airflow_delta.ui.task_runs import task_run
from airflow_delta.ui.transaction_values import Asked, CommitRow, Transaction
from airflow_delta.ui.transactions import airflow_transactions

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import KnownTable
    from airflow_delta.ui.tries import TaskKey

TRANSACTIONS = 30
"""Transactions on the page of a table."""

RUNS_OF_A_TABLE, RUNS_OF_THE_LIST = 100, 20
"""How many of the latest runs of each Dag are looked at."""

FAILED = frozenset({"failed", "rejected"})
OPEN = frozenset({"running", "waiting", "open"})

_EVENTS = 300
_CLASS = lazy_pattern(r"^\[[A-Z_.]+\] ")
_TRANSACTION = lazy_pattern(r"^Transaction [0-9a-f-]{36} (\((read version -?\d+|a new table)\) )?")


def transactions_of(session: Session, viewer: Viewer, table: KnownTable, history: Mapping[str, Any]) -> list[Transaction]:
    """Return the transactions of a table without a commit, latest first.

    :param history: the first page of its history.
    """
    told = [_of_log(commit) for commit in history["commits"]]
    is_whole = history["older"] is None and not history["begins_at"]
    since = 0 if is_whole else min((commit.at for commit in told), default=None)
    recent = {asset: list(events(session, table, asset, limit=_EVENTS)) for asset in table.asset_ids}
    asked = _asked(session, [table], recent, {table.key: told}, {table.key: since})
    return airflow_transactions(session, viewer, asked, RUNS_OF_A_TABLE).get(table.key, [])


def transactions_of_tables(
    session: Session, viewer: Viewer, tables: Sequence[KnownTable], recent: Mapping[int, Sequence[Event]]
) -> dict[str, list[Transaction]]:
    """Return the same for several tables, from the latest runs and without their logs.

    :param recent: the events of all their assets. Without them a committed transaction would look open.
    :raises LookupError: if some are missing.
    """
    return airflow_transactions(session, viewer, _asked(session, tables, recent, {}, {}), RUNS_OF_THE_LIST)


def _asked(
    session: Session,
    tables: Sequence[KnownTable],
    recent: Mapping[int, Sequence[Event]],
    logs: Mapping[str, Sequence[CommitRow]],
    since: Mapping[str, int | None],
) -> list[Asked]:
    known = outlets(session, [asset_id for table in tables for asset_id in table.asset_ids])
    asked = []
    for table in tables:
        found = [_of_event(event) for asset in table.asset_ids for event in recent[asset]]
        commits = [*logs.get(table.key, ()), *found]
        seen = {(commit.task[0], commit.task[2]) for commit in commits if commit.task is not None}
        own = {task for asset in table.asset_ids for task in known.get(asset, ())}
        asked.append(Asked(table, frozenset(own), frozenset(seen), commits, since.get(table.key)))
    return asked


def _of_log(commit: Mapping[str, Any]) -> CommitRow:
    tags = commit["tags"]
    names = [tags.get(name) for name in (DAG_ID_TAG, RUN_ID_TAG, TASK_ID_TAG)]
    task = (*names, _number(tags.get(MAP_INDEX_TAG))) if all(names) else None
    keys = frozenset(commit["app_transactions"])
    return CommitRow(commit["version"], commit["timestamp"] or 0, commit["txn_id"], task, keys)


def _of_event(event: Event) -> CommitRow:
    said = event.said
    task: TaskKey | None = None
    if event.dag_id and event.run_id and event.task_id:
        task = (event.dag_id, event.run_id, event.task_id, event.map_index)
    again, at, key = bool(said.get("committed_before")), said.get("timestamp"), said.get("app_id")
    # A run that found its key committed did so when the event was recorded.
    at = at if isinstance(at, int) and not again else event.at
    named = None if again else said.get("transaction_id")
    return CommitRow(
        said["version"], at, named if isinstance(named, str) else None, task, frozenset({key} if isinstance(key, str) else ())
    )


def transaction_row(viewer: Viewer, table: KnownTable, one: Transaction, root: str, prefix: str) -> dict[str, Any]:
    """Return a transaction as the user may see it; they may read its Dag's runs and task instances."""
    dag_id, run_id, _, _ = one.key
    ending, by = one.ending, one.ending.by
    told = ending.note if viewer.may_read_xcom(dag_id) else {}
    answers = viewer.may_read_run(dag_id, DagAccessEntity.HITL_DETAIL)
    message = masked_by_airflow(_text_of(told.get("message")) or "") or None
    app_id = one.handle.get("appId")
    staged = transaction_url(prefix, table.uri, one.transaction_id) if ending.state in OPEN and one.transaction_id else None
    repair = None
    if one.commit is not None:
        task = one.commit.task if one.commit.task is not None and viewer.may_read_run(one.commit.task[0]) else None
        repair = {
            "version": one.commit.version,
            "url": commit_url(prefix, table.uri, one.commit.version),
            "run": None if task is None else task_run(root, *task),
        }
    return {
        **task_run(root, dag_id, run_id),
        "interval": one.run.interval,
        "state": ending.state,
        "begun": one.begun,
        "timestamp": one.at,
        "ended_by": None if by is None else {**task_run(root, *by.key, by.number), "state": by.state, "operator": by.operator},
        "exception": _text_of(told.get("exception")),
        "message": message,
        "brief": None if message is None else brief_of(message, table.uri),
        "conflict_version": _number(told.get("version"), None),
        "reason": ending.reason,
        "rejected_by": ending.rejected_by if answers else None,
        "transaction_id": one.transaction_id,
        "url_staged": staged,
        "key": app_id if isinstance(app_id, str) and viewer.may_read_app_id(app_id) else None,
        "repaired_by": repair,
    }


def brief_of(message: str, uri: str) -> str:
    """Return a message without what the page already says: the class of the error, the transaction, and the table."""
    told = _CLASS.sub("", message.replace(f" on table {uri}", ""))
    brief = _TRANSACTION.sub("", told)
    first = brief.partition(" ")[0].rstrip(".,:;")
    begins_sentence = brief != told and not any(sign in first for sign in "_.=")  # not the name of a parameter or a column
    return brief[:1].upper() + brief[1:] if begins_sentence else brief


def _text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any, default: int | None = -1) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return default
