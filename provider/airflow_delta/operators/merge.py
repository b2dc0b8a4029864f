"""MERGE as a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator

from airflow_delta import engine
from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.contract.options import check_writer_options
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.arrow import ArrowTableReader
from airflow_delta.operators.pyspark import TableReader
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import EngineParameters
from airflow_delta.tasks.functions import call_function, not_a_dataframe, without_injected
from airflow_delta.tasks.merge import MergeParameters, MergeStatement
from airflow_delta.tasks.merge_source import NamedSource, SourceParameters, take_source
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.table.stage.stage_view import SparkWork, StageView

__all__ = [
    "DeltaMergeOperator",
    "DeltaMergePySparkOperator",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
]


class DeltaMergeOperator(
    DeltaTableOperator,
    RunnerParameters,
    EngineParameters,
    MergeParameters,
    SourceParameters,
    SqlParameters,
    ReadVersionsParameters,
):
    """Merge the rows of a source into a table: MERGE INTO, with ``*``, several clauses and schema evolution.

    Without ``clauses`` it is an upsert: ``[when_matched_update(), when_not_matched_insert()]``.

    ``{{ table }}`` in the SQL of a source is a view of the table at the version that the transaction reads, which then counts as
    read as a whole. There, each table of ``read_versions`` is a view, too: its name is the last part of the table's location.

    The other parameters are those of :class:`~airflow_delta.tasks.merge.MergeParameters`,
    :class:`~airflow_delta.tasks.merge_source.SourceParameters`, :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    template_ext: Sequence[str] = (".sql",)
    sql_fields: ClassVar[tuple[str, ...]] = ("merge_source",)
    by_job: ClassVar[bool | str] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        take_source(self)
        check_writer_options(MergeStatement.of(self).options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        return MergeStatement.of(self).plan(stage, **NamedSource.of(self).planned(stage))

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame | None:  # noqa: ARG002 - the request has its reads
        """Return the source for an in-process session; ``None`` if the request names it."""
        return NamedSource.of(self).rows(spark)

    def worker_rows(self, stage: StageView, request: StageRequest) -> Any:
        """Return the rows of the source for the worker itself; what its function reads of the table is recorded."""
        self._reads = reader = ArrowTableReader(stage, self.hold(ReadVersions).tables(self.opened))
        return NamedSource.of(self).worker_rows(stage, request, reader)

    def secret_properties(self) -> dict[str, str]:
        """Return the options of the source's connection, for a submitted application."""
        return NamedSource.of(self).secret_properties()


class DeltaMergePySparkOperator(
    DeltaTableOperator, RunnerParameters, MergeParameters, SqlParameters, ReadVersionsParameters, PythonOperator
):
    """Call a function with a Spark session and merge the DataFrame that it returns into a table.

    The function may name ``spark`` (the session), ``table`` (a :class:`~airflow_delta.operators.pyspark.TableReader`) and
    ``transaction`` (the handle) among its parameters.

    :param python_callable: function that returns the source.

    The other parameters are those of :class:`DeltaMergeOperator`, without ``source`` and without submitting. The function reads a
    table of ``read_versions`` with ``table.other(...)``.
    """

    by_job: ClassVar[bool | str] = "merges what a function returns, in a session of the worker: DeltaMergeOperator takes SQL"

    merge_source: Any = parameter(default=None, alias="source", templated=True)

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        super().__init__(python_callable=without_injected(python_callable), **kwargs)  # type: ignore[call-arg] # PythonOperator's
        check_writer_options(MergeStatement.of(self).options, whose=f"The task {self.task_id!r}")
        if self.merge_source is not None or SparkRunner.of(self).submits:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} merges what its function returns: it takes no source, spark_submit or application. "
                "Use DeltaMergeOperator."
            )

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        return MergeStatement.of(self).plan(stage)

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame:
        """Return what the function returns.

        :raises DeltaIllegalArgumentException: if it is not a DataFrame.
        """
        self._reads = reader = TableReader(spark, stage, self.hold(ReadVersions).tables(self.opened))
        result = call_function(self, {"spark": spark, "table": reader, "transaction": stage.handle})
        if not isinstance(result, engine.DataFrame):
            raise not_a_dataframe(self.task_id, result, "to merge")
        return result
