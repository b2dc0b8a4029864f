"""DELETE, UPDATE and TRUNCATE as tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.options import check_writer_options
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import EngineParameters
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters
from airflow_delta.tasks.sql_parameters import SqlParameters

if TYPE_CHECKING:
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class DeltaDeleteOperator(DeltaTableOperator, RunnerParameters, EngineParameters, SqlParameters):
    """Delete rows of a table.

    Spark starts only if the predicate names columns other than partition columns.

    :param predicate: Spark SQL condition of the rows to delete; timestamps without a zone are in UTC. Default: all rows.
        (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True

    predicate: str | None = parameter(default=None, templated=True, renderer="sql")
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True, renderer="json")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the DELETE."""
        return engine.plan_delete(
            stage,
            predicate=self.predicate,
            options=self.write_options,
        )


class DeltaUpdateOperator(DeltaTableOperator, RunnerParameters, EngineParameters, SqlParameters):
    """Update columns of a table.

    :param set: Spark SQL expressions over the old row, by the column or field (``a.b``) to set; ``DEFAULT`` is the column's
        default. Timestamps without a zone are in the time zone of the Spark session. (templated)
    :param predicate: Spark SQL condition of the rows to update; timestamps without a zone are in UTC. Default: all rows.
        (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True

    set: Mapping[str, str] = parameter(templated=True, renderer="json")
    predicate: str | None = parameter(default=None, templated=True, renderer="sql")
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True, renderer="json")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the UPDATE."""
        return engine.plan_update(
            stage,
            set=self.set,
            predicate=self.predicate,
            options=self.write_options,
        )


class DeltaTruncateOperator(DeltaTableOperator):
    """Delete all rows of a table, without Spark.

    The parameters are those of :class:`~airflow_delta.tasks.operation.DeltaTableOperator`.
    """

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the TRUNCATE."""
        return engine.plan_truncate(stage)
