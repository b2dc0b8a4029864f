"""Dag runs of the live Airflow: start them, clear them, wait for them, and say what went wrong with them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from live.airflow_services import Airflow
from live.names import gate_name
from live.tables import ScenarioTable

PATIENCE = 1800  # seconds for any step, on two busy cores beside other suites
INTERVAL = 0.5
ENDED = ("success", "failed")


class Live:
    """What a scenario needs: Dag runs, tables and gates."""

    def __init__(self, airflow: Airflow) -> None:
        self.airflow = airflow

    def table(self, name: str) -> ScenarioTable:
        """Return a table below the directory of the tests."""
        return ScenarioTable(self.airflow.tables / name)

    def trigger(self, dag_id: str, *, date: datetime | None = None, **conf: Any) -> Run:
        """Start a run by hand.

        :param date: its logical date; by default it has none.
        :param conf: the run's ``conf``; ``faults`` are those of :mod:`live.faults`.
        """
        run_id = f"{dag_id}-{uuid.uuid4().hex[:6]}"
        body = {"dag_run_id": run_id, "logical_date": date and date.isoformat(), "conf": conf}
        self.airflow.rest("POST", f"dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, run_id)

    def trigger_for(self, dag_id: str, first: datetime, last: datetime, **conf: Any) -> Run:
        """Start a run by hand for a data interval. Its logical date is one of its own: Airflow has one run for each."""
        run_id = f"{dag_id}-{uuid.uuid4().hex[:6]}"
        body = {
            "dag_run_id": run_id,
            "logical_date": (first + timedelta(seconds=random.randrange(1, 10**6))).isoformat(),
            "data_interval_start": first.isoformat(),
            "data_interval_end": last.isoformat(),
            "conf": conf,
        }
        self.airflow.rest("POST", f"dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, run_id)

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run a Dag of the examples."""
        self.airflow.rest("PATCH", f"dags/{dag_id}?update_mask=is_paused", {"is_paused": False})

    def backfill(
        self, dag_id: str, first: datetime, last: datetime, *, reprocess: str = "none", at_once: int = 32, **conf: Any
    ) -> int:
        """Create a backfill and return its id."""
        body = {
            "dag_id": dag_id,
            "from_date": first.isoformat(),
            "to_date": last.isoformat(),
            "reprocess_behavior": reprocess,
            "max_active_runs": at_once,
            "dag_run_conf": conf,
        }
        return int(self.airflow.rest("POST", "backfills", body)["id"])

    def runs_of_backfill(self, backfill: int) -> list[Run]:
        """Return the runs of a backfill, by the date or partition they are for."""
        rows = self.airflow.query(
            "SELECT r.dag_id, r.run_id FROM backfill_dag_run b JOIN dag_run r ON r.id = b.dag_run_id "
            "WHERE b.backfill_id = %s ORDER BY b.logical_date, b.partition_key",
            backfill,
        )
        return [Run(self, *row) for row in rows]

    def wait_for_backfill(self, backfill: int) -> list[Run]:
        """Wait until Airflow says that a backfill is done: only then the Dag may have another one."""
        sql = "SELECT completed_at IS NOT NULL FROM backfill WHERE id = %s"
        self.until(lambda: self.airflow.query(sql, backfill)[0][0], f"backfill {backfill} is done")
        return self.runs_of_backfill(backfill)

    def runs_of(self, dag_id: str) -> list[Run]:
        """Return the runs of a Dag, oldest first."""
        rows = self.airflow.query("SELECT dag_id, run_id FROM dag_run WHERE dag_id = %s ORDER BY id", dag_id)
        return [Run(self, *row) for row in rows]

    def until(self, ready: Callable[[], Any], what: str, *, explain: Callable[[], str] | None = None) -> Any:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.airflow.check()
            if answer := ready():
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"In {PATIENCE} s it did not come to pass that {what}.\n{explain() if explain else ''}")
            time.sleep(INTERVAL)

    def finish(self, runs: Iterable[Run], state: str = "success") -> list[Run]:
        """Wait until all runs have ended, and check that they ended in a state."""
        runs = list(runs)
        for run in runs:
            run.wait(state)
        return runs

    def events(self, uri: str) -> list[dict[str, Any]]:
        """Return the extra of the events of an asset, oldest first."""
        rows = self.airflow.query(
            "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.uri = %s ORDER BY e.id", uri
        )
        return [extra for (extra,) in rows]


@dataclass(frozen=True)
class Run:
    """One Dag run."""

    live: Live
    dag_id: str
    run_id: str

    # -- what it is at

    @property
    def state(self) -> str:
        return str(self._of_run("state"))

    @property
    def clear_number(self) -> int:
        return int(self._of_run("clear_number"))

    @property
    def run_type(self) -> str:
        return str(self._of_run("run_type"))

    @property
    def logical_date(self) -> datetime | None:
        return self._of_run("logical_date")

    @property
    def partition_key(self) -> str | None:
        return self._of_run("partition_key")

    def tasks(self) -> dict[tuple[str, int], tuple[str | None, int]]:
        """Return state and try of each task instance, by task id and map index."""
        sql = "SELECT task_id, map_index, state, try_number FROM task_instance WHERE dag_id = %s AND run_id = %s"
        rows = self.live.airflow.query(sql, self.dag_id, self.run_id)
        return {(task_id, map_index): (state, attempt) for task_id, map_index, state, attempt in rows}

    def state_of(self, task_id: str, map_index: int = -1) -> str | None:
        return self.tasks().get((task_id, map_index), (None, 0))[0]

    def tries_of(self, task_id: str, map_index: int = -1) -> int:
        return self.tasks()[task_id, map_index][1]

    def xcom(self, task_id: str, map_index: int = -1, key: str = "return_value") -> Any:
        """Return an XCom; ``None``: there is none."""
        sql = "SELECT value FROM xcom WHERE dag_id = %s AND run_id = %s AND task_id = %s AND map_index = %s AND key = %s"
        rows = self.live.airflow.query(sql, self.dag_id, self.run_id, task_id, map_index, key)
        value = rows[0][0] if rows else None
        return json.loads(value) if isinstance(value, str) else value

    def events(self) -> list[dict[str, Any]]:
        """Return the extra of the asset events that the run's tasks emitted, oldest first."""
        sql = "SELECT extra FROM asset_event WHERE source_dag_id = %s AND source_run_id = %s ORDER BY id"
        return [extra for (extra,) in self.live.airflow.query(sql, self.dag_id, self.run_id)]

    # -- waiting

    def wait(self, state: str = "success") -> Run:
        """Wait until the run has ended, and check how."""
        self.live.until(lambda: self.state in ENDED, f"{self} ended", explain=self.explain)
        assert self.state == state, self.explain()
        return self

    def wait_for_task(self, task_id: str, *states: str, map_index: int = -1, tries: int = 0) -> None:
        """Wait until a task instance is in one of some states, in a try of at least this number."""

        what = f"{task_id}[{map_index}] of {self} was {' or '.join(states)}"

        def there() -> bool:
            ended = self.state in ENDED  # asked first: what is not there after the end never will be
            state, attempt = self.tasks().get((task_id, map_index), (None, 0))
            found = state in states and attempt >= tries
            assert found or not ended, f"The run ended before {what}.\n{self.explain()}"
            return found

        self.live.until(there, what, explain=self.explain)

    def wait_until_left(self, task_id: str) -> None:
        """Wait until the scheduler knows that a task that waits has left its process.

        It hears of the new state first. What makes the task go on in between, faster than things happen, counts as a failure.
        """
        ended = re.compile(
            rf"TaskInstance Finished: dag_id={self.dag_id}, task_id={task_id}, run_id={re.escape(self.run_id)},.*"
            rf" try_number={self.tries_of(task_id)},"
        )
        log = self.live.airflow.logs / "scheduler.log"
        self.live.until(
            lambda: ended.search(log.read_text(errors="replace")), f"the scheduler knows that {task_id} of {self} waits"
        )

    # -- gates

    def reached(self, point: str) -> Held:
        """Wait until a task is held (or frozen) at a point."""
        name = gate_name(self.run_id, point)
        path = self.live.airflow.gates / f"{name}.reached"
        self.live.until(path.exists, f"{self} reached {point}", explain=self.explain)
        return Held(path.with_suffix(".open"), **json.loads(path.read_text()))

    # -- what people do to runs

    def clear(self, *task_ids: str | tuple[str, int], downstream: bool = False) -> None:
        """Clear tasks, as the UI does; running ones are restarted. Each is a task id, or one with a map index."""
        body = {
            "dag_run_id": self.run_id,
            "task_ids": list(task_ids),
            "include_downstream": downstream,
            "only_failed": False,
            "dry_run": False,
        }
        self.live.airflow.rest("POST", f"dags/{self.dag_id}/clearTaskInstances", body)

    def clear_all(self) -> None:
        """Clear the whole run."""
        body = {"dry_run": False, "only_failed": False}
        self.live.airflow.rest("POST", f"dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}/clear", body)

    def mark(self, state: str, task_id: str | None = None) -> None:
        """Set the state of the run, or of a task, as the UI does."""
        path = f"dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}"
        if task_id is None:
            self.live.airflow.rest("PATCH", path, {"state": state})
        else:
            self.live.airflow.rest("PATCH", f"{path}/taskInstances/{task_id}", {"new_state": state})

    def answer(self, task_id: str, choice: str) -> None:
        """Answer a human-in-the-loop task."""
        path = f"dags/{self.dag_id}/dagRuns/{quote(self.run_id, safe='')}/taskInstances/{task_id}/-1/hitlDetails"
        self.live.airflow.rest("PATCH", path, {"chosen_options": [choice]})

    # -- for people who read failures

    def explain(self) -> str:
        """Return states and errors of the run."""
        lines = [f"{self}: {self.state}"]
        for (task_id, map_index), (state, attempt) in sorted(self.tasks().items()):
            lines.append(f"    {task_id}[{map_index}]: {state}, try {attempt}")
            lines += [f"        {error}" for error in self._errors(task_id, map_index)]
        return "\n".join(lines)

    def log_lines(self, task_id: str) -> list[dict[str, Any]]:
        """Return the log of a task's tries, as Airflow keeps it: an object for each line."""
        texts = [path.read_text(errors="replace") for path in self._logs(task_id)]
        return [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]

    def _logs(self, task_id: str, map_index: int = -1) -> list[Path]:
        folder = self.live.airflow.logs / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / f"task_id={task_id}"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        return sorted(folder.glob("attempt=*.log"))

    def _errors(self, task_id: str, map_index: int) -> list[str]:
        return [error for path in self._logs(task_id, map_index) for error in _errors_of(path)]

    def _of_run(self, column: str) -> Any:
        sql = f"SELECT {column} FROM dag_run WHERE dag_id = %s AND run_id = %s"
        return self.live.airflow.query(sql, self.dag_id, self.run_id)[0][0]

    def __str__(self) -> str:
        return f"{self.dag_id} {self.run_id}"


@dataclass(frozen=True)
class Held:
    """A task that waits at a gate: its process, and that of its supervisor."""

    gate: Path
    task: int
    supervisor: int

    def open(self) -> None:
        """Let the task go on."""
        self.gate.touch()

    def thaw(self) -> None:
        """Let a stopped supervisor go on."""
        with suppress(ProcessLookupError):
            os.kill(self.supervisor, signal.SIGCONT)

    def is_running(self) -> bool:
        """Tell whether the task's process is still there."""
        try:
            return psutil.Process(self.task).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def rests(self) -> bool:
        """Tell, after some seconds, whether the task's process has stopped working: it waits for somebody, or is gone."""
        try:
            process = psutil.Process(self.task)
            before = process.cpu_times()
            time.sleep(3)
            return process.cpu_times() == before
        except psutil.NoSuchProcess:
            return True


def _errors_of(path: Path) -> list[str]:
    errors = []
    for line in path.read_text(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        with suppress(ValueError):
            entry = json.loads(line)
            if entry.get("level") in ("error", "critical"):
                causes = [f"{cause['exc_type']}: {cause['exc_value']}" for cause in entry.get("error_detail") or []]
                errors.append(f"{path.stem}: {'; '.join(causes) or entry.get('event')}")
    return errors
