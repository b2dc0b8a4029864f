"""The page about checks by other packages, followed by copy and paste with the real ones: what they refuse is never published.

They have an environment of their own, in ``.cache``: what they require does not go with what Airflow does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import duckdb_extension_delta
import pytest

from airflow_delta.log import DeltaLog
from support import readers
from support.documents import ROOT, blocks_of
from support.environments import installed_environment

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(not readers.HAS_DUCKDB, reason="no extension for DuckDB 2"),
]

PAGE = ROOT / "docs" / "how-to" / "checks.md"
ENVIRONMENT = ROOT / ".cache" / "checks"
# Those on which the page was tried; dbt-core 1.12 needs a parser that no registry has as a wheel.
PINNED = {
    "dbt-duckdb": "==1.11.1",
    "great-expectations": "==1.24.1",
    "pandera": "==0.35.0",
    "polars": "==2.1.0",
    "deltalake": "==1.6.6",
    "dbt-core": "==1.11.16",
}


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    """The environment that the page makes, at versions that stay the same."""
    (commands,) = (block.text for block in blocks_of(PAGE) if block.kind == "bash")
    (named,) = re.findall(r"pip install (.*)", commands)
    assert set(named.split()) == PINNED.keys() - {"dbt-core"}
    wanted = [*(f"{name}{pin}" for name, pin in PINNED.items()), f"duckdb=={version('duckdb')}"]
    installed_environment(ENVIRONMENT, wanted)


@pytest.fixture(autouse=True)
def extension(tmp_path, monkeypatch):
    """A home in which DuckDB finds its extension installed."""
    (file,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    connection = readers._duckdb()
    release, platform = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("version", "platform"))
    home = tmp_path / ".duckdb" / "extensions" / release / platform
    home.mkdir(parents=True)
    shutil.copy(file, home)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GX_ANALYTICS_ENABLED", "false")  # nothing is told to anybody
    monkeypatch.setenv("DBT_SEND_ANONYMOUS_USAGE_STATS", "false")


@pytest.fixture(autouse=True)
def project(tables):
    """The files of dbt that the page names."""
    for block in blocks_of(PAGE):
        if named := re.match(r"(?:#|--) /opt/checks/orders/(\S+)\n", block.text):
            path = Path(tables) / "dbt" / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


@pytest.fixture(scope="module")
def bag(airflow_database, tables, tmp_path_factory):
    """The Dags of the page, word for word but for the places of tables and of the environment, each in a file of its own."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    folder = tmp_path_factory.mktemp("dags")
    for block in blocks_of(PAGE):
        if block.kind == "python":
            dag_id = re.search(r"def (orders_\w+)\(", block.text)[1]
            text = block.text.replace('table="orders", delta_conn_id="lake"', f'table="{tables}/{dag_id}"')
            text = text.replace("/opt/checks/orders", f"{tables}/dbt").replace("/opt/checks", str(ENVIRONMENT))
            (folder / f"{dag_id}.py").write_text(text.replace('@dag(schedule="@daily", ', "@dag(schedule=None, "))
    found = DagBag(dag_folder=str(folder))
    assert found.import_errors == {}
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(found, "tests", None)
    return found


@pytest.mark.parametrize("dag", ["checked_by_dbt", "as_expected", "checked_by_pandera"])
def test_what_a_check_refuses_is_never_published(run_dag, bag, tables, dag):
    path = f"{tables}/orders_{dag}"
    assert run_dag(f"orders_{dag}", datetime(2026, 1, 1, tzinfo=UTC), bag=bag).state == "success"
    assert sorted(row["id"] for row in readers.rows(path)) == [1, 2, 3]
    # The same orders again: of the table, each is there twice; of the new rows alone, none is.
    again = run_dag(f"orders_{dag}", datetime(2026, 1, 2, tzinfo=UTC), bag=bag)
    expected = ("success", 1) if dag == "checked_by_pandera" else ("failed", 0)
    assert (again.state, DeltaLog.for_table(path).update().version) == expected


def test_pandera_refuses_new_rows(tmp_path):
    """The check of the page by itself, on rows that it refuses."""
    text = next(block.text for block in blocks_of(PAGE) if "pandera.polars" in block.text)
    body = re.search(r"def check\(changes\):\n(.*?)\n\n        new_orders\(\)", text, re.DOTALL)
    script = "import polars as pl\nimport sys\n\ndef check(changes):\n" + re.sub(r"(?m)^        ", "", body[1]) + "\n"
    script += "pl.DataFrame({'id': [1, 1], 'amount': [1.0, -1.0], '_change_type': ['insert'] * 2}).write_delta(sys.argv[1])\n"
    script += "check({'path': sys.argv[1]})\n"
    ran = subprocess.run(
        [ENVIRONMENT / "bin" / "python", "-c", script, tmp_path / "changes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "SchemaErrors" in ran.stderr) == (1, True), ran.stderr
