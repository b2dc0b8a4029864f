"""Stage a DataFrame: Parquet files in the attempt's own directory, invisible to readers of the table.

Needs only the standard library and PySpark, no gateway to the JVM: runs on classic sessions and on Spark Connect.

Rows of the table that an overwrite replaces: those of a predicate, or those that match the new rows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from airflow_delta.contract.drift import check_contract
from airflow_delta.contract.key_values import KeyValues, same_exact_type
from airflow_delta.contract.mapping import zone_of_directories, zoneless_values
from airflow_delta.contract.operations import ComparedColumns, WriteArguments
from airflow_delta.contract.payloads import Json, ScanFile, ScanPlan
from airflow_delta.contract.request import RowIds, StageReport, StageRequest
from airflow_delta.contract.schema import IdentityRule, find_field, parse_struct
from airflow_delta.contract.spark_paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.contract.target import absent_identities, computed_names, partition_names, target_schema
from airflow_delta.exceptions import DeltaError
from airflow_delta.spark.key_values import bounds_of, key_values, measures
from airflow_delta.spark.read import FILE_COLUMN, Layout, read_plan_files
from airflow_delta.spark.row_ids import read_with_row_ids, row_id_fields
from airflow_delta.spark.rows import (
    RowChecks,
    align,
    checked,
    default_values,
    spark_name,
    spark_type,
    spark_value,
    with_generated,
    with_identities,
)
from airflow_delta.spark.write import (
    WRITE_SETTINGS,
    check_read_back,
    file_sizes,
    physical_names,
    read_again,
    rebalanced,
    session_settings,
    write_files,
    write_inserts,
    written_files,
)

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


def stage_dataframe(spark: SparkSession, df: DataFrame, request: StageRequest) -> StageReport:
    """Write a DataFrame for a request and report what was written.

    :raises SchemaDriftException: if the stage is strict, and the DataFrame does not have the expected schema.
    :raises SchemaMismatchException: if the DataFrame does not fit the table's schema (column, expected type, given type), or only
        with a cast that could lose a value.
    :raises InvariantViolationException: if a NOT NULL column would get a null, or a row breaks a constraint of the table.
    :raises IdentityInsertException: if the DataFrame has values for a column that is GENERATED ALWAYS.
    :raises ReplaceWhereMismatchException: if a row does not satisfy the ``replaceWhere`` predicate.
    """
    arguments, data = WriteArguments.of(request), df.schema.jsonValue()
    check_contract(data, request)
    target = target_schema(data, request)
    identities = absent_identities(data, request)
    checks = RowChecks(request.table, request.read_version)
    # A unique name: a cluster manager may start the driver of an attempt twice.
    run = uuid.uuid4().hex[:8]
    copied, deleted, inserted = f"{run}-copied", f"{run}-deleted", f"{run}-inserted"
    rewrite, touched, rows, keys = request.rewrite, list[ScanFile](), dict[str, int](), None
    try:
        with session_settings(spark, WRITE_SETTINGS):
            new = _new_rows(df, data, request, target, identities, checks)
            with file_sizes(spark, arguments.optimize_write):
                balanced = rebalanced(new, arguments.optimize_write, partition_names(target, request))
                rows[run] = write_files(balanced, request, target, run, checks, new_rows=True)
            replaced = None
            if rewrite is not None:
                replaced = ReplacedRows(spark, request, rewrite, target, run, num_rows=rows[run], on=arguments.replace_on)
            if replaced is not None:
                touched = replaced.files()
                keys = replaced.keys(arguments.keys)
            if replaced is not None and touched:
                ids = arguments.row_ids
                stored = target if ids is None else {**target, "fields": [*target["fields"], *row_id_fields(ids)]}
                kept = align(replaced.others(touched, ids), stored, checks)
                with file_sizes(spark, arguments.optimize_write):
                    kept = rebalanced(kept, arguments.optimize_write, partition_names(target, request))
                    rows[copied] = write_files(kept, request, stored, copied, checks)
            if replaced is not None and touched and request.rules.change_data:
                gone = replaced.rows(touched)
                rows[deleted] = write_files(align(gone, target, checks), request, target, deleted, checks, change_type="delete")
                rows[inserted] = write_inserts(spark, request, target, run, inserted, num_rows=rows[run])
        written = written_files(spark, request, rows, physical_names(target, request))
    except DeltaError:
        raise
    except Exception as failure:
        if (error := checks.error_in(failure)) is not None:
            raise error from failure
        raise
    return StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=(run,),
        copied_directories=(copied,) if touched else (),
        rewritten_files=tuple(file.path for file in touched),
        change_directories=(deleted, inserted) if touched and request.rules.change_data else (),
        path=request.path,
        written=written,
        identities=tuple(identity.column for identity in identities),
        schema_string=json.dumps(target, separators=(",", ":"), ensure_ascii=False),
        # If the data decide the schema, they also decide the spelling of partition columns.
        partition_columns=tuple(partition_names(target, request)) if request.schema_string is None else request.partition_columns,
        time_zone=zone_of_directories(rewrite),
        keys=keys,
    )


def _new_rows(
    df: DataFrame, data: Json, request: StageRequest, target: Json, identities: tuple[IdentityRule, ...], checks: RowChecks
) -> DataFrame:
    """Return the rows of the DataFrame with the columns of the target, each checked."""
    computed = computed_names(data, request.rules)
    aligned = align(df, target, checks, defaults=default_values(target, request.rules), without=computed)
    complete = with_generated(with_identities(aligned, identities, checks), target, request.rules, computed)
    return checked(complete, request, target, computed, checks)
