"""What a connection may say, in every way in which it may say it, and what is refused by the name of its field."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks import cloud
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log.storage.factory import store_for

LAKE, ACCOUNT = "s3://lake", "abfss://container@account.dfs.core.windows.net"
KEYS = {"login": "key", "password": "very-secret"}


@pytest.fixture
def connection(monkeypatch):
    """Define connections through the environment; return the hook of the first."""

    def define(fields, **others):
        for name, values in {"lake": {"conn_type": "delta", **fields}, **others}.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(values))
        return DeltaHook("lake")

    return define


REFUSED = [
    ({"host": "data/lake"}, r"host \(base path\) 'data/lake' .* is relative. Use a URI \(s3://data/lake\) or an absolute path"),
    ({"host": "~/lake"}, "begins with ~"),
    ({"host": "dbfs://lake/tables"}, "has the scheme dbfs://, which is not supported"),
    ({"host": "hdfs://name-node/lake", "password": "very-secret"}, "password .* has no meaning for hdfs://name-node/lake"),
    ({"host": "hdfs://name-node/lake", "extra": {"storage_options": {"dfs": "x"}}}, "'dfs', which no store knows"),
    ({"host": "hdfs:/lake"}, "one slash after hdfs:"),
    ({"host": "s3:/lake"}, "Write s3://bucket/path"),
    ({"host": "s3://"}, "names no bucket"),
    ({"host": LAKE, "extra": {"AWS_REGION": "x"}}, "unknown keys: AWS_REGION. .* go into storage_options"),
    ({"host": LAKE, "extra": {"storage_options": {"AWS_REGON": "x"}}}, "'AWS_REGON', which no store knows"),
    (
        {"host": LAKE, "extra": {"spark_credentials": "mine"}},
        "spark_credentials of the connection 'lake' is a string other than 'own'",
    ),
    ({"host": LAKE, "extra": {"spark_packages": ["a:b:1"]}}, "spark_packages of the connection 'lake' is .* Maven coordinates"),
    ({"host": LAKE, "port": 9000, "schema": "https"}, "The schema and the port of the connection 'lake' have no meaning"),
    ({"host": LAKE, "login": "key"}, "has no password"),
    ({"host": LAKE, "password": "very-secret"}, "has no login"),
    ({"host": LAKE, "login": "key", "extra": {"storage_options": {"token": "x"}}}, "has no password"),
    ({"host": "s3://b#evil/t"}, "'b#evil' in the location .* is not a valid name of a bucket"),
    ({"host": "s3://lake//t"}, "has an empty part"),
    ({"host": LAKE, **KEYS, "extra": {"other_locations": 3}}, "must be a list of URIs"),
    ({"host": "gs://lake", **KEYS}, "login of the connection 'lake' has no meaning for gs://lake. Set GOOGLE_SERVICE_ACCOUNT"),
    ({"host": "/lake", "password": "x"}, "password of the connection 'lake' has no meaning for /lake"),
    ({"conn_type": "postgres", "host": "h"}, "has the type 'postgres'. Use one of type 'delta'"),
    ({"host": LAKE, "extra": {"aws_conn_id": "a", "gcp_conn_id": "b"}}, "several connections .aws_conn_id, gcp_conn_id"),
    ({"host": LAKE, "extra": "[1, 2]"}, "extra of the connection 'lake' must be a JSON object, .* it is a JSON array"),
    ({"host": LAKE, "extra": '"text"'}, "extra of the connection 'lake' must be a JSON object, .* it is a JSON string"),
    ({"host": LAKE, "extra": "5"}, "extra of the connection 'lake' must be a JSON object, .* it is a JSON number"),
    ({"extra": {"base_path": 5}}, "base_path of the connection 'lake' must be text, got 5"),
    ({"extra": {"base_path": [LAKE]}}, "base_path of the connection 'lake' must be text"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
def test_what_has_no_meaning_is_refused(connection, fields, text):
    hook = connection(fields)
    with pytest.raises(DeltaIllegalArgumentException, match=text):
        hook.storage_options(hook.base_path or LAKE)
    good, message = hook.test_connection()
    assert not good
    assert "very-secret" not in message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"conn_type": "aws", **KEYS, "extra": "[1]"}, "extra of the connection '{}' must be a JSON object, .* array"),
        ({"conn_type": "aws", **KEYS, "extra": {"service_config": "s3"}}, "service_config of the connection '{}' must be"),
        ({"conn_type": "aws", **KEYS, "extra": {"service_config": {"s3": 1}}}, "s3 in service_config of the connection '{}'"),
        ({"conn_type": "wasb", "extra": "[1]"}, "extra of the connection '{}' must be a JSON object"),
        ({"conn_type": "google_cloud_platform", "extra": "5"}, "extra of the connection '{}' must be a JSON object"),
    ],
)
def test_extras_of_clouds_that_are_no_objects(connection, fields, text):
    kind = fields["conn_type"]
    uri = {"aws": LAKE, "wasb": ACCOUNT}.get(kind, "gs://lake")
    with pytest.raises(DeltaIllegalArgumentException, match=text.format("lake")):
        connection(fields).storage_options(uri)
    with pytest.raises(DeltaIllegalArgumentException, match=text.format("other")):
        connection({"extra": {cloud.CONN_TYPES[kind]: "other"}}, other=fields).storage_options(uri)


PLACES = [
    ({"extra": {"base_path": LAKE, "extra__delta__base_path": ""}}, "t", "s3://lake/t"),
    ({"extra": {"extra__delta__base_path": LAKE, "base_path": ""}}, "t", "s3://lake/t"),
    ({"extra": {"extra__delta__base_path": LAKE}}, "t", "s3://lake/t"),
    ({"host": "file:///lake"}, "t", "/lake/t"),
    ({"host": "file:/lake/"}, "t", "/lake/t"),
    ({"host": "s3a://lake"}, "t", "s3://lake/t"),
    ({"host": LAKE}, "S3A://other/t", "s3://other/t"),
    ({"host": "abfs://container@Account.dfs.core.windows.net/x"}, "t", f"{ACCOUNT}/x/t"),
    ({"host": "az://container/x", "login": "account", "password": "a2V5"}, "t", f"{ACCOUNT}/x/t"),
    ({"host": "az://container/x"}, "t", "az://container/x/t"),
    ({"host": "gcs://lake"}, "t", "gs://lake/t"),
]


@pytest.mark.parametrize(("fields", "table", "uri"), PLACES)
def test_a_table_has_one_uri(connection, fields, table, uri):
    assert connection(fields).table_uri(table) == uri


AZURE = {"azure_storage_account_name": "account", "azure_storage_account_key": "a2V5"}
CONNECTION_STRING = "DefaultEndpointsProtocol=https;AccountName=account;AccountKey=a2V5;EndpointSuffix=core.windows.net"
PORTAL_SAS = (
    "BlobEndpoint=https://account.blob.core.windows.net/;QueueEndpoint=https://account.queue.core.windows.net/;"
    "SharedAccessSignature=sv=1&sig=x%3D"
)
OF_SAS = {"azure_storage_account_name": "account", "azure_storage_sas_key": "sv=1&sig=x%3D"}
EMULATOR = {
    "azure_storage_account_name": "devstoreaccount1",
    "azure_storage_account_key": ("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="),
    "azure_storage_endpoint": "http://127.0.0.1:10000/devstoreaccount1",
}
AWS_CLIENT = {
    "proxies": {"https": "http://proxy:3128", "http": "proxy:3128"},
    "connect_timeout": 2,
    "read_timeout": 4.5,
    "retries": {"total_max_attempts": 4, "mode": "standard"},
    "s3": {"addressing_style": "virtual"},
    "max_pool_connections": 50,
}
CHINA = "abfss://container@account.dfs.core.chinacloudapi.cn"
CLOUDS = [
    # field, the other connection, URI, options
    (
        "aws_conn_id",
        {"conn_type": "aws", **KEYS, "extra": {"region_name": "eu-west-1", "endpoint_url": "http://minio:9000"}},
        LAKE,
        {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "very-secret",
            "aws_region": "eu-west-1",
            "aws_endpoint_url": "http://minio:9000",
        },
    ),
    (
        "aws_conn_id",
        {"conn_type": "aws", "extra": {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"}},
        LAKE,
        {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"},
    ),
    ("aws_conn_id", {"conn_type": "aws", **KEYS}, "gs://lake", {}),
    (
        "aws_conn_id",
        {"conn_type": "aws", **KEYS, "extra": {"verify": False, "region_name": "eu-west-1", "config_kwargs": AWS_CLIENT}},
        LAKE,
        {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "very-secret",
            "aws_region": "eu-west-1",
            "aws_virtual_hosted_style_request": "true",
            "allow_invalid_certificates": "true",
            "proxy_url": "http://proxy:3128",
            "connect_timeout": "2000ms",
            "read_timeout": "4500ms",
            "max_retries": "3",
        },
    ),
    (
        "aws_conn_id",
        {"conn_type": "aws", "login": "ignored", "extra": {"config_kwargs": {"signature_version": "unsigned"}}},
        LAKE,
        {"aws_skip_signature": "true"},
    ),
    ("wasb_conn_id", {"conn_type": "wasb", "login": "account", "password": "a2V5"}, ACCOUNT, AZURE),
    ("wasb_conn_id", {"conn_type": "wasb", "extra": {"connection_string": CONNECTION_STRING}}, ACCOUNT, AZURE),
    (
        "wasb_conn_id",
        {"conn_type": "wasb", "host": "https://account.blob.core.windows.net", "extra": {"sas_token": "?sv=1&sig=x"}},
        ACCOUNT,
        {"azure_storage_account_name": "account", "azure_storage_sas_key": "sv=1&sig=x"},
    ),
    ("adls_conn_id", {"conn_type": "adls", "host": "account", "password": "a2V5"}, ACCOUNT, AZURE),
    ("wasb_conn_id", {"conn_type": "wasb", "login": "account", "host": "directory", "password": "a2V5"}, ACCOUNT, AZURE),
    ("wasb_conn_id", {"conn_type": "wasb", "extra": {"connection_string": PORTAL_SAS}}, ACCOUNT, OF_SAS),
    (
        "wasb_conn_id",
        {"conn_type": "wasb", "extra": {"sas_token": "https://account.blob.core.windows.net/?sv=1&sig=x%3D"}},
        ACCOUNT,
        OF_SAS,
    ),
    ("wasb_conn_id", {"conn_type": "wasb", "extra": {"connection_string": "UseDevelopmentStorage=true"}}, ACCOUNT, EMULATOR),
    (
        "wasb_conn_id",
        {"conn_type": "wasb", "extra": {"connection_string": CONNECTION_STRING.replace("windows.net", "chinacloudapi.cn")}},
        CHINA,
        {**AZURE, "azure_storage_endpoint": "https://account.blob.core.chinacloudapi.cn"},
    ),
    (
        "adls_conn_id",
        {
            "conn_type": "adls",
            "host": "account",
            "password": "a2V5",
            "extra": {"account_url": "https://account.dfs.core.usgovcloudapi.net/"},
        },
        ACCOUNT,
        {**AZURE, "azure_storage_endpoint": "https://account.blob.core.usgovcloudapi.net"},
    ),
    (
        "wasb_conn_id",
        {"conn_type": "wasb", "host": "account.blob.core.chinacloudapi.cn/", "login": "account", "password": "a2V5"},
        CHINA,
        {**AZURE, "azure_storage_endpoint": "https://account.blob.core.chinacloudapi.cn"},
    ),
    (
        "adls_conn_id",
        {"conn_type": "adls", "host": "account", "login": "id", "password": "s", "extra": {"tenant_id": "t"}},
        ACCOUNT,
        {
            "azure_storage_account_name": "account",
            "azure_storage_client_id": "id",
            "azure_storage_client_secret": "s",
            "azure_storage_tenant_id": "t",
        },
    ),
    (
        "gcp_conn_id",
        {"conn_type": "google_cloud_platform", "extra": {"key_path": "/run/key.json"}},
        "gs://lake",
        {"google_service_account": "/run/key.json"},
    ),
    (
        "gcp_conn_id",
        {"conn_type": "google_cloud_platform", "extra": {"extra__google_cloud_platform__keyfile_dict": '{"type": "x"}'}},
        "gs://lake",
        {"google_service_account_key": '{"type": "x"}'},
    ),
    (
        "gcp_conn_id",
        {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True}},
        "gs://lake",
        {"google_skip_signature": "true"},
    ),
]


@pytest.mark.parametrize(("field", "other", "uri", "options"), CLOUDS)
def test_a_connection_to_a_cloud(connection, field, other, uri, options):
    assert connection({"extra": {field: "other"}}, other=other).storage_options(uri) == options
    assert connection(other).storage_options(uri) == options


def test_options_add_to_those_of_a_cloud(connection):
    extra = {"aws_conn_id": "other", "storage_options": {"region": "eu-west-1"}}
    hook = connection({"host": LAKE, "extra": extra}, other={"conn_type": "aws", **KEYS, "extra": {"region_name": "x"}})
    assert hook.storage_options(LAKE)["aws_region"] == "eu-west-1"


NOT_CARRIED = [
    ({"verify": "/etc/ssl/own.pem"}, "verify of the connection 'other' names a file of this process"),
    ({"config_kwargs": {"client_cert": "/x"}}, "config_kwargs of the connection 'other' has client_cert, which .* cannot do"),
    ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "config_kwargs.s3 of .* has use_accelerate_endpoint"),
    ({"config_kwargs": {"proxies": {"http": "http://a", "https": "http://b"}}}, "names 2 proxies .a, b."),
    ({"config_kwargs": {"signature_version": "s3"}}, "signature_version of the connection 'other' is 's3'"),
]


@pytest.mark.parametrize(("extra", "text"), NOT_CARRIED)
def test_what_the_client_of_a_store_cannot_do_is_refused_by_name(connection, extra, text):
    hook = connection({"extra": {"aws_conn_id": "other"}}, other={"conn_type": "aws", **KEYS, "extra": extra})
    with pytest.raises(DeltaIllegalArgumentException, match=text):
        hook.storage_options(LAKE)


def test_certificates_of_a_file_that_the_deployment_allows(connection, monkeypatch, tmp_path):
    file = tmp_path / "own.pem"
    file.write_text("-----BEGIN CERTIFICATE-----")
    monkeypatch.setenv("AIRFLOW__DELTA__CREDENTIAL_FILES", f"{tmp_path}/*.pem")
    hook = connection({"extra": {"aws_conn_id": "other"}}, other={"conn_type": "aws", **KEYS, "extra": {"verify": str(file)}})
    assert hook.storage_options(LAKE)["root_certificate"] == "-----BEGIN CERTIFICATE-----"


TWICE = [
    ({**KEYS, "extra": {"aws_conn_id": "other"}}, "given twice: by aws_conn_id and by login and password"),
    (
        {"extra": {"aws_conn_id": "other", "storage_options": {"token": "x"}}},
        "by aws_conn_id and by storage_options .aws_session",
    ),
    ({"extra": {"gcp_conn_id": "other"}}, "of type 'aws'; it must be of type google_cloud_platform"),
]


@pytest.mark.parametrize(("fields", "text"), TWICE)
def test_credentials_come_from_one_place(connection, fields, text):
    hook = connection({"host": LAKE, **fields}, other={"conn_type": "aws", **KEYS})
    with pytest.raises(DeltaIllegalArgumentException, match=text):
        hook.storage_options("gs://lake" if "gcp" in text or "google" in text else LAKE)


def test_what_must_be_fetched_needs_the_provider(connection):
    other = {"conn_type": "aws", "extra": {"role_arn": "arn:aws:iam::123456789012:role/lake"}}
    hook = connection({"extra": {"aws_conn_id": "other"}}, other=other)
    with pytest.raises(DeltaIllegalArgumentException, match="needs apache-airflow-providers-amazon"):
        hook.storage_options(LAKE)


@pytest.mark.parametrize("host", [f"{ACCOUNT}/tables", "az://container/tables"])
def test_the_azure_connection_of_the_docs(connection, host):
    hook = connection({"host": host, "login": "account", "password": "a2V5"})
    store = hook.get_log("t").store
    assert store.root == f"{ACCOUNT}/tables/t"
    assert store._make(None).config["account_name"] == "account"
    assert store_for(host, hook.storage_options(host))._make(None) is not None


@pytest.fixture
def sts() -> Iterator[str]:
    from stores.locked_moto import s3_server

    with s3_server() as endpoint:
        yield endpoint


@pytest.mark.s3
def test_a_role_is_assumed_once(connection, sts, monkeypatch):
    options = {"role_arn": "arn:aws:iam::123456789012:role/lake", "AWS_ENDPOINT_URL_STS": sts, "region": "us-east-1"}
    hook = connection({"host": LAKE, **KEYS, "extra": {"storage_options": options}})
    monkeypatch.setattr(cloud, "_fetched", {})
    found = hook.storage_options(LAKE)
    assert found["aws_session_token"]
    assert found["aws_access_key_id"] != "key"
    assert "aws_role_arn" not in found
    assert hook.storage_options(LAKE) == found
    assert hook.spark_options(LAKE)["aws_role_arn"] == options["role_arn"]
