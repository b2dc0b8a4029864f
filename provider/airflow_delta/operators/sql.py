"""Stage the rows of a SQL query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.operations import QueryArguments
from airflow_delta.contract.options import check_source, check_writer_options
from airflow_delta.contract.sql_parameters import parameters_as_json
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.base import TABLE_VIEW
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters
from airflow_delta.tasks.stage.source_views import plan_views
from airflow_delta.tasks.stage.work import GivenTable, StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class DeltaStageSqlOperator(
    StageOperator, StageWorkParameters, GivenTable, WriteParameters, SqlParameters, ReadVersionsParameters, SessionParameters
):
    """Run a Spark SQL query and stage its rows.

    ``{{ table }}`` in the SQL is a view of the table at the version that the transaction reads, or as the stages of ``after``
    leave it: empty if there is no table yet and the start task was given a schema. If the SQL names it, the commit counts the
    whole table as read, or the rows of ``where``.

    A table of ``read_versions`` is a view, too: its name is the last part of the table's location.

    The query may be preceded by statements that prepare the session, each ended by a semicolon: ``SET``, ``USE``, ``DECLARE``,
    ``CREATE TEMPORARY VIEW`` and ``FUNCTION``. Anything that writes is refused.

    :param sql: the query, or the path of a ``.sql`` file as Airflow looks for templates. (templated)
    :param where: Spark SQL predicate: ``{{ table }}`` has only the rows that satisfy it, and no others count as read. (templated)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable`, :class:`~airflow_delta.tasks.stage.write_options.WriteParameters`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters` and
    :class:`~airflow_delta.tasks.spark.session.SessionParameters`.
    """

    template_ext: Sequence[str] = (".sql",)
    sql_fields: ClassVar[tuple[str, ...]] = ("sql",)
    bound_fields: ClassVar[tuple[str, ...]] = ("sql",)
    by_job: ClassVar[bool | str] = True

    sql: str = parameter(templated=True, renderer="sql")
    where: str | None = parameter(default=None, templated=True, renderer="sql")
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_source(self.sql, whose=f"the task {self.task_id!r}")
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork:
        """Check the query, and plan the write of its rows, and what it reads.

        :raises DeltaAnalysisException: if the SQL is not one query after statements that prepare it.
        :raises DeltaTableNotFoundException: if it names ``{{ table }}``, and there is neither a table nor a schema.
        """
        whose = f"the stage {self.task_id!r}"
        query = engine.SqlQuery.parse(self.sql, whose=whose)
        if self.where is not None and not query.mentions(TABLE_VIEW):
            raise DeltaIllegalArgumentException(
                f"where={self.where!r} of {whose} says which rows {{{{ table }}}} has, and its SQL does not name it. Write "
                "the condition into the query, or read the table with {{ table }}."
            )
        views = plan_views(stage, self.hold(ReadVersions).tables(self.opened), query.text, self.where)
        given = QueryArguments(preparation=query.preparation, query=query.query, parameters=parameters_as_json(self.parameters))
        return WriteOptions.of(self).plan(stage, options=self.write_options, query=given, **views.fields())

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Run the query in a session of the task.

        :raises SchemaMismatchException: if its rows do not fit the table.
        """
        return request, self.hold(TaskSession).run(stage.log, request)
