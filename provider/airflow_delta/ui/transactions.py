"""The transactions of tables as Airflow's own database has them, from their start on.

A transaction is a try of a start task that succeeded, with those that failed before it, and all tasks of its group until start
runs again. A task that begins and commits its own is one by itself. Which of them are committed, the table's log and its asset
events say; XComs are shown, and tell start tasks of several tables apart, but nothing else is decided by them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.ui.endings import RunEvidence, ending_of
from airflow_delta.ui.known import table_key
from airflow_delta.ui.matching import find_repairs, match, must_have_commit, siblings
from airflow_delta.ui.problems import PageProblem
from airflow_delta.ui.transaction_values import Asked, Task, Transaction
from airflow_delta.ui.tries import (
    COMMIT,
    START,
    Run,
    TaskKey,
    Try,
    answers,
    notes,
    recent_runs,
    results,
    tries_of,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from airflow_delta.ui.access import Viewer


_START, _COMMIT = ".start", ".commit"


def airflow_transactions(
    session: Session, viewer: Viewer, asked: Sequence[Asked], runs_of_a_dag: int
) -> dict[str, list[Transaction]]:
    """Return the transactions without a commit, and those that failed before they committed: by table, latest first.

    :param runs_of_a_dag: how many of each Dag's runs are looked at, the latest ones.
    """
    dag_ids = {dag_id for each in asked for dag_id, _ in each.tasks}
    allowed = {dag_id for dag_id in dag_ids if viewer.may_read_run(dag_id) and viewer.may_read_task(dag_id)}
    runs = recent_runs(session, allowed, runs_of_a_dag)
    if not runs:
        return {}
    tries = tries_of(session, runs.values(), {task_id for each in asked for _, task_id in each.tasks})
    starts = {key for key, found in tries.items() if found[-1].operator == START}
    returned = _returned(session, asked, runs, tries, starts)
    handles = {key: (handle, _table(handle)) for key, handle in returned.items() if handle is not None}
    elsewhere = returned.keys() - handles.keys()
    by_dag: dict[str, dict[TaskKey, list[Try]]] = {}
    for key, several in tries.items():
        by_dag.setdefault(key[0], {})[key] = several
    told = {each.table.key: list(_of_table(each, runs, by_dag, starts, handles)) for each in asked}
    for one in (one for found in told.values() for one in found):
        one.is_kept_elsewhere = one.until is None and one.key in elsewhere
    troubled = {key[:2] for key, several in tries.items() if any(found.state != "success" for found in several)}
    concerned = {one.run.id: one.run for found in told.values() for one in found if one.key[:2] in troubled}.values()
    evidence = RunEvidence.of(tries.values(), answers(session, concerned), notes(session, concerned))
    shown: dict[str, list[Transaction]] = {}
    for each in asked:
        found = told[each.table.key]
        known = siblings(found)
        match(found, each.commits)
        for one in found:
            one.ending = ending_of(one, evidence, each.since if must_have_commit(one, each, known) else None)
        find_repairs(found, each.commits, known)
        shown[each.table.key] = sorted((one for one in found if one.ending.state != "committed"), key=lambda one: -one.at)
    return shown


def _returned(
    session: Session,
    asked: Sequence[Asked],
    runs: Mapping[tuple[str, str], Run],
    tries: Mapping[TaskKey, Sequence[Try]],
    starts: Collection[TaskKey],
) -> dict[TaskKey, Mapping[str, Any] | None]:
    """Return the handles of start tasks where the table is not known, or not all of a run has succeeded.

    :return: handles by task; ``None`` where the XCom is something else, such as the reference of an XCom backend.
    """
    outlets = {task for each in asked for task in each.outlets}
    fine = {run for run, found in runs.items() if found.state == "success"}
    fine -= {key[:2] for key, several in tries.items() if several[-1].state != "success"}
    wanted = {(key[0], key[1]) for key in starts if (key[0], f"{_group(key[2])}commit") not in outlets or key[:2] not in fine}
    found = results(session, [runs[run] for run in wanted], {key[2] for key in starts}, "return_value")
    return {key: value if _is_handle(value) else None for key, value in found.items() if key in starts}


def _of_table(
    asked: Asked,
    runs: Mapping[tuple[str, str], Run],
    by_dag: Mapping[str, Mapping[TaskKey, Sequence[Try]]],
    starts: Collection[TaskKey],
    handles: Mapping[TaskKey, tuple[Mapping[str, Any], str | None]],
) -> Iterator[Transaction]:
    for dag_id in sorted({dag_id for dag_id, _ in asked.tasks}):
        yield from _of_dag(asked, runs, by_dag.get(dag_id, {}), starts, handles)


def _of_dag(
    asked: Asked,
    runs: Mapping[tuple[str, str], Run],
    tries: Mapping[TaskKey, Sequence[Try]],
    starts: Collection[TaskKey],
    handles: Mapping[TaskKey, tuple[Mapping[str, Any], str | None]],
) -> Iterator[Transaction]:
    groups = {_group(key[2]) for key in tries if key in starts}
    others = tuple(sorted(group for group in groups if group))
    tables: dict[Task, set[str | None]] = {}
    for key in tries:
        if key in handles:
            tables.setdefault((key[0], key[2]), set()).add(handles[key][1])
    for key, found in tries.items():
        task, run = (key[0], key[2]), runs[key[0], key[1]]
        if key in starts:
            handle, at = handles.get(key, ({}, None))
            if not (at == asked.table.key if at is not None else _is_of(asked, task, tables.get(task))):
                continue
            lives = list(_lives(found, lambda last: last.state == "success"))
            for index, life in enumerate(lives):
                is_last = index + 1 == len(lives)
                returned = is_last and life[-1].state == "success"
                yield Transaction(
                    run,
                    life,
                    until=None if is_last else lives[index + 1][0].start,
                    group=_group(key[2]),
                    others=others,
                    handle=handle if returned else {},
                )
        elif task in asked.tasks and found[-1].operator != COMMIT and not key[2].endswith(_COMMIT):
            for life in _lives(found, lambda last: last.final):
                yield Transaction(run, life, is_own=True)


def _lives(tries: Sequence[Try], is_over: Any) -> Iterator[list[Try]]:
    """Yield the tries of each transaction of a task, in their order."""
    life: list[Try] = []
    for found in tries:
        if found.is_pending or found.start is None:
            continue
        if life and is_over(life[-1]):
            yield life
            life = []
        life.append(found)
    if life and life[-1].state not in ("skipped", "removed"):  # it has not begun
        yield life


def _group(start: str) -> str:
    return start.removesuffix("start") if start.endswith(_START) else ""


def _is_handle(value: Any) -> bool:
    return isinstance(value, Mapping) and "transactionId" in value


def _table(handle: Mapping[str, Any]) -> str | None:
    """Return the normal form of the location in a handle."""
    try:
        return table_key(handle["table"]) if isinstance(handle.get("table"), str) else None
    except PageProblem:
        return None


def _is_of(asked: Asked, start: Task, known: Collection[str | None] | None) -> bool:
    """Return whether a start task that left no handle is of a table.

    :param known: the tables that it named in other runs.
    """
    dag_id, task_id = start
    group = _group(task_id)
    committing = {(dag_id, f"{group}commit")} if group else {task for task in asked.tasks if task[0] == dag_id}
    if committing & asked.outlets:
        return True
    return set(known) == {asked.table.key} if known else bool(committing & asked.seen)
