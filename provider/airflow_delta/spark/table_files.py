"""Write aligned rows as Parquet files of the table: under their physical names, in partition directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract.delta_names import CHANGE_TYPE, HIVE_NULL
from airflow_delta.contract.mapping import field_metadata, physical_field_name, physical_type
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import Type, fields_by_name, nullable, without_void
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.contract.target import partition_fields
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.spark.align import converted, spark_name, spark_type
from airflow_delta.spark.older_spark import after_epoch
from airflow_delta.spark.row_errors import RowChecks
from airflow_delta.spark.written_files import check_read_back, save

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_AFTER = "[89AB]."
_UTF8 = (
    f"^(?:[0-7].|(?:C[2-9A-F]|D.){_AFTER}|E0[AB].{_AFTER}|E[1-9A-CEF](?:{_AFTER}){{2}}|ED[89].{_AFTER}|F0[9AB].(?:{_AFTER}){{2}}"
    f"|F[1-3](?:{_AFTER}){{3}}|F48.(?:{_AFTER}){{2}})*$"
)
"""UTF-8 in hexadecimal digits, as RFC 3629 has it: Spark 3.5 has no function that asks for it."""


def write_files(
    df: DataFrame,
    request: StageRequest,
    target: Json,
    directory: str,
    checks: RowChecks,
    *,
    change_type: str | None = None,
    new_rows: bool = False,
) -> int:
    """Write rows into a directory of the attempt, and return how many.

    :param df: all columns of ``target`` in order, under their logical names.
    :param checks: gets the errors that rows may raise.
    :param change_type: write change data: the kind of change of all rows.
    :param new_rows: the rows are new; rows of the table stay in their partition, as the log spells it.
    """
    partitions = partition_fields(target, request)
    names = {field["name"] for field in partitions}
    stored = without_void(target, request.table)
    if partitions or request.rules.column_mapping != "none" or stored != target:
        zoneless = zoneless_values(request.rewrite) if partitions else {}
        whole = fields_by_name(target)
        columns = [
            _stored(whole[field["name"].lower()], field["type"], request, checks, in_path=field["name"] in names)
            for field in stored["fields"]
        ]
        for position, field in enumerate(stored["fields"] if zoneless else ()):
            if field["name"] in names and field["type"] == "timestamp":
                kept = set[str]() if new_rows else zoneless.get(field["name"], set())
                name = physical_field_name(field, request.rules)
                columns[position] = _as_in_log(df.sparkSession, field["name"], kept).alias(name, metadata=field_metadata(field))
        df = df.select(*columns)
    if change_type is not None:
        df = df.withColumn(CHANGE_TYPE, sf.lit(change_type))
    return _save(df, request, physical_names(target, request), directory)


def write_inserts(
    spark: SparkSession,
    request: StageRequest,
    target: Json,
    source: str,
    directory: str,
    *,
    change_type: str = "insert",
    num_rows: int,
) -> int:
    """Write the rows of a directory of this attempt again, as change data of inserted rows; return how many. The files are read:
    the DataFrame may give other rows if it runs again.

    :param change_type: the kind of change of the rows.
    :param num_rows: how many rows were written there.
    """
    partitions = physical_names(target, request)
    fields: list[Json] = []
    for field in without_void(target, request.table)["fields"]:
        name = physical_field_name(field, request.rules)
        # Values in directory names are copied as they are, whatever their type.
        kind = "string" if name in partitions else nullable(physical_type(field["type"], request.rules))
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": field_metadata(field)})
    schema = StructType.fromJson({"type": "struct", "fields": fields})
    written = f"{request.path}/{source}"
    rows = read_again(spark, written, schema, partitions, num_rows=num_rows)
    rows = rows.select(*[sf.col(spark_name(f["name"])).alias(f["name"], metadata=f["metadata"]) for f in fields])
    again = _save(rows.withColumn(CHANGE_TYPE, sf.lit(change_type)), request, partitions, directory)
    check_read_back(num_rows, again, written, request)
    return again


def read_again(spark: SparkSession, path: str, schema: StructType, partitions: Sequence[str], *, num_rows: int) -> DataFrame:
    """Return the rows of a directory that this attempt has written.

    :param partitions: partition columns, as named in files.
    :param num_rows: how many rows were written there.
    """
    reader, selected = spark.read.schema(schema).option("mergeSchema", "false"), escape_glob(path)
    if num_rows and any(name.startswith(".") for name in partitions):
        # Listings leave out directories whose names begin with a dot, unless the path selects them.
        reader, selected = reader.option("basePath", path), selected + "/*=*" * len(partitions)
    return reader.parquet(selected)


def physical_names(target: Json, request: StageRequest) -> list[str]:
    """Return the names of the partition columns in directory names."""
    return [physical_field_name(field, request.rules) for field in partition_fields(target, request)]


def _save(df: DataFrame, request: StageRequest, partitions: list[str], directory: str) -> int:
    return save(df, f"{request.path}/{directory}", partitions=partitions, options=request.options)


def _as_in_log(spark: SparkSession, name: str, texts: set[str]) -> Column:
    """Return a timestamp as in directory names: partition values of the log as they are, others in UTC with a zone.

    :param texts: partition values without a zone. If several are the same instant in this session, their rows move to the
        partition in UTC, as in Delta.
    """
    in_utc = sf.concat(sf.expr(_in_utc(name)).cast("string"), sf.lit("Z"))
    if not texts:
        return in_utc
    known = spark.createDataFrame([(text,) for text in sorted(texts)], "text STRING")
    read = [(row[0], row[1]) for row in known.selectExpr("text", "unix_micros(CAST(text AS TIMESTAMP))").collect()]
    times = Counter(micros for _, micros in read)
    unique = {micros: text for text, micros in read if times[micros] == 1}
    keys, values = sf.lit(list(unique)).cast("array<bigint>"), sf.lit(list(unique.values())).cast("array<string>")
    return sf.coalesce(sf.try_element_at(sf.map_from_arrays(keys, values), sf.unix_micros(sf.col(spark_name(name)))), in_utc)


def _in_utc(name: str) -> str:
    # Computed from the instant: formatting in a zone with daylight saving is ambiguous for an hour a year.
    return after_epoch(f"unix_micros({spark_name(name)})")


def _in_directory(column: Column, field: Json, checks: RowChecks) -> Column:
    """Return a text or bytes as the name of a directory can hold them: nothing is null, as Spark itself has it for texts only."""
    name = field["name"]
    lost = checks.violated(
        DeltaAnalysisException,
        f"Partition column {name} has the value '{HIVE_NULL}', with which the name of a directory spells null: it would be lost. "
        "Write another text, or null",
    )
    found = sf.when(sf.length(column) == 0, sf.lit(None).cast(field["type"]))
    found = found.when(column.cast("string") == sf.lit(HIVE_NULL), lost.cast(field["type"]))
    if field["type"] == "binary":
        no_text = checks.violated(
            DeltaAnalysisException,
            f"Partition column {name} has bytes that are not UTF-8, which the log cannot hold: they would be lost. Encode them",
        )
        found = found.when(~sf.hex(column).rlike(_UTF8), no_text.cast("binary"))
    return found.otherwise(column)


def _stored(field: Json, kind: Type, request: StageRequest, checks: RowChecks, *, in_path: bool) -> Column:
    """Return a column as in files or, for a partition column, in directory names.

    :param kind: its type in files, under logical names.
    """
    column = sf.col(spark_name(field["name"]))
    if kind != field["type"]:
        column = converted(column, field["type"], kind, field["name"], checks)
    if in_path and field["type"] == "timestamp":
        column = sf.expr(_in_utc(field["name"]))  # whatever the session's time zone
    if in_path and field["type"] in ("string", "binary"):
        column = _in_directory(column, field, checks)
    if request.rules.column_mapping == "none":
        return column.alias(field["name"])
    if not isinstance(kind, str):
        column = column.cast(spark_type(physical_type(kind, request.rules)))
    return column.alias(physical_field_name(field, request.rules), metadata=field_metadata(field))
