"""The metadata of a table as the pages show them: from an action of the log, with types as in Spark SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_delta.masking import masked_settings

MAX_COLUMNS = 500
"""Columns of a schema that are shown."""


def told_metadata(action: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a ``metaData`` action says, with at most :data:`MAX_COLUMNS` columns.

    :param action: as in the log.
    """
    schema = _json(action.get("schemaString"))
    fields = schema.get("fields", []) if isinstance(schema, Mapping) else []
    return {
        "id": action.get("id"),
        "name": action.get("name"),
        "description": action.get("description"),
        "partition_columns": list(action.get("partitionColumns") or ()),
        "configuration": masked_settings(action.get("configuration") or {}),
        "columns": [_column(field) for field in fields[:MAX_COLUMNS]],
        "num_columns": len(fields),
    }


def _column(field: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": field.get("name"),
        "type": _type(field.get("type")),
        "nullable": field.get("nullable", True),
        "comment": (field.get("metadata") or {}).get("comment"),
    }


def _type(data_type: Any) -> str:
    """Return a type of a schema as in Spark SQL."""
    if not isinstance(data_type, Mapping):
        return "bigint" if data_type == "long" else str(data_type)
    kind = data_type.get("type")
    if kind == "array":
        return f"array<{_type(data_type.get('elementType'))}>"
    if kind == "map":
        return f"map<{_type(data_type.get('keyType'))}, {_type(data_type.get('valueType'))}>"
    if kind == "struct":
        fields = (f"{field.get('name')}: {_type(field.get('type'))}" for field in data_type.get("fields", []))
        return f"struct<{', '.join(fields)}>"
    return str(kind)


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
