"""Secret options of a source, from an Airflow connection to Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk.log import mask_secret

from airflow_delta.contract.options import SECRET_PROPERTY
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
)
from airflow_delta.hooks.extra import extra_of
from airflow_delta.hooks.named_connection import named_connection
from airflow_delta.masking import has_secret

_JDBC = {
    "postgres": "jdbc:postgresql://{host}{port}/{schema}",
    "mysql": "jdbc:mysql://{host}{port}/{schema}",
    "mssql": "jdbc:sqlserver://{host}{port};databaseName={schema}",
}

_EXTRA = "spark_options"


def source_options(conn_id: str, source_format: str) -> dict[str, str]:
    """Return the options that a connection gives a source, and mask their values in task logs from here on.

    These are the ``spark_options`` in its extra. For ``jdbc`` also its login and password as ``user`` and ``password``, and a
    ``url``: the host of a connection of type ``jdbc``, the driver's form for ``postgres``, ``mysql`` and ``mssql``.

    :raises DeltaIllegalArgumentException: if ``spark_options`` is not an object of plain values.
    """
    connection = named_connection(conn_id, "connection= of the source", "jdbc, or the one that the source needs")
    given = extra_of(connection, conn_id).get(_EXTRA) or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = None
    if not isinstance(given, Mapping) or any(isinstance(value, dict | list) for value in given.values()):
        raise DeltaIllegalArgumentException(
            f'{_EXTRA} in the extra of the connection {conn_id!r} must be an object of plain values, such as {{"user": "..."}}'
        )
    options: dict[str, str] = {}
    if source_format.lower() == "jdbc":
        named = {"url": _jdbc_url(connection), "user": connection.login, "password": connection.password}
        options.update({name: str(value) for name, value in named.items() if value})
    options.update({str(name): property_text(value) for name, value in given.items() if value is not None})
    for name, value in options.items():
        if (name != "url" or has_secret(value)) and value.lower() not in ("true", "false"):
            mask_secret(value)
    return options


def secret_property(options: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark property that carries options to an application."""
    return {SECRET_PROPERTY: base64.b64encode(json.dumps(dict(options)).encode()).decode()}


def _jdbc_url(connection: Any) -> str | None:
    if connection.conn_type == "jdbc":
        return connection.host or None
    pattern = _JDBC.get(connection.conn_type)
    if pattern is None or not connection.host:
        return None
    port = f":{connection.port}" if connection.port else ""
    return pattern.format(host=connection.host, port=port, schema=connection.schema or "")


def property_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
