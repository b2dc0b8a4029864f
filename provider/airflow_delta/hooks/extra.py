"""The extra of a connection, with the prefixes that Airflow's old forms gave its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow.sdk import Connection

_JSON_TYPES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}


def extra_of(connection: Connection, conn_id: str | None = None) -> Mapping[str, Any]:
    """Return the extra of a connection.

    :param conn_id: its id, if the connection does not say it.
    :raises DeltaIllegalArgumentException: if it is JSON other than an object.
    """
    extra: Any = connection.extra_dejson
    if not isinstance(extra, Mapping):
        raise DeltaIllegalArgumentException(
            f"The extra of the connection {conn_id or connection.conn_id!r} must be a JSON object, such as "
            f'{{"storage_options": {{...}}}}; it is a JSON {json_type(extra)}.'
        )
    return extra


def field_of(connection: Connection, name: str) -> Any:
    """Return a field of a connection's extra, whose name may have the form's prefix."""
    extra = extra_of(connection)
    return extra.get(name) or extra.get(f"extra__{connection.conn_type}__{name}") or None


def json_type(value: Any) -> str:
    """Return what a value is called in JSON."""
    return _JSON_TYPES.get(type(value), "value")


def texts(**options: Any) -> dict[str, str]:
    """Return the options that have a value, as text."""
    return {name: str(value) for name, value in options.items() if value}
