"""Rewriting rows on Spark: rows of files are deleted or changed, the others are written again or stay in their files.

Copy on write: the other rows are written into new files. With deletion vectors: deleted rows are reported as words of 64 row
positions, which the worker turns into deletion vectors, and only changed rows are written. The files with such rows are found
first, reading only the columns of the condition.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from airflow_delta.contract.arguments import RewriteArguments, RowIds
from airflow_delta.contract.payloads import Json, ScanFile, ScanPlan
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.spark_paths import FILE, NUMBER, WORD, escape_glob, file_of, files_by_uri
from airflow_delta.contract.zones import zone_of_directories
from airflow_delta.exceptions import DeltaError, StagingException
from airflow_delta.spark.align import align, spark_name, spark_value
from airflow_delta.spark.read import FILE_COLUMN, ROW_COLUMN, read_plan_files
from airflow_delta.spark.row_checks import checked
from airflow_delta.spark.row_errors import RowChecks
from airflow_delta.spark.row_ids import read_with_row_ids, row_id_fields
from airflow_delta.spark.session_settings import WRITE_SETTINGS, session_settings
from airflow_delta.spark.table_files import physical_names, write_files, write_inserts
from airflow_delta.spark.written_files import check_read_back, save, written_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


__all__ = ["FILE", "NUMBER", "WORD", "file_of", "files_by_uri", "words_of"]


def words_of(rows: DataFrame) -> DataFrame:
    """Return the rows as words: ``file`` (Spark's name), ``number`` and ``word``, one bit for each row.

    :param rows: rows with :data:`FILE_COLUMN` and :data:`ROW_COLUMN`; duplicates are allowed.
    """
    bit = sf.call_function("shiftleft", sf.lit(1).cast("long"), sf.col(ROW_COLUMN).bitwiseAND(63).cast("int"))
    keys = [sf.col(FILE_COLUMN).alias(FILE), sf.shiftright(sf.col(ROW_COLUMN), 6).alias(NUMBER)]
    return rows.groupBy(*keys).agg(sf.bit_or(bit).alias(WORD))


class RewriteAttempt:
    """One attempt of an operation that rewrites rows; collects what it wrote.

    :ivar target: the table's schema.
    :ivar row_ids: columns of row ids, in which rows that are written again keep theirs; ``None`` if they get new ones.
    :ivar files: files with deleted or changed rows; the commit removes them or marks their rows.
    """

    def __init__(self, spark: SparkSession, request: StageRequest) -> None:
        if request.rewrite is None or request.schema_string is None:
            raise StagingException(f"{request.operation} of stage {request.stage} was planned without files to read")
        self.spark = spark
        self.request = request
        self.plan: ScanPlan = request.rewrite
        self.target: Json = parse_struct(request.schema_string)
        self.row_ids: RowIds | None = RewriteArguments.of(request).row_ids
        self.checks = RowChecks(request.table, request.read_version)
        self.run = uuid.uuid4().hex[:8]  # a cluster manager may start the driver of one attempt twice
        self.files: dict[str, int | None] = {}
        self.metrics: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._directories: dict[str, list[str]] = {"new": [], "copied": [], "change": [], "vector": []}
        self._started = self._mark = time.monotonic()

    @cached_property
    def condition(self) -> Column:
        """Condition of the operation; null selects nothing."""
        return sf.coalesce(spark_value(self.request.predicate or "true"), sf.lit(False))

    def touched(self) -> list[ScanFile]:
        """Return the files with rows that the condition selects, and record their number."""
        if self.request.predicate is None:
            known_rows = {file.path: file.num_records for file in self.plan.files}
            if all(count is not None for count in known_rows.values()):
                return self.note({path: count or 0 for path, count in known_rows.items()})
        rows = self.selected(self.plan.files, file_column=True)
        found = rows.groupBy(FILE_COLUMN).agg(sf.count("*")).collect() if self.plan.files else []
        known = files_by_uri(self.plan)
        counts = {file_of(known, row[0]).path: int(row[1]) for row in found}
        return self.note(counts)

    def marked(self) -> list[ScanFile]:
        """Write the positions of the rows that the condition selects, record their number, and return their files."""
        name = self.write_vectors(words_of(self.selected(self.plan.files, file_column=True, row_column=True)))
        path = f"{self.request.path}/{name}"
        words = self.spark.read.parquet(escape_glob(path))
        found = words.groupBy(FILE).agg(sf.sum(sf.bit_count("word")), sf.count("*")).collect()
        check_read_back(self._rows[name], sum(row[2] for row in found), path, self.request)
        known = files_by_uri(self.plan)
        return self.note({file_of(known, row[0]).path: int(row[1]) for row in found})

    @property
    def num_rows(self) -> int:
        """Number of deleted or changed rows recorded so far."""
        return sum(count or 0 for count in self.files.values())

    def note(self, counts: dict[str, int]) -> list[ScanFile]:
        """Record the number of deleted rows by file, and return the files."""
        self.files.update(counts)
        return [file for file in self.plan.files if file.path in counts]

    def partly(self, files: Sequence[ScanFile]) -> list[ScanFile]:
        """Return the files that keep some rows."""
        return [file for file in files if file.num_records is None or file.num_records != self.files[file.path]]

    @property
    def stored(self) -> Json:
        """Schema of data files: the table's columns, and those of row ids."""
        fields = [] if self.row_ids is None else row_id_fields(self.row_ids)
        return {**self.target, "fields": [*self.target["fields"], *fields]}

    @property
    def version_column(self) -> str | None:
        """Column of row commit versions: null in rows that change, whose version is the commit's."""
        return None if self.row_ids is None else self.row_ids.columns[1]

    def read(self, files: Sequence[ScanFile], *, file_column: bool = False, row_column: bool = False) -> DataFrame:
        """Return the live rows of files, with their row ids if these are kept."""
        if self.row_ids is None:
            return read_plan_files(self.spark, self.plan, files, file_column=file_column, row_column=row_column)
        return read_with_row_ids(self.spark, self.plan, files, self.row_ids, file_column=file_column, row_column=row_column)

    def selected(self, files: Sequence[ScanFile], *, file_column: bool = False, row_column: bool = False) -> DataFrame:
        """Return the rows that the condition selects, without row ids."""
        rows = read_plan_files(self.spark, self.plan, files, file_column=file_column, row_column=row_column)
        return self.where(rows)

    def where(self, rows: DataFrame) -> DataFrame:
        """Return those of the rows that the condition selects."""
        return rows if self.request.predicate is None else rows.where(self.condition)

    def write(self, df: DataFrame, kind: str, *, change_type: str | None = None) -> str:
        """Write rows into a new directory and return its name.

        :param df: the columns of :attr:`stored`; change data has no columns of row ids.
        :param kind: ``new``, ``copied`` or ``change``.
        """
        name = f"{self.run}-{kind}-{len(self._directories[kind])}"
        target = self.stored if change_type is None else self.target
        if change_type is not None and self.row_ids is not None:
            df = df.select(*(spark_name(field["name"]) for field in target["fields"]))
        self._rows[name] = write_files(df, self.request, target, name, self.checks, change_type=change_type)
        self._directories[kind].append(name)
        return name

    def write_again(self, written: str, change_type: str) -> None:
        """Write the rows of a directory again, as change data.

        :param written: return value of :meth:`write`.
        """
        name = f"{self.run}-change-{len(self._directories['change'])}"
        self._rows[name] = write_inserts(
            self.spark, self.request, self.target, written, name, change_type=change_type, num_rows=self._rows[written]
        )
        self._directories["change"].append(name)

    def write_vectors(self, words: DataFrame) -> str:
        """Write the positions of deleted rows, words by file, into a new directory and return its name."""
        name = f"{self.run}-vector-{len(self._directories['vector'])}"
        self._rows[name] = save(words, f"{self.request.path}/{name}")
        self._directories["vector"].append(name)
        return name

    def aligned(self, df: DataFrame) -> DataFrame:
        """Return rows with the columns of data files, each checked against the table's rules."""
        aligned = align(df, self.stored, self.checks)
        return checked(aligned, self.request, self.stored, set(), self.checks)

    def lap(self, metric: str) -> None:
        """Record the milliseconds since the last lap."""
        now = time.monotonic()
        self.metrics[metric] = self.metrics.get(metric, 0) + int((now - self._mark) * 1000)
        self._mark = now

    def report(self) -> StageReport:
        """Return what was written."""
        written = written_files(self.spark, self.request, self._rows, physical_names(self.target, self.request))
        self.metrics["executionTimeMs"] = int((time.monotonic() - self._started) * 1000)
        return StageReport(
            transaction_id=self.request.transaction_id,
            stage=self.request.stage,
            attempt=self.request.attempt,
            directories=tuple(self._directories["new"]),
            copied_directories=tuple(self._directories["copied"]),
            change_directories=tuple(self._directories["change"]),
            vector_directories=tuple(self._directories["vector"]),
            path=self.request.path,
            written=written,
            rewritten_files=tuple(self.files),
            metrics=self.metrics,
            schema_string=json.dumps(self.target, separators=(",", ":"), ensure_ascii=False),
            partition_columns=self.request.partition_columns,
            time_zone=zone_of_directories(self.plan),
        )


@contextmanager
def row_errors(work: RewriteAttempt) -> Iterator[None]:
    """Set up the session for writing, and convert errors that rows raise."""
    try:
        with session_settings(work.spark, WRITE_SETTINGS):
            yield
    except DeltaError:
        raise
    except Exception as failure:
        if (error := work.checks.error_in(failure)) is not None:
            raise error from failure
        raise
