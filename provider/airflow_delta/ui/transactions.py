"""The transactions of tables as Airflow's own database has them, from their start on.

A transaction is a try of a start task that succeeded, with those that failed before it, and all tasks of its group until start
runs again. A task that begins and commits its own is one by itself. Which of them are committed, the table's log and its asset
events say; XComs are shown, and tell start tasks of several tables apart, but nothing else is decided by them.

Which commit made a transaction public, or made up for it.

How a transaction ended that its log does not hold, or not at first: by which task, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_delta.ui.known import table_key
from airflow_delta.ui.problems import PageProblem
from airflow_delta.ui.transaction_values import Asked, CommitRow, Ending, Task, Transaction
from airflow_delta.ui.tries import (
    ABORT,
    COMMIT,
    ENDED,
    START,
    Answer,
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


_APPROVAL, _APPROVE, _REJECT = "ApprovalOperator", "Approve", "Reject"
_MARKED = "The task is marked as success, but no version of the table holds the transaction."
_CLEARED = "The start task was cleared before the transaction ended."
_LEFT = "No task of its run is left that could end it."
_NOT_RUN = "It was skipped before it ran: by a task before it, or by hand."
_NO_ANSWER = "Nobody answered in time."
_NEVER = 1 << 62


Place = tuple[str, str, int | None]
"""Dag, run, and the map index of tasks; ``None`` for all of them."""


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What Airflow knows of some runs.

    :param tries: of their tasks.
    :param failed: by run: those that failed for good.
    :param said: answers of people, by run.
    :param left: errors that failed tries left.
    """

    tries: Mapping[Place, Sequence[Try]]
    failed: Mapping[tuple[str, str], Sequence[Try]]
    said: Mapping[tuple[str, str], Sequence[Answer]]
    left: Mapping[tuple[TaskKey, int], Mapping[str, Any]]

    @classmethod
    def of(
        cls, tries: Iterable[Sequence[Try]], said: Iterable[Answer], left: Mapping[tuple[TaskKey, int], Mapping[str, Any]]
    ) -> RunEvidence:
        """Return it in order."""
        by_place: dict[Place, list[Try]] = {}
        failed: dict[tuple[str, str], list[Try]] = {}
        for several in tries:
            for found in several:
                for map_index in (found.map_index, None):
                    by_place.setdefault((found.dag_id, found.run_id, map_index), []).append(found)
                if found.final and found.state == "failed":
                    failed.setdefault((found.dag_id, found.run_id), []).append(found)
        answered: dict[tuple[str, str], list[Answer]] = {}
        for answer in said:
            answered.setdefault((answer.asked.dag_id, answer.asked.run_id), []).append(answer)
        return cls(by_place, failed, answered, left)

    def within(self, one: Transaction) -> list[Try]:
        """Return the tries of the tasks of a transaction."""
        if one.is_own:
            return list(one.tries)
        dag_id, run_id, _, map_index = one.key
        near = self.tries.get((dag_id, run_id, map_index if map_index >= 0 else None), ())
        return [found for found in near if _is_within(one, found)]


def ending_of(one: Transaction, evidence: RunEvidence, since: int | None) -> Ending:
    """Return how a transaction ended.

    :param since: time from which a transaction without a commit certainly has none.
    """
    mine, run = evidence.within(one), (one.run.dag_id, one.run.run_id)
    # What failed later, failed after the commit.
    before = one.commit.at if one.commit is not None else _NEVER
    failed = sorted((found for found in mine if found.final and found.state == "failed" and _end(found) <= before), key=_order)
    rejections = [answer for answer in evidence.said.get(run, ()) if _is_rejection(answer) and _is_within(one, answer.asked)]
    rejections.sort(key=lambda answer: _order(answer.asked))
    if rejections and (not failed or _order(rejections[0].asked) <= _order(failed[0])):
        by = rejections[0].by
        return Ending("rejected", rejections[0].asked, reason=None if by else _NO_ANSWER, rejected_by=by)
    if failed:
        return _failed(failed, evidence)
    if one.commit is not None or one.is_own:
        return Ending("committed") if one.commit is not None or one.tries[-1].final else Ending("running", one.tries[-1])
    return _unfinished(one, mine) or _without_failure(one, mine, evidence, since)


def _unfinished(one: Transaction, mine: Sequence[Try]) -> Ending | None:
    """Return the ending of an open transaction."""
    if one.until is not None or one.run.state not in ("running", "queued"):
        return None
    active = [found for found in mine if found.state not in ENDED and found.operator != ABORT]
    if not active:
        return None
    waiting = next((found for found in active if found.state == "awaiting_input"), None)
    now = waiting or next((found for found in active if not found.is_pending), None) or _first(active, "up_for_retry")
    return Ending("waiting" if waiting else "running", now)


def _without_failure(one: Transaction, mine: Sequence[Try], evidence: RunEvidence, since: int | None) -> Ending:
    commit = next((found for found in mine if found.operator == COMMIT), None)
    if commit is not None and commit.state == "success":
        # Without all commits at hand, what Airflow says counts.
        certain = since is not None and (one.begun if commit.end is None else commit.end) >= since
        return Ending("open", commit, reason=_MARKED) if certain else Ending("committed")
    upstream_failed = _first(mine, "upstream_failed")
    if upstream_failed is not None:  # by a task outside of the group
        failed = evidence.failed.get((one.run.dag_id, one.run.run_id), ())
        outside = [found for found in failed if not _is_other(one, found) and (one.until is None or _end(found) < one.until)]
        return _failed([min(outside, key=_order)], evidence) if outside else Ending("failed", upstream_failed)
    if (skipped := _first(mine, "skipped")) is not None:
        return Ending("skipped", skipped, reason=None if skipped.number else _NOT_RUN)
    if one.until is not None:
        return Ending("cleared", reason=_CLEARED)
    return Ending("open", reason=_LEFT)


def _failed(failed: Sequence[Try], evidence: RunEvidence) -> Ending:
    """Return the ending of the first of some tasks; of one that was stopped by hand, with its run, abort says why."""
    by = failed[0]
    told = (evidence.left.get((found.key, found.number)) for found in failed if found is by or found.operator == ABORT)
    return Ending("failed", by, next(filter(None, told), {}), reason=by.reason)


def _first(tries: Sequence[Try], state: str) -> Try | None:
    found = [each for each in tries if each.state == state and each.operator != ABORT]
    return min(found, key=_order, default=None)


def _order(found: Try) -> tuple[bool, int, int]:
    """Order tries by their end; the abort of a transaction did not end it."""
    return (found.operator == ABORT, _end(found), found.number)


def _end(found: Try) -> int:
    return found.end if found.end is not None else _NEVER


def _is_within(one: Transaction, found: Try) -> bool:
    """Return whether a try is part of a transaction."""
    if not one.has(found.key):
        return False
    if found.end is None or found.is_pending:
        return one.until is None
    return one.begun <= found.end and (one.until is None or found.end < one.until)


def _is_other(one: Transaction, found: Try) -> bool:
    """Return whether a task is part of another transaction of the run."""
    return bool(one.others) and found.task_id.startswith(one.others) and not one.has(found.key)


def _is_rejection(answer: Answer) -> bool:
    if answer.chosen == (_REJECT,):
        return True
    return answer.asked.operator == _APPROVAL and _APPROVE not in answer.chosen


Siblings = Mapping[TaskKey, Sequence[Transaction]]
"""Transactions by their start task, in their order."""


def siblings(found: Iterable[Transaction]) -> dict[TaskKey, list[Transaction]]:
    """Return transactions by their start task."""
    told: dict[TaskKey, list[Transaction]] = {}
    for one in found:
        told.setdefault(one.key, []).append(one)
    return told


def match(found: Sequence[Transaction], commits: Iterable[CommitRow]) -> None:
    """Give each transaction its commit."""
    by_id = {one.transaction_id: one for one in found if one.transaction_id is not None}
    by_instance: dict[tuple[str, str, int], list[Transaction]] = {}
    for one in found:
        by_instance.setdefault((one.key[0], one.key[1], one.key[3]), []).append(one)
    for commit in sorted(commits, key=lambda commit: (commit.at, commit.version)):
        its = by_id.get(commit.transaction_id or "")
        if its is None and commit.task is not None:
            dag_id, run_id, _, map_index = commit.task
            near = [one for index in {map_index, -1} for one in by_instance.get((dag_id, run_id, index), ())]
            several = [one for one in near if one.has(commit.task)]
            if len({one.key for one in several}) == 1:
                # The last one that had begun by then; clocks may differ.
                its = max((one for one in several if one.begun <= commit.at), key=lambda one: one.begun, default=several[0])
        if its is not None and its.commit is None:
            its.commit = commit


def must_have_commit(one: Transaction, asked: Asked, known: Siblings) -> bool:
    """Return whether a success of its commit task means a commit: one that emits events, and found no commit of its key."""
    if (one.key[0], f"{one.group}commit") not in asked.outlets or one.handle.get("committed"):
        return False
    return not any(each.commit is not None and each.begun < one.begun for each in known[one.key])


def find_repairs(found: Iterable[Transaction], commits: Iterable[CommitRow], known: Siblings) -> None:
    """Give each transaction without a commit the one that made up for it: of a later start in the same run, or of its key."""
    by_key: dict[str, list[CommitRow]] = {}
    for commit in commits:
        for key in commit.keys:
            by_key.setdefault(key, []).append(commit)
    for one in found:
        if one.commit is not None or one.ending.state == "committed":
            continue
        later = [each.commit for each in known[one.key] if each.begun > one.begun and each.commit is not None]
        app_id = one.handle.get("appId")
        if isinstance(app_id, str):
            later += [commit for commit in by_key.get(app_id, ()) if commit.at > one.begun]
        if later:
            one.commit, one.is_repair = min(later, key=lambda commit: (commit.at, commit.version)), True


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
