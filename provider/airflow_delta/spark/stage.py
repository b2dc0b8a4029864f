"""Stage a DataFrame: Parquet files in the attempt's own directory, which no reader of the table can see.

Standard library and PySpark only, no gateway to the JVM: runs on classic sessions and on Spark Connect.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaError, ReplaceWhereMismatchException
from airflow_delta.spark.align import RowChecks, align, quoted
from airflow_delta.spark.conf import WRITE_SETTINGS, session_settings
from airflow_delta.spark.paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.spark.read import FILE_COLUMN, read_files
from airflow_delta.staging.contract import Json, ScanFile, ScanPlan
from airflow_delta.staging.report import StageReport, StageRequest
from airflow_delta.staging.schema import find_field, parse_struct, written_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_delta.spark.job import delta_stage

__all__ = ["delta_stage", "stage_dataframe"]


def stage_dataframe(spark: SparkSession, df: DataFrame, request: StageRequest) -> StageReport:
    """Write a DataFrame as the request says and report what was written.

    :raises SchemaMismatchException: the DataFrame does not fit the table's schema (column, expected type, given type).
    :raises InvariantViolationException: a NOT NULL column would get a null.
    :raises ReplaceWhereMismatchException: a row does not satisfy the ``replaceWhere`` predicate.
    """
    target = written_schema(
        df.schema.jsonValue(),
        None if request.schema_string is None else parse_struct(request.schema_string),
        merge=request.merge_schema,
        table_name=request.table,
        version=request.read_version,
        partition_columns=request.partition_columns,
    )
    checks = RowChecks(request.table, request.read_version)
    # A name of its own: a cluster manager may start the driver of one attempt twice.
    run = uuid.uuid4().hex[:8]
    copied = f"{run}-copied"
    try:
        with session_settings(spark, WRITE_SETTINGS):
            rows = _inside_predicate(align(df, target, checks), request, target, checks)
            _write(rows, request, target, run)
            touched = _touched_files(spark, request.rewrite) if request.rewrite is not None else []
            if request.rewrite is not None and touched:
                kept = _kept_rows(spark, request.rewrite, touched)
                _write(align(kept, target, checks), request, target, copied)
    except DeltaError:
        raise
    except Exception as failure:
        if (error := checks.error_in(failure)) is not None:
            raise error from failure
        raise
    names = _partition_names(target, request)
    return StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=(run,),
        copied_directories=(copied,) if touched else (),
        rewritten_files=tuple(file.path for file in touched),
        schema_string=json.dumps(target, separators=(",", ":"), ensure_ascii=False),
        # A schema that the data decides also decides how its partition columns are spelled.
        partition_columns=tuple(names) if request.schema_string is None else request.partition_columns,
        time_zone="UTC",
    )


def _inside_predicate(df: DataFrame, request: StageRequest, target: Json, checks: RowChecks) -> DataFrame:
    """Return the rows, each checked against ``replaceWhere`` (a null is no match)."""
    if request.replace_where is None:
        return df
    from pyspark.sql import functions as sf

    violated = checks.violated(
        ReplaceWhereMismatchException,
        f"A row to write does not satisfy replaceWhere ({request.replace_where}). Filter the DataFrame or widen the predicate",
    )
    # A projection, not a filter: the optimiser moves filters below joins, where rows are still there that never get written.
    first = target["fields"][0]["name"]
    checked = sf.when(sf.expr(request.predicate or request.replace_where), sf.col(quoted(first))).otherwise(violated).alias(first)
    return df.select(checked, *[quoted(f["name"]) for f in target["fields"][1:]])


def _write(df: DataFrame, request: StageRequest, target: Json, directory: str) -> None:
    if request.partition_columns:
        df = df.select(*[_directory_value(f, request.partition_columns) for f in target["fields"]])
    writer = df.write.format("parquet").mode("error").options(**request.options)
    if request.partition_columns:
        writer = writer.partitionBy(*_partition_names(target, request))
    writer.save(f"{request.path}/{directory}")


def _partition_names(target: Json, request: StageRequest) -> list[str]:
    fields = [find_field(target, name) for name in request.partition_columns]
    return [f["name"] for f in fields if f is not None]


def _directory_value(field: Json, partition_columns: tuple[str, ...]) -> Column:
    """Return a column as it goes into file or directory names: timestamps in UTC, whatever the session's time zone."""
    from pyspark.sql import functions as sf

    column = sf.col(quoted(field["name"]))
    folded = {name.lower() for name in partition_columns}
    if field["name"].lower() not in folded or field["type"] != "timestamp":
        return column
    # By arithmetic on the instant: formatting in a zone with daylight saving would be ambiguous for an hour a year.
    utc = sf.expr(f"timestampadd(MICROSECOND, unix_micros({quoted(field['name'])}), TIMESTAMP_NTZ'1970-01-01 00:00:00')")
    return utc.alias(field["name"])


def _touched_files(spark: SparkSession, plan: ScanPlan) -> list[ScanFile]:
    """Return the files that hold at least one row that the predicate selects: only these are replaced."""
    from pyspark.sql import functions as sf

    if not plan.files or plan.predicate is None:
        return list(plan.files)
    rows = read_files(spark, plan, plan.files, file_column=True).where(sf.expr(plan.predicate))
    found = {normal_form_of_metadata(row[0]) for row in rows.select(FILE_COLUMN).distinct().collect()}
    return [file for file in plan.files if normal_form(data_file_uri(plan.table, file.path)) in found]


def _kept_rows(spark: SparkSession, plan: ScanPlan, touched: list[ScanFile]) -> DataFrame:
    """Return the rows of replaced files that the predicate does not select: where it is false or null."""
    from pyspark.sql import functions as sf

    rows = read_files(spark, plan, touched)
    return rows.where(~sf.coalesce(sf.expr(plan.predicate or "true"), sf.lit(False)))


def __getattr__(name: str) -> object:
    if name == "delta_stage":
        from airflow_delta.spark.job import delta_stage

        return delta_stage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
