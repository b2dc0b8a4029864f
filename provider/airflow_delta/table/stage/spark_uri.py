"""The spelling of a location for Spark: Hadoop's schemes, not object_store's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_delta.contract.location import AZURE, OBJECT_STORES, Location, store_of
from airflow_delta.log.storage.options import canonical_options


def spark_uri(uri: str, options: Mapping[str, str]) -> str:
    """Return a location as Spark opens it: ``s3a://`` for ``s3://``, with the account for a container of Azure.

    :param options: storage options of the table.
    :raises DeltaIllegalArgumentException: if the account of an Azure container is unknown.
    """
    store = store_of(uri)
    if store not in OBJECT_STORES:
        return uri
    given = canonical_options(options, uri)
    account = given.get("azure_storage_account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    location = Location.parse(uri, {"azure_storage_account_name": account} if account else None)
    found = location.spark
    if store != AZURE:
        return found
    # Without TLS, as an emulator is: Hadoop's abfss:// would try again for minutes.
    plain = uri[:7].lower() == "abfs://" or given.get("azure_storage_endpoint", "").lower().startswith("http://")
    return found.replace("abfss:", "abfs:", 1) if plain else found
