"""Follow a backfill: what each month is at, which tasks were killed and tried again, until every run has ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from airflow_services import Airflow, DemoError
from report import Clock

STANDSTILL = 240  # seconds without any change of any task, on a busy machine
INTERVAL = 1.0  # seconds between two looks
SAY_EVERY = 10.0  # seconds between two lines when nothing noteworthy happened
ENDED = {"success", "failed"}

Task = tuple[str, str]
"""Month (``2013-01``) and task id."""


@dataclass
class Months:
    """State of the Dag runs, by month."""

    runs: dict[str, str] = field(default_factory=dict)
    run_ids: dict[str, str] = field(default_factory=dict)
    tasks: dict[Task, tuple[str, int]] = field(default_factory=dict)  # state, try

    @property
    def done(self) -> int:
        return sum(state == "success" for state in self.runs.values())

    @property
    def ended(self) -> bool:
        return set(self.runs.values()) <= ENDED

    @property
    def failed_tasks(self) -> list[Task]:
        return sorted(task for task, (state, _) in self.tasks.items() if state == "failed")

    @property
    def at_work(self) -> str:
        tasks = sorted(task for task, (state, _) in self.tasks.items() if state == "running")
        running = [f"{month} {task.rpartition('.')[2]}" for month, task in tasks]
        waiting = Counter(state for state, _ in self.tasks.values() if state in {"queued", "scheduled", "up_for_retry"})
        parts = ["running: " + ", ".join(running) if running else "no task is running"]
        parts += [f"{count} {state}" for state, count in waiting.items()]
        return "; ".join(parts)

    def tries(self, month: str, task: str) -> int:
        """Return how many tries a task took."""
        return self.tasks.get((month, task), ("", 0))[1]


def follow(airflow: Airflow, dag_id: str, expected: int, killed: Collection[Task], clock: Clock) -> Months:
    """Print what happens until all runs have ended.

    :param killed: tasks that are killed on purpose in their first try.
    :raises DemoError: a service ended, or nothing has moved for too long, or a Dag run failed.
    """
    seen = Months()
    moved = said = time.monotonic()
    while len(seen.runs) < expected or not seen.ended:
        airflow.check()
        now = _look(airflow, dag_id)
        if now is not None and now != seen:
            moved = time.monotonic()
            for event in _events(seen, now, killed, expected):
                said = moved
                clock.say(event)
            seen = now
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            clock.say(f"{seen.done} of {expected} months done; {seen.at_work}")
        if time.monotonic() - moved > STANDSTILL:
            raise DemoError(
                f"Nothing has moved for {STANDSTILL} s: {seen.done} of {expected} months are done; {seen.at_work}.\n"
                f"{airflow.tail('scheduler')}\n{airflow.tail('api-server')}"
            )
        time.sleep(INTERVAL)
    if seen.done < expected:
        failed = seen.failed_tasks
        errors = [airflow.error_of(dag_id, seen.run_ids[month], task, seen.tries(month, task)) for month, task in failed]
        raise DemoError("\n".join([f"{expected - seen.done} of {expected} months failed.", *errors]))
    return seen


def _look(airflow: Airflow, dag_id: str) -> Months | None:
    runs = airflow.get(f"dags/{dag_id}/dagRuns?limit=100")
    tasks = airflow.get(f"dags/{dag_id}/dagRuns/~/taskInstances?limit=1000")
    if runs is None or tasks is None:
        return None
    months = {run["dag_run_id"]: run["logical_date"][:7] for run in runs["dag_runs"]}
    return Months(
        {months[run["dag_run_id"]]: run["state"] for run in runs["dag_runs"]},
        {month: run_id for run_id, month in months.items()},
        {
            (months[task["dag_run_id"]], task["task_id"]): (task["state"] or "", task["try_number"])
            for task in tasks["task_instances"]
            if task["dag_run_id"] in months
        },
    )


def _events(before: Months, now: Months, killed: Collection[Task], expected: int) -> Iterator[str]:
    for (month, task), (state, attempt) in sorted(now.tasks.items()):
        was, last = before.tasks.get((month, task), ("", 0))
        what = "was killed, as planned," if (month, task) in killed and attempt == 1 else "failed"
        if state == "up_for_retry" and was != state:
            yield f"{month}  {task} {what} in try {attempt}; Airflow will try again"
        elif state == "failed" and was != state:
            yield f"{month}  {task} FAILED in try {attempt}"
        elif attempt > max(last, 1):
            yield f"{month}  {task} runs again: try {attempt}"
    done = before.done
    for month, state in sorted(now.runs.items()):
        if before.runs.get(month) != state and state in ENDED:
            done += state == "success"
            yield f"{month}  done ({done} of {expected})" if state == "success" else f"{month}  FAILED"
