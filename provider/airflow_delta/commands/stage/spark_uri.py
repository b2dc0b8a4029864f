"""The spelling of a location for Spark: Hadoop's schemes, not object_store's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.storage.options import canonical_options
from airflow_delta.staging.location import AZURE, SPARK_SCHEMES, Location, store_of


def spark_uri(uri: str, options: Mapping[str, str]) -> str:
    """Return a location as Spark opens it: ``s3a://`` for ``s3://``, with the account for a container of Azure.

    :param options: storage options of the table.
    :raises DeltaIllegalArgumentException: if the account of an Azure container is unknown.
    """
    store = store_of(uri)
    if store is None or store not in SPARK_SCHEMES:
        return uri
    given = canonical_options(options, uri)
    account = given.get("azure_storage_account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    location = Location.parse(uri, {"azure_storage_account_name": account} if account else None)
    if store != AZURE:
        return f"{SPARK_SCHEMES[store]}://{location.bucket}{location.path}"
    if location.host is None:
        raise DeltaIllegalArgumentException(
            f"Spark needs the storage account of {uri}. Set the login of the connection to its name, or write "
            f"abfss://{location.bucket}@<account>.dfs.core.windows.net{location.path}.",
            table=uri,
        )
    # Without TLS, as an emulator is: Hadoop's abfss:// would try again for minutes.
    plain = uri[:7].lower() == "abfs://" or given.get("azure_storage_endpoint", "").lower().startswith("http://")
    return f"{'abfs' if plain else 'abfss'}://{location.bucket}@{location.host}{location.path}"
