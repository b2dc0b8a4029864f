"""The spelling of a location for Spark: Hadoop's schemes, not object_store's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_delta.contract.location import AZURE, OBJECT_STORES, Location, store_of
from airflow_delta.log.storage.endpoints import AZURE_ENDPOINT, with_place
from airflow_delta.log.storage.options import canonical_options


def spark_uri(uri: str, options: Mapping[str, str]) -> str:
    """Return a location as Spark opens it: ``s3a://`` for ``s3://``, with the account for a container of Azure.

    :param options: storage options of the table.
    """
    store = store_of(uri)
    if store not in OBJECT_STORES:
        return uri
    given = with_place(canonical_options(options, uri), Location.parse(uri), os.environ)
    location = Location.parse(uri, given)
    if store == AZURE and location.host is None:  # a server of one's own: Hadoop wants the account in a name of Azure's form
        location = Location.parse(uri, {name: value for name, value in given.items() if name != AZURE_ENDPOINT})
    found = location.spark
    if store != AZURE:
        return found
    # Without TLS, as an emulator is: Hadoop's abfss:// would try again for minutes.
    plain = uri[:7].lower() == "abfs://" or given.get(AZURE_ENDPOINT, "").lower().startswith("http://")
    return found.replace("abfss:", "abfs:", 1) if plain else found
