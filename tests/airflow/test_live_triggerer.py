"""A watcher in a triggerer of its own: the process, the state store and the database are those of this Airflow."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import tables as by_hand

pytestmark = pytest.mark.airflow

DAGS = """
from datetime import datetime
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow_delta.assets.delta import delta_asset_uri
from airflow_delta.triggers.delta import DeltaTableVersionTrigger

def watched(name):
    trigger = DeltaTableVersionTrigger(f"{root}/{{name}}", after_version=0, poll_interval=0.5)
    return Asset(uri=delta_asset_uri(f"{root}/{{name}}"), watchers=[AssetWatcher(name=name, trigger=trigger)])

with DAG("watching", schedule=[watched("table"), watched("broken")], start_date=datetime(2026, 1, 1)):
    EmptyOperator(task_id="any")
"""

KNOWN = """
import sys
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.utils.db import initdb
initdb()
bag = DagBag(dag_folder=sys.argv[1])
assert not bag.import_errors, bag.import_errors
DagBundlesManager().sync_bundles_to_db()
sync_bag_to_db(bag, "dags-folder", None)
"""

SECONDS = 120


class Triggerer:
    """A home of Airflow with one Dag file, and a triggerer that can be killed."""

    def __init__(self, home: Path) -> None:
        self.home, self.log = home, home / "triggerer.log"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")} | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        (home / "dags").mkdir()
        (home / "dags" / "watching.py").write_text(DAGS.format(root=home))
        command = [sys.executable, "-c", KNOWN, str(home / "dags")]
        subprocess.run(command, env=self.env, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it, and kill it at the end."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
            process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            os.killpg(process.pid, 9)
            process.wait(SECONDS)

    def told(self) -> list[dict[str, Any]]:
        """Return the commits in the events of Airflow's database."""
        with closing(sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
            extras = [json.loads(extra) for (extra,) in database.execute("SELECT extra FROM asset_event ORDER BY id")]
        return [commit for extra in extras for commit in extra["payload"].get("commits", [extra["payload"]])]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.2)


@pytest.mark.slow
def test_a_watcher_tells_every_version_through_the_death_of_its_triggerer(tmp_path):
    table, broken = tmp_path / "table", tmp_path / "broken"
    by_hand.table_with_commits(table, 2)
    by_hand.table_with_commits(broken, 1)
    by_hand.commit_path(broken, 1).write_bytes(b'{"add":')
    triggerer = Triggerer(tmp_path)

    def versions() -> set[int]:
        return {commit["version"] for commit in triggerer.told()}

    with triggerer.running():
        triggerer.until(lambda: versions() == {1, 2})
        # What does not pass ends a trigger, and leaves the other one alone.
        triggerer.until(lambda: "DeltaLogCorruptedException" in triggerer.log.read_text())
        by_hand.append(table, 3)
        triggerer.until(lambda: versions() == {1, 2, 3})
    by_hand.append(table, 4)
    with triggerer.running():
        triggerer.until(lambda: versions() == {1, 2, 3, 4})
    told = triggerer.told()
    assert {commit["table"] for commit in told} == {str(table)}
    assert len({commit["dedupe_key"] for commit in told}) == 4
