"""The schema of a Parquet file as Spark reads it (``ParquetToSparkSchemaConverter``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyarrow import types

from airflow_delta.contract.schema import TYPED_VALUE, WRITE_WHOLE
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    nullable_schema,
)
from airflow_delta.log.schema.walk import Path, dotted
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_VARIANT_GROUP = "(Variant("
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SIGNED = {8: "byte", 16: "short", 32: "integer", 64: "long"}
_UNSIGNED = {8: "short", 16: "integer", 32: "long"}
_TEXT = frozenset({"String", "Enum", "JSON"})
_REMEDIES = {
    "Timestamp": 'Rewrite the file with coerce_timestamps="us" (pandas, PyArrow), or cast the column to microseconds.',
    "Float16": "Rewrite the file with the column cast to float32.",
    "Time": "Rewrite the file with the column as a string or a number.",
    "UUID": "Rewrite the file with the column as a string.",
}
_PLAIN = {
    "BOOLEAN": "boolean",
    "INT32": "integer",
    "INT64": "long",
    "INT96": "timestamp",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BYTE_ARRAY": "binary",
    "FIXED_LEN_BYTE_ARRAY": "binary",
}


def schema_of_footer(footer: pq.FileMetaData) -> StructType:
    """Return the schema of a Parquet file: what Spark noted in it, or else its types as Spark reads them; all nullable.

    A note that does not fit the file is ignored: PyArrow and pandas keep it through renames, casts and added columns.

    :raises DeltaAnalysisException: if a column has a type that Spark cannot read or Delta cannot store, or is a shredded variant.
    """
    columns = (footer.schema.column(i) for i in range(footer.num_columns))
    arrow = footer.schema.to_arrow_schema()
    stored = StructType(tuple(StructField(f.name, _type(f.type, columns)) for f in arrow))
    note = (footer.metadata or {}).get(_SPARK_SCHEMA)
    if note is not None and _describes(noted := TableDefinition.of_rows(note.decode()).schema, stored):
        return nullable_schema(_described(noted))
    if _VARIANT_GROUP in str(footer.schema):
        raise DeltaAnalysisException(
            "it has variants, and no note of Spark's that says in which columns. Have Spark write it, or write the values as "
            "JSON text, of which parse_json makes variants."
        )
    return nullable_schema(stored)


def _describes(noted: DataType, stored: DataType, path: Path = ()) -> bool:
    """Return whether a noted type matches the stored columns.

    :raises DeltaAnalysisException: if a variant is shredded.
    """
    match noted, stored:
        case StructType(mine), StructType(theirs):
            return [f.name for f in mine] == [f.name for f in theirs] and all(
                _describes(one.data_type, other.data_type, (*path, one.name)) for one, other in zip(mine, theirs, strict=True)
            )
        case ArrayType(), ArrayType():
            return _describes(noted.element_type, stored.element_type, (*path, "element"))
        case MapType(), MapType():
            return _describes(noted.key_type, stored.key_type, (*path, "key")) and _describes(
                noted.value_type, stored.value_type, (*path, "value")
            )
    if noted.name == "variant" and isinstance(stored, StructType):
        if TYPED_VALUE in stored.names:
            raise DeltaAnalysisException(f"column {dotted(path)} is a shredded variant. {WRITE_WHOLE}")
        return set(stored.names) == {"metadata", "value"}  # in any order
    return noted == stored or noted.name == "void"


def _described(schema: StructType) -> StructType:
    """Return the schema with comments but without other metadata of another table."""

    def plain(data_type: DataType) -> DataType:
        match data_type:
            case StructType():
                return _described(data_type)
            case ArrayType(element, contains_null):
                return ArrayType(plain(element), contains_null)
            case MapType(key, value, contains_null):
                return MapType(plain(key), plain(value), contains_null)
        return data_type

    return StructType(
        tuple(
            StructField(f.name, plain(f.data_type), f.nullable, {k: v for k, v in f.metadata.items() if k == "comment"})
            for f in schema.fields
        )
    )


def _type(arrow: pa.DataType, columns: Iterator[Any]) -> DataType:
    """Return a type: Arrow gives the nesting, the file's columns what they hold."""
    storage = getattr(arrow, "storage_type", arrow)
    if types.is_struct(storage):
        return StructType(tuple(StructField(f.name, _type(f.type, columns)) for f in storage))
    if types.is_map(storage):
        return MapType(_type(storage.key_type, columns), _type(storage.item_type, columns))
    if types.is_list(storage) or types.is_large_list(storage) or types.is_fixed_size_list(storage):
        return ArrayType(_type(storage.value_type, columns))
    return _leaf(next(columns))


def _leaf(column: Any) -> DataType:
    logical: Mapping[str, Any] = json.loads(column.logical_type.to_json())
    kind, physical = logical["Type"], column.physical_type
    match kind:
        case "None" | "Null" | "BSON" | "Undefined":
            return PrimitiveType(_PLAIN[physical])
        case "Decimal":
            return DecimalType(int(logical["precision"]), int(logical["scale"]))
        case "Date":
            return PrimitiveType("date")
        case "Int":
            width = int(logical["bitWidth"])
            if logical["isSigned"]:
                return PrimitiveType(_SIGNED[width])
            return DecimalType(20, 0) if width == 64 else PrimitiveType(_UNSIGNED[width])
        case "Timestamp" if logical["timeUnit"] in ("milliseconds", "microseconds"):
            return PrimitiveType("timestamp" if logical["isAdjustedToUTC"] else "timestamp_ntz")
    if kind in _TEXT:
        return PrimitiveType("string")
    raise DeltaAnalysisException(
        f"column {column.path} has the Parquet type {physical} ({column.logical_type}), which Spark cannot read or Delta "
        f"cannot store (PARQUET_TYPE_ILLEGAL). {_REMEDIES.get(kind, 'Rewrite the file with another type.')}"
    )


def readable_schema(footer: pq.FileMetaData, path: str, *, table: str) -> StructType:
    """Return the schema of a Parquet file as Spark reads it.

    :raises DeltaAnalysisException: if a column has a type that Spark cannot read, or Delta not store; names file and column.
    """
    try:
        return schema_of_footer(footer)
    except DeltaAnalysisException as error:
        raise DeltaAnalysisException(f"{path} of {table} cannot be part of a table: {error.message}", table=table) from error
