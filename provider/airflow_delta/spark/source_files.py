"""The rows of files that a stage loads, as a DataFrame. Nothing is left out silently: what does not parse fails the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from airflow_delta.contract.spark_paths import escape_glob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from airflow_delta.contract.payloads import Json

_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    # What a row has too much or too little would otherwise be dropped or null, and columns would go by position.
    "csv": {"mode": "FAILFAST", "enforceSchema": "false"},
    "json": {"mode": "FAILFAST"},
    "parquet": {"mergeSchema": "true"},  # else the columns of one file decide
    "avro": {},
}
_TRUE = ("true", "1")


def read_spark_files(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    file_format: str,
    options: Mapping[str, Any],
    table: Json | None,
    columns: Sequence[str] = (),
) -> DataFrame:
    """Return the rows of files.

    :param paths: URIs as Spark opens them.
    :param options: of Spark's reader of the format; they override what is set here, except that nothing may be missing.
    :param table: the table's schema (Spark's JSON form): what CSV and JSON have of its columns is read as their types.
    :param columns: names of the columns of CSV without a header; default: the table's.
    """
    given = {**_DEFAULTS[file_format], **{name: _text(value) for name, value in options.items()}, **_STRICT}
    literal = [escape_glob(path) for path in paths]
    reader = spark.read.format(file_format).options(**given)
    own = StructType.fromJson(_plain(table)) if table is not None else StructType([])
    if file_format == "csv":
        reader = reader.schema(_csv_schema(spark, literal, given, own, columns))
    elif file_format == "json":
        reader = reader.schema(_merged(own, reader.load(literal).schema))
    return reader.load(literal)


def _csv_schema(
    spark: SparkSession, paths: Sequence[str], options: Mapping[str, str], table: StructType, columns: Sequence[str]
) -> StructType:
    """Return the columns that the header of the first file names; Spark compares it with the headers of the others."""
    lower = {name.lower(): value for name, value in options.items()}
    infers = lower.get("inferschema", "false").lower() in _TRUE
    reader: DataFrameReader = spark.read.format("csv").options(**options)
    if lower.get("header", "false").lower() in _TRUE:
        found = reader.load(list(paths) if infers else paths[0]).schema
        names = found.names
    else:
        names = list(columns) or table.names
        found = StructType([])
        if infers or not names:
            found = reader.load(list(paths)).schema
            names = names or found.names
            found = StructType([StructField(name, field.dataType) for name, field in zip(names, found, strict=False)])
    own = {field.name.lower(): field for field in table}
    inferred = {field.name.lower(): field.dataType for field in found}
    return StructType(
        [
            StructField(own[name.lower()].name, own[name.lower()].dataType)
            if name.lower() in own
            else StructField(name, inferred.get(name.lower(), StringType()))
            for name in names
        ]
    )


def _merged(table: StructType, found: StructType) -> StructType:
    """Return the columns that were found, with the table's types where it has them, and with what only the files have."""
    own = {field.name.lower(): field.dataType for field in table}
    return StructType(
        [
            StructField(
                field.name, _type(own[field.name.lower()], field.dataType) if field.name.lower() in own else field.dataType
            )
            for field in found
        ]
    )


def _type(own: DataType, found: DataType) -> DataType:
    if isinstance(own, StructType) and isinstance(found, StructType):
        return _merged(own, found)
    if isinstance(own, ArrayType) and isinstance(found, ArrayType):
        return ArrayType(_type(own.elementType, found.elementType))
    if isinstance(own, MapType):
        return MapType(own.keyType, own.valueType)
    return own


def _plain(value: Any) -> Any:
    """Return a schema without what the log notes of its columns, and with all of them nullable."""
    if isinstance(value, Mapping):
        plain = {key: _plain(inner) for key, inner in value.items() if key != "metadata"}
        if "nullable" in plain:
            plain |= {"nullable": True, "metadata": {}}
        return plain
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
