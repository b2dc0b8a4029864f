"""Tell of a schema that drifted: an event of the engine, a metric, and an XCom for whoever decides what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_delta import engine
from airflow_delta.exceptions import SchemaDriftException
from airflow_delta.tasks.observability import TaskMetrics

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle

EVENT = "delta.stage.schemaDrift"
"""Name of the event."""

DRIFT_KEY = "delta_schema_drift"
"""XCom of a stage that refused its rows: ``table``, ``version`` read, and ``differences``
(:class:`airflow_delta.contract.drift.SchemaDifference`).
"""


@contextmanager
def drift_told(context: Context, handle: TransactionHandle) -> Iterator[None]:
    """Record a schema drift that ends the block."""
    try:
        yield
    except SchemaDriftException as error:
        differences = list(error.differences)
        told = {"table": handle.table, "version": handle.read_version, "differences": differences}
        ti = context["ti"]
        engine.record_event(
            EVENT, handle.table, {"txnId": handle.transaction_id, "taskId": ti.task_id, **told}, level=logging.INFO
        )
        metrics = TaskMetrics(ti)
        for difference in differences:
            metrics.count("stage.schema_drift", table=handle.table, kind=difference["kind"])
        ti.xcom_push(key=DRIFT_KEY, value=told)
        raise
