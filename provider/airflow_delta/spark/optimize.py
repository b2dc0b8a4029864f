"""OPTIMIZE and REORG on Spark: each bin of files is read without its deleted rows and written as one or a few files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import StagingException
from airflow_delta.spark.align import RowChecks, spark_name
from airflow_delta.spark.conf import WRITE_SETTINGS, session_settings
from airflow_delta.spark.paths import data_file_uri, normal_form
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN, read_plan_files
from airflow_delta.spark.threads import with_job_group
from airflow_delta.spark.write import physical_names, write_files
from airflow_delta.spark.written import written_files
from airflow_delta.spark.zorder import along_z_curve
from airflow_delta.staging.contract import Json, ScanFile, ScanPlan
from airflow_delta.staging.optimize import OptimizeArguments, RowIds
from airflow_delta.staging.report import StageReport, StageRequest
from airflow_delta.staging.schema import parse_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEY, _BASE, _VERSION = "__airflow_delta_key", "__airflow_delta_base", "__airflow_delta_version"


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Write the bins of the request, each into its own directory, several at a time. Partition columns are left out: all files of
    a bin are of one partition, which the log knows, and the plan the directory.
    """
    plan = request.rewrite
    if plan is None or request.schema_string is None:
        raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to rewrite")
    arguments = OptimizeArguments.of(request)
    bins = arguments.bins
    prefix = uuid.uuid4().hex[:8]  # a cluster manager may start the driver of one attempt twice
    names = [f"{prefix}-{number}" for number in range(len(bins))]
    rows: dict[str, int] = {}

    def work(number: int) -> None:
        rows[names[number]] = _write_bin(spark, request, plan, arguments, number, names[number])

    with session_settings(spark, WRITE_SETTINGS):
        parallel = min(arguments.parallel, len(bins))
        if parallel <= 1:
            for number in range(len(bins)):
                work(number)
        else:
            # Spark runs jobs of several threads in parallel: a bin of one new file keeps one core busy.
            with ThreadPoolExecutor(parallel, thread_name_prefix="optimize") as pool:
                futures = [pool.submit(with_job_group(spark, work), number) for number in range(len(bins))]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
    return StageReport(
        transaction_id=request.transaction_id,
        stage=request.stage,
        attempt=request.attempt,
        directories=tuple(names),
        path=request.path,
        written=written_files(spark, request, rows, physical_names(parse_struct(request.schema_string), request)),
        rewritten_files=tuple(file.path for file in plan.files),
        schema_string=request.schema_string,
        partition_columns=request.partition_columns,
    )


def _write_bin(
    spark: SparkSession, request: StageRequest, plan: ScanPlan, arguments: OptimizeArguments, number: int, directory: str
) -> int:
    members, num_files = arguments.bins[number], arguments.outputs[number]
    files = [plan.files[position] for position in members]
    schema = parse_struct(request.schema_string or "")
    in_path = {name.lower() for name in request.partition_columns}
    fields = [field for field in schema["fields"] if field["name"].lower() not in in_path]
    ids = arguments.row_ids
    if ids is None:
        rows = read_plan_files(spark, plan, files)
    else:
        rows = _with_row_ids(spark, plan, files, ids, [(ids.base[n], ids.version[n]) for n in members])
        fields += [_row_id_field(name) for name in ids.columns]
    rows = rows.select(*[spark_name(field["name"]) for field in fields])
    columns = arguments.z_order_by
    if columns and num_files > 1:
        counts = [file.num_records for file in files]
        known = None if any(count is None for count in counts) else sum(count or 0 for count in counts)
        rows = along_z_curve(rows, columns, num_files, known)
    else:
        rows = rows.coalesce(1)
    target = {"type": "struct", "fields": fields}
    if arguments.directories and arguments.directories[number]:
        directory = f"{directory}/{arguments.directories[number]}"
    return write_files(rows, replace(request, partition_columns=()), target, directory, RowChecks(plan.table, plan.read_version))


# -- row tracking -------------------------------------------------------------------------------------------------------------


def _row_id_field(name: str) -> Json:
    return {"name": name, "type": "long", "nullable": True, "metadata": {}}


def _with_row_ids(
    spark: SparkSession, plan: ScanPlan, files: Sequence[ScanFile], ids: RowIds, first: Sequence[tuple[int, int]]
) -> DataFrame:
    """Return the rows with their row ids and commit versions: from the file, or by position in it.

    :param first: id of the first row and commit version of the rows, by file.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    schema = json.loads(plan.schema_string)
    schema["fields"] += [_row_id_field(name) for name in ids.columns]
    wider = replace(plan, schema_string=json.dumps(schema))
    rows = read_plan_files(spark, wider, files, file_column=True, row_column=True)
    values: list[tuple[Any, ...]] = [
        (normal_form(data_file_uri(plan.table, file.path)), *numbers) for file, numbers in zip(files, first, strict=True)
    ]
    known = spark.createDataFrame(
        values, StructType([StructField(_KEY, StringType()), *(StructField(name, LongType()) for name in (_BASE, _VERSION))])
    )
    # The same normal form as airflow_delta.spark.paths makes; a plus sign is not a space in Hadoop's encoding.
    rest = sf.regexp_replace(sf.col(FILE_COLUMN), "^[A-Za-z][A-Za-z0-9+.-]*:(//)?", "")
    key = sf.url_decode(sf.replace(rest, sf.lit("+"), sf.lit("%2B")))
    rows = rows.withColumn(_KEY, key).join(sf.broadcast(known), on=_KEY, how="left")
    lost = sf.raise_error(sf.concat(sf.lit("A file that was read is not in the scan plan: "), sf.col(FILE_COLUMN)))
    base = sf.when(sf.col(_BASE).isNull(), lost.cast("long")).otherwise(sf.col(_BASE))
    row_id, version = ids.columns
    return rows.withColumns(
        {
            row_id: sf.coalesce(sf.col(spark_name(row_id)), base + sf.col(ROW_COLUMN)),
            version: sf.coalesce(sf.col(spark_name(version)), sf.col(_VERSION)),
        }
    )
