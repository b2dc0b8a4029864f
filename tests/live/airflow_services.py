"""A whole Airflow on PostgreSQL: API server, scheduler with a LocalExecutor, Dag processor and triggerer, each a process.

All of them belong to the guard that ``make demo`` uses, too: when the tests end, however they do, it ends every process and all
their descendants. What the tests do goes through the REST API, as a user's clicks do; what they wait for is read from the
database, which costs next to nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from live.names import GATED_POOLS, HOLDING_POOL, ONE_SLOT, SLOTS, SLOTS_TO_HOLD
from live.postgres import Postgres
from support.documents import section
from support.programs import pyspark_environment

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
GUARD = ROOT / "dags_examples" / "demo" / "guard.py"

SERVICES = {
    "api-server": ["api-server", "--workers", "1"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
EXAMPLES = ("delta_approval.py", "delta_events.py", "delta_partitions.py", "delta_unique_ids.py")
"""Examples that run here as they are."""

JVM_OPTIONS = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")  # which make JVMs start faster
START_TIMEOUT = 240  # seconds for a step of the start
HEARTBEAT_TIMEOUT = 60  # seconds without a sign of life after which a task counts as dead; Airflow's default is 300


class ServiceError(Exception):
    """Airflow does not run (any more); the message has the end of the log."""


class Airflow:
    """The processes, the REST API and the database of one Airflow.

    :cvar services: the arguments of ``airflow`` of each.
    :param home: an empty directory: AIRFLOW_HOME, with logs, tables and gates.
    :param socket_directory: an empty directory with a short name, for PostgreSQL.
    """

    services: Mapping[str, list[str]] = SERVICES

    def __init__(self, home: Path, socket_directory: Path) -> None:
        self.home = home
        self.logs, self.tables, self.gates = home / "logs", home / "tables", home / "gates"
        for directory in (self.logs, self.tables, self.gates, home / "examples", home / "scratch"):
            directory.mkdir(parents=True)
        for name in EXAMPLES:
            shutil.copy(ROOT / "dags_examples" / name, home / "examples" / name)
        (first_dag,) = section(ROOT / "docs" / "quick-start.md", "The first Dag")
        (home / "examples" / "orders.py").write_text(first_dag.text)
        self._postgres = Postgres(socket_directory)
        self._port = free_port()
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=self.environment(self._postgres.url, self._port),
            start_new_session=True,
        )
        self._events = selectors.DefaultSelector()
        self._events.register(self._guard.stdout, selectors.EVENT_READ)
        self._pending = b""
        self._ended: dict[str, int] = {}
        self._expected_to_end: set[str] = set()
        self._lock = threading.Lock()
        self._connection: Any = None
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._stopped = threading.Event()

    def environment(self, database: str, port: int) -> dict[str, str]:
        """Return the environment of all processes."""
        return environment(self, database, port)

    # -- processes

    def start(self) -> None:
        """Start the database and the services; returns when they are healthy and all Dags are known.

        :raises ServiceError: one of them did not start, or a Dag file has an error.
        """
        self._launch("postgresql", self._postgres.argv)
        self._wait("PostgreSQL", self._postgres.ready, of="postgresql")
        self._run("database", "db", "migrate")
        self._airflow("api-server")  # first: the scheduler starts tasks at once, and they talk to it
        self._wait("the API server", lambda: self._healthy("metadatabase"), of="api-server")
        for pool, slots in {
            "default_pool": SLOTS,
            HOLDING_POOL: SLOTS_TO_HOLD,
            **dict.fromkeys(GATED_POOLS, 0),
            **dict.fromkeys(ONE_SLOT, 1),
        }.items():
            self.set_pool(pool, slots)
        for name in self.services.keys() - {"api-server"}:
            self._airflow(name)
        for name in ("scheduler", "dag-processor", "triggerer"):
            self._wait(f"the {name}", lambda name=name: self._healthy(name.replace("-", "_")), of=name)
        files = [*(HERE / "dags").glob("*.py"), *(self.home / "examples").glob("*.py")]
        self._wait("the Dags", lambda: self._parsed() >= len(files), of="dag-processor")
        errors = self.query("SELECT filename, stacktrace FROM import_error")
        if errors:
            raise ServiceError("\n".join(f"{filename}:\n{stacktrace}" for filename, stacktrace in errors))

    def stop(self) -> None:
        """End all processes; returns when none is left."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._events.close()
            self._guard.stdout.close()

    def check(self) -> None:
        """Look whether a service ended that should not have.

        :raises ServiceError: one did, or the tests are over.
        """
        if self._stopped.is_set():
            raise ServiceError("Airflow was stopped: the tests are over.")
        with self._lock:
            self._collect()
            ended = (self.services.keys() | {"postgresql"}) & self._ended.keys() - self._expected_to_end
        for name in ended:
            raise ServiceError(f"{name} ended by itself ({self._ended[name]}).\n{self.tail(name)}")
        if self._guard.poll() is not None:
            raise ServiceError(f"The process that guards Airflow's ended ({self._guard.returncode}).")

    def kill(self, name: str) -> None:
        """End a service and its children with SIGKILL, as the machine's end would; returns when they are gone."""
        self._expected_to_end.add(name)
        service = psutil.Process(int((self.logs / f"{name}.pid").read_text()))
        killed = [service, *service.children(recursive=True)]
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(killed, timeout=30)

    def start_again(self, name: str) -> None:
        """Start a service that was killed."""
        self._wait(f"the end of the {name}", lambda: name in self._ended, of=name)
        with self._lock:
            del self._ended[name]
            self._expected_to_end.discard(name)
        self._airflow(name)

    def tail(self, name: str, lines: int = 30) -> str:
        """Return the end of a service's log."""
        path = self.logs / f"{name}.log"
        text = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
        return "\n".join([f"The end of {path}:", *(f"    {line}" for line in text)])

    def command(self, *arguments: str) -> None:
        """Run a command of Airflow; returns when it has ended.

        :raises ServiceError: it failed.
        """
        self._run(f"command-{uuid.uuid4().hex[:6]}", *arguments)

    def _airflow(self, name: str) -> None:
        self._launch(name, [sys.executable, "-m", "airflow", *self.services[name]])

    def _run(self, name: str, *arguments: str) -> None:
        self._launch(name, [sys.executable, "-m", "airflow", *arguments])
        self._wait(f"`airflow {' '.join(arguments)}`", lambda: name in self._ended, of=name)
        if code := self._ended.pop(name):
            raise ServiceError(f"`airflow {' '.join(arguments)}` ended with {code}.\n{self.tail(name)}")

    def _launch(self, name: str, argv: Sequence[str]) -> None:
        noted = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.logs / f"{name}.pid"), *argv]
        command = {"name": name, "argv": noted, "log": str(self.logs / f"{name}.log")}
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
                raise ServiceError(f"Airflow did not start: {what} was not ready in {START_TIMEOUT} s.\n{self.tail(of)}")
            time.sleep(0.5)

    def _healthy(self, name: str) -> bool:
        try:
            health = self.rest("GET", "monitor/health")
        except OSError:
            return False
        return (health.get(name) or {}).get("status") == "healthy"

    def _parsed(self) -> int:
        """Return how many Dag files were read to the end, with or without an error."""
        seen = self.query("SELECT fileloc FROM dag UNION SELECT filename FROM import_error")
        return len({Path(fileloc).name for (fileloc,) in seen})

    # -- REST API

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of Airflow's REST API.

        :raises urllib.error.HTTPError: it refused; the reason says why, in its own words.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/v2/{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with self._http.open(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")[:2000]
            if error.code >= 500:
                said = f"{said}\n{self.tail('api-server', 100)}"
            raise urllib.error.HTTPError(error.url, error.code, f"{method} {path}: {said}", error.headers, None) from None
        return json.loads(text) if text else None

    def set_pool(self, name: str, slots: int) -> None:
        """Give a pool slots; makes it."""
        known = self.query("SELECT 1 FROM slot_pool WHERE pool = %s", name)
        if known:
            body = {"pool": name, "slots": slots, "include_deferred": False}
            self.rest("PATCH", f"pools/{name}?update_mask=slots", body)
        else:
            self.rest("POST", "pools", {"name": name, "slots": slots})

    # -- database

    def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query of Airflow's database."""
        import psycopg2

        with self._lock:
            if self._connection is None:
                self._connection = psycopg2.connect(**self._postgres.parameters)
                self._connection.set_session(autocommit=True)
            with self._connection.cursor() as cursor:
                cursor.execute(sql, arguments)
                return cursor.fetchall()


def environment(airflow: Airflow, database: str, port: int) -> dict[str, str]:
    """Environment of all processes: of the caller's Airflow and Spark only options of JVMs, nothing outside its home."""
    others = {key for key in os.environ if key.startswith(("AIRFLOW", "SPARK_", "PYSPARK_")) and key not in JVM_OPTIONS}
    inherited = {key: value for key, value in os.environ.items() if key not in others}
    home = airflow.home
    api = f"http://127.0.0.1:{port}"
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": name, "classpath": local, "kwargs": {"path": str(path)}}
        for name, path in (("live", HERE / "dags"), ("examples", home / "examples"))
    ]
    spark = {
        "conn_type": "spark",
        "host": "local[1]",
        "extra": {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f'-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir="{home}/scratch"',
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
        "AIRFLOW_CONN_AIRFLOW_API": json.dumps({"conn_type": "http", "host": api, "login": "admin", "password": "any"}),
        "AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "delta", "host": str(airflow.tables)}),  # as the quick start has it
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "AIRFLOW_CONN_SPARK_PLAIN": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW__API__BASE_URL": api,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",  # the examples; the Dags of the tests say that they are not
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",  # a task loads its Dag file, on two busy cores beside other suites
        "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{api}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "64",
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "64",
        "AIRFLOW__CORE__PARALLELISM": str(SLOTS + SLOTS_TO_HOLD + 6),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "2",
        "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        # As many connections as the API server has threads. With the default, 15, threads wait for one while the tasks of all
        # scenarios start, and on a busy machine Airflow answers some of them with its error 500 after 30 seconds.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "40",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "20",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(airflow.logs),
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "3",
        # Backfill runs are looked at by their number: with the default, 20, those that wait for a pool keep all others waiting.
        "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "100",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "3",
        "DELTA_EXAMPLES": str(airflow.tables),
        "LIVE_GATES": str(airflow.gates),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **pyspark_environment(),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "provider"), str(ROOT / "tests"))),
        "SPARK_LOCAL_DIRS": f"{home}/scratch",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }


def free_port() -> int:
    """Return a port of loopback on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
