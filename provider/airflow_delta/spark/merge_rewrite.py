"""One attempt of a MERGE: what it writes, and the files that it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.merge import INSERTED, SCRATCH
from airflow_delta.contract.payloads import ScanFile
from airflow_delta.contract.spark_paths import escape_glob
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.spark.rewrite import RewriteAttempt
from airflow_delta.spark.table_files import write_files
from airflow_delta.spark.written_files import check_read_back, save

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TouchedFile:
    """Rows of a file that clauses apply to.

    :param rows: how many.
    :param updated: how many are updated; the others are deleted.
    :param num_words: words of these rows.
    """

    file: ScanFile
    rows: int
    updated: int
    num_words: int

    @property
    def gone(self) -> bool:
        """Whether every row of the file changes."""
        return self.file.num_records == self.rows

    @property
    def deleted(self) -> bool:
        """Whether every row of the file is deleted."""
        return self.gone and not self.updated


class MergeRewrite(RewriteAttempt):
    """One attempt of a MERGE."""

    def write_inserted(self, df: DataFrame) -> str:
        """Write new rows into a directory apart from changed ones, and return its name."""
        name = f"{self.run}{INSERTED}"
        self._rows[name] = write_files(df, self.request, self.stored, name, self.checks, new_rows=True)
        self._directories["new"].append(name)
        return name

    def write_scratch(self, rows: DataFrame, name: str) -> DataFrame:
        """Write intermediate rows, and return them as written."""
        path = f"{self.request.path}/{SCRATCH}/{self.run}-{name}"
        written = save(rows, path)
        again = self.spark.read.schema(rows.schema).option("mergeSchema", "false").parquet(escape_glob(path))
        check_read_back(written, again.count(), path, self.request)  # from footers: nothing else is read
        return again
