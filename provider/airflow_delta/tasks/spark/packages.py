"""The packages that a session or an application loads: the connector of Delta's Spark, unless Spark has it."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
)
from airflow_delta.spark.connectors import coordinate, hadoop_version, has_connector

AUTO = "auto"

_JARS = "spark.jars.packages"


def with_packages(
    properties: Mapping[str, str], packages: str | None, uri: str, *, of_connection: bool = False
) -> dict[str, str]:
    """Return the properties of a session or an application with the packages that it is to load.

    :param packages: Maven coordinates, or ``auto`` for the connector to the store of a location.
    :param of_connection: they come from the table's connection, which also serves sessions that are not of this process.
    :raises DeltaIllegalArgumentException: if the session is not of this process.
    """
    if not packages:
        return dict(properties)
    if "spark.remote" in properties:
        if of_connection:
            return dict(properties)
        raise DeltaIllegalArgumentException(
            f"spark_packages is {packages!r}, but this session is on a Spark Connect server. Start the server with the packages."
        )
    wanted = _connector(uri) if packages == AUTO else packages
    given = properties.get(_JARS)
    return {**properties, _JARS: f"{given},{wanted}" if given else wanted} if wanted else dict(properties)


def _connector(uri: str) -> str | None:
    """Return the coordinate of the connector, ``None`` if Spark needs or has it.

    :raises DeltaIllegalArgumentException: if the installed PySpark does not say its version of Hadoop.
    """
    scheme = uri.partition("://")[0]
    if coordinate(scheme, None) is None or has_connector(scheme):
        return None
    version = hadoop_version()
    if version is None:
        raise DeltaIllegalArgumentException(
            "spark_packages is 'auto', but no Spark is installed here that brings Hadoop's JARs. Install the package pyspark, or "
            f"name the packages: {coordinate(scheme, None)}."
        )
    return coordinate(scheme, version)
