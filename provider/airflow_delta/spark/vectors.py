"""Rows of files that an operation takes away, as words of 64 rows: what the worker makes deletion vectors from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import StagingException
from airflow_delta.spark.paths import data_file_uri, normal_form, normal_form_of_metadata
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN
from airflow_delta.staging.contract import ScanFile, ScanPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE, NUMBER, WORD = "file", "number", "word"


def words_of(rows: DataFrame) -> DataFrame:
    """Return the rows as words: ``file`` (as Spark names it), ``number`` and ``word``, one bit for each row.

    :param rows: have :data:`FILE_COLUMN` and :data:`ROW_COLUMN`; a row may come several times.
    """
    from pyspark.sql import functions as sf

    bit = sf.call_function("shiftleft", sf.lit(1).cast("long"), sf.col(ROW_COLUMN).bitwiseAND(63).cast("int"))
    keys = [sf.col(FILE_COLUMN).alias(FILE), sf.shiftright(sf.col(ROW_COLUMN), 6).alias(NUMBER)]
    return rows.groupBy(*keys).agg(sf.bit_or(bit).alias(WORD))


def files_by_uri(plan: ScanPlan, files: Sequence[ScanFile] | None = None) -> dict[str, ScanFile]:
    """Return the files of a plan by the normal form of their URI."""
    return {normal_form(data_file_uri(plan.table, file.path)): file for file in (plan.files if files is None else files)}


def file_of(known: dict[str, ScanFile], metadata_path: str) -> ScanFile:
    """Return the file of a plan that ``_metadata.file_path`` names.

    :raises StagingException: it is none of the plan's.
    """
    file = known.get(normal_form_of_metadata(metadata_path))
    if file is None:
        raise StagingException(f"A row was read from {metadata_path}, which is not in the scan plan. Clear the stage.")
    return file
