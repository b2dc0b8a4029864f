"""The spelling of a location for Spark: Hadoop's schemes, not object_store's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_delta.contract.location import AZURE, OBJECT_STORES, Location, store_of
from airflow_delta.log.storage.endpoints import AZURE_ENDPOINT, with_place
from airflow_delta.log.storage.options import canonical_options

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.view import TransactionView


_S3 = ("s3", "s3a", "s3n")
"""Schemes by which one service or another reaches the same place."""


def uri_beside(view: TransactionView, other: DeltaLog) -> str | None:
    """Return the URI by which Spark reaches another table or source, if it follows from that of the stage's own table.

    :return: ``None``: it follows from the worker's.
    """
    given = (view.spark_table_uri or "").partition("://")[0].lower()
    scheme, found, rest = other.uri.partition("://")
    return f"{given}://{rest}" if found and given in _S3 and scheme.lower() in _S3 else None


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
