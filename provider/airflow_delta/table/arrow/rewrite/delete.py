"""DELETE in the worker, step by step as :mod:`airflow_delta.spark.delete`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from airflow_delta.table.arrow.rewrite.attempt import WorkerRewrite

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanFile
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.arrow.rewrite.memory import MemoryBound


def run(log: DeltaLog, request: StageRequest, memory: MemoryBound) -> StageReport:
    """Delete the rows that ``request.predicate`` selects, all rows without one."""
    work = WorkerRewrite(log, request, memory)
    touched = work.marked() if request.deletion_vectors else work.touched()
    work.lap("scanTimeMs")
    # Readers of the change data feed take deleted rows from the deletion vectors; Delta writes no change data there either.
    if touched and not request.deletion_vectors:
        _write(work, touched)
    work.metrics["numDeletedRows"] = work.num_rows
    work.lap("rewriteTimeMs")
    return work.report()


def _write(work: WorkerRewrite, touched: Sequence[ScanFile]) -> None:
    kept = work.partly(touched)
    if not work.request.rules.change_data:
        if kept:
            work.copy(kept)
        return
    checked = work.copied if kept else None
    with work.writing("change", change_type="delete") as gone, work.writing("copied") if kept else nullcontext() as copy:
        for file, rows in work.reader.rows(touched, work.selection if copy is None else None):
            selected, others = (rows, None) if copy is None else work.parted(rows)
            gone(file, selected)
            if copy is not None and others is not None and checked is not None:
                copy(file, checked(others))
