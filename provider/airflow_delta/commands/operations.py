"""Turn what Spark reports of an operation into its staged write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def collect_operation(log: DeltaLog, handle: TransactionHandle, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of one attempt of an operation, in the worker, after Spark.

    :raises StagingException: the report belongs to another attempt.
    """
    if request.operation in ("DELETE", "UPDATE"):
        from airflow_delta.commands.rewrite.collect_rewrite import collect_rewrite

        return collect_rewrite(log, handle, request, report)
    if request.operation == "MERGE":
        from airflow_delta.commands.merge.collect_merge import collect_merge

        return collect_merge(log, handle, request, report)
    if request.operation in ("OPTIMIZE", "REORG"):
        from airflow_delta.commands.optimize.collect_optimize import collect_optimize

        return collect_optimize(log, handle, request, report)
    if request.operation == "ADD CONSTRAINT":
        from airflow_delta.commands.stage.plan_alter import collect_constraint

        return collect_constraint(log, handle, request, report)
    from airflow_delta.commands.write.collect_write import collect_stage

    return collect_stage(log, handle, request, report)
