"""Operators and hooks on tables of a catalog, through a connection to it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.catalog.answers import Credential
from airflow_delta.catalog.open import CatalogStorage
from airflow_delta.catalog.store import CatalogLogStore
from airflow_delta.catalog.versions import CatalogVersions
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import (
    CatalogAccessException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    SparkCredentialsException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.hooks.unity_catalog import UnityCatalogHook
from airflow_delta.log import DeltaLog
from airflow_delta.tasks.spark.storage import SparkStorage
from airflow_delta.testing import killed_at
from catalog.unity import CatalogTable, UnityCatalogServer, append
from stores.proxy import FaultProxy, Rule

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

    altered = run_dag(DAGS, "catalog_alter")
    assert altered.state == "success", altered.log[-4000:]
    assert [field["name"] for field in connected.known.metadata.columns["fields"]] == ["id", "day", "country", "amount"]
    assert connected.known.metadata.properties["team"] == "sales"
    assert connected.known.latest_table_version == 3

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
def test_a_transaction_does_not_create_the_table_if_it_must_not(connected: CatalogTable, run_dag: Any) -> None:
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
        ({"host": "http://unity.example.com:8080", "password": "t"}, "https"),
        ({"host": "http://127.0.0.1.example.com", "password": "t", "extra": {"allow_http": False}}, "https"),
        ({"host": "http://unity.example.com", "password": "t", "extra": {"allow_http": "yes"}}, "true or false"),
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


@pytest.mark.parametrize(
    "given",
    [
        {"host": "http://localhost:8080", "password": "t"},
        {"host": "http://[::1]:8080", "password": "t"},
        {"host": "http://unity.example.com"},
        {"host": "http://unity.example.com", "password": "t", "extra": {"allow_http": True}},
    ],
)
def test_a_token_is_sent_without_encryption_only_where_that_is_allowed(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", json.dumps({"conn_type": "delta_unity_catalog", **given}))
    assert DeltaHook("unity").catalog.url == given["host"]


def test_a_token_is_taken_from_the_connection_again(
    table: CatalogTable, proxied: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection(proxied.url))
    log = DeltaHook("unity").get_log(table.name)
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection(proxied.url, password="another-token"))
    proxied.set(Rule("status", method="POST", target="/tables/", status=401))
    assert append(log, [(1, "a")]) == 1
    proxied.set(Rule("status", method="POST", target="/tables/", status=401, times=None))
    with pytest.raises(CatalogAccessException):
        append(log, [(2, "b")])
    proxied.set()


def _vending(location: str, given: dict[str, str], asked: list[int]) -> DeltaLog:
    """A table of which the catalog hands out credentials, newer ones each time."""

    def credentials() -> list[Credential]:
        asked.append(1)
        config = {key: f"{value}-{len(asked)}" for key, value in given.items()}
        return [Credential(location, "READ_WRITE", config, int((time.time() + 3600) * 1000))]

    hook = DeltaHook("unity")
    below = CatalogStorage(credentials, location, hook.storage_options, "unity", hook.fields.has_identity, None)
    versions = CatalogVersions(hook.catalog, TableName.parse("main.s.t"), "00000000-0000-0000-0000-000000000000", location)
    return DeltaLog(CatalogLogStore(versions, below))


S3_KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.session-token": "token"}


def test_spark_gets_the_credentials_that_the_catalog_gives_now(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    region = {"storage_options": {"AWS_REGION": "eu-west-1"}}
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("https://example.com", extra=region))
    storage = SparkStorage.of(_vending("s3://lake/t", S3_KEYS, asked), None, None)
    bucket = "fs.s3a.bucket.lake"
    settings = storage.settings()
    assert settings[f"{bucket}.access.key"] == "key-2", "not those of the worker, which may be about to expire"
    assert settings[f"{bucket}.session.token"] == "token-2"
    assert settings[f"{bucket}.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert settings[f"{bucket}.endpoint.region"] == "eu-west-1"
    assert storage.properties()["spark.hadoop.fs.s3a.bucket.lake.secret.key"] == "secret-3"
    assert "secret" not in repr(storage)


def test_spark_gets_a_sas_token_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("https://example.com"))
    location = "abfss://lake@account.dfs.core.windows.net/t"
    settings = SparkStorage.of(_vending(location, {"azure.sas-token": "sv=1"}, []), None, None).settings()
    assert settings["fs.azure.account.auth.type.account.dfs.core.windows.net"] == "SAS"
    assert settings["fs.azure.sas.fixed.token.account.dfs.core.windows.net"] == "sv=1-2"


def test_spark_cannot_use_a_token_of_google(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("https://example.com"))
    storage = SparkStorage.of(_vending("gs://lake/t", {"gcs.oauth-token": "t"}, []), None, None)
    with pytest.raises(SparkCredentialsException, match="own"):
        storage.settings()


@pytest.mark.parametrize(
    ("extra", "task", "key"),
    [
        ({"storage_options": {"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}}, None, "mine"),
        ({"spark_credentials": "own"}, None, None),
        ({}, "own", None),
    ],
)
def test_spark_gets_no_credentials_of_the_catalog_where_others_are_named(
    extra: dict[str, Any], task: str | None, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("https://example.com", extra=extra))
    settings = SparkStorage.of(_vending("s3://lake/t", S3_KEYS, []), None, task).settings()
    assert settings.get("fs.s3a.bucket.lake.access.key") == key
    assert not any("token" in value for value in settings.values())


def test_a_server_that_is_not_there_or_is_another_is_said_so(unity: UnityCatalogServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_delta.catalog import client

    monkeypatch.setattr(client, "_ATTEMPTS", 2)
    monkeypatch.setenv("AIRFLOW_CONN_UNITY", _connection("http://127.0.0.1:9"))
    tested, message = DeltaHook("unity").test_connection()
    assert not tested
    assert "did not answer" in message
