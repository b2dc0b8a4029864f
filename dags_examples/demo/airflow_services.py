"""A real Airflow for one run of the demo: scheduler, Dag processor, API server and triggerer in a home of their own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SERVICES = {
    "api-server": ["api-server", "--workers", "1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
START_TIMEOUT = 300  # seconds for a step of the start, on a busy machine
TASKS_AT_ONCE = 4
JVM_OPTIONS = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")  # which make JVMs start faster


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to look at."""


class Airflow:
    """The processes of one Airflow, started through the guard that ends them, and its REST API.

    :param home: AIRFLOW_HOME, made here.
    :param variables: environment variables for the Dag.
    :param lock: descriptor that the guard keeps open as long as a process may be alive.
    """

    def __init__(self, home: Path, variables: Mapping[str, str], lock: int) -> None:
        self.home = home
        self.logs = home / "logs"
        self.logs.mkdir(parents=True)
        self._port = _free_port()
        self._env = environment(home, self._port) | variables
        self._guard = subprocess.Popen(
            [sys.executable, HERE / "guard.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=self._env,
            pass_fds=[lock],
            start_new_session=True,
        )
        self._events = selectors.DefaultSelector()
        self._events.register(self._guard.stdout, selectors.EVENT_READ)
        self._pending = b""
        self._ended: dict[str, int] = {}
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    # -- processes

    def run(self, name: str, *arguments: str) -> None:
        """Run an Airflow command to its end.

        :raises DemoError: it failed.
        """
        self._start(name, *arguments)
        self._wait(f"`airflow {' '.join(arguments)}`", lambda: name in self._ended, of=name)
        if code := self._ended.pop(name):
            raise DemoError(f"`airflow {' '.join(arguments)}` ended with {code}.\n{self.tail(name)}")

    def start(self, dag_id: str, say: Callable[[str], None]) -> None:
        """Start the four services and wait until they are healthy and the Dag is known."""
        # The API server first: the scheduler starts tasks at once, and they talk to it.
        self._start("api-server", *SERVICES["api-server"])
        self._wait("the API server", lambda: self.get("monitor/health") is not None, of="api-server")
        for name in SERVICES.keys() - {"api-server"}:
            self._start(name, *SERVICES[name])
        say("API server: ready")
        for name in ("scheduler", "dag-processor", "triggerer"):
            self._wait(f"the {name}", lambda name=name: self._healthy(name.replace("-", "_")), of=name)
            say(f"{name}: ready")
        self._wait(f"the Dag {dag_id}", lambda: self.get(f"dags/{dag_id}") is not None, of="dag-processor")
        say(f"Dag {dag_id}: found")

    def check(self) -> None:
        """Look whether a service ended.

        :raises DemoError: one did.
        """
        self._collect()
        for name in SERVICES.keys() & self._ended.keys():
            raise DemoError(f"Airflow's {name} ended by itself ({self._ended[name]}).\n{self.tail(name)}")
        if self._guard.poll() is not None:
            raise DemoError(f"The process that guards Airflow's ended ({self._guard.returncode}).")

    def stop(self) -> None:
        """End all processes; returns when none is left."""
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # some seconds of patience: the guard ends by itself
        self._guard.wait()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def tail(self, name: str, lines: int = 25) -> str:
        """Return the end of a service's log, for an error."""
        path = self.logs / f"{name}.log"
        text = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
        return "\n".join([f"The end of {path}:", *(f"    {line}" for line in text)])

    def error_of(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> str:
        """Return the last error in the log of a task."""
        path = self.logs / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}" / f"attempt={attempt}.log"
        errors = [line for line in _lines(path) if line.get("level") in ("error", "critical")]
        causes = (errors[-1].get("error_detail") or []) if errors else []
        details = [f"{cause['exc_type']}: {cause['exc_value']}" for cause in causes]
        return f"{run_id} {task_id}, try {attempt}: {'; '.join(details) or 'no error in its log'}\n    {path}"

    def _start(self, name: str, *arguments: str) -> None:
        log = str(self.logs / f"{name}.log")
        command = {"name": name, "argv": [sys.executable, "-m", "airflow", *arguments], "log": log}
        self._guard.stdin.write(json.dumps(command).encode() + b"\n")

    def _collect(self) -> None:
        while self._events.select(0):
            data = os.read(self._guard.stdout.fileno(), 65536)
            if not data:
                return
            *lines, self._pending = (self._pending + data).split(b"\n")
            for event in map(json.loads, lines):
                self._ended[event["name"]] = event["code"]

    def _wait(self, what: str, ready: Callable[[], bool], *, of: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            self.check()
            if ready():
                return
            if time.monotonic() > deadline:
                raise DemoError(f"Airflow did not start: {what} was not ready in {START_TIMEOUT} s.\n{self.tail(of)}")
            time.sleep(0.5)

    def _healthy(self, name: str) -> bool:
        return ((self.get("monitor/health") or {}).get(name) or {}).get("status") == "healthy"

    # -- REST API

    def get(self, path: str) -> Any:
        """Return the answer of Airflow's REST API; None: there is no such thing, or the server does not answer now."""
        try:
            with self._http.open(f"http://127.0.0.1:{self._port}/api/v2/{path}", timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 404:
                raise DemoError(f"Airflow's API refused {path}: {error}\n{self.tail('api-server')}") from error
            return None
        except OSError:
            return None


def environment(home: Path, port: int) -> dict[str, str]:
    """Environment of all processes: of the caller's Airflow and Spark only options of JVMs, nothing outside ``home``."""
    others = {key for key in os.environ if key.startswith(("AIRFLOW", "SPARK_", "PYSPARK_")) and key not in JVM_OPTIONS}
    inherited = {key: value for key, value in os.environ.items() if key not in others}
    api = f"http://127.0.0.1:{port}"
    bundle = {"name": "demo", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(HERE)}}
    scratch = home / "scratch"
    scratch.mkdir()
    # One small JVM for each stage: several run at once on two cores.
    java_options = f'-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir="{scratch}"'
    spark = {
        "conn_type": "spark",
        "host": "local[1]",
        "extra": {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": java_options,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "640m",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
            "spark.ui.enabled": "false",
        },
    }
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "AIRFLOW__API__BASE_URL": api,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(HERE),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{api}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": str(TASKS_AT_ONCE),
        "AIRFLOW__CORE__PARALLELISM": str(TASKS_AT_ONCE),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
