"""Storage options as Hadoop's settings: one table for each store."""

from __future__ import annotations

import pytest

from airflow_delta.exceptions import SparkCredentialsException
from airflow_delta.hooks.hadoop import hadoop_settings

S3A = "org.apache.hadoop.fs.s3a"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
SIMPLE = {"aws.credentials.provider": f"{S3A}.SimpleAWSCredentialsProvider", "access.key": "key", "secret.key": "secret"}
S3 = [
    ({}, {}),
    (KEYS, SIMPLE),
    ({"aws_region": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
    (
        {**KEYS, "aws_session_token": "token"},
        {**SIMPLE, "aws.credentials.provider": f"{S3A}.TemporaryAWSCredentialsProvider", "session.token": "token"},
    ),
    ({"aws_skip_signature": "true"}, {"aws.credentials.provider": f"{S3A}.AnonymousAWSCredentialsProvider"}),
    (
        {"aws_endpoint_url": "http://minio:9000"},
        {
            "endpoint": "http://minio:9000",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
        },
    ),
    (
        {"aws_endpoint_url": "https://lake.s3.example", "aws_virtual_hosted_style_request": "true", "aws_region": "x"},
        {
            "endpoint": "https://s3.example",
            "endpoint.region": "x",
            "path.style.access": "false",
            "connection.ssl.enabled": "true",
        },
    ),
    (
        {**KEYS, "aws_role_arn": "arn:r", "aws_role_session_name": "n"},
        {
            **SIMPLE,
            "aws.credentials.provider": f"{S3A}.auth.AssumedRoleCredentialProvider",
            "assumed.role.arn": "arn:r",
            "assumed.role.session.name": "n",
            "assumed.role.credentials.provider": f"{S3A}.SimpleAWSCredentialsProvider",
        },
    ),
    (
        {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "arn:k"},
        {"encryption.algorithm": "SSE-KMS", "encryption.key": "arn:k"},
    ),
    (
        {"aws_request_payer": "true", "proxy_url": "http://u:p@proxy:3128"},
        {
            "requester.pays.enabled": "true",
            "proxy.host": "proxy",
            "proxy.port": "3128",
            "proxy.username": "u",
            "proxy.password": "p",
        },
    ),
]


@pytest.mark.parametrize(("options", "settings"), S3)
def test_s3a(options, settings):
    expected = {f"fs.s3a.bucket.lake.{name}": value for name, value in settings.items()}
    assert hadoop_settings("s3a://lake/t", options) == expected


HOST = "account.dfs.core.windows.net"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
APPLICATION = {
    "azure_storage_client_id": "id",
    "azure_storage_client_secret": "secret",
    "azure_storage_tenant_id": "tenant",
}
ABFS = [
    ({}, {}),
    ({"azure_storage_account_key": "a2V5"}, {"auth.type": "SharedKey", "key": "a2V5"}),
    (
        APPLICATION,
        {
            "auth.type": "OAuth",
            "oauth.provider.type": f"{OAUTH}.ClientCredsTokenProvider",
            "oauth2.client.id": "id",
            "oauth2.client.secret": "secret",
            "oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
        },
    ),
    (
        {"azure_storage_client_id": "id"},
        {"auth.type": "OAuth", "oauth.provider.type": f"{OAUTH}.MsiTokenProvider", "oauth2.client.id": "id"},
    ),
]


@pytest.mark.parametrize(("options", "settings"), ABFS)
def test_abfs(options, settings):
    expected = {f"fs.azure.account.{name}.{HOST}": value for name, value in settings.items()}
    assert hadoop_settings(f"abfss://container@{HOST}/t", options) == expected


def test_a_sas_token():
    assert hadoop_settings(f"abfss://container@{HOST}/t", {"azure_storage_sas_key": "?sv=1&sig=x"}) == {
        f"fs.azure.account.auth.type.{HOST}": "SAS",
        f"fs.azure.sas.fixed.token.{HOST}": "sv=1&sig=x",
    }


GS = [
    ({}, {}),
    (
        {"google_service_account": "/run/key.json"},
        {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": "/run/key.json"},
    ),
    ({"google_skip_signature": "true"}, {"auth.type": "UNAUTHENTICATED"}),
    (
        {"google_service_account_key": '{"gcs_base_url": "http://gcs:4443", "disable_oauth": true}'},
        {"auth.type": "UNAUTHENTICATED", "storage.root.url": "http://gcs:4443"},
    ),
]


@pytest.mark.parametrize(("options", "settings"), GS)
def test_gs(options, settings):
    assert hadoop_settings("gs://lake/t", options) == {f"fs.gs.{name}": value for name, value in settings.items()}


def test_the_text_of_a_key_needs_a_file():
    key = {"google_service_account_key": '{"client_email": "x"}'}
    assert hadoop_settings("gs://lake/t", key, lambda text: f"/tmp/{len(text)}") == {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": "/tmp/21",
    }
    with pytest.raises(SparkCredentialsException, match="Spark cannot use google_service_account_key"):
        hadoop_settings("gs://lake/t", key)


UNUSABLE = [("gs://lake/t", "google_bearer_token"), (f"abfss://c@{HOST}/t", "azure_storage_token")]


@pytest.mark.parametrize(("uri", "option"), UNUSABLE)
def test_a_token_without_a_setting_is_refused(uri, option):
    with pytest.raises(SparkCredentialsException, match=f'{option}.*spark_credentials="own".*docs/how-to/'):
        hadoop_settings(uri, {option: "token"})


def test_other_places_need_nothing():
    assert hadoop_settings("file:///t", KEYS) == hadoop_settings("hdfs://name/t", KEYS) == {}
