"""Dotted paths of ALTER TABLE: finding and editing the struct at a path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_delta.contract.sql_types import parse_column_path
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType
from airflow_delta.log.schema.walk import Path, dotted
from airflow_delta.table.definition.altered_table import AlteredTable

Edit = Callable[[StructType], StructType]


def edited(table: AlteredTable, schema: StructType, path: Path, edit: Edit) -> StructType:
    """Return the schema with the struct at a path edited."""

    def walk(data_type: DataType, rest: Path) -> DataType:
        match data_type:
            case StructType(fields) if not rest:
                return edit(StructType(fields))
            case StructType(fields):
                found = data_type.find(rest[0])
                if found is None:
                    raise missing_column(table, path)
                inner = replace(found, data_type=walk(found.data_type, rest[1:]))
                return StructType(tuple(inner if field is found else field for field in fields))
            case ArrayType(element, contains_null) if rest and rest[0].lower() == "element":
                return ArrayType(walk(element, rest[1:]), contains_null)
            case MapType(key, value, contains_null) if rest and rest[0].lower() == "key":
                return MapType(walk(key, rest[1:]), value, contains_null)
            case MapType(key, value, contains_null) if rest and rest[0].lower() == "value":
                return MapType(key, walk(value, rest[1:]), contains_null)
        raise table.refuse(f"{dotted(path)} is a {data_type}, not a struct (DELTA_ADD_COLUMN_PARENT_NOT_STRUCT)")

    result = walk(schema, path)
    return result if isinstance(result, StructType) else schema


def struct_at(schema: StructType, path: Path) -> StructType | None:
    """Return the struct at a path, through lists and maps; ``None`` if there is none."""
    at: DataType | None = schema
    for name in path:
        match at, name.lower():
            case StructType(), _:
                found = at.find(name)
                at = None if found is None else found.data_type
            case ArrayType(), "element":
                at = at.element_type
            case MapType(), "key":
                at = at.key_type
            case MapType(), "value":
                at = at.value_type
            case _:
                return None
    return at if isinstance(at, StructType) else None


def is_not_null(schema: StructType, path: Path) -> bool:
    """Return whether the column at a path exists and is NOT NULL."""
    struct = struct_at(schema, path[:-1])
    found = None if struct is None else struct.find(path[-1])
    return found is not None and not found.nullable


def in_container(schema: StructType, path: Path) -> bool:
    """Return whether a path leads through the elements of a list or the entries of a map."""
    at: DataType = schema
    for name in path:
        found = at.find(name) if isinstance(at, StructType) else None
        if found is None:
            return isinstance(at, ArrayType | MapType)
        at = found.data_type
    return False


def position_of(table: AlteredTable, fields: tuple[StructField, ...], position: str) -> int:
    """Return the index of a column moved ``FIRST`` or ``AFTER`` another one."""
    words = position.split(None, 1)
    if len(words) == 1 and words[0].upper() == "FIRST":
        return 0
    if len(words) == 2 and words[0].upper() == "AFTER":
        (name,) = parse_column_path(words[1])[-1:]
        for at, field in enumerate(fields):
            if field.name.lower() == name.lower():
                return at + 1
        raise table.refuse(
            f"There is no column {name} to follow (FIELD_NOT_FOUND). {known_names(name, [f.name for f in fields])}"
        )
    raise table.refuse(f"A position must be FIRST or AFTER <column>, got {position!r}")


def missing_column(table: AlteredTable, path: Path) -> Exception:
    """Return the error for a path that names no column."""
    return table.refuse(
        f"There is no column {dotted(path)} (DELTA_COLUMN_NOT_FOUND_IN_SCHEMA). {known_names(dotted(path), table.schema.names)}"
    )
