"""DELETE on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.spark.align import align
from airflow_delta.spark.rewrite import RewriteAttempt, row_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, request: StageRequest) -> StageReport:
    """Delete the rows that ``request.predicate`` selects, all rows without one."""
    work = RewriteAttempt(spark, request)
    with row_errors(work):
        touched = work.marked() if request.deletion_vectors else work.touched()
        work.lap("scanTimeMs")
        kept = work.partly(touched)
        if kept and not request.deletion_vectors:
            work.write(work.aligned(work.read(kept).where(~work.condition)), "copied")
        # Readers of the change data feed take deleted rows from the deletion vectors; Delta writes no change data there either.
        if touched and request.rules.change_data and not request.deletion_vectors:
            work.write(align(work.selected(touched), work.target, work.checks), "change", change_type="delete")
        work.metrics["numDeletedRows"] = work.num_rows
        work.lap("rewriteTimeMs")
    return work.report()
