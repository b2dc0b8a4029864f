"""The columns of a table as those who read it get them: without what only Delta knows of them, and nullable."""

from __future__ import annotations

from collections.abc import Callable

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type


def without_delta_metadata(field: Json) -> Json:
    """Return a field without Delta's metadata: a column made from it elsewhere is another column."""
    metadata = {k: v for k, v in (field.get("metadata") or {}).items() if not k.startswith("delta.")}
    return {"name": field["name"], "type": plain_type(field["type"]), "nullable": True, "metadata": metadata}


def plain_type(data_type: Type) -> Type:
    """Return a type with such fields in its structs."""
    return with_fields_changed(data_type, without_delta_metadata)


def with_fields_changed(data_type: Type, change: Callable[[Json], Json]) -> Type:
    """Return a type with the fields of its structs changed, and everything nullable, as in files."""
    if isinstance(data_type, str):
        return data_type
    match data_type["type"]:
        case "struct":
            return {"type": "struct", "fields": [change(f) for f in data_type["fields"]]}
        case "array":
            return {"type": "array", "elementType": with_fields_changed(data_type["elementType"], change), "containsNull": True}
        case "map":
            key, value = (with_fields_changed(data_type[name], change) for name in ("keyType", "valueType"))
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return data_type
