"""Dag runs for tests: each in a process of its own, which a test can have killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.shown_text import message_of
from airflow_delta.testing.kills import Kill

_WORKER = "airflow_delta.testing.worker"
_MAX_KILLS = 20
_LOG_SHOWN = 6_000
_ENTRY = lazy_pattern(r"^(?=\d{4}-\d\d-\d\dT[\d:.]+Z )", re.MULTILINE)
_TASK_BEGINS = lazy_pattern(r"\[DAG TEST\] starting task_id=(\S+)")


class DagRunError(Exception):
    """A run could not be made as it was asked for, or Airflow does not start; then the message has the log."""


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A Dag run that has ended.

    :ivar state: ``success`` or ``failed``.
    :ivar tasks: state and number of tries by task id and map index.
    :ivar log: what Airflow and the tasks logged.
    """

    dag_id: str
    run_id: str
    state: str
    tasks: Mapping[tuple[str, int], tuple[str, int]]
    log: str
    _xcoms: Mapping[tuple[str, int], Any] = field(default_factory=dict)
    _clear: Callable[..., FinishedRun] | None = None

    def state_of(self, task_id: str, map_index: int = -1) -> str:
        """Return the state of a task, such as ``upstream_failed``."""
        return self.tasks[task_id, map_index][0]

    def tries_of(self, task_id: str, map_index: int = -1) -> int:
        """Return how often a task was tried."""
        return self.tasks[task_id, map_index][1]

    def xcom(self, task_id: str, map_index: int = -1) -> Any:
        """Return what a task returned; ``None`` if nothing."""
        return self._xcoms.get((task_id, map_index))

    def assert_state(self, state: str = "success") -> None:
        """Refuse a run that ended otherwise, with its tasks, their errors and the end of the log.

        :raises AssertionError: if it did.
        """
        if self.state != state:
            raise AssertionError(f"{self!r}\nExpected: {state}")

    def clear(self, *task_ids: str, kill: Kill | None = None) -> FinishedRun:
        """Clear tasks of the run with everything after them, all tasks by default, and run them again."""
        if self._clear is None:
            raise TypeError("Only a run that run_dag returned can be cleared.")
        return self._clear(self, task_ids, kill)

    def __repr__(self) -> str:
        """Return all that a failed assertion should show."""
        lines = [
            f"  {task_id}{'' if index < 0 else f'[{index}]'}: {state}, try {tries}"
            for (task_id, index), (state, tries) in sorted(self.tasks.items())
        ]
        (only, *others) = sorted({task_id for (task_id, _), (state, _) in self.tasks.items() if state == "failed"}) or [""]
        named = [(task_id or (only if not others else ""), message) for task_id, message in errors_of(self.log)]
        failed = [f"Error of {task_id}: {message}" if task_id else f"Error: {message}" for task_id, message in named]
        return "\n".join([f"Run {self.run_id} of {self.dag_id}: {self.state}", *lines, *failed, self.log[-_LOG_SHOWN:]])


def errors_of(log: str) -> list[tuple[str, str]]:
    """Return the tasks that failed and their messages, in one line each, from the log of a run.

    A log without INFO does not say which task begins; then the name is empty.
    """
    task_id, found = "", []
    for entry in _ENTRY.split(log):
        if begins := _TASK_BEGINS.search(entry):
            task_id = begins[1]
        elif "Task failed with exception" in entry.partition("\n")[0]:
            found.append((task_id, message_of(entry)))
    return found


class DagRunner:
    """Runs Dags on an Airflow of its own: the real scheduler's rules, task runner and execution API, one task after the other.

    Pauses before retries are left out.

    :param home: directory of that Airflow.
    :param template: returns an empty database.
    """

    def __init__(self, home: Path, template: Callable[[], Path]) -> None:
        self.home = home
        self._template = template

    def __call__(
        self,
        dag_file: str | os.PathLike[str],
        dag_id: str | None = None,
        *,
        logical_date: datetime | str | None = None,
        conf: Mapping[str, Any] | None = None,
        kill: Kill | None = None,
        answers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
    ) -> FinishedRun:
        """Run a Dag once, to its end; the same date again is the same run again, all of it cleared.

        :param dag_file: path of the Dag file.
        :param dag_id: which Dag of the file; may be left out if there is one.
        :param logical_date: logical date of the run, also as ISO 8601 text such as ``2026-01-02``; UTC without a zone. Default:
            2026-01-01.
        :param conf: ``params`` of the run.
        :param kill: where to kill a task: :func:`~airflow_delta.testing.killed_at`.
        :param answers: what to choose in human-in-the-loop tasks, by task id: ``{"orders.approve": "Reject"}``.
        :param timeout: seconds for the run.
        :raises DagRunError: if the run could not be made, waits for an answer that is not given, or ended without the kill.
        :raises ValueError: if the logical date is text, but not a date.
        """
        file = Path(dag_file).resolve()
        if not file.is_file():
            raise DagRunError(f"The Dag file {file} does not exist.")
        order = {
            "dag_file": str(file),
            "dag_id": dag_id,
            "logical_date": _moment(logical_date or "2026-01-01").isoformat(),
            "conf": dict(conf or {}),
            "answers": dict(answers or {}),
            "timeout": timeout,
        }
        return self._run(order, kill)

    def _run(self, order: dict[str, Any], kill: Kill | None) -> FinishedRun:
        """Start processes until the run has ended: one more after each that was killed."""
        log, resume = "", False
        for _ in range(_MAX_KILLS):
            found, text = self._process({**order, "kill": None if kill is None else kill.to_dict(), "resume": resume})
            if found is not None:
                log += text
                break
            log, resume = log + text, True
        else:
            raise DagRunError(f"The run was killed {_MAX_KILLS} times.\n{log[-_LOG_SHOWN:]}")
        if kill is not None and not resume:
            raise DagRunError(
                f"{kill.task_id} was not killed {kill.point!r}: try {kill.try_number} of it did not come there. The points of "
                f"the log come only in tasks that commit, and tries count on when a run is cleared.\n{log[-_LOG_SHOWN:]}"
            )
        tasks = {(task["task_id"], task["map_index"]): task for task in found["tasks"]}

        def again(_run: FinishedRun, task_ids: tuple[str, ...], kill: Kill | None) -> FinishedRun:
            return self._run({**order, "clear": list(task_ids) or [task["task_id"] for task in found["tasks"]]}, kill)

        return FinishedRun(
            dag_id=found["dag_id"],
            run_id=found["run_id"],
            state=found["state"],
            tasks={key: (task["state"], task["try_number"]) for key, task in tasks.items()},
            log=log,
            _xcoms={key: task["xcom"] for key, task in tasks.items()},
            _clear=again,
        )

    def _process(self, order: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """Return what a process says about the run, ``None`` if it was killed, and its log."""
        if not self.home.exists():
            shutil.copytree(self._template(), self.home)
        result = self.home / "result.json"
        result.unlink(missing_ok=True)
        code, log = run_worker({**order, "result": str(result)}, self.home)
        if result.exists():
            answer: dict[str, Any] = json.loads(result.read_text())
            if "error" in answer:
                raise DagRunError(answer["error"])
            return answer, log
        if code == -signal.SIGKILL and order["kill"] is not None:
            return None, log
        raise DagRunError(f"The run of {order['dag_file']} ended without a result (exit code {code}).\n{log[-_LOG_SHOWN:]}")


def _moment(value: datetime | str) -> datetime:
    given = datetime.fromisoformat(value) if isinstance(value, str) else value
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def run_worker(order: Mapping[str, Any], home: Path) -> tuple[int, str]:
    """Start a process with an Airflow of its own, and return its exit code and its log."""
    command = [sys.executable, "-m", _WORKER, json.dumps(dict(order))]
    log = home / "log.txt"
    with log.open("wb") as output:
        try:
            done = subprocess.run(  # noqa: S603 - this package's own module
                command,
                env=_environment(home, order.get("dag_file")),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=order["timeout"],
                check=False,
            )
        except subprocess.TimeoutExpired:
            text = log.read_text(errors="replace")
            raise DagRunError(f"The run did not end in {order['timeout']} seconds.\n{text[-_LOG_SHOWN:]}") from None
    return done.returncode, log.read_text(errors="replace")


def _environment(home: Path, dag_file: str | None) -> dict[str, str]:
    folder = str(Path(dag_file).parent if dag_file else home)
    bundle = {"name": "tested", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": folder}}
    return {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": folder,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        # What the tests can import, the Dag can.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


@cache
def new_database(folder: Path) -> Path:
    """Return a directory with an empty database of Airflow, made once in a folder.

    :raises DagRunError: if Airflow does not start.
    """
    home = folder / "airflow-template"
    home.mkdir()
    code, log = run_worker({"new_database": True, "timeout": 600.0}, home)
    if code:
        raise DagRunError(f"Airflow's database could not be made (exit code {code}).\n{log[-_LOG_SHOWN:]}")
    return home
