"""The schema of a checkpoint in Spark's JSON form, as Delta records it beside the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

_SPARK_NAMES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def spark_schema(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """Return columns in Spark's JSON form, all nullable, as Delta records the schema of a checkpoint."""
    return {
        "type": "struct",
        "fields": [{"name": f.name, "type": _spark_type(f.type), "nullable": True, "metadata": {}} for f in fields],
    }


def _spark_type(data_type: pa.DataType) -> Any:
    if pa.types.is_struct(data_type):
        return spark_schema(data_type)
    if pa.types.is_map(data_type):
        return {
            "type": "map",
            "keyType": _spark_type(data_type.key_type),
            "valueType": _spark_type(data_type.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(data_type):
        return {"type": "array", "elementType": _spark_type(data_type.value_type), "containsNull": True}
    if pa.types.is_timestamp(data_type):
        return "timestamp" if data_type.tz is not None else "timestamp_ntz"
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _SPARK_NAMES[data_type]
