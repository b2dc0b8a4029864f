"""Rows of the table that an overwrite replaces: those of a predicate, or those that match the new rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract.arguments import RowIds
from airflow_delta.contract.key_values import KeyValues, same_exact_type
from airflow_delta.contract.merge import ComparedColumns
from airflow_delta.contract.payloads import Json, ScanFile, ScanPlan
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import find_field
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.spark_paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.spark.align import spark_name, spark_type, spark_value
from airflow_delta.spark.key_values import bounds_of, key_values, measures
from airflow_delta.spark.layout import Layout
from airflow_delta.spark.read import FILE_COLUMN, read_plan_files
from airflow_delta.spark.row_ids import read_with_row_ids
from airflow_delta.spark.table_files import read_again
from airflow_delta.spark.written_files import check_read_back

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TARGET, SOURCE = "t", "s"


class ReplacedRows:
    """The rows of the table replaced by one attempt of an overwrite.

    :param directory: directory of the attempt with the new rows. They are read from there, since the DataFrame may give other
        rows if it runs again.
    :param num_rows: how many.
    :param on: ``replace_on`` of the request.
    """

    def __init__(
        self,
        spark: SparkSession,
        request: StageRequest,
        plan: ScanPlan,
        target: Json,
        directory: str,
        *,
        num_rows: int,
        on: str | None,
    ) -> None:
        self._spark = spark
        self._request = request
        self._plan = plan
        self._target = target
        self._directory = directory
        self._num_rows = num_rows
        self._on = on

    def files(self) -> list[ScanFile]:
        """Return the files with at least one such row; only these are replaced."""
        if not self._plan.files or (self._on is None and self._plan.predicate is None):
            return list(self._plan.files)
        rows = read_plan_files(self._spark, self._plan, self._plan.files, file_column=True)
        selected = self._select(rows, wanted=True)
        found = {normal_form_of_metadata(row[0]) for row in selected.select(FILE_COLUMN).distinct().collect()}
        return [file for file in self._plan.files if normal_form(data_file_uri(self._plan.table, file.path)) in found]

    def rows(self, files: Sequence[ScanFile]) -> DataFrame:
        """Return the replaced rows of files."""
        return self._select(read_plan_files(self._spark, self._plan, files), wanted=True)

    def others(self, files: Sequence[ScanFile], row_ids: RowIds | None) -> DataFrame:
        """Return the rows of files that stay, including those for which the condition is null.

        :param row_ids: of the plan: also return the columns with row ids.
        """
        if row_ids is None:
            return self._select(read_plan_files(self._spark, self._plan, files), wanted=False)
        return self._select(read_with_row_ids(self._spark, self._plan, files, row_ids), wanted=False)

    def keys(self, compared: Sequence[ComparedColumns]) -> KeyValues | None:
        """Return the new rows' values in the columns that the condition compares; ``None`` if none can be reported.

        :param compared: columns of the table, and of the new rows as ``source``.
        """
        before = parse_struct(self._plan.schema_string)
        found = []
        for key in compared:
            old, new = find_field(before, key.column), find_field(self._target, key.source[1:-1].replace("``", "`"))
            if old is not None and new is not None and same_exact_type(new, old):
                found.append((key, str(new["type"])))
        if not found:
            return None
        rows = self._written()
        wanted = [measure for key, data_type in found for measure in measures(sf.col(key.source), data_type)]
        read, *measured = rows.agg(sf.count("*"), *wanted).collect()[0]
        path = f"{self._request.path}/{self._directory}"
        check_read_back(self._num_rows, int(read), path, self._request)
        return key_values(rows, bounds_of(found, measured), self._num_rows, self._request, path)

    def _written(self) -> DataFrame:
        return written_rows(self._spark, self._request, self._target, self._directory, num_rows=self._num_rows)

    def _select(self, rows: DataFrame, *, wanted: bool) -> DataFrame:
        if self._on is None:
            selects = sf.coalesce(spark_value(self._plan.predicate or "true"), sf.lit(False))
            return rows.where(selects if wanted else ~selects)
        return rows.alias(TARGET).join(
            self._written().alias(SOURCE), spark_value(self._on), "left_semi" if wanted else "left_anti"
        )


def written_rows(spark: SparkSession, request: StageRequest, target: Json, directory: str, *, num_rows: int) -> DataFrame:
    """Return the rows of a directory of the attempt, under the table's names.

    :param num_rows: how many rows were written there.
    """
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
    names = [name for _, name in layout.partition_columns]
    rows = read_again(spark, f"{request.path}/{directory}", schema, names, num_rows=num_rows)
    zoned = bool(zoneless_values(request.rewrite))
    columns = {field["name"]: _partition_value(field, name, zoned=zoned) for field, name in layout.partition_columns}
    in_files = [field["name"] for field in layout.fields if field["name"] not in columns]
    columns |= dict(zip(in_files, layout.columns(), strict=True))
    return rows.select(*[columns[field["name"]].alias(field["name"]) for field in layout.fields])


def _partition_value(field: Json, name: str, *, zoned: bool) -> Column:
    """Return the value in a directory name; instants are named in UTC, whatever the session's time zone.

    :param zoned: the names have their zone.
    """
    text = sf.col(spark_name(name))
    if field["type"] == "timestamp" and not zoned:
        epoch = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
        return sf.expr(f"timestamp_micros(timestampdiff(MICROSECOND, {epoch}, CAST({spark_name(name)} AS TIMESTAMP_NTZ)))")
    return text if field["type"] == "string" else text.cast(spark_type(field["type"]))
