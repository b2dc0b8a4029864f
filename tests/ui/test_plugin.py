"""The plugin as Airflow loads it, and the links that tasks leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

import airflow_delta
from airflow_delta.ui import own_files
from support.tables import table_with_commits

pytestmark = pytest.mark.airflow


def test_airflow_takes_the_plugin():
    from airflow._shared.plugins_manager import is_valid_plugin
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    from airflow_delta.plugins.delta_tables import DeltaTablesPlugin

    assert is_valid_plugin(DeltaTablesPlugin)
    (view,) = (ExternalViewResponse.model_validate(view) for view in DeltaTablesPlugin.external_views)
    assert (view.destination, view.url_route, view.href) == ("nav", "delta-tables", "/delta-tables/")
    (app,) = DeltaTablesPlugin.fastapi_apps
    assert app["url_prefix"] == "/delta-tables"


def test_a_worker_imports_nothing_of_the_app():
    heavy = ("fastapi", "pyarrow", "obstore", "airflow.api_fastapi", "airflow_delta.ui.pages")
    code = (
        "import airflow_delta.plugins.delta_tables, airflow_delta.links.delta, sys\n"
        f"print([module for module in {heavy} if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


class _Key:
    dag_id, run_id, task_id, map_index, try_number = "load", "manual__1", "commit", -1, 1


def test_without_what_the_pages_are_built_on_they_say_so(monkeypatch):
    from starlette.testclient import TestClient

    from airflow_delta.plugins.delta_tables import LazyApp
    from airflow_delta.ui import pages

    def gone():
        raise ImportError("No module named 'airflow.api_fastapi.gone'")

    monkeypatch.setattr(pages, "create_app", gone)
    answer = TestClient(LazyApp()).get("/tables")
    assert (answer.status_code, "Delta tables cannot be shown on this Airflow" in answer.text) == (503, True)
    assert "airflow.api_fastapi.gone" in answer.text


ASK = """
import json, sys
from starlette.testclient import TestClient
from airflow.api_fastapi.app import init_auth_manager
from fastapi import FastAPI
import airflow_delta
from airflow_delta.plugins.delta_tables import LazyApp
root = FastAPI()
root.mount("/delta-tables", LazyApp())
init_auth_manager(root)
browser = TestClient(root, raise_server_exceptions=False)
answers = [browser.get(f"/delta-tables/{path}", headers={"sec-fetch-dest": "iframe"}) for path in json.loads(sys.argv[1])]
print("ANSWERS " + json.dumps([airflow_delta.__file__, *([answer.status_code, answer.text] for answer in answers)]))
"""


@pytest.mark.parametrize("folder", ["templates", "static"])
def test_an_installation_without_the_files_of_the_pages_says_so(tmp_path, folder):
    """Not a bare 500 of the whole app: which file is missing, what to do, and what needs no file works."""
    package = tmp_path / "site" / "airflow_delta"
    shutil.copytree(Path(airflow_delta.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", folder))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__CORE__")}
    environment = {**kept, "PYTHONPATH": str(package.parent), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-W", "ignore", "-c", ASK, json.dumps(["gone", "api/tables", "static/delta.css"])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    file, page, endpoint, style = json.loads(line.removeprefix("ANSWERS "))
    assert Path(file).is_relative_to(package)
    assert (page[0], endpoint[0]) == (404, 401)
    assert "There is no such page" in page[1]
    assert json.loads(endpoint[1])["title"] == "Your session has ended"
    missing = package / "ui" / folder
    status, said = (page[0], page[1]) if folder == "templates" else style
    assert status == (404 if folder == "templates" else 500)
    assert f"Missing: {missing}" in said
    assert f'pip install --force-reinstall --no-deps "airflow-provider-delta=={airflow_delta.__version__}"' in said


@pytest.mark.parametrize(
    ("name", "page", "status"),
    [
        ("base.html", "", 500),
        ("macros.html", "table?table={}", 500),
        ("commit.html", "commit?table={}&version=1", 500),
        ("problem.html", "table?table=/none", 404),
        ("problem_part.html", "rows?table=/none&version=1&part=1", 404),
    ],
)
def test_the_template_that_is_missing_is_named(client, airflow, tmp_path, monkeypatch, name, page, status):
    table = tmp_path / "orders"
    table_with_commits(table, 1)
    airflow.event(airflow.asset(str(table)), str(table), 1)
    left = tmp_path / "left" / "templates"
    shutil.copytree(Path(own_files.HERE) / "templates", left)
    (left / name).unlink()
    monkeypatch.setattr(own_files, "HERE", str(left.parent))
    own_files.templates.cache_clear()
    try:
        answer = client("admin").get(f"/delta-tables/{page.format(quote(str(table)))}")
    finally:
        own_files.templates.cache_clear()
    assert (answer.status_code, f"Missing: {left / name}" in answer.text) == (status, True), answer.text
    assert ("This table is not known" in answer.text) == (status == 404)


@pytest.fixture
def returned(monkeypatch):
    """Set what the task returned, as the supervisor would answer."""
    from airflow.sdk.execution_time.xcom import XCom

    def set_value(value):
        monkeypatch.setattr(XCom, "get_value", classmethod(lambda cls, *, ti_key, key: value))

    return set_value


@pytest.fixture
def operator():
    from airflow_delta.operators.transaction import DeltaCommitOperator

    return DeltaCommitOperator(task_id="commit", transaction={"table": "s3://lake/sales"}, staged=[])


def test_links_of_a_commit(returned, operator):
    from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink

    returned({"table": "s3://lake/sa les", "version": 7})
    table = urlsplit(DeltaTableLink().get_link(operator, ti_key=_Key()))
    commit = urlsplit(DeltaCommitLink().get_link(operator, ti_key=_Key()))
    assert (table.path, commit.path) == ("/plugin/delta-tables/delta-tables/table", "/plugin/delta-tables/delta-tables/commit")
    assert parse_qs(commit.query) == {"table": ["s3://lake/sa les"], "version": ["7"]}


def test_links_of_a_task_that_failed(returned, operator):
    from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink

    returned(None)
    assert "table=s3%3A%2F%2Flake%2Fsales" in DeltaTableLink().get_link(operator, ti_key=_Key())
    assert DeltaCommitLink().get_link(operator, ti_key=_Key()) == ""


@pytest.mark.parametrize(
    "value",
    [None, "text", 3, {}, {"table": "", "version": 1}, {"table": "/x", "version": None}, {"table": "/x", "version": True}],
)
def test_no_commit_no_link(returned, operator, value):
    from airflow_delta.links.delta import DeltaCommitLink

    returned(value)
    assert DeltaCommitLink().get_link(operator, ti_key=_Key()) == ""


def test_links_keep_the_path_below_which_airflow_is_served(returned, operator, monkeypatch):
    from airflow_delta.links.delta import DeltaTableLink

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/airflow")
    returned({"table": "/t"})
    link = DeltaTableLink().get_link(operator, ti_key=_Key())
    assert link == "https://host/airflow/plugin/delta-tables/airflow/delta-tables/table?table=%2Ft"


def test_what_a_failed_commit_leaves_keeps_the_secrets_of_the_connection():
    from airflow.sdk.log import mask_secret

    from airflow_delta.task_notes import failure_note

    mask_secret("a-key-that-is-secret")
    assert failure_note(OSError("refused: key=a-key-that-is-secret"))["message"] == "refused: key=***"


def test_what_a_failed_commit_leaves():
    from airflow_delta.exceptions import ConcurrentAppendException
    from airflow_delta.task_notes import failure_note

    error = ConcurrentAppendException("Files were added.\nMore about it.", table="/t", winning_version=4)
    note = failure_note(error)
    assert (note["exception"], note["version"]) == ("ConcurrentAppendException", 4)
    assert "\n" not in note["message"]
    assert failure_note(ValueError("x")) == {"exception": "ValueError", "message": "x", "version": None}
