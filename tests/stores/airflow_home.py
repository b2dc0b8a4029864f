"""A real Airflow for the cluster tests, whose Dags run in processes that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stores.clusters import SPARK_HOME

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT = 1200


@dataclass
class DagRun:
    """A finished run: its state, ``(state, try number)`` and XCom of each task, and what was logged."""

    state: str
    tasks: dict[str, list[Any]]
    xcoms: dict[str, Any]
    log: str

    def version(self, task_id: str) -> int | None:
        """Return the version that a task committed."""
        return self.xcoms[task_id]["version"]  # type: ignore[no-any-return]


class AirflowHome:
    """AIRFLOW_HOME with a database of its own, and the environment of its processes.

    :param directory: an empty directory.
    :param template: another home, whose database is copied; making one takes several seconds.
    """

    def __init__(self, directory: Path, template: AirflowHome | None = None) -> None:
        self.directory = directory
        self.variables: dict[str, str] = {}
        self.spark_home = SPARK_HOME
        """Where ``spark-submit`` is."""
        self.dags = HERE / "dags" / "cluster_dags.py"
        """The file of Dags."""
        self.python_path: list[str] = []
        """Where Python looks for packages first."""
        self._started: list[subprocess.Popen[bytes]] = []
        if template is None:
            self._process("init").communicate()
        else:
            shutil.copy(template.directory / "airflow.db", directory / "airflow.db")

    def copy(self, directory: Path) -> AirflowHome:
        """Return another home with the same connections, whose database has no runs; it is closed with this one."""
        directory.mkdir()
        home = AirflowHome(directory, self)
        home.variables, home._started = dict(self.variables), self._started
        return home

    def connect(self, name: str, connection: Mapping[str, Any] | str) -> None:
        """Define a connection."""
        self.variables[f"AIRFLOW_CONN_{name.upper()}"] = connection if isinstance(connection, str) else json.dumps(connection)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the caller's Airflow or Spark."""
        strange = ("AIRFLOW", "SPARK", "PYSPARK", "AWS", "HADOOP", "CLUSTER", "PYTHON")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
        bundle = {
            "name": "clusters",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(self.dags.parent)},
        }
        return inherited | {
            "AIRFLOW_HOME": str(self.directory),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.directory}/airflow.db",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "DAGS": str(self.dags),
            "NO_PROXY": "127.0.0.1,localhost",
            "PATH": os.pathsep.join((str(self.spark_home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join((*self.python_path, str(ROOT / "provider"), str(ROOT / "tests"))),
            "PYTHONWARNINGS": "ignore",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
            **self.variables,
        }

    def start(self, dag_id: str, *, what: str = "run", submit: Mapping[str, Any] | None = None, **variables: str) -> Process:
        """Start a run of a Dag; see ``run_dag.py``.

        :param submit: parameters of ``spark-submit``; without, the work is done in sessions.
        """
        given = {} if submit is None else {"CLUSTER_SUBMIT": json.dumps(submit)}
        return Process(self._process(what, dag_id, **given, **variables), self.directory / f"{what}.log")

    def run(self, dag_id: str, **kwargs: Any) -> DagRun:
        """Run a Dag to its end."""
        return self.start(dag_id, **kwargs).result()

    def _process(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, HERE / "run_dag.py", *arguments],
                env={**self.environment, **variables},
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End every process that was started, and what these have submitted here."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Process:
    """A process that runs a Dag."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen, self._log = popen, log

    @property
    def log(self) -> str:
        """What it has logged until now."""
        return self._log.read_text(errors="replace")

    def wait_for(self, what: str, found: Callable[[], Any]) -> Any:
        """Wait until something is found while the process runs, and return it."""
        until = time.monotonic() + TIMEOUT
        while not (value := found()):
            assert self.popen.poll() is None, f"The process ended before {what}:\n{self.log[-6000:]}"
            assert time.monotonic() < until, f"{what} took too long:\n{self.log[-6000:]}"
            time.sleep(0.1)
        return value

    def result(self) -> DagRun:
        """Return the finished run."""
        try:
            self.popen.wait(TIMEOUT)
        finally:
            self.popen.kill()
        lines = [line for line in self.log.splitlines() if line.startswith("RESULT ")]
        assert len(lines) == 1, self.log[-8000:]
        return DagRun(**json.loads(lines[0].removeprefix("RESULT ")), log=self.log)
