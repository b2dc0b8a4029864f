"""Read a table at a version as a DataFrame: exactly the files of a scan plan, with the partition values of the log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.spark.align import quoted, spark_type
from airflow_delta.spark.paths import data_file_uri, escape_glob, normal_form
from airflow_delta.staging.contract import Json, ScanFile, ScanPlan
from airflow_delta.staging.schema import find_field, nullable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FILE_COLUMN = "__airflow_delta_file"
"""Name of the column with ``_metadata.file_path`` that :func:`read_files` can add."""

MAX_LITERAL_PARTITIONS = 16
"""Up to so many partitions are read one by one, their values as literals; more are joined to the files by path."""


def read_scan_plan(spark: SparkSession, plan: ScanPlan) -> DataFrame:
    """Return the rows that a scan plan selects, with the columns of the table's schema in order.

    Partition values come from the plan, never from directory names; columns that a file does not have are null.
    """
    from pyspark.sql import functions as sf

    df = read_files(spark, plan, plan.files)
    return df if plan.predicate is None else df.where(sf.expr(plan.predicate))


def read_files(spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile], *, file_column: bool = False) -> DataFrame:
    """Return all rows of some files of a plan.

    :param file_column: add :data:`FILE_COLUMN`.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    schema = nullable(json.loads(plan.schema_string))
    partition_columns = [f for f in (find_field(schema, name) for name in plan.partition_columns) if f is not None]
    names = {f["name"] for f in partition_columns}
    stored = {"type": "struct", "fields": [f for f in schema["fields"] if f["name"] not in names]}
    if not files:
        empty = StructType.fromJson(schema)
        return spark.createDataFrame([], empty.add(StructField(FILE_COLUMN, StringType())) if file_column else empty)

    groups: dict[tuple[str | None, ...], list[ScanFile]] = defaultdict(list)
    for file in files:
        groups[tuple(file.partition_values.get(f["name"]) for f in partition_columns)].append(file)
    out = [f["name"] for f in schema["fields"]] + ([FILE_COLUMN] if file_column else [])
    if len(groups) > MAX_LITERAL_PARTITIONS:
        joined = _join_by_path(spark, plan, files, stored, partition_columns)
        return joined.select(*[quoted(name) for name in out])
    whole: DataFrame | None = None
    for values, members in groups.items():
        part = _read_parquet(spark, plan, members, stored)
        for field, value in zip(partition_columns, values, strict=True):
            part = part.withColumn(field["name"], _literal(value, field))
        part = part.select(*[quoted(name) for name in out])
        whole = part if whole is None else whole.unionAll(part)
    return whole  # type: ignore[return-value]


def _read_parquet(spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile], stored: Json) -> DataFrame:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructType

    paths = [escape_glob(data_file_uri(plan.table, file.path)) for file in files]
    # The schema is given: nothing is inferred, neither from footers nor from directory names; names match whatever their case.
    df = spark.read.schema(StructType.fromJson(stored)).option("mergeSchema", "false").parquet(*paths)
    return df.withColumn(FILE_COLUMN, sf.col("_metadata.file_path"))


def _literal(value: str | None, field: Json) -> Column:
    from pyspark.sql import functions as sf

    return _typed(sf.lit(value).cast("string"), field)


def _typed(text: Column, field: Json) -> Column:
    return text if field["type"] == "string" else text.cast(spark_type(field["type"]))


def _join_by_path(
    spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile], stored: Json, partition_columns: Sequence[Json]
) -> DataFrame:
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    key, known = "__airflow_delta_key", "__airflow_delta_known"
    columns = [f"__airflow_delta_partition_{i}" for i in range(len(partition_columns))]
    rows = [
        (normal_form(data_file_uri(plan.table, f.path)), *(f.partition_values.get(c["name"]) for c in partition_columns))
        for f in files
    ]
    schema = StructType([StructField(name, StringType()) for name in (key, *columns)])
    values = sf.broadcast(spark.createDataFrame(rows, schema).withColumn(known, sf.lit(True)))
    # The same normal form as airflow_delta.spark.paths makes; a plus sign is no space in Hadoop's encoding.
    rest = sf.regexp_replace(sf.col(FILE_COLUMN), "^[A-Za-z][A-Za-z0-9+.-]*:(//)?", "")
    decoded = sf.url_decode(sf.replace(rest, sf.lit("+"), sf.lit("%2B")))
    joined = _read_parquet(spark, plan, files, stored).withColumn(key, decoded).join(values, on=key, how="left")
    lost = sf.raise_error(sf.concat(sf.lit("A file that was read is not in the scan plan: "), sf.col(FILE_COLUMN)))
    return joined.withColumns(
        {
            field["name"]: sf.when(sf.col(known).isNull(), lost).otherwise(_typed(sf.col(name), field))
            for name, field in zip(columns, partition_columns, strict=True)
        }
    )
