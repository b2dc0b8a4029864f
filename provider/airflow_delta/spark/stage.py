"""Stage a DataFrame: Parquet files in the attempt's own directory, invisible to readers of the table.

Needs only the standard library and PySpark, no gateway to the JVM: runs on classic sessions and on Spark Connect.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from airflow_delta.contract.drift import check_contract
from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.payloads import Json, ScanFile
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.table_rules import IdentityRule
from airflow_delta.contract.target import absent_identities, computed_names, partition_names, target_schema
from airflow_delta.contract.zones import zone_of_directories
from airflow_delta.exceptions import DeltaError
from airflow_delta.spark.align import align
from airflow_delta.spark.computed_columns import default_values, with_generated, with_identities
from airflow_delta.spark.older_spark import check_work
from airflow_delta.spark.optimized_write import file_sizes, rebalanced
from airflow_delta.spark.replaced_rows import ReplacedRows
from airflow_delta.spark.row_checks import checked
from airflow_delta.spark.row_errors import RowChecks
from airflow_delta.spark.row_ids import row_id_fields
from airflow_delta.spark.session_settings import WRITE_SETTINGS, session_settings
from airflow_delta.spark.table_files import physical_names, write_files, write_inserts
from airflow_delta.spark.written_files import written_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stage_dataframe(spark: SparkSession, df: DataFrame, request: StageRequest) -> StageReport:
    """Write a DataFrame for a request and report what was written.

    :raises SchemaDriftException: if the stage is strict, and the DataFrame does not have the expected schema.
    :raises SchemaMismatchException: if the DataFrame does not fit the table's schema (column, expected type, given type), or only
        with a cast that could lose a value.
    :raises InvariantViolationException: if a NOT NULL column would get a null, or a row breaks a constraint of the table.
    :raises IdentityInsertException: if the DataFrame has values for a column that is GENERATED ALWAYS.
    :raises ReplaceWhereMismatchException: if a row does not satisfy the ``replaceWhere`` predicate.
    :raises SparkVersionException: if this is Spark 3.5, which lacks what the table needs.
    """
    check_work(request)
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
