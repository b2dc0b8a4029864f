"""The spelling of a location for Spark: Hadoop's schemes, not object_store's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.options import canonical_options

_SCHEMES = {"s3": "s3a", "s3n": "s3a", "gcs": "gs", "azure": "az"}
_AZURE = ("az", "abfs", "abfss")


def spark_uri(uri: str, options: Mapping[str, str]) -> str:
    """Return a location as Spark opens it: ``s3a://`` for ``s3://``, with the account for a container of Azure.

    :param options: storage options of the table.
    :raises DeltaIllegalArgumentException: if the account of an Azure container is unknown.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    authority, slash, path = rest.partition("/")
    if scheme not in _AZURE:
        return f"{scheme}://{rest}"
    given = canonical_options(options, uri)
    # Without TLS, as an emulator is: Hadoop's abfss:// would try again for minutes.
    plain = scheme == "abfs" or given.get("azure_storage_endpoint", "").lower().startswith("http://")
    secure = "abfs" if plain else "abfss"
    if "@" in authority:
        return f"{secure}://{rest}"
    account = given.get("azure_storage_account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise DeltaIllegalArgumentException(
            f"Spark needs the storage account of {uri}. Set the login of the connection to its name, or write "
            f"abfss://{authority}@<account>.dfs.core.windows.net{slash}{path}.",
            table=uri,
        )
    return f"{secure}://{authority}@{account}.dfs.core.windows.net{slash}{path}"
