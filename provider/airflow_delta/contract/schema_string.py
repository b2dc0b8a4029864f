"""A schema as the log has it: a string in Spark's JSON form."""

from __future__ import annotations

import json
from typing import Any

from airflow_delta.exceptions import SchemaMismatchException


def parse_struct(schema_string: str) -> dict[str, Any]:
    """Return the schema of a ``schemaString`` as decoded JSON.

    :raises SchemaMismatchException: if it is not a schema.
    """
    try:
        value = json.loads(schema_string)
        if value["type"] != "struct":
            raise ValueError("not a struct")
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaMismatchException(f"Not Spark's JSON form of a schema ({error}): {schema_string[:200]!r}") from error
    return dict(value)
