"""Write Parquet files and report what was written: the worker must find exactly that.

Rows are counted by the job that writes them. Files and bytes are listed by Spark afterwards: if executors write to their own
disks, the files are not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import NUM_BYTES, NUM_FILES, NUM_ROWS, StageRequest
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.exceptions import StagedFileException
from airflow_delta.spark.errors import spark_condition
from airflow_delta.spark.session_settings import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = "rows"

# Only sizes are read: one task per core, not per bytes.
_LISTING = {"spark.sql.files.maxPartitionBytes": str(2**50)}


def save(df: DataFrame, path: str, *, partitions: Sequence[str] = (), options: Mapping[str, str] | None = None) -> int:
    """Write rows as Parquet into a directory that does not exist, and return how many were written.

    :raises StagedFileException: if Spark does not report the number.
    """
    observation = Observation()
    df = df.observe(observation, sf.count(sf.lit(1)).alias(_ROWS))
    writer = df.write.format("parquet").mode("error").options(**(options or {}))
    if partitions:
        writer = writer.partitionBy(*partitions)
    writer.save(path)
    rows = observation.get.get(_ROWS)
    if rows is None:
        raise StagedFileException(f"Spark wrote to {path} and did not say how many rows: its observed metrics are missing.")
    return int(rows)


def check_read_back(written: int, found: int, path: str, request: StageRequest) -> None:
    """Check that rows written for this job itself can all be read.

    :raises StagedFileException: if they cannot.
    """
    if written != found:
        raise request.error(
            StagedFileException,
            f"Spark wrote {written} rows to {path} and reads {found} there (stage {request.stage} of table {request.table} "
            f"version {request.read_version}). Driver and executors must see the same files: the table cannot be on disks that "
            "only one machine sees. Nothing was committed.",
        )


def written_files(
    spark: SparkSession, request: StageRequest, rows: Mapping[str, int], partitions: Sequence[str] = ()
) -> dict[str, Json]:
    """Return the numbers of files, rows and bytes of each directory.

    :param rows: rows written, by directory below the attempt's; the names share a prefix.
    :param partitions: partition columns, as named in files.
    """
    if not rows:
        return {}
    # Spark's listings leave out directories whose names begin with a dot, even those of partitions.
    listed = not any(name.startswith(".") for name in partitions)
    files = {name: [0, 0] for name in rows}
    for path, size in _listing(spark, request, rows) if listed else ():
        for part in reversed(path.split("/")):
            if part in files:
                files[part][0] += 1
                files[part][1] += size
                break
    for name, count in rows.items():
        if count and listed and not files[name][0]:
            check_read_back(count, 0, f"{request.path}/{name}", request)
    return {
        name: {
            NUM_FILES: files[name][0] if listed else None,
            NUM_ROWS: count,
            NUM_BYTES: files[name][1] if listed else None,
        }
        for name, count in rows.items()
    }


def _listing(spark: SparkSession, request: StageRequest, names: Mapping[str, int]) -> list[tuple[str, int]]:
    run = next(iter(names)).split("-")[0]
    reader = spark.read.format("binaryFile").options(
        recursiveFileLookup="true", ignoreMissingFiles="false", ignoreCorruptFiles="false"
    )
    try:
        with session_settings(spark, _LISTING):
            found = reader.load(f"{escape_glob(request.path)}/{run}*").select("path", "length").collect()
    except AnalysisException as error:
        if spark_condition(error) != "PATH_NOT_FOUND":
            raise
        return []  # object stores have no empty directories
    return [(str(row[0]), int(row[1])) for row in found]
