"""OPTIMIZE and REORG on Spark: each bin of files is read without its deleted rows and written as one or a few files."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as sf

from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.spark_paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.exceptions import StagingException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.spark.align import spark_name
from airflow_delta.spark.job_group import with_job_group
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN, read_plan_files
from airflow_delta.spark.row_errors import RowChecks
from airflow_delta.spark.row_ids import read_with_row_ids, row_id_fields
from airflow_delta.spark.session_settings import WRITE_SETTINGS, session_settings
from airflow_delta.spark.table_files import physical_names, write_files
from airflow_delta.spark.written_files import written_files
from airflow_delta.spark.zorder import along_curve

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
    first_rows: dict[str, list[list[int]]] = {}

    def work(number: int) -> None:
        records = arguments.record_rows and arguments.outputs[number] == 1
        order = _RowOrder(plan, bins[number]) if records else None
        rows[names[number]] = _write_bin(spark, request, plan, arguments, number, names[number], order)
        found = None if order is None else order.first_rows(rows[names[number]])
        if found is not None:
            first_rows[names[number]] = found

    in_order = arguments.record_rows and not arguments.z_order_by and not arguments.cluster_by
    whole = _WHOLE_FILES if in_order else {}
    with session_settings(spark, {**WRITE_SETTINGS, **whole}):
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
        first_rows=first_rows,
        rewritten_files=tuple(file.path for file in plan.files),
        schema_string=request.schema_string,
        partition_columns=request.partition_columns,
    )


def _write_bin(
    spark: SparkSession,
    request: StageRequest,
    plan: ScanPlan,
    arguments: OptimizeArguments,
    number: int,
    directory: str,
    order: _RowOrder | None,
) -> int:
    members, num_files = arguments.bins[number], arguments.outputs[number]
    files = [plan.files[position] for position in members]
    schema = parse_struct(request.schema_string or "")
    in_path = {name.lower() for name in request.partition_columns}
    fields = [field for field in schema["fields"] if field["name"].lower() not in in_path]
    ids = arguments.row_ids
    if ids is None:
        rows = read_plan_files(spark, plan, files, file_column=order is not None, row_column=order is not None)
    else:
        rows = read_with_row_ids(spark, plan, files, ids, file_column=True, row_column=True)
        fields += row_id_fields(ids)
    names = [spark_name(field["name"]) for field in fields]
    rows = rows.select(*names, *([] if order is None else [FILE_COLUMN, ROW_COLUMN]))
    columns = arguments.z_order_by or arguments.cluster_by
    if columns and num_files > 1:
        counts = [file.num_records for file in files]
        known = None if any(count is None for count in counts) else sum(count or 0 for count in counts)
        rows = along_curve(rows, columns, num_files, known, hilbert=bool(arguments.cluster_by))
    else:
        rows = rows.coalesce(1)
    if order is not None:
        rows = order.watched(rows).select(*names)
    target = {"type": "struct", "fields": fields}
    if arguments.directories and arguments.directories[number]:
        directory = f"{directory}/{arguments.directories[number]}"
    return write_files(rows, replace(request, partition_columns=()), target, directory, RowChecks(plan.table, plan.read_version))


# -- where rows go --------------------------------------------------------------------------------------------------------------

_WHOLE_FILES = {"spark.sql.files.maxPartitionBytes": str(2**50), "spark.sql.files.minPartitionNum": "1"}
"""A bin is one task, which reads one file after the other: splitting them would only mix their parts."""

_FEW, _KEY_OF_ROW, _SHIFT = "__airflow_delta_few", "__airflow_delta_key_of_row", "__airflow_delta_shift"
_BITS = 31
_MAX_ROWS = 1 << (_BITS - 1)
_FIRST = 256
"""Among the first rows of a file is one that is not deleted; else nothing is recorded."""


def _as_text(values: Column) -> Column:
    """An observation of PySpark 4.0 leaves arrays on the JVM's side."""
    return sf.to_json(values)


@dataclass(slots=True)
class _RowOrder:
    """Watches the job that writes a bin into one file, for what it says about the order of the rows.

    A task numbers its rows as it writes them. If the number less the position in the old file is the same for all rows of each
    file, they are there in order and without gaps. Rows of files with deletion vectors are sorted before, by file and position.
    Files are distinguished by the checksum of their names: columns of numbers cost the job little.

    :param members: positions of the files in the plan.
    """

    plan: ScanPlan
    members: Sequence[int]
    _observation: Observation | None = None

    @property
    def _sorts(self) -> bool:
        return any(self.plan.files[member].deletion_vector is not None for member in self.members)

    def watched(self, rows: DataFrame) -> DataFrame:
        """Return the rows of one task, watched.

        :param rows: with :data:`FILE_COLUMN` and :data:`ROW_COLUMN`.
        """
        self._observation = Observation()
        file = sf.shiftleft(sf.crc32(sf.col(FILE_COLUMN).cast("binary")), _BITS)
        few = sf.when(sf.col(ROW_COLUMN) < _FIRST, sf.col(FILE_COLUMN))
        found = [_as_text(sf.collect_set(_FEW)).alias("files")]
        if self._sorts:
            rows = rows.withColumn(_KEY_OF_ROW, file + sf.col(ROW_COLUMN)).sortWithinPartitions(_KEY_OF_ROW)
        else:
            shift = sf.monotonically_increasing_id() - sf.col(ROW_COLUMN)
            rows = rows.withColumn(_SHIFT, file + shift + sf.lit(_MAX_ROWS))
            found.append(_as_text(sf.collect_set(_SHIFT)).alias("shifts"))
        return rows.withColumn(_FEW, few).observe(self._observation, *found)

    def first_rows(self, num_rows: int) -> list[list[int]] | None:
        """Return, after the job, the position of each file in the plan and that of its first row in the new file.

        ``None`` if the rows of a file are not all in order, one after the other, or a file is not known.

        :param num_rows: rows that were written.
        """
        seen = {} if self._observation is None else {name: json.loads(text) for name, text in self._observation.get.items()}
        members = self._by_checksum(seen.get("files") or ())
        if members is None or num_rows >= _MAX_ROWS:
            return None
        if self._sorts:
            found, first = [], 0
            for checksum in sorted(members):
                found.append([members[checksum], first])
                count = self.plan.files[members[checksum]].num_records
                if count is None:
                    return None
                first += count
            return found if first == num_rows else None
        shifts = [divmod(shift, 1 << _BITS) for shift in seen.get("shifts") or ()]
        if len(shifts) != len(members) or {checksum for checksum, _shift in shifts} != members.keys():
            return None
        return [[members[checksum], shift - _MAX_ROWS] for checksum, shift in sorted(shifts, key=lambda found: found[1])]

    def _by_checksum(self, names: Sequence[str]) -> dict[int, int] | None:
        """Return the positions of files in the plan by the checksums of their names; ``None`` if these do not tell them apart."""
        known = {normal_form(data_file_uri(self.plan.table, self.plan.files[member].path)): member for member in self.members}
        found: dict[int, int] = {}
        for name in names:
            member, checksum = known.get(normal_form_of_metadata(name)), zlib.crc32(name.encode())
            if member is None or checksum in found:
                return None
            found[checksum] = member
        return found
