"""The hook and its connection: where a table is, which options reach the store, what the connection test says."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook


@pytest.fixture
def connection(monkeypatch):
    """Define the connection ``lake``, through the environment as a deployment may."""

    def define(**fields):
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "delta", **fields}))
        return DeltaHook("lake")

    return define


TABLES = [
    # base path, table, URI
    ("s3://lake", "flights", "s3://lake/flights"),
    ("s3://lake/", "/flights/", "/flights"),
    ("s3://lake", "bronze/flights", "s3://lake/bronze/flights"),
    ("/data/lake", "flights", "/data/lake/flights"),
    ("/", "flights", "/flights"),
    ("s3://lake", "s3://other/flights/", "s3://other/flights"),
    ("s3://lake", "/local/flights", "/local/flights"),
    (None, "/local/flights", "/local/flights"),
]


@pytest.mark.parametrize(("base_path", "table", "uri"), TABLES)
def test_table_uri(connection, base_path, table, uri):
    assert connection(host=base_path).table_uri(table) == uri
    assert connection(extra={"base_path": base_path} if base_path else {}).table_uri(table) == uri


@pytest.mark.parametrize("table", ["../orders", "tenants/../../other", "tenants/./orders", ".."])
def test_a_name_stays_below_the_base_path(connection, table):
    """It may come from the parameters of a run: ``tenants/{{ params.tenant }}/orders``."""
    hook = connection(host="s3://lake/base")
    with pytest.raises(DeltaIllegalArgumentException, match=r"would leave or spell in another way"):
        hook.table_uri(table)
    assert hook.table_uri("a..b/.hidden") == "s3://lake/base/a..b/.hidden"


@pytest.mark.parametrize("table", ["", "  ", "flights"])
def test_table_that_cannot_be_found(connection, table):
    with pytest.raises(DeltaIllegalArgumentException, match="base path"):
        connection().table_uri(table)


KEYS = {"login": "key", "password": "very-secret"}
OWN_KEYS = {"aws_access_key_id": "other", "aws_secret_access_key": "hush-hush"}
REGION = {"AWS_REGION": "eu-west-1"}
OPTIONS = [
    # fields of the connection, URI, options
    ({}, "s3://lake/t", {}),
    (KEYS, "s3://lake/t", {"aws_access_key_id": "key", "aws_secret_access_key": "very-secret"}),
    (KEYS, "abfss://c@x/t", {"azure_storage_account_name": "key", "azure_storage_account_key": "very-secret"}),
    (KEYS, "/local/t", {}),
    ({"extra": {"storage_options": OWN_KEYS}}, "s3a://lake/t", OWN_KEYS),
    (
        {"extra": {"storage_options": {**REGION, "allow_http": True}}},
        "s3://lake/t",
        {"aws_region": "eu-west-1", "allow_http": "true"},
    ),
    ({"extra": {"extra__delta__storage_options": REGION}}, "s3://lake/t", {"aws_region": "eu-west-1"}),
    ({"extra": {"storage_options": '{"durable": "false"}'}}, "/local/t", {"durable": "false"}),
]


@pytest.mark.parametrize(("fields", "uri", "options"), OPTIONS)
def test_storage_options(connection, fields, uri, options):
    assert connection(**fields).storage_options(uri) == options


@pytest.mark.parametrize("value", ["not json", "[1, 2]", {"nested": {"a": 1}}])
def test_storage_options_that_make_no_sense(connection, value):
    with pytest.raises(DeltaIllegalArgumentException, match="storage_options of the connection 'lake'"):
        connection(extra={"storage_options": value}).storage_options("s3://lake/t")


def test_secrets_of_the_options_are_masked(connection, monkeypatch):
    from airflow_delta.hooks import delta

    masked = []
    monkeypatch.setattr(delta, "mask_secret", masked.append)
    options = {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "the-id", "AWS_SECRET_ACCESS_KEY": "hush-hush", "TOKEN": "a-token"}
    connection(extra={"storage_options": options}).storage_options("s3://lake/t")
    assert sorted(masked) == ["a-token", "hush-hush", "the-id"]


def test_what_is_not_known_to_be_harmless_is_masked(connection, monkeypatch):
    from airflow_delta.hooks import delta

    masked = []
    monkeypatch.setattr(delta, "mask_secret", masked.append)
    options = {
        "AWS_ENDPOINT_URL": "http://user:hush-hush@minio:9000",
        "aws_sse_customer_key_base64": "who-knows",
        "timeout": "30s",
    }
    hook = connection(**KEYS, extra={"storage_options": {**options, "allow_http": True, "disable_tagging": True}})
    hook.storage_options("s3://lake/t")
    assert sorted(masked) == ["hush-hush", "key", "user:hush-hush", "very-secret", "who-knows"]


@pytest.mark.parametrize("field", ["host", "extra"])
def test_a_base_path_with_credentials_is_refused(connection, field):
    place = "s3://key:hush-hush@bucket/lake"
    hook = connection(host=place) if field == "host" else connection(extra={"base_path": place})
    with pytest.raises(DeltaIllegalArgumentException, match=r"s3://\*\*\*@bucket/lake") as raised:
        hook.table_uri("t")
    assert "hush-hush" not in str(raised.value)
    good, message = hook.test_connection()
    assert (good, "hush-hush" in message) == (False, False)


def test_a_table_with_credentials_in_its_location_is_refused(connection):
    from airflow_delta.assets.delta import delta_asset_uri

    for refuse in (connection().table_uri, delta_asset_uri):
        with pytest.raises(DeltaIllegalArgumentException, match="credentials") as raised:
            refuse("s3://key:hush-hush@bucket/t")
        assert "hush-hush" not in str(raised.value)
    assert connection().table_uri("abfss://container@account.dfs.core.windows.net/t").startswith("abfss://container@account")


def test_the_connection_test_repeats_no_secret(connection):
    options = {"AWS_ENDPOINT_URL": "http://user:hush-hush@127.0.0.1:1", "AWS_REGION": "x", "retry_timeout": "1s", "timeout": "1s"}
    good, message = connection(
        host="s3://lake", extra={"storage_options": {**options, "no_such_option": "hush-hush"}}
    ).test_connection()
    assert (good, "hush-hush" in message) == (False, False)


def test_only_the_default_connection_may_be_missing(tmp_path):
    assert DeltaHook().get_log(str(tmp_path / "t")).uri.endswith("/t")
    with pytest.raises(AirflowNotFoundException):
        DeltaHook("no_such_connection").get_log(str(tmp_path / "t"))


class TestConnection:
    def test_lists_a_directory_without_a_table(self, connection, tmp_path):
        (tmp_path / "something").touch()
        assert connection(host=str(tmp_path)).test_connection() == (True, f"{tmp_path} has 1 entries.")

    def test_says_what_is_wrong(self, connection, tmp_path):
        good, message = connection(host=f"{tmp_path}/nowhere").test_connection()
        assert not good
        assert "nowhere" in message

    def test_without_a_base_path(self, connection):
        good, message = connection(extra={"storage_options": {"AWS_REGION": "eu-west-1"}}).test_connection()
        assert good
        assert "AWS_REGION" in message
        assert "eu-west-1" not in message

    def test_a_missing_connection(self):
        good, message = DeltaHook("no_such_connection").test_connection()
        assert not good
        assert "no_such_connection" in message

    def test_the_store_of_the_base_path(self, connection, tmp_path):
        store = connection(host=str(tmp_path)).get_conn()
        store.put("a", b"1")
        assert (tmp_path / "a").read_bytes() == b"1"
        with pytest.raises(DeltaIllegalArgumentException, match="no base path"):
            connection().get_conn()


@pytest.mark.parametrize("kind", ["delta", "delta_unity_catalog"])
@pytest.mark.parametrize("table", [None, "", " "])
def test_no_table_is_named(table, kind, monkeypatch):
    connection = {"conn_type": kind, "host": "https://catalog.example.com"}
    monkeypatch.setenv("AIRFLOW_CONN_OF_NO_TABLE", json.dumps(connection))
    with pytest.raises(DeltaIllegalArgumentException, match="The table is empty"):
        DeltaHook("of_no_table").get_log(table)
