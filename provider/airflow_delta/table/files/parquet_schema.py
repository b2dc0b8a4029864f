"""The schema of a directory of Parquet files as Spark reads it (``ParquetToSparkSchemaConverter``), merged from all files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyarrow import types

from airflow_delta.contract.schema import TYPED_VALUE, WRITE_WHOLE
from airflow_delta.contract.sql_types import parse_sql_type
from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.schema.partition_values import is_partition_type
from airflow_delta.log.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Path,
    PrimitiveType,
    StructField,
    StructType,
    dotted,
    nullable_schema,
    parse_type,
)
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_VARIANT_GROUP = "(Variant("
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
# Parquet stores them the same way, so a file with the narrower type can be read as the wider one (Delta's SchemaMergingUtils).
_STORED_ALIKE = ("byte", "short", "integer")
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


# -- many files ---------------------------------------------------------------------------------------------------------------


class MergedSchema:
    """The schema of several files: all their columns, each with the type that all files agree on.

    Names are compared ignoring case; the first spelling is kept.

    :param table: location of the files, for errors.
    """

    def __init__(self, table: str) -> None:
        self.schema = StructType()
        self._table = table
        self._seen: set[StructType] = set()
        self._origin: dict[tuple[str, ...], str] = {}

    def add(self, schema: StructType, file: str) -> None:
        """Add the columns of a file."""
        if schema in self._seen:
            return
        self.schema = self._struct(self.schema, schema, (), file)
        self._seen.add(schema)

    def _struct(self, known: StructType, new: StructType, path: tuple[str, ...], file: str) -> StructType:
        fields = list(known.fields)
        positions = {f.name.lower(): i for i, f in enumerate(fields)}
        for field in new.fields:
            folded = field.name.lower()
            here = (*path, folded)
            if folded not in positions:
                positions[folded] = len(fields)
                fields.append(field)
                self._note(field.data_type, here, file)
                continue
            same = fields[positions[folded]]
            fields[positions[folded]] = replace(same, data_type=self._merge(same.data_type, field.data_type, here, file))
        return StructType(tuple(fields))

    def _note(self, data_type: DataType, path: tuple[str, ...], file: str) -> None:
        """Note which file a column, with everything inside, comes from."""
        self._origin[path] = file
        match data_type:
            case StructType(fields):
                for field in fields:
                    self._note(field.data_type, (*path, field.name.lower()), file)
            case ArrayType(element, _):
                self._note(element, path, file)
            case MapType(key, value, _):
                self._note(key, path, file)
                self._note(value, path, file)

    def _merge(self, known: DataType, new: DataType, path: tuple[str, ...], file: str) -> DataType:
        if known == new:
            return known
        match known, new:
            case StructType(), StructType():
                return self._struct(known, new, path, file)
            case ArrayType(), ArrayType():
                return ArrayType(self._merge(known.element_type, new.element_type, path, file))
            case MapType(), MapType():
                key = self._merge(known.key_type, new.key_type, path, file)
                return MapType(key, self._merge(known.value_type, new.value_type, path, file))
        if known.name in _STORED_ALIKE and new.name in _STORED_ALIKE:
            return max(known, new, key=lambda kind: _STORED_ALIKE.index(kind.name))
        raise SchemaMismatchException(
            f"The Parquet files of {self._table} disagree on column {'.'.join(path)}: it is {known} in {self._origin[path]} and "
            f"{new} in {file} (DELTA_FAILED_TO_MERGE_FIELDS). Rewrite one of them, or move it out of the directory.",
            table=self._table,
        )


# -- partition columns --------------------------------------------------------------------------------------------------------


def parse_partition_schema(given: str | Mapping[str, str] | None) -> StructType:
    """Return the partition columns, given as SQL (``p STRING, q DATE``), a schema in JSON form, or types by name.

    :raises DeltaAnalysisException: if the value is none of these, or a type cannot partition a table.
    """
    if not given:
        return StructType()
    if isinstance(given, Mapping):
        schema = StructType(tuple(StructField(name, parse_type(parse_sql_type(kind))) for name, kind in given.items()))
    elif given.lstrip().startswith("{"):
        schema = TableDefinition.of_rows(given).schema
    else:
        parsed = parse_type(parse_sql_type(f"STRUCT<{given}>"))
        schema = parsed if isinstance(parsed, StructType) else StructType()
    for field in schema.fields:
        if not is_partition_type(field.data_type):
            raise DeltaAnalysisException(
                f"Column {field.name} of type {field.data_type} cannot partition a table (DELTA_INVALID_PARTITION_COLUMN_TYPE)."
            )
    return nullable_schema(schema)


def with_partition_columns(data: StructType, partitions: StructType) -> StructType:
    """Return the schema of a table: partition columns that files also hold keep their place, the others come last."""
    fields = [partitions.find(f.name) or f for f in data.fields]
    stored = {f.name.lower() for f in data.fields}
    return StructType((*fields, *(f for f in partitions.fields if f.name.lower() not in stored)))
