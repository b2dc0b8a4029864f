"""Run the operations that the worker can do itself: from the request to the report, as Spark does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import StagingException
from airflow_delta.table.arrow.rewrite.memory import MemoryBound

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog

_MODULES = {"DELETE": "delete", "MERGE": "merge", "UPDATE": "update", "OPTIMIZE": "optimize", "REORG": "optimize"}


def run_in_worker(log: DeltaLog, request: StageRequest, source: Any = None, *, max_memory: int | None = None) -> StageReport:
    """Do the work of a request in this process, without Spark.

    :param source: of a MERGE: a pyarrow Table or RecordBatchReader, a pandas or Polars frame, or another Arrow stream.
    :param max_memory: bytes of memory for what does not pass in batches, such as the source of a MERGE; default: a quarter of
        what this process may have.
    :raises StagingException: if there is no such work for its operation.
    :raises DeltaUnsupportedOperationException: if only Spark can do it; nothing has been written then.
    """
    name = _MODULES.get(request.operation)
    if name is None:
        raise StagingException(f"Only Spark does {request.operation} (stage {request.stage} of {request.table}).")
    run = import_module(f"airflow_delta.table.arrow.rewrite.{name}").run
    memory = MemoryBound(request, max_memory)
    report: StageReport = run(log, request, memory, source) if name == "merge" else run(log, request, memory)
    return report
