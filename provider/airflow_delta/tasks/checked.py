"""What the tasks between the stages and the commit of a transaction have seen, compared with what the commit publishes.

Airflow keeps a task green while what is before it runs again alone. So each task leaves an XCom (:data:`SEEN_KEY`) that names
its run: a stage its attempt, any other task, as it begins, its try and the runs of what is before it. A commit refuses if the
runs that a check has seen are not those that are there now. No clocks are compared.

What is before a check: every stage, and the nearest checks, which have seen what is before them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals.tasks import all_of, resumes
from airflow_delta.contract.audit import RUN_AGAIN, HeldCheck, stages_of
from airflow_delta.contract.payloads import read_version_name
from airflow_delta.dag_wiring import role_of
from airflow_delta.exceptions import ChecksOutdatedException
from airflow_delta.tasks.base import AUTHORS_RISK
from airflow_delta.tasks.expected_stages import instances, name_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle

SEEN_KEY = "delta_seen"
"""Key of the XCom."""

_LISTED = 50
"""Runs of a mapped task that a note names one by one; of more, it has a digest."""

_SHOWN = 5
"""Outdated checks that an error names."""

_REPORTS = ("audit", "audit_publication")

_ENDS = ("start", "commit", "abort")

Runs = Mapping[int, str]
"""Runs of the instances of a task, by map index."""


def note_attempt(context: Context, write: Mapping[str, Any]) -> None:
    """Leave the attempt that a stage reports, for the checks after it."""
    _push(context, str(write["attempt"]), {})


def note_seen(context: Context) -> None:
    """Leave what is before a task that begins, if it may stand between the start and the commit of a transaction.

    A deferred task has begun before it was deferred: what it left then stays. One that a trigger has begun has seen what had
    begun before that; only here clocks are compared.
    """
    ti: Any = context["ti"]
    task = context["dag"].task_dict.get(ti.task_id)
    if task is None or role_of(task) in (*_ENDS, "stage") or not _may_be_between(task):
        return
    evidence = _Evidence(context)
    since: float | None = None
    if resumes(ti):
        if str(ti.id) in {note["run"] for note in evidence.notes(task).values()}:
            return
        since = ti.start_date.timestamp()
    seen = evidence.before(task, _index(ti), until=since)
    _push(context, str(ti.id), {name: _named(runs) for name, runs in seen.items()})


def _push(context: Context, run: str, seen: Mapping[str, Any]) -> None:
    ti: Any = context["ti"]
    note = {"run": run, "mapIndex": _index(ti), "at": time.time(), "seen": dict(seen)}
    ti.xcom_push(key=SEEN_KEY, value=note)


def _index(ti: Any) -> int:
    return -1 if ti.map_index is None else int(ti.map_index)


def _may_be_between(task: Any) -> bool:
    """Return whether a commit is after a task, and its start task before it, or nowhere: a function may begin, too."""
    before = {role_of(each) for each in task.get_flat_relatives(upstream=True)}
    after = {role_of(each) for each in task.get_flat_relatives(upstream=False)}
    return "commit" in after and ("start" in before or "start" not in after)


@dataclass(frozen=True, slots=True)
class Outdated:
    """A check that has not seen what is to be published.

    :param check: the task instance: task id and map index.
    :param other: the task instance before it that has run since; ``None`` if it is not known what the check has seen.
    :param saw: the run that it has seen; ``None`` if none.
    :param found: the run that is there now; ``None`` if none.
    """

    check: tuple[str, int]
    other: str | None = None
    saw: str | None = None
    found: str | None = None

    @property
    def name(self) -> str:
        """The task instance in words."""
        return name_of(*self.check)

    def __str__(self) -> str:
        if self.other is None:
            return f"{self.name} has left no note of what it has seen"
        if self.saw is None:
            return f"{self.name} has not seen {f'run {self.found} of ' if self.found else ''}{self.other}"
        return f"{self.name} has seen run {self.saw} of {self.other}, of which {self._now}"

    @property
    def _now(self) -> str:
        return "nothing is left" if self.found is None else f"run {self.found} is there now"


def check_seen(
    commit: BaseOperator, context: Context, handle: TransactionHandle, writes: Sequence[StagedWrite], between: set[str]
) -> None:
    """Refuse to publish what a task between start and commit has not seen: a stage before it has run again since.

    If the commit itself names a trigger rule that accepts failures, it is only logged.

    :param writes: what the commit publishes.
    :param between: the tasks between start and commit.
    :raises ChecksOutdatedException: if there is such a task.
    """
    found = list(outdated(context, between, writes))
    if not found:
        return
    told = f"{'; '.join(map(str, found[:_SHOWN]))}{'; ...' if len(found) > _SHOWN else ''}"
    if commit.trigger_rule in AUTHORS_RISK:
        commit.log.warning(
            "Transaction %s: publishes what was not checked, as trigger_rule=%r of %r asks: %s.",
            handle.transaction_id,
            commit.trigger_rule.value,
            commit.task_id,
            told,
        )
        return
    raise handle.error(
        ChecksOutdatedException,
        f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) is not "
        f"published: a task between start and commit has not seen what would be. {told}. {RUN_AGAIN}: "
        f"{', '.join(sorted({each.name for each in found})[:_SHOWN])}.",
        checks=tuple(sorted({each.check for each in found})),
    )


def outdated(context: Context, between: set[str], writes: Sequence[StagedWrite]) -> Iterator[Outdated]:
    """Yield which tasks between start and commit have not seen the runs that are there now.

    :param between: the tasks between start and commit.
    :param writes: what the commit publishes.
    """
    evidence = _Evidence(context, between)
    tasks = context["dag"].task_dict
    staged = {write.task_id for write in writes} | {name for name in between if role_of(tasks[name]) == "stage"}
    checks = {name for name in between - staged if role_of(tasks[name]) not in _ENDS}
    checks = {name for name in checks if staged & tasks[name].get_flat_relative_ids(upstream=True)}
    if not checks:
        return
    states = instances(context, checks)
    ran: set[tuple[str, int]] | None = None
    for (name, index), state in sorted(states.items()):
        if state != "success":
            continue
        task = tasks[name]
        if role_of(task) in _REPORTS:
            yield from _misreported(context, name, index, writes)
        if (note := evidence.notes(task).get(index)) is not None:
            yield from _differences((name, index), note["seen"], evidence.before(task, index))
            continue
        ran = _ran(context) if ran is None else ran
        if (name, index) in ran:
            yield Outdated((name, index))
    for write in writes:
        if role_of(tasks.get(write.task_id)) != "stage":
            continue
        for name in sorted(checks & tasks[write.task_id].get_flat_relative_ids(upstream=False)):
            note = evidence.notes(tasks[write.task_id]).get(write.map_index)
            if note is None or note["run"] != write.attempt:
                yield Outdated((name, -1), name_of(write.task_id, write.map_index), note and note["run"], write.attempt)


def _misreported(context: Context, name: str, index: int, writes: Sequence[StagedWrite]) -> Iterator[Outdated]:
    """Yield the attempts that the report of a check names and that are not published."""
    ti: Any = context["ti"]
    report, check = ti.xcom_pull(task_ids=name, map_indexes=index), (name, index)
    if not isinstance(report, Mapping):
        return  # do_xcom_push=False: what it has left as it began counts
    stages = report.get("stages")
    if not isinstance(stages, Mapping) or report.get("alreadyCommitted"):
        yield Outdated(check)
        return
    published = stages_of(writes)
    for transaction, attempts in stages.items():
        for stage, attempt in attempts.items():
            found = published.get(transaction, {}).get(stage)
            if found != attempt:
                yield Outdated(check, f"{stage} of transaction {transaction}", attempt, found)


def held_checks(context: Context, between: set[str]) -> list[HeldCheck]:
    """Return what the audits between start and commit say must hold in the version that is published."""
    ti, tasks = context["ti"], context["dag"].task_dict
    audits = {name for name in between if role_of(tasks[name]) == "audit"}
    found: list[HeldCheck] = []
    for (name, index), state in sorted(instances(context, audits).items()) if audits else ():
        report: Any = ti.xcom_pull(task_ids=name, map_indexes=index) if state == "success" else None
        if isinstance(report, Mapping):
            given = [HeldCheck.from_dict(each) for each in report.get("held", ())]
            found += [replace(each, task_id=name, map_index=index) for each in given]
    return found


def _differences(check: tuple[str, int], seen: Mapping[str, Any], wanted: Mapping[str, Runs]) -> Iterator[Outdated]:
    for name, runs in wanted.items():
        saw = seen.get(name, {})
        if saw == _named(runs):
            continue
        if not isinstance(saw, Mapping) or len(runs) > _LISTED:
            yield Outdated(check, f"{len(runs)} instances of {name}")
            continue
        for index, run in runs.items():
            if saw.get(str(index)) != run:
                yield Outdated(check, name_of(name, index), saw.get(str(index)), run)
        for index in saw.keys() - set(map(str, runs)):
            yield Outdated(check, name_of(name, int(index)), saw[index])


def _named(runs: Runs) -> Any:
    """Return runs as a note has them: by map index as text, or as a digest if there are many."""
    named = {str(index): run for index, run in sorted(runs.items())}
    return named if len(named) <= _LISTED else hashlib.sha256(json.dumps(named).encode()).hexdigest()


class _Evidence:
    """The notes of the tasks of a run, each task's read once.

    :param inside: the tasks to look at; default: all.
    """

    def __init__(self, context: Context, inside: set[str] | None = None) -> None:
        self._context = context
        self._inside = inside
        self._notes: dict[str, dict[int, Any]] = {}

    def before(self, task: Any, index: int, *, until: float | None = None) -> dict[str, Runs]:
        """Return the runs of every stage before an instance of a task, and of the nearest checks.

        :param until: leave out what has begun later, in seconds since 1970.
        """
        found: dict[str, Runs] = {}
        todo, known = list(task.upstream_list), set()
        while todo:
            other = todo.pop()
            if other.task_id in known or role_of(other) in _ENDS:
                continue
            if self._inside is not None and other.task_id not in self._inside:
                continue
            known.add(other.task_id)
            notes = self._of(other, task, index)
            if notes:
                found[other.task_id] = {at: note["run"] for at, note in notes.items() if until is None or note["at"] <= until}
            if not notes or role_of(other) == "stage":
                todo.extend(other.upstream_list)
        return found

    def notes(self, task: Any) -> dict[int, Any]:
        """Return the notes of all instances of a task, by map index."""
        if task.task_id not in self._notes:
            ti: Any = self._context["ti"]
            values = all_of(ti.xcom_pull(task_ids=[task.task_id], key=SEEN_KEY) or ())
            self._notes[task.task_id] = {int(each["mapIndex"]): each for each in values if isinstance(each, Mapping)}
        return self._notes[task.task_id]

    def _of(self, other: Any, task: Any, index: int) -> dict[int, Any]:
        """Return the notes of the instances of a task that an instance of another one waits for."""
        notes, group = self.notes(other), task.get_closest_mapped_task_group()
        if group is None or other.get_closest_mapped_task_group() is not group:
            return notes
        return {at: note for at, note in notes.items() if at == index}


def _ran(context: Context) -> set[tuple[str, int]]:
    """Return the task instances that a worker has run; Airflow ends an ``EmptyOperator`` without one."""
    ti: Any = context["ti"]
    ended = ti.get_task_breadcrumbs(ti.dag_id, ti.run_id)
    return {(each["task_id"], int(each["map_index"])) for each in ended if each["duration"]}
