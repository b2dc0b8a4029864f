"""Rows of the table that an overwrite replaces: those of a predicate, or those that match the new rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.spark.align import quoted, spark_type
from airflow_delta.spark.layout import Layout
from airflow_delta.spark.paths import data_file_uri, escape_glob, normal_form, normal_form_of_metadata
from airflow_delta.spark.read import FILE_COLUMN, read_files
from airflow_delta.staging.contract import Json, ScanFile, ScanPlan
from airflow_delta.staging.report import StageRequest
from airflow_delta.staging.zones import zoneless_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TARGET, SOURCE = "t", "s"


class ReplacedRows:
    """The rows of the table replaced by one attempt of an overwrite.

    :param directory: directory of the attempt with the new rows. They are read from there, since the DataFrame may give other
        rows if it runs again.
    :param on: ``replace_on`` of the request.
    """

    def __init__(
        self, spark: SparkSession, request: StageRequest, plan: ScanPlan, target: Json, directory: str, *, on: str | None
    ) -> None:
        self._spark = spark
        self._request = request
        self._plan = plan
        self._target = target
        self._directory = directory
        self._on = on

    def files(self) -> list[ScanFile]:
        """Return the files with at least one such row; only these are replaced."""
        if not self._plan.files or (self._on is None and self._plan.predicate is None):
            return list(self._plan.files)
        rows = read_files(self._spark, self._plan, self._plan.files, file_column=True)
        selected = self._select(rows, wanted=True)
        found = {normal_form_of_metadata(row[0]) for row in selected.select(FILE_COLUMN).distinct().collect()}
        return [file for file in self._plan.files if normal_form(data_file_uri(self._plan.table, file.path)) in found]

    def rows(self, files: Sequence[ScanFile], *, wanted: bool) -> DataFrame:
        """Return the replaced rows of files, or the others, including those for which the condition is null."""
        return self._select(read_files(self._spark, self._plan, files), wanted=wanted)

    def _select(self, rows: DataFrame, *, wanted: bool) -> DataFrame:
        from pyspark.sql import functions as sf

        if self._on is None:
            selects = sf.coalesce(sf.expr(self._plan.predicate or "true"), sf.lit(False))
            return rows.where(selects if wanted else ~selects)
        written = written_rows(self._spark, self._request, self._target, self._directory).alias(SOURCE)
        return rows.alias(TARGET).join(written, sf.expr(self._on), "left_semi" if wanted else "left_anti")


def written_rows(spark: SparkSession, request: StageRequest, target: Json, directory: str) -> DataFrame:
    """Return the rows of a directory of the attempt, under the table's names."""
    from pyspark.sql.types import StructType

    layout = Layout(
        ScanPlan(
            transaction_id=request.transaction_id,
            table=request.table,
            read_version=request.read_version,
            schema_string=json.dumps(target),
            partition_columns=request.partition_columns,
            column_mapping=request.rules.column_mapping,
        )
    )
    partitions = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for _, name in layout.partition_columns]
    schema = StructType.fromJson({"type": "struct", "fields": [*layout.stored["fields"], *partitions]})
    rows = spark.read.schema(schema).option("mergeSchema", "false").parquet(escape_glob(f"{request.path}/{directory}"))
    zoned = bool(zoneless_values(request.rewrite))
    columns = {field["name"]: _partition_value(field, name, zoned=zoned) for field, name in layout.partition_columns}
    in_files = [field["name"] for field in layout.fields if field["name"] not in columns]
    columns |= dict(zip(in_files, layout.columns(), strict=True))
    return rows.select(*[columns[field["name"]].alias(field["name"]) for field in layout.fields])


def _partition_value(field: Json, name: str, *, zoned: bool) -> Column:
    """Return the value in a directory name; instants are named in UTC, whatever the session's time zone.

    :param zoned: the names have their zone.
    """
    from pyspark.sql import functions as sf

    text = sf.col(quoted(name))
    if field["type"] == "timestamp" and not zoned:
        epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
        return sf.expr(f"timestamp_micros(timestampdiff(MICROSECOND, {epoch}, CAST({quoted(name)} AS TIMESTAMP_NTZ)))")
    return text if field["type"] == "string" else text.cast(spark_type(field["type"]))
