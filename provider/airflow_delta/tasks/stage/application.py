"""A stage whose rows an application of the author writes: what it reads, and how its rows go into the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta.contract.options import check_writer_options
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.new_rows import declared_sources
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.work import GivenTable, StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

if TYPE_CHECKING:
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class ApplicationParameters(Parameters):
    """Parameters of a task for which an application of the author writes rows: ``delta_stage(spark).write(df)``.

    :param read: plan a scan of the table for the application's ``read()``: ``True`` for the whole table, or a predicate.
        (templated)
    :param new_rows: tables whose new rows the application reads by ``new_rows(name)``: a name, several, or a mapping of names to
        options of :class:`~airflow_delta.tasks.stage.new_rows.NewRowsParameters`. All of them count as read. (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's. (templated)
    """

    read: bool | str = parameter(default=False, templated=True)
    new_rows: Any = parameter(default=None, templated=True)
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)
    spark_table_uri: str | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_writer_options(self.write_options, whose=f"The task {getattr(self, 'task_id', None)!r}")


class ApplicationStage(StageOperator, StageWorkParameters, GivenTable, WriteParameters, SqlParameters, ApplicationParameters):
    """Plans what an application of the author writes, and reads.

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable` and
    :class:`~airflow_delta.tasks.stage.write_options.WriteParameters`.
    """

    by_job: ClassVar[bool | str] = True

    def plan_stage(self, stage: StageView) -> SparkWork:
        """Plan the write, and the scan of the table if the application reads it."""
        return plan_application(self, stage)


def plan_application(task: Any, stage: StageView) -> SparkWork:
    """Plan what the application of a task writes, and what it reads.

    :param task: with the parameters of :class:`ApplicationParameters`; its transaction is open.
    """
    sources = declared_sources(task.opened).scans(stage)
    return WriteOptions.of(task).plan(stage, read=task.read or False, options=task.write_options, sources=sources)
