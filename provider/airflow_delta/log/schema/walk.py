"""Traversing and changing the fields of a schema at any depth, ordered as in Delta's ``SchemaMergingUtils``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType

Path = tuple[str, ...]
"""Names from the top; ``element``, ``key`` and ``value`` are the parts of lists and maps."""


def walk_fields(data_type: DataType, path: Path = ()) -> Iterator[tuple[Path, StructField]]:
    """Yield every field with its path, parents before children."""
    match data_type:
        case StructType(fields):
            for field in fields:
                here = (*path, field.name)
                yield here, field
                yield from walk_fields(field.data_type, here)
        case ArrayType(element, _):
            yield from walk_fields(element, (*path, "element"))
        case MapType(key, value, _):
            yield from walk_fields(key, (*path, "key"))
            yield from walk_fields(value, (*path, "value"))


def transform_fields(schema: StructType, change: Callable[[Path, StructField], StructField]) -> StructType:
    """Return the schema with ``change`` applied to every field, parents before children.

    :param change: called with the path in the given schema and the field; the children of its result are changed next.
    """
    return StructType(tuple(_transform_field(field, (), change) for field in schema.fields))


def _transform_field(field: StructField, parent: Path, change: Callable[[Path, StructField], StructField]) -> StructField:
    here = (*parent, field.name)
    changed = change(here, field)
    inner = _transform_type(changed.data_type, here, change)
    return changed if inner is changed.data_type else replace(changed, data_type=inner)


def _transform_type(data_type: DataType, path: Path, change: Callable[[Path, StructField], StructField]) -> DataType:
    match data_type:
        case StructType(fields):
            return StructType(tuple(_transform_field(field, path, change) for field in fields))
        case ArrayType(element, contains_null):
            return ArrayType(_transform_type(element, (*path, "element"), change), contains_null)
        case MapType(key, value, contains_null):
            key = _transform_type(key, (*path, "key"), change)
            return MapType(key, _transform_type(value, (*path, "value"), change), contains_null)
        case _:
            return data_type


def folded(path: Path) -> Path:
    """Return a path in lower case, for case-insensitive comparison."""
    return tuple(name.lower() for name in path)


def dotted(path: Path) -> str:
    """Return a path as text, with names that contain dots or backticks quoted."""
    return ".".join(f"`{name.replace('`', '``')}`" if "." in name or "`" in name else name for name in path)
