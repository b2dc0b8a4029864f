"""DELETE in the worker, step by step as :mod:`airflow_delta.spark.delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


def run(log: DeltaLog, request: StageRequest, memory: MemoryBound) -> StageReport:
    """Delete the rows that ``request.predicate`` selects, all rows without one."""
    work = WorkerRewrite(log, request, memory)
    touched = work.marked() if request.deletion_vectors else work.touched()
    work.lap("scanTimeMs")
    kept = work.partly(touched)
    if kept and not request.deletion_vectors:
        work.copy(kept)
    # Readers of the change data feed take deleted rows from the deletion vectors; Delta writes no change data there either.
    if touched and request.rules.change_data and not request.deletion_vectors:
        with work.writing("change", change_type="delete") as write:
            for file, rows in work.reader.rows(touched, work.selection):
                write(file, rows)
    work.metrics["numDeletedRows"] = work.num_rows
    work.lap("rewriteTimeMs")
    return work.report()
