"""Hadoop's settings for a table's store, from its storage options: what Spark needs to reach what the worker reaches.

Keys of S3 are those of one bucket and keys of Azure those of one account, so a session can serve several connections. Hadoop has
no such keys for GCS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_delta.contract.location import OBJECT_STORES, PAGES, Location, store_of
from airflow_delta.exceptions import SparkCredentialsException
from airflow_delta.log.storage.endpoints import ENDPOINT, REGION, is_virtual, with_place

OWN_CREDENTIALS = 'Or give Spark credentials of its own, and set spark_credentials="own".'

_AWS = "org.apache.hadoop.fs.s3a"
_AMBIENT = (
    f"software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider,{_AWS}.auth.IAMInstanceCredentialsProvider"
)
_WEB_IDENTITY = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"
_OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
_LOGIN = "https://login.microsoftonline.com"
_ENCRYPTION = {"aes256": "SSE-S3", "aws:kms": "SSE-KMS", "sse:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS", "sse-c": "SSE-C"}


def hadoop_settings(
    uri: str,
    options: Mapping[str, str],
    key_file: Callable[[str], str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings with which Hadoop reaches a location; empty if it needs none, or is not on an object store.

    :param uri: location as Spark spells it (``s3a://``, ``abfss://``, ``gs://``).
    :param options: storage options under their canonical names.
    :param key_file: writes a service account's key to a file that Spark can read, and returns its path.
    :param environment: variables of the worker, which say where the store is as far as the options do not.
    :raises SparkCredentialsException: if Hadoop cannot use these credentials.
    """
    if store_of(uri) in OBJECT_STORES:
        options = with_place(options, Location.parse(uri), environment or {})
    scheme, separator, rest = uri.partition("://")
    scheme, authority = scheme.lower() if separator else "", rest.partition("/")[0]
    if scheme == "s3a":
        return _s3a(authority, options)
    if scheme in ("abfs", "abfss"):
        return _abfs(authority, options)
    return _gs(options, key_file) if scheme == "gs" else {}


# -- S3 -------------------------------------------------------------------------------------------------------------------------


def _s3a(bucket: str, options: Mapping[str, str]) -> dict[str, str]:
    settings = {**_s3a_endpoint(options), **_s3a_credentials(options)}
    if _is_true(options.get("aws_request_payer")):
        settings["requester.pays.enabled"] = "true"
    if algorithm := _ENCRYPTION.get(options.get("aws_server_side_encryption", "").lower()):
        key = options.get("aws_sse_kms_key_id") or options.get("aws_sse_customer_key_base64")
        settings |= {"encryption.algorithm": algorithm, **({"encryption.key": key} if key else {})}
    if proxy := options.get("proxy_url"):
        parts = urlsplit(proxy)
        named = {"host": parts.hostname, "port": parts.port, "username": parts.username, "password": parts.password}
        settings |= {f"proxy.{name}": str(value) for name, value in named.items() if value}
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


def _s3a_endpoint(options: Mapping[str, str]) -> dict[str, str]:
    endpoint, region = options.get(ENDPOINT), options.get(REGION)
    settings: dict[str, str] = {}
    if endpoint:
        settings["endpoint"] = endpoint  # Hadoop adds the bucket itself
        settings["path.style.access"] = "false" if is_virtual(options) else "true"
        settings["connection.ssl.enabled"] = "false" if endpoint.lower().startswith("http://") else "true"
    if endpoint or region:
        settings["endpoint.region"] = region or "us-east-1"  # object_store's default
    return settings


def _s3a_credentials(options: Mapping[str, str]) -> dict[str, str]:
    if _is_true(options.get("aws_skip_signature")):
        return {"aws.credentials.provider": f"{_AWS}.AnonymousAWSCredentialsProvider"}
    key, secret, token = (options.get(f"aws_{name}") for name in ("access_key_id", "secret_access_key", "session_token"))
    if options.get("aws_web_identity_token_file"):
        return {"aws.credentials.provider": _WEB_IDENTITY}  # it reads AWS_ROLE_ARN and the file's name from the environment
    settings: dict[str, str] = {}
    if key and secret:
        kind = "Temporary" if token else "Simple"
        settings = {"aws.credentials.provider": f"{_AWS}.{kind}AWSCredentialsProvider", "access.key": key, "secret.key": secret}
        settings |= {"session.token": token} if token else {}
    if role := options.get("aws_role_arn"):
        settings |= _assumed_role(role, settings.get("aws.credentials.provider") or _AMBIENT, options)
    return settings


def _assumed_role(role: str, base: str, options: Mapping[str, str]) -> dict[str, str]:
    named = {
        "arn": role,
        "credentials.provider": base,
        "session.name": options.get("aws_role_session_name"),
        "sts.endpoint": options.get("aws_endpoint_url_sts"),
        "sts.endpoint.region": options.get("aws_region") if options.get("aws_endpoint_url_sts") else None,
    }
    settings = {f"assumed.role.{name}": value for name, value in named.items() if value}
    return {**settings, "aws.credentials.provider": f"{_AWS}.auth.AssumedRoleCredentialProvider"}


# -- Azure ----------------------------------------------------------------------------------------------------------------------


def _abfs(authority: str, options: Mapping[str, str]) -> dict[str, str]:
    host = authority.partition("@")[2].lower()
    if not host:
        return {}
    credentials = _abfs_credentials(options)
    settings = {f"{name}.{host}": value for name, value in credentials.items()}
    if (endpoint := options.get("azure_storage_endpoint", "")).lower().startswith("http://"):
        # An emulator: flat names, the Blob API, no TLS. Hadoop has no such settings for one account.
        settings |= {
            **{f"{name}.{host.replace('.dfs.', '.blob.')}": value for name, value in credentials.items()},
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.abfs.endpoint": urlsplit(endpoint).netloc,
            "fs.azure.always.use.https": "false",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # Hadoop's default insists on TLS
        }
    return settings


def _abfs_credentials(options: Mapping[str, str]) -> dict[str, str]:
    def given(name: str) -> str | None:
        return options.get(f"azure_{name}") or None

    auth, oauth = "fs.azure.account.auth.type", "fs.azure.account.oauth2"
    tenant = given("storage_tenant_id")
    authority = (given("storage_authority_host") or _LOGIN).rstrip("/")
    client = {f"{oauth}.client.id": given("storage_client_id") or ""}
    if key := given("storage_account_key"):
        return {auth: "SharedKey", "fs.azure.account.key": key}
    if sas := given("storage_sas_key"):
        return {auth: "SAS", "fs.azure.sas.fixed.token": sas.removeprefix("?")}
    if given("storage_token") or _is_true(given("use_azure_cli")):
        name = "azure_storage_token" if given("storage_token") else "azure_use_azure_cli"
        raise _unusable("Azure", name, "an account key, a SAS token, an application's secret or a managed identity")
    if secret := given("storage_client_secret"):
        return {
            auth: "OAuth",
            "fs.azure.account.oauth.provider.type": f"{_OAUTH}.ClientCredsTokenProvider",
            **client,
            f"{oauth}.client.secret": secret,
            f"{oauth}.client.endpoint": f"{authority}/{tenant}/oauth2/token",
        }
    if file := given("federated_token_file"):
        return {
            auth: "OAuth",
            "fs.azure.account.oauth.provider.type": f"{_OAUTH}.WorkloadIdentityTokenProvider",
            **client,
            f"{oauth}.token.file": file,
            f"{oauth}.msi.tenant": tenant or "",
            f"{oauth}.msi.authority": f"{authority}/",
        }
    if given("msi_endpoint") or given("storage_client_id") or given("msi_resource_id") or given("object_id"):
        named = {f"{oauth}.msi.tenant": tenant, f"{oauth}.msi.endpoint": given("msi_endpoint"), **client}
        return {
            auth: "OAuth",
            "fs.azure.account.oauth.provider.type": f"{_OAUTH}.MsiTokenProvider",
            **{name: value for name, value in named.items() if value},
        }
    return {}


# -- GCS ------------------------------------------------------------------------------------------------------------------------


def _gs(options: Mapping[str, str], key_file: Callable[[str], str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    key = _key_of(options.get("google_service_account_key"))
    if url := options.get("google_base_url") or key.get("gcs_base_url"):
        settings["fs.gs.storage.root.url"] = str(url).rstrip("/")
    if _is_true(options.get("google_skip_signature")) or key.get("disable_oauth") is True:
        return {**settings, "fs.gs.auth.type": "UNAUTHENTICATED"}
    if options.get("google_bearer_token"):
        raise _unusable("GCS", "google_bearer_token", "the file of a service account's key (google_service_account)")
    file = options.get("google_service_account") or options.get("google_application_credentials")
    if text := options.get("google_service_account_key"):
        file = key_file(text) if key_file is not None else None
    if text and file is None:
        raise _unusable("GCS", "google_service_account_key", "a file with it, on every machine (google_service_account)")
    if file:
        settings |= {"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "fs.gs.auth.service.account.json.keyfile": file}
    return settings


def _key_of(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _unusable(store: str, option: str, instead: str) -> SparkCredentialsException:
    return SparkCredentialsException(
        f"Spark cannot use {option}, which Hadoop has no setting for. Use {instead} in the connection. {OWN_CREDENTIALS} See "
        f"{PAGES[store]}."
    )


def _is_true(value: str | None) -> bool:
    return (value or "").strip().lower() in ("true", "1", "yes", "on", "y", "requester")
