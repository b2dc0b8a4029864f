"""A real API server of Airflow with the plugin, on a database that :mod:`ui.seed` filled."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
_PLUGIN = "from airflow_delta.plugins.delta_tables import DeltaTablesPlugin\n"


@dataclass
class Server:
    """A running server.

    :param tokens: session token by role: ``admin``, ``viewer``, and ``nobody``, who may do nothing.
    """

    url: str
    tables: Path
    tokens: dict[str, str]
    process: subprocess.Popen

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def start(home: Path) -> Server:
    """Run the Dags, then start the server.

    :param home: an empty directory.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tables = home / "tables"
    tables.mkdir()
    plugins = home / "plugins"
    plugins.mkdir()
    if not any(point.name == "delta_tables" for point in importlib.metadata.entry_points(group="airflow.plugins")):
        (plugins / "delta.py").write_text(_PLUGIN)  # the installed metadata are older than the entry point
    bundle = {
        "name": "ui",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(HERE / "dags")},
    }
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__SECRET_KEY": "a secret of the tests",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the tests, long enough for HMAC-SHA512, which wants sixty-four bytes",
        "AIRFLOW__CORE__AUTH_MANAGER": "ui.auth_manager.ScopedAuthManager",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "provider"), str(ROOT / "tests"))),
        "PYTHONWARNINGS": "ignore",
        "UI_TABLES": str(tables),
    }
    # Who fills the database may need more packages than the server has (tests/installed).
    tools = os.pathsep.join(filter(None, (environment["PYTHONPATH"], os.environ.get("PYTHONPATH"))))
    seeding = {**environment, "PYTHONPATH": tools}
    seeded = subprocess.run(
        [sys.executable, str(HERE / "seed.py")], env=seeding, capture_output=True, text=True, timeout=900, check=False
    )
    line = next((line for line in seeded.stdout.splitlines() if line.startswith("TOKENS ")), None)
    if line is None:
        raise RuntimeError(f"The database was not filled:\n{seeded.stdout[-4000:]}\n{seeded.stderr[-4000:]}")
    command = [sys.executable, "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (home / "api-server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}", tables, json.loads(line.removeprefix("TOKENS ")), process)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/api/v2/monitor/health", timeout=5):
                return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    server.stop()
    raise RuntimeError(f"The API server did not start:\n{(home / 'api-server.log').read_text()[-4000:]}")
