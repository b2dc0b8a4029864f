"""Operators and hooks on tables of a catalog, through a connection to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.hooks.unity_catalog import UnityCatalogHook
from airflow_delta.testing import killed_at
from catalog.unity import CatalogTable, UnityCatalogServer, append

DAGS = Path(__file__).parent / "dags" / "catalog_dags.py"


@pytest.fixture
def connected(unity: UnityCatalogServer, name: str, monkeypatch: pytest.MonkeyPatch) -> CatalogTable:
    """A table that does not exist yet, and the connection ``unity`` to its catalog."""
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection(unity.url))
    monkeypatch.setenv("CATALOG_TABLE", name)
    return CatalogTable(unity, name, unity.url)


def _connection(url: str, **more: Any) -> str:
    return json.dumps({"conn_type": "delta_unity_catalog", "host": url, "password": "a-token", **more})


@pytest.mark.airflow
def test_a_table_is_created_and_loaded_by_the_operators_of_every_table(connected: CatalogTable, run_dag: Any) -> None:
    created = run_dag(DAGS, "catalog_create")
    assert created.state == "success", created.log[-4000:]
    assert connected.known.metadata.properties["delta.enableChangeDataFeed"] == "true"
    assert run_dag(DAGS, "catalog_create", logical_date="2026-01-02").state == "success"
    assert connected.known.latest_table_version == 0, "it exists"

    loaded = run_dag(DAGS, "catalog_append")
    assert loaded.state == "success", loaded.log[-4000:]
    assert connected.published == [0, 1]
    assert sorted(DeltaHook("unity").get_df(connected.name).column("id").to_pylist()) == [1, 2, 3]

    assert run_dag(DAGS, "catalog_append").state == "success"
    assert connected.known.latest_table_version == 1, "the run's key is in the log"

    refused = run_dag(DAGS, "catalog_vacuum")
    assert refused.state == "failed"
    assert "VACUUM is left to the catalog" in refused.log


@pytest.mark.airflow
@pytest.mark.parametrize("point", ["before log entry", "after log entry"])
def test_a_commit_that_is_killed_and_runs_again_is_one_version(connected: CatalogTable, run_dag: Any, point: str) -> None:
    assert run_dag(DAGS, "catalog_create").state == "success"
    run = run_dag(DAGS, "catalog_append", kill=killed_at(point, "load.commit"))
    assert run.state == "success", run.log[-4000:]
    assert connected.known.latest_table_version == 1
    assert sorted(DeltaHook("unity").get_df(connected.name).column("id").to_pylist()) == [1, 2, 3]


@pytest.mark.airflow
def test_a_transaction_does_not_create_the_table(connected: CatalogTable, run_dag: Any) -> None:
    run = run_dag(DAGS, "catalog_missing")
    assert run.state == "failed"
    assert f"There is no table {connected.name}" in run.log


def test_the_hook_opens_tables_by_name(connected: CatalogTable) -> None:
    hook = UnityCatalogHook("unity")
    with pytest.raises(DeltaTableNotFoundException, match="There is no table"):
        hook.get_log(connected.name)
    assert hook.test_connection()[0] is True
    for wrong in ("t", "main.t", "main.s.t.u", ""):
        with pytest.raises(DeltaIllegalArgumentException):
            hook.get_log(wrong)


def test_a_table_by_its_name_has_the_location_of_the_catalog(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection(table.url))
    append(table.log, [(1, "a")])
    hook = DeltaHook("unity")
    assert hook.table_uri(table.name) == hook.get_log(table.name).uri == table.known.metadata.location
    assert hook.get_df(table.name).column("id").to_pylist() == [1]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"host": ""}, "must be the URL"),
        ({"host": "https://user:secret@example.com"}, "credentials"),
        ({"host": "https://example.com/api"}, "without a path"),
        ({"host": "ftp://example.com"}, "must be the URL"),
        ({"login": "somebody"}, "login"),
        ({"extra": {"base_path": "/lake"}}, "unknown keys"),
    ],
)
def test_a_connection_that_is_not_valid_is_refused_by_its_field(
    given: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "delta_unity_catalog", "host": "https://example.com", **given}
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", json.dumps(connection))
    with pytest.raises(DeltaIllegalArgumentException, match=problem) as error:
        DeltaHook("unity").get_log("main.s.t")
    assert "secret" not in str(error.value)


def test_a_server_that_is_not_there_or_is_another_is_said_so(unity: UnityCatalogServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.catalog import client

    monkeypatch.setattr(client, "_ATTEMPTS", 2)
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("http://127.0.0.1:9"))
    tested, message = DeltaHook("unity").test_connection()
    assert not tested
    assert "did not answer" in message
