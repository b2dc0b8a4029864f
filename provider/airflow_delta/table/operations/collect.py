"""What a job has staged, by the operation that its request names: for a task that did not plan it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_delta.exceptions import StagingException
from airflow_delta.table.operations.merge.collect import collect_merge
from airflow_delta.table.operations.optimize.collect import collect_optimize
from airflow_delta.table.operations.rewrite.collect import collect_rewrite
from airflow_delta.table.stage.plan_alter import CHECK_OPERATION, collect_constraint
from airflow_delta.table.stage.write.collect import collect_stage

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.table.stage.stage_view import StageView

Collect = Callable[["StageView", "StageRequest", "StageReport"], "StagedWrite"]

COLLECTS: dict[str, Collect] = {
    "WRITE": collect_stage,
    "DELETE": collect_rewrite,
    "UPDATE": collect_rewrite,
    "MERGE": collect_merge,
    "OPTIMIZE": collect_optimize,
    "REORG": collect_optimize,
    CHECK_OPERATION: collect_constraint,
}
"""How the report of each operation that Spark carries out becomes a staged write."""


def collect_operation(stage: StageView, request: StageRequest, report: StageReport) -> StagedWrite:
    """Return the staged write of a report.

    :raises StagingException: if no operation of that name has Spark work.
    """
    collect = COLLECTS.get(request.operation)
    if collect is None:
        raise stage.handle.error(StagingException, f"The request of stage {request.stage} is one of {request.operation!r}.")
    return collect(stage, request, report)
