"""CHECK constraints, invariants and default values of columns.

Expressions are Spark SQL over the table's logical columns (Delta protocol, "CHECK Constraints", "Column Invariants" and
"Default Columns").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from airflow_delta.contract.char_lengths import DECLARED
from airflow_delta.contract.delta_names import CONSTRAINT_PREFIX
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.schema.types import STRING, ArrayType, DataType, MapType, StructField, StructType
from airflow_delta.log.schema.walk import Path, dotted

INVARIANTS = "delta.invariants"
CURRENT_DEFAULT = "CURRENT_DEFAULT"
EXISTS_DEFAULT = "EXISTS_DEFAULT"
_CHAR_VARCHAR = lazy_pattern(r"(char|varchar)\(\s*(\d+)\s*\)")


def check_constraints(metadata: Metadata) -> dict[str, str]:
    """Return the expressions of the table's CHECK constraints by name."""
    return {
        key[len(CONSTRAINT_PREFIX) :]: expression
        for key, expression in metadata.configuration.items()
        if key.lower().startswith(CONSTRAINT_PREFIX)
    }


def invariants(schema: StructType) -> dict[str, str]:
    """Return the expressions of column invariants by the column's path; NOT NULL is not included."""
    return {
        dotted(path): _invariant(dotted(path), field.metadata[INVARIANTS])
        for path, field in _struct_fields(schema, ())
        if INVARIANTS in field.metadata
    }


def column_defaults(schema: StructType) -> dict[str, str]:
    """Return the default expressions of columns by name (``CURRENT_DEFAULT``)."""
    return _texts(schema, CURRENT_DEFAULT)


def replace_char_varchar(schema: StructType) -> StructType:
    """Return the schema with ``char(n)`` and ``varchar(n)`` replaced by string, and the original types in the metadata.

    As in Spark's ``CharVarcharUtils``: engines that enforce the lengths read them there.
    """
    return StructType(tuple(_without_lengths(field) for field in schema.fields))


def has_char_varchar(data_type: DataType) -> bool:
    """Return whether a type contains ``char(n)`` or ``varchar(n)``."""
    match data_type:
        case StructType(fields):
            return any(has_char_varchar(field.data_type) for field in fields)
        case ArrayType(element, _):
            return has_char_varchar(element)
        case MapType(key, value, _):
            return has_char_varchar(key) or has_char_varchar(value)
        case _:
            return _CHAR_VARCHAR.fullmatch(data_type.name) is not None


def may_change_length(before: str, after: str) -> bool:
    """Return whether every text of a column still fits if its declared type becomes another (Spark's ``ALTER COLUMN ... TYPE``).

    :param before: ``string``, ``char(n)`` or ``varchar(n)``.
    """
    old, new = _CHAR_VARCHAR.fullmatch(before), _CHAR_VARCHAR.fullmatch(after)
    if after in (before, STRING.name):
        return True
    return old is not None and new is not None and new[1] == "varchar" and int(old[2]) <= int(new[2])


def _without_lengths(field: StructField) -> StructField:
    if not has_char_varchar(field.data_type):
        return field
    metadata = {**field.metadata, DECLARED: str(field.data_type)}
    return replace(field, data_type=_text_for_lengths(field.data_type), metadata=metadata)


def _text_for_lengths(data_type: DataType) -> DataType:
    match data_type:
        case StructType(fields):
            return StructType(tuple(replace(field, data_type=_text_for_lengths(field.data_type)) for field in fields))
        case ArrayType(element, contains_null):
            return ArrayType(_text_for_lengths(element), contains_null)
        case MapType(key, value, contains_null):
            return MapType(_text_for_lengths(key), _text_for_lengths(value), contains_null)
        case _:
            return STRING if _CHAR_VARCHAR.fullmatch(data_type.name) else data_type


def without_exists_defaults(schema: StructType) -> StructType:
    """Return the schema without ``EXISTS_DEFAULT``, which Delta does not store."""
    return StructType(tuple(field.without_metadata(EXISTS_DEFAULT) for field in schema.fields))


def _texts(schema: StructType, key: str) -> dict[str, str]:
    return {field.name: str(field.metadata[key]) for field in schema.fields if key in field.metadata}


def _struct_fields(struct: StructType, path: Path) -> Iterator[tuple[Path, StructField]]:
    """Yield the fields that occur once in a row: those of structs, but not inside lists and maps."""
    for field in struct.fields:
        yield (*path, field.name), field
        if isinstance(field.data_type, StructType):
            yield from _struct_fields(field.data_type, (*path, field.name))


class _Expression(msgspec.Struct):
    expression: str


class _Invariant(msgspec.Struct):
    expression: _Expression


def _invariant(path: str, text: object) -> str:
    try:
        return msgspec.json.decode(str(text), type=_Invariant).expression.expression
    except msgspec.DecodeError as error:
        raise DeltaAnalysisException(
            f"The invariant of column {path} must have the form {{'expression': {{'expression': ...}}}}, got {text!r}"
        ) from error
