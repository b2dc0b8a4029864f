"""Rows with their row ids and row commit versions, for files that keep them (Delta protocol, "Row Tracking")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from airflow_delta.contract.arguments import RowIds
from airflow_delta.contract.payloads import Json, ScanFile, ScanPlan
from airflow_delta.contract.spark_paths import data_file_uri, normal_form
from airflow_delta.spark.align import spark_name
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN, normal_form_of_names, read_plan_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY, _BASE, _VERSION = "__airflow_delta_key", "__airflow_delta_base", "__airflow_delta_version"


def row_id_fields(ids: RowIds) -> list[Json]:
    """Return the columns of row ids, which are in files but not in the table's schema."""
    return [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ids.columns]


def read_with_row_ids(
    spark: SparkSession,
    plan: ScanPlan,
    files: Sequence[ScanFile],
    ids: RowIds,
    *,
    file_column: bool = False,
    row_column: bool = False,
) -> DataFrame:
    """Return the live rows of some files of a plan with their row ids and commit versions: from the file, or by position in it.

    :param ids: of all files of the plan.
    :param file_column: add the name of the file, as :func:`~airflow_delta.spark.read.read_plan_files` does.
    :param row_column: add the position in the file.
    """
    schema = json.loads(plan.schema_string)
    schema["fields"] += row_id_fields(ids)
    wider = replace(plan, schema_string=json.dumps(schema))
    rows = read_plan_files(spark, wider, files, file_column=True, row_column=True)
    first = {file.path: numbers for file, *numbers in zip(plan.files, ids.base, ids.version, strict=True)}
    values: list[tuple[Any, ...]] = [(normal_form(data_file_uri(plan.table, file.path)), *first[file.path]) for file in files]
    known = spark.createDataFrame(
        values, StructType([StructField(_KEY, StringType()), *(StructField(name, LongType()) for name in (_BASE, _VERSION))])
    )
    key = normal_form_of_names([value[0] for value in values])
    rows = rows.withColumn(_KEY, key).join(sf.broadcast(known), on=_KEY, how="left")
    lost = sf.raise_error(sf.concat(sf.lit("A file that was read is not in the scan plan: "), sf.col(FILE_COLUMN)))
    base = sf.when(sf.col(_BASE).isNull(), lost.cast("long")).otherwise(sf.col(_BASE))
    row_id, version = ids.columns
    rows = rows.withColumns(
        {
            row_id: sf.coalesce(sf.col(spark_name(row_id)), base + sf.col(ROW_COLUMN)),
            version: sf.coalesce(sf.col(spark_name(version)), sf.col(_VERSION)),
        }
    )
    positions = [name for wanted, name in ((file_column, FILE_COLUMN), (row_column, ROW_COLUMN)) if wanted]
    return rows.select(*(spark_name(field["name"]) for field in schema["fields"]), *positions)
