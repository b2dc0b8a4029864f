"""Runs that met a transaction key which another run had committed, as their tasks have reported it.

A task says so in an XCom (:data:`~airflow_delta.task_notes.WARNING_KEY`), and nothing does if ``key_check`` is ``off``.
Its text names runs that a user may not be allowed to see, so it is not shown: it only tells which key is meant. Who committed the
key before, the log says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, select

from airflow_delta.airflow_internals import database
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.task_notes import WARNING_KEY
from airflow_delta.ui.known import commit_of_event, is_about
from airflow_delta.ui.tries import TaskKey, as_json, results

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import KnownTable
    from airflow_delta.ui.transaction_values import Transaction

MAX_WARNINGS = 300
"""Warnings of the runs of a table that a page looks at, the latest ones."""


@dataclass(slots=True)
class MetKeys:
    """What warnings say about commits.

    :param found_again: by version, the tasks that found its key committed, and whose rows are not in the table.
    :param met: versions of commits in whose place stand rows that an earlier commit of their key had published.
    """

    found_again: dict[int, list[TaskKey]] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)


def met_keys(session: Session, viewer: Viewer, table: KnownTable) -> MetKeys:
    """Return what runs said about the keys of a table's commits, as far as the user may read their XComs."""
    told = MetKeys()
    for task, text, committed, said in _told(session, table):
        key = said.get("app_id")
        if not isinstance(key, str) or not _is_of(text, key) or not _are_together(task, committed):
            continue
        if not (viewer.may_read_run(task[0]) and viewer.may_read_xcom(task[0])):
            continue
        version = said["version"]
        if not said.get("committed_before"):
            told.met.add(version)
        elif committed not in (known := told.found_again.setdefault(version, [])):
            known.append(committed)
    return told


def warned(session: Session, viewer: Viewer, found: Sequence[Transaction]) -> set[TaskKey]:
    """Return the start tasks, of some transactions, whose key another run has committed."""
    runs = {one.run.id: one.run for one in found if viewer.may_read_xcom(one.run.dag_id)}
    tasks = {one.key[2] for one in found}
    return set(results(session, list(runs.values()), tasks, WARNING_KEY))


def earlier_of_key(commit: Mapping[str, Any], commits: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the latest of some commits, before one, that has one of its keys."""
    keys: Collection[str] = commit["app_transactions"]
    before = (
        each for each in commits if each["version"] < commit["version"] and any(k in each["app_transactions"] for k in keys)
    )
    return max(before, key=lambda each: int(each["version"]), default=None)


def _is_of(text: str | None, key: str) -> bool:
    """Return whether a warning is about a key."""
    return text is not None and text.startswith(f"The key {key!r} of ")


def _told(session: Session, table: KnownTable) -> Iterator[tuple[TaskKey, Any, TaskKey, Mapping[str, Any]]]:
    """Yield warnings with the commits in the events of their runs: warned task, text, committing task, what the event says."""
    event_table, xcom_table = database.AssetEvent, database.XComModel
    if not table.asset_ids:
        return
    warned_task = (xcom_table.dag_id, xcom_table.run_id, xcom_table.task_id, xcom_table.map_index)
    source = (event_table.source_task_id, event_table.source_map_index, event_table.extra)
    same_run = and_(
        event_table.source_dag_id == xcom_table.dag_id,
        event_table.source_run_id == xcom_table.run_id,
    )
    both = select(*warned_task, xcom_table.value, *source).select_from(xcom_table).join(event_table, same_run)
    wanted = database.of_latest_tries(both).where(xcom_table.key == WARNING_KEY, event_table.asset_id.in_(list(table.asset_ids)))
    latest = wanted.order_by(event_table.timestamp.desc()).limit(MAX_WARNINGS)
    for dag_id, run_id, task_id, map_index, raw, source_task, source_index, extra in session.execute(latest):
        said = commit_of_event(extra)
        if said is None or not is_about(said, table.key) or not source_task:
            continue
        committed = (dag_id, run_id, source_task, -1 if source_index is None else source_index)
        several = said.get("commits")
        for commit in several if isinstance(several, list) and several else [said]:
            if isinstance(commit, Mapping) and isinstance(commit.get("version"), int):
                yield (dag_id, run_id, task_id, map_index), _text(raw), committed, commit


def _text(raw: Any) -> str | None:
    """Return the text in an XCom: the database gives it as it is, or as JSON."""
    told = as_json(raw)
    return told if isinstance(told, str) else raw if isinstance(raw, str) else None


def _are_together(task: TaskKey, other: TaskKey) -> bool:
    """Return whether two tasks of a run are of one transaction: the same, or in one group."""
    index, of_other = task[3], other[3]
    return task[2].rpartition(".")[0] == other[2].rpartition(".")[0] and (index == of_other or -1 in (index, of_other))
