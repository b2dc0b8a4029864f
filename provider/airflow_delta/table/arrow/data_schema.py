"""The schema of Arrow data in Spark's JSON form, as Spark reads the same Parquet."""

from __future__ import annotations

import pyarrow as pa

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.schema import Type
from airflow_delta.exceptions import DeltaAnalysisException

_MAX_PRECISION = 38

_PLAIN_EXTENSIONS = ("arrow.json", "arrow.uuid")

_REMEDIES = {"time": "as a string", "duration": "as a number", "interval": "as a number", "decimal256": "to decimal128"}


def data_schema(schema: pa.Schema, *, whose: str) -> Json:
    """Return the schema of rows.

    A timestamp with a zone is ``timestamp``, one without ``timestamp_ntz``; an unsigned integer is the next wider type. Extension
    types are refused unless what they store is what they mean.

    :param whose: for messages.
    """
    return {"type": "struct", "fields": [_field(field, field.name, whose) for field in schema]}


def _field(field: pa.Field, path: str, whose: str) -> Json:
    return {"name": field.name, "type": _type(field.type, path, whose), "nullable": True, "metadata": {}}


def _type(data_type: pa.DataType, path: str, whose: str) -> Type:
    kinds = pa.types
    if isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name in _PLAIN_EXTENSIONS:
        return _type(data_type.storage_type, path, whose)
    if kinds.is_dictionary(data_type) or kinds.is_run_end_encoded(data_type):
        return _type(data_type.value_type, path, whose)
    if kinds.is_struct(data_type) and data_type.num_fields:
        return {"type": "struct", "fields": [_field(f, f"{path}.{f.name}", whose) for f in data_type]}
    if kinds.is_map(data_type):
        key, value = (_type(part, f"{path}[{name}]", whose) for part, name in _entries(data_type))
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if kinds.is_list(data_type) or kinds.is_large_list(data_type) or kinds.is_fixed_size_list(data_type):
        element = _type(data_type.value_type, f"{path}[element]", whose)
        return {"type": "array", "elementType": element, "containsNull": True}
    if kinds.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    if kinds.is_decimal(data_type) and data_type.precision <= _MAX_PRECISION and 0 <= data_type.scale <= data_type.precision:
        return f"decimal({data_type.precision},{data_type.scale})"
    if (known := _plain(data_type)) is not None:
        return known
    text = str(data_type)
    remedy = next((way for start, way in _REMEDIES.items() if text.startswith(start) or start in text), "to another type")
    raise DeltaAnalysisException(
        f"{whose} returned column {path} of Arrow type {text}, which Delta tables do not have. Cast it {remedy}."
    )


def _entries(data_type: pa.MapType) -> tuple[tuple[pa.DataType, str], ...]:
    return (data_type.key_type, "key"), (data_type.item_type, "value")


def _plain(data_type: pa.DataType) -> str | None:
    kinds = pa.types
    if kinds.is_string(data_type) or kinds.is_large_string(data_type) or kinds.is_string_view(data_type):
        return "string"
    if kinds.is_binary(data_type) or kinds.is_large_binary(data_type) or kinds.is_binary_view(data_type):
        return "binary"
    if kinds.is_fixed_size_binary(data_type):
        return "binary"
    names = {
        pa.null(): "void",
        pa.bool_(): "boolean",
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.uint8(): "short",
        pa.uint16(): "integer",
        pa.uint32(): "long",
        pa.uint64(): "decimal(20,0)",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.date64(): "date",
    }
    return names.get(data_type)
