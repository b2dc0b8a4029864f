"""MERGE of the rows that a function returns as Arrow, pandas or Polars, without Spark: the worker merges them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator

from airflow_delta import engine
from airflow_delta.contract.options import check_writer_options
from airflow_delta.operators.arrow import ArrowTableReader
from airflow_delta.tasks.engines import MemoryParameters
from airflow_delta.tasks.functions import call_function, check_no_session, without_injected
from airflow_delta.tasks.merge import MergeParameters, MergeStatement
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class DeltaMergeArrowOperator(
    DeltaTableOperator, MergeParameters, MemoryParameters, SqlParameters, ReadVersionsParameters, PythonOperator
):
    """Call a function and merge the rows that it returns into a table, without Spark and without Java.

    The function returns a pyarrow Table or RecordBatchReader, a pandas or a Polars frame, which is held in memory. It may name
    ``table`` (an :class:`~airflow_delta.operators.arrow.ArrowTableReader`) and ``transaction`` (the handle) among its parameters.
    Conditions and values are those of a MERGE on Spark; what only Spark decides is refused by name before anything is written.

    :param python_callable: function that returns the source.

    The other parameters are those of :class:`~airflow_delta.tasks.merge.MergeParameters`,
    :class:`~airflow_delta.tasks.engines.MemoryParameters`, :class:`~airflow_delta.tasks.operation.DeltaTableOperator` and
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters`. The function reads a table of ``read_versions`` with
    ``table.other(...)``.
    """

    by_job: ClassVar[bool | str] = "merges what a function returns, in the worker: DeltaMergeOperator takes SQL"

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        super().__init__(python_callable=without_injected(python_callable), **kwargs)  # type: ignore[call-arg] # PythonOperator's
        check_no_session(python_callable, task_id=self.task_id)
        check_writer_options(self.options, whose=f"The task {self.task_id!r}")

    def table_uri(self, log: DeltaLog) -> str | None:
        """Return the worker's URI: the worker itself writes."""
        return log.uri

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        return MergeStatement.of(self).plan(stage)

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Call the function and merge its rows."""
        self._reads = table = ArrowTableReader(stage, self.hold(ReadVersions).tables(self.opened))
        rows = call_function(self, {"table": table, "transaction": stage.handle})
        return request, engine.run_in_worker(stage.log, request, rows, max_memory=self.max_memory)
