"""Write aligned rows as Parquet files of the table: under their physical names, in partition directories.

Write Parquet files and report what was written: the worker must find exactly that.

Rows are counted by the job that writes them. Files and bytes are listed by Spark afterwards: if executors write to their own
disks, the files are not there.

Optimised writes: rows are shuffled first, so that files come out near a target size.

Otherwise every task writes a file for each partition of its rows. Adaptive execution merges and splits the partitions of a
``REBALANCE`` by their actual size, so that nothing has to be estimated.

Session settings of a staged write, set only while it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract.delta_names import CHANGE_TYPE, HIVE_NULL
from airflow_delta.contract.mapping import field_metadata, physical_field_name, physical_type, zoneless_values
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageRequest
from airflow_delta.contract.schema import Type, fields_by_name, nullable, without_void
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.contract.target import partition_fields
from airflow_delta.exceptions import DeltaAnalysisException, StagedFileException
from airflow_delta.spark.rows import RowChecks, converted, spark_name, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


WRITE_SETTINGS = {
    # Spark's default, INT96, has no statistics and is deprecated by Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Field ids of column mapping.
    "spark.sql.parquet.fieldId.write.enabled": "true",
    # Shredded variants are a table feature of their own. Spark shreds by default from 4.1 on.
    "spark.sql.variant.writeShredding.enabled": "false",
    "spark.sql.variant.inferShreddingSchema": "false",
}


@contextmanager
def session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Set properties of the session, and restore them at the end."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


_ROWS = "rows"

# Only sizes are read: one task per core, not per bytes.
_LISTING = {"spark.sql.files.maxPartitionBytes": str(2**50)}


def save(df: DataFrame, path: str, *, partitions: Sequence[str] = (), options: Mapping[str, str] | None = None) -> int:
    """Write rows as Parquet into a directory that does not exist, and return how many were written.

    :raises StagedFileException: if Spark does not report the number.
    """
    observation = Observation()
    df = df.observe(observation, sf.count(sf.lit(1)).alias(_ROWS))
    writer = df.write.format("parquet").mode("error").options(**(options or {}))
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.save(path)
    rows = observation.get.get(_ROWS)
    if rows is None:
        raise StagedFileException(f"Spark wrote to {path} and did not say how many rows: its observed metrics are missing.")
    return int(rows)


def check_read_back(written: int, found: int, path: str, request: StageRequest) -> None:
    """Check that rows written for this job itself can all be read.

    :raises StagedFileException: if they cannot.
    """
    if written != found:
        raise request.error(
            StagedFileException,
            f"Spark wrote {written} rows to {path} and reads {found} there (stage {request.stage} of table {request.table} "
            f"version {request.read_version}). Driver and executors must see the same files: the table cannot be on disks that "
            "only one machine sees. Nothing was committed.",
        )


def written_files(
    spark: SparkSession, request: StageRequest, rows: Mapping[str, int], partitions: Sequence[str] = ()
) -> dict[str, Json]:
    """Return the numbers of files, rows and bytes of each directory.

    :param rows: rows written, by directory below the attempt's; the names share a prefix.
    :param partitions: partition columns, as named in files.
    """
    if not rows:
        return {}
    # Spark's listings leave out directories whose names begin with a dot, even those of partitions.
    listed = not any(name.startswith(".") for name in partitions)
    files = {name: [0, 0] for name in rows}
    for path, size in _listing(spark, request, rows) if listed else ():
        for part in reversed(path.split("/")):
            if part in files:
                files[part][0] += 1
                files[part][1] += size
                break
    for name, count in rows.items():
        if count and listed and not files[name][0]:
            check_read_back(count, 0, f"{request.path}/{name}", request)
    return {
        name: {
            NUM_FILES: files[name][0] if listed else None,
            NUM_ROWS: count,
            NUM_BYTES: files[name][1] if listed else None,
        }
        for name, count in rows.items()
    }


def _listing(spark: SparkSession, request: StageRequest, names: Mapping[str, int]) -> list[tuple[str, int]]:
    run = next(iter(names)).split("-")[0]
    reader = spark.read.format("binaryFile").options(
        recursiveFileLookup="true", ignoreMissingFiles="false", ignoreCorruptFiles="false"
    )
    try:
        with session_settings(spark, _LISTING):
            found = reader.load(f"{escape_glob(request.path)}/{run}*").select("path", "length").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []  # object stores have no empty directories
    return [(str(row[0]), int(row[1])) for row in found]


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
    return f"timestampadd(MICROSECOND, unix_micros({spark_name(name)}), TIMESTAMP_NTZ'1970-01-01 00:00:00')"


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
        lost = checks.violated(
            DeltaAnalysisException,
            f"Partition column {field['name']} has the value '{HIVE_NULL}', with which the name of a directory spells null: it "
            "would be lost. Write another text, or null",
        )
        column = sf.when(column.cast("string") == sf.lit(HIVE_NULL), lost.cast(field["type"])).otherwise(column)
    if request.rules.column_mapping == "none":
        return column.alias(field["name"])
    if not isinstance(kind, str):
        column = column.cast(spark_type(physical_type(kind, request.rules)))
    return column.alias(physical_field_name(field, request.rules), metadata=field_metadata(field))


def rebalanced(df: DataFrame, size: int | None, partitions: Sequence[str]) -> DataFrame:
    """Return the rows in tasks that each write few files.

    :param size: ``optimize_write`` of the request; ``None``: leave the rows as they are.
    :param partitions: partition columns: the rows of a partition come together, split if they are more than a file holds.
    """
    if size is None:
        return df
    return df.hint("rebalance", *[sf.col(spark_name(name)) for name in partitions])


@contextmanager
def file_sizes(spark: SparkSession, size: int | None) -> Iterator[None]:
    """Set the session up so that adaptive execution gives each task the bytes of one file.

    :param size: ``optimize_write`` of the request; ``None``: leave the session as it is.
    """
    if size is None:
        yield
        return
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{size}b",
    }
    with session_settings(spark, settings):
        yield
