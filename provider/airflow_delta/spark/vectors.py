"""Deleted rows of files as words of 64 rows, which the worker turns into deletion vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.spark.plan_files import FILE, NUMBER, WORD, file_of, files_by_uri
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FILE", "NUMBER", "WORD", "file_of", "files_by_uri", "words_of"]


def words_of(rows: DataFrame) -> DataFrame:
    """Return the rows as words: ``file`` (Spark's name), ``number`` and ``word``, one bit for each row.

    :param rows: rows with :data:`FILE_COLUMN` and :data:`ROW_COLUMN`; duplicates are allowed.
    """
    from pyspark.sql import functions as sf

    bit = sf.call_function("shiftleft", sf.lit(1).cast("long"), sf.col(ROW_COLUMN).bitwiseAND(63).cast("int"))
    keys = [sf.col(FILE_COLUMN).alias(FILE), sf.shiftright(sf.col(ROW_COLUMN), 6).alias(NUMBER)]
    return rows.groupBy(*keys).agg(sf.bit_or(bit).alias(WORD))
