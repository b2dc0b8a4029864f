"""The rows of files that a stage loads, as a DataFrame. Nothing is left out silently: what does not parse fails the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.exceptions import SchemaMismatchException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

    from airflow_delta.contract.payloads import Json

_STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}  # of the session, too
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    # What a row has too much or too little would otherwise be dropped or null, and columns would go by position.
    "csv": {"mode": "FAILFAST", "enforceSchema": "false"},
    "json": {"mode": "FAILFAST"},
    "parquet": {"mergeSchema": "true"},  # else the columns of one file decide
    "avro": {"ignoreExtension": "true"},  # else a setting of Hadoop may leave out files that are not called .avro
    "orc": {"mergeSchema": "true"},
    "text": {},
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
        if _is_true(given, "multiLine"):
            _check_one_document(spark, literal, given)
        reader = reader.schema(_merged(own, reader.load(literal).schema))
    return reader.load(literal)


def _check_one_document(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str]) -> None:
    """Check that each file is one JSON document: with ``multiLine``, Spark reads the first and drops the others.

    Files are parsed as a list with one more value at its end: what follows the first document spoils it.

    :raises SchemaMismatchException: if one is not.
    """
    of_text = {name: value for name, value in options.items() if name.lower() in ("encoding", "charset", "ignoremissingfiles")}
    of_json = {name: value for name, value in options.items() if name.lower() not in ("mode", "multiline")}
    text = spark.read.format("text").options(**of_text, wholetext="true").load(list(paths))
    content = sf.regexp_replace("value", "^\ufeff", "")
    parsed = sf.from_json(sf.concat(sf.lit("["), content, sf.lit(',"end"]')), "array<string>", {**of_json, "mode": "PERMISSIVE"})
    whole = sf.coalesce((sf.size(parsed) == 2) & (sf.element_at(parsed, -1) == "end"), sf.lit(False))
    more = text.where(content.rlike(r"\S") & ~whole).select(sf.input_file_name()).limit(1).collect()
    if more:
        raise SchemaMismatchException(
            f"The file {more[0][0]} is not one JSON document, and with multiLine=true Spark would drop what follows the first "
            "one. Nothing was staged. Leave multiLine out if there is a document on each line; else write them as one array."
        )


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return {key.lower(): value for key, value in options.items()}.get(name.lower(), "false").strip().lower() in _TRUE


def _csv_schema(
    spark: SparkSession, paths: Sequence[str], options: Mapping[str, str], table: StructType, columns: Sequence[str]
) -> StructType:
    """Return the columns that the header of the first file names; Spark compares it with the headers of the others."""
    infers = _is_true(options, "inferSchema")
    reader: DataFrameReader = spark.read.format("csv").options(**options)
    if _is_true(options, "header"):
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
