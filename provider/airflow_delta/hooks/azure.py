"""Storage options from the fields of a connection to Azure, read as ``WasbHook`` and ``AzureDataLakeStorageV2Hook`` read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_delta.contract.location import PUBLIC_AZURE
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.extra import extra_of, field_of, texts

if TYPE_CHECKING:
    from airflow.sdk import Connection

# The account of every emulator, whose key is not a secret:
# https://learn.microsoft.com/azure/storage/common/storage-connect-azurite
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


def azure_options(connection: Connection, conn_id: str) -> dict[str, str]:
    """Return the options for a connection to Azure, without checking whether they may be used.

    The account keeps its domain: its key or token must not go to the account of the same name in another cloud. object_store
    itself asks for managed identities.

    :raises DeltaIllegalArgumentException: if the connection contradicts itself, or is not complete.
    """
    extra_of(connection, conn_id)
    if text := field_of(connection, "connection_string"):
        return _of_connection_string(str(text), conn_id)
    sas, url = str(field_of(connection, "sas_token") or ""), ""
    if sas.startswith("https"):  # a URL with the token: it names the account
        url, _, sas = sas.partition("?")
    place = _place(url, conn_id) if url else _place_of(connection, conn_id)
    if tenant := field_of(connection, "tenant_id"):
        if not connection.login or not connection.password:
            raise DeltaIllegalArgumentException(
                f"The connection {conn_id!r} has a tenant_id: login and password must be the id and the secret of an application."
            )
        return texts(
            **place,
            azure_storage_client_id=connection.login,
            azure_storage_client_secret=connection.password,
            azure_storage_tenant_id=tenant,
        )
    key = field_of(connection, "shared_access_key")
    if sas and not key:
        return texts(**place, azure_storage_sas_key=sas.removeprefix("?"))
    key = key or connection.password or field_of(connection, "account_key")
    return texts(
        **place,
        azure_storage_account_key=key,
        azure_storage_client_id=None if key else field_of(connection, "managed_identity_client_id"),
    )


def _place_of(connection: Connection, conn_id: str) -> dict[str, str | None]:
    """Return account and endpoint: from ``account_url``, the host (a name, a domain or a URL), or the login of ``wasb``."""
    given = field_of(connection, "account_url") if connection.conn_type == "adls" else None
    host = str(given or connection.host or "").strip()
    by_login = connection.conn_type == "wasb" and connection.login and not field_of(connection, "tenant_id")
    if by_login and "." not in host and "://" not in host:  # WasbHook takes such a host for a directory's id
        return {"azure_storage_account_name": str(connection.login)}
    return _place(host, conn_id) if host else {}


def _place(host: str, conn_id: str) -> dict[str, str | None]:
    """Return account and endpoint of a host: ``account``, ``account.blob.core.windows.net``, or a URL.

    The endpoint of an account in Azure's public cloud is left out, as its name alone says where it is.
    """
    try:
        url = urlsplit(host if "://" in host else f"https://{host}")
        name, in_path = (url.hostname or "").lower(), url.path.strip("/")
        _ = url.port
    except ValueError:
        name = in_path = ""
    if not name:
        raise DeltaIllegalArgumentException(
            f"The host of the connection {conn_id!r} is not an account of Azure, nor the URL of one: "
            f"account, or https://account.blob.{PUBLIC_AZURE}."
        )
    first, _, domain = name.partition(".")
    is_cloud = domain.startswith(("blob.", "dfs."))
    if not domain and "://" not in host and url.port is None:
        return {"azure_storage_account_name": first}
    account = first if is_cloud else in_path.partition("/")[0] or None
    if is_cloud and domain.partition(".")[2] == PUBLIC_AZURE and url.scheme == "https" and url.port is None:
        return {"azure_storage_account_name": account}
    netloc = url.netloc.replace(".dfs.", ".blob.", 1) if is_cloud else url.netloc
    path = f"/{in_path}" if in_path else ""
    return {"azure_storage_account_name": account, "azure_storage_endpoint": f"{url.scheme}://{netloc}{path}"}


def _of_connection_string(text: str, conn_id: str) -> dict[str, str]:
    """Return the options of a connection string: with a key, the portal's with a SAS token, or that of an emulator.

    https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string
    """
    given = {name.strip().lower(): value.strip() for name, _, value in (part.partition("=") for part in text.split(";"))}
    parts = {name: value for name, value in given.items() if value}
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        proxy = parts.get("developmentstorageproxyuri", "").rstrip("/")
        parts = {name.lower(): value for name, value in _EMULATOR.items()}
        if proxy:
            parts["blobendpoint"] = f"{proxy}:10000/{_EMULATOR['AccountName']}"
    place = _place(_endpoint(parts, conn_id), conn_id)
    account = parts.get("accountname") or place.get("azure_storage_account_name")
    if not account:
        raise DeltaIllegalArgumentException(
            f"The connection_string of the connection {conn_id!r} names no account: neither AccountName, nor a BlobEndpoint that "
            "says it."
        )
    key = parts.get("accountkey")
    sas = None if key else parts.get("sharedaccesssignature")
    return texts(
        **{**place, "azure_storage_account_name": account},
        azure_storage_account_key=key,
        azure_storage_sas_key=sas.removeprefix("?") if sas else None,
    )


def _endpoint(parts: Mapping[str, Any], conn_id: str) -> str:
    if endpoint := parts.get("blobendpoint"):
        return str(endpoint)
    if "accountname" not in parts:
        raise DeltaIllegalArgumentException(
            f"The connection_string of the connection {conn_id!r} names no account: neither AccountName nor BlobEndpoint."
        )
    scheme, suffix = parts.get("defaultendpointsprotocol", "https"), parts.get("endpointsuffix", PUBLIC_AZURE)
    return f"{scheme}://{parts['accountname']}.blob.{suffix}"
