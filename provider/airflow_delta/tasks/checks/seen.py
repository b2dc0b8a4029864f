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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.airflow_internals.tasks import resumes
from airflow_delta.contract.audit import RUN_AGAIN, HeldCheck, stages_of
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.dag_rules.trigger_rules import AUTHORS_RISK
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import ChecksOutdatedException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.checks.evidence import ENDS, SEEN_KEY, Evidence, Runs
from airflow_delta.tasks.checks.tags import check_tags
from airflow_delta.tasks.task_states import name_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle

_LISTED = 50
"""Runs of a mapped task that a note names one by one; of more, it has a digest."""

_SHOWN = 5
"""Outdated checks that an error names."""


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
    if task is None or role_of(task) in (*ENDS, "stage") or not _may_be_between(task):
        return
    evidence = Evidence(context)
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

    :param check: the task instance: task id and map index; -1 also for all instances of a mapped task.
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
    commit: BaseOperator,
    evidence: Evidence,
    handle: TransactionHandle,
    writes: Sequence[StagedWrite],
    *,
    approvals: bool = False,
) -> dict[str, str]:
    """Refuse to publish what a task between start and commit has not seen: a stage before it has run again since.

    If the commit itself names a trigger rule that accepts failures, it is only logged.

    :param writes: what the commit publishes.
    :param approvals: name who has answered approvals.
    :return: the tag that names the checks.
    :raises ChecksOutdatedException: if there is such a task.
    """
    found = list(outdated(evidence, writes))
    if not found:
        return check_tags(evidence, writes, (), approvals=approvals)
    told = f"{'; '.join(map(str, found[:_SHOWN]))}{'; ...' if len(found) > _SHOWN else ''}"
    if commit.trigger_rule in AUTHORS_RISK:
        commit.log.warning(
            "Transaction %s: publishes what was not checked, as trigger_rule=%r of %r asks: %s.",
            handle.transaction_id,
            commit.trigger_rule.value,
            commit.task_id,
            told,
        )
        return check_tags(evidence, writes, {each.check for each in found}, approvals=approvals)
    raise handle.error(
        ChecksOutdatedException,
        f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) is not "
        f"published: a task between start and commit has not seen what would be. {told}. {RUN_AGAIN}: "
        f"{', '.join(sorted({each.name for each in found})[:_SHOWN])}.",
        checks=tuple(sorted({each.check for each in found})),
    )


def outdated(evidence: Evidence, writes: Sequence[StagedWrite]) -> Iterator[Outdated]:
    """Yield which tasks between start and commit have not seen the runs that are there now.

    :param writes: what the commit publishes.
    """
    states, tasks = evidence.checks(writes), evidence.tasks
    if not states:
        return
    for (name, index), state in sorted(states.items()):
        if state != "success":
            continue
        if evidence.has_report(name):
            yield from _misreported(evidence, name, index, writes)
        if (note := evidence.note(name, index)) is not None:
            yield from _differences((name, index), note["seen"], evidence.before(tasks[name], index))
        elif (name, index) in evidence.ran:
            yield Outdated((name, index))
    checks = {name for name, _ in states}
    for write in writes:
        if role_of(tasks.get(write.task_id)) != "stage":
            continue
        for name in sorted(checks & tasks[write.task_id].get_flat_relative_ids(upstream=False)):
            note = evidence.note(write.task_id, write.map_index)
            if note is None or note["run"] != write.attempt:
                yield Outdated((name, -1), name_of(write.task_id, write.map_index), note and note["run"], write.attempt)


def _misreported(evidence: Evidence, name: str, index: int, writes: Sequence[StagedWrite]) -> Iterator[Outdated]:
    """Yield the attempts that the report of a check names and that are not published."""
    report, check = evidence.report(name, index), (name, index)
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


def held_checks(evidence: Evidence) -> dict[str, list[HeldCheck]]:
    """Return what the audits between start and commit say must hold in the versions that are published, by transaction id."""
    found: dict[str, list[HeldCheck]] = {}
    for (name, index), state in sorted(evidence.reports().items()):
        report = evidence.report(name, index) if state == "success" else None
        # What looks at the table is to run again: of an audit by a job, that is the task that plans it.
        looks = getattr(evidence.tasks[name], "planned_by", None) or name
        for held in map(HeldCheck.from_dict, report.get("held", ()) if isinstance(report, Mapping) else ()):
            found.setdefault(held.transaction_id, []).append(replace(held, task_id=looks, map_index=index))
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
