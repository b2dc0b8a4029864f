"""OPTIMIZE and REORG on Spark: each bin of files is read without its deleted rows and written as one or a few files.

Z-order and clustering: rows that are close in several columns go into the same file.

Each column is split into ranges of about equally many rows, with boundaries from a sample. The numbers of a row's ranges give its
place on a curve: with their bits interleaved, on the Z-curve; for clustered tables, on the Hilbert curve, whose neighbours differ
in one number by one. Spark's range partitioning splits the curve into files (like Delta's ``ZOrderClustering`` and
``HilbertClustering``, which have their own expressions). Plain Spark SQL, without Python functions or Delta's jar.

Concurrent Spark jobs, from threads of one driver.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import inheritable_thread_target
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from airflow_delta.contract.operations import OptimizeArguments
from airflow_delta.contract.payloads import ScanPlan
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema import parse_struct
from airflow_delta.contract.spark_paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.exceptions import StagingException
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN, read_plan_files
from airflow_delta.spark.row_ids import read_with_row_ids, row_id_fields
from airflow_delta.spark.rows import RowChecks, spark_name
from airflow_delta.spark.write import WRITE_SETTINGS, physical_names, session_settings, write_files, written_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


MAX_RANGE_BITS = 10
"""Bits of a range's number: Delta splits a column into 1000 ranges (``optimize.zorder.mdcNumRangeIds``)."""

MAX_HILBERT_COLUMNS = 4
"""As many as Delta clusters a table by; the states of the curve are four times as many with each further column."""

SAMPLES_PER_RANGE = 40
_SEED = 20_130_101
_TEXT_PREFIX = 128


def along_curve(
    rows: DataFrame, columns: Sequence[tuple[str, ...]], num_files: int, num_rows: int | None, *, hilbert: bool = False
) -> DataFrame:
    """Return the rows in ``num_files`` partitions along a curve.

    :param columns: paths, the most important one first.
    :param num_rows: number of rows, if known.
    :param hilbert: take the Hilbert curve, for 2 to 4 columns; else the Z-curve.
    """
    index = _hilbert_index if hilbert and 1 < len(columns) <= MAX_HILBERT_COLUMNS else _interleaved
    bits = min(MAX_RANGE_BITS, 63 // len(columns))
    keys = [f"__airflow_delta_key_{number}" for number in range(len(columns))]
    ids = [f"__airflow_delta_range_{number}" for number in range(len(columns))]
    place, noise = "__airflow_delta_place", "__airflow_delta_noise"
    with_keys = rows.withColumns({key: _comparable(rows, path) for key, path in zip(keys, columns, strict=True)})
    boundaries = _boundaries(with_keys.select(*keys), keys, 1 << bits, num_rows)
    types = dict(with_keys.select(*keys).dtypes)
    with_ids = with_keys.withColumns(
        {name: _range_of(sf.col(key), types[key], boundaries[key], bits) for name, key in zip(ids, keys, strict=True)}
    )
    placed = with_ids.withColumns({place: index([sf.col(name) for name in ids], bits), noise: sf.rand(_SEED)})
    # The noise separates rows of the same place, so that no file gets all rows of a frequent value.
    return placed.repartitionByRange(num_files, sf.col(place), sf.col(noise)).select(*[spark_name(name) for name in rows.columns])


def _comparable(rows: DataFrame, path: tuple[str, ...]) -> Column:
    """Return a column as a long, double or string of the same order."""
    column = sf.col(".".join(map(spark_name, path)))
    kind = rows.select(column.alias("c")).dtypes[0][1]
    if kind in ("tinyint", "smallint", "int", "bigint"):
        return column.cast("long")
    if kind == "boolean":
        return column.cast("int").cast("long")
    if kind in ("float", "double") or kind.startswith("decimal"):
        return column.cast("double")
    if kind == "date":
        return sf.unix_date(column).cast("long")
    if kind == "timestamp":
        return sf.unix_micros(column)
    if kind == "timestamp_ntz":
        text = ".".join(map(spark_name, path))
        return sf.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {text})")
    if kind == "binary":
        return sf.hex(sf.substring(column, 1, _TEXT_PREFIX))
    return sf.substring(column.cast("string"), 1, _TEXT_PREFIX)


def _boundaries(keys: DataFrame, names: Sequence[str], ranges: int, num_rows: int | None) -> dict[str, list[Any]]:
    """Return, by column, distinct values in order that split it into ranges of about equally many rows."""
    wanted = ranges * SAMPLES_PER_RANGE
    if num_rows is None:
        num_rows = keys.count()
    sample = keys if num_rows <= wanted else keys.sample(fraction=wanted / num_rows, seed=_SEED)
    # Without nulls, which are below every boundary.
    collected = sample.agg(*[sf.array_sort(sf.collect_list(name)).alias(name) for name in names])
    row = collected.select(*[_cuts(sf.col(name), ranges).alias(name) for name in names]).collect()[0]
    return {name: [value for value in row[name] if value == value] for name in names}  # JSON has no NaN


def _cuts(values: Column, ranges: int) -> Column:
    """Return the values of a sorted list that split it into ranges."""

    def cut(number: Column) -> Column:
        return sf.get(values, (number * sf.size(values) / ranges).cast("int"))

    found = sf.transform(sf.sequence(sf.lit(1), sf.lit(ranges - 1)), cut)
    return sf.array_distinct(sf.filter(found, lambda value: value.isNotNull()))


def _range_of(key: Column, kind: str, boundaries: Sequence[Any], bits: int) -> Column:
    """Return the number of boundaries at or below a value, by binary search; a null is below all."""
    if not boundaries:
        return sf.lit(0).cast("long")
    finite = [value for value in boundaries if value not in (float("inf"), float("-inf"))]
    sorted_values = sf.from_json(sf.lit(json.dumps(finite)), f"array<{kind}>")
    steps = sf.array(*[sf.lit(1 << bit) for bit in reversed(range(bits))])

    def further(position: Column, step: Column) -> Column:
        reached = position + step
        return sf.when((reached <= len(finite)) & (sf.get(sorted_values, reached - 1) <= key), reached).otherwise(position)

    return sf.aggregate(steps, sf.lit(0), further).cast("long")


def _interleaved(ids: Sequence[Column], bits: int) -> Column:
    """Return the numbers with their bits interleaved, the highest bit of the first number highest."""
    parts = []
    for bit in range(bits):
        for number, column in enumerate(ids):
            parts.append(sf.shiftleft(_bit(column, bit), bit * len(ids) + len(ids) - 1 - number))
    return reduce(lambda left, right: left.bitwiseOR(right), parts)


def _hilbert_index(ids: Sequence[Column], bits: int) -> Column:
    """Return the place of numbers on the Hilbert curve, by the states of :func:`hilbert_states` from the highest bit down."""
    states = hilbert_states(len(ids))
    places, following = (sf.lit([cell[part] for state in states for cell in state]) for part in (0, 1))
    corners = sf.array(*[_interleaved([_bit(column, bit) for column in ids], 1) for bit in reversed(range(bits))])

    def further(at: Column, corner: Column) -> Column:
        cell = (sf.shiftleft(at["state"], len(ids)) + corner).cast("int")
        index = sf.shiftleft(at["index"], len(ids)).bitwiseOR(sf.get(places, cell).cast("long"))
        return sf.struct(index.alias("index"), sf.get(following, cell).cast("long").alias("state"))

    start = sf.struct(sf.lit(0).cast("long").alias("index"), sf.lit(0).cast("long").alias("state"))
    return sf.aggregate(corners, start, further)["index"]


def _bit(column: Column, bit: int) -> Column:
    return sf.shiftright(column, bit).bitwiseAND(sf.lit(1).cast("long"))


def hilbert_states(columns: int) -> list[list[tuple[int, int]]]:
    """Return the orientations of the Hilbert curve in a cube that is cut in half along each column.

    For each orientation and each corner (the bit of the first column highest): the place of the corner on the way through the
    cube, and the orientation inside of it. Gray codes, reflected and rotated (C. Hamilton, "Compact Hilbert Indices", 2006).
    """
    corners = 1 << columns

    def turned(value: int, by: int) -> int:
        by %= columns
        return (value << by | value >> columns - by) & corners - 1

    known = {(0, 0): 0}
    states: list[list[tuple[int, int]]] = []
    order = [(0, 0)]
    for entry, direction in order:
        cells = []
        for corner in range(corners):
            gray, place = turned(corner ^ entry, columns - direction - 1), 0
            while gray:
                place, gray = place ^ gray, gray >> 1
            first = max(0, (place - 1) // 2 * 2)
            even = place + place % 2
            trailing_ones = max(0, (even & -even).bit_length() - 1)
            inside = (entry ^ turned(first ^ first >> 1, direction + 1), (direction + trailing_ones + 1) % columns)
            if inside not in known:
                known[inside] = len(order)
                order.append(inside)
            cells.append((place, known[inside]))
        states.append(cells)
    return states


def with_job_group(spark: SparkSession, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for another thread: its jobs keep the group, pool and tags of this thread's jobs.

    So they end together if a streaming query is stopped or a group of jobs is cancelled.

    :param work: work of the thread. Wrap it for each thread: all calls share one copy of the properties.
    """
    wrapped: Callable[..., Any] = inheritable_thread_target(spark)(work)
    return wrapped


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
