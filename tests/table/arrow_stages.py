"""Transactions whose rows are staged without Spark."""

from __future__ import annotations

import json
from typing import Any

from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.table.arrow.stage_rows import stage_arrow
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.write.collect import collect_stage
from airflow_delta.table.stage.write.plan import plan_stage
from support import readers
from support.table import Table


def stage(
    table: Table, handle: TransactionHandle, rows: Any, *, task_id: str = "stage", after: Any = (), **options: Any
) -> StagedWrite:
    view = table.view(handle, task_id=task_id, after=after, spark_table_uri=table.uri)
    request = StageRequest.from_dict(json.loads(json.dumps(plan_stage(view, **options).to_dict())))
    report = StageReport.from_dict(json.loads(json.dumps(stage_arrow(table.log(), rows, request).to_dict())))
    return StagedWrite.from_dict(json.loads(json.dumps(collect_stage(view, request, report).to_dict())))


def write(table: Table, rows: Any, *, begin: dict[str, Any] | None = None, **options: Any) -> CommitResult:
    handle = table.begin(**(begin or {}))
    return table.publish(handle, stage(table, handle, rows, **options))


def read(table: Table) -> list[dict[str, Any]]:
    """Return the rows as the worker's own reader sees them, after other readers have agreed on them."""
    found = read_table(table.log()).to_table().to_pylist()
    assert readers._comparable(found) == readers._comparable(readers.rows(table.path))
    return found
