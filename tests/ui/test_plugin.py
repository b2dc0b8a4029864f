"""The plugin as Airflow loads it, and the links that tasks leave."""

from __future__ import annotations

import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import pytest

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

    from airflow_delta.links.delta import failure_note

    mask_secret("a-key-that-is-secret")
    assert failure_note(OSError("refused: key=a-key-that-is-secret"))["message"] == "refused: key=***"


def test_what_a_failed_commit_leaves():
    from airflow_delta.exceptions import ConcurrentAppendException
    from airflow_delta.links.delta import failure_note

    error = ConcurrentAppendException("Files were added.\nMore about it.", table="/t", winning_version=4)
    note = failure_note(error)
    assert (note["exception"], note["version"]) == ("ConcurrentAppendException", 4)
    assert "\n" not in note["message"]
    assert failure_note(ValueError("x")) == {"exception": "ValueError", "message": "x", "version": None}
