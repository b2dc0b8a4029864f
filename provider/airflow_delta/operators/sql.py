"""Stage the rows of a SQL query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from airflow_delta import engine
from airflow_delta.contract.options import check_source, check_writer_options
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.pyspark import DataFrameStage, TableReader
from airflow_delta.tasks.base import TABLE_VIEW
from airflow_delta.tasks.declared import parameter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class DeltaStageSqlOperator(DataFrameStage):
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

    sql: str = parameter(templated=True, renderer="sql")
    where: str | None = parameter(default=None, templated=True, renderer="sql")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_source(self.sql, whose=f"the task {self.task_id!r}")
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork:
        """Check the query, and plan the write.

        :raises DeltaAnalysisException: if the SQL is not one query after statements that prepare it.
        """
        self._query = query = engine.SqlQuery.parse(self.sql, whose=self._whose)
        if self.where is not None and not query.mentions(TABLE_VIEW):
            raise DeltaIllegalArgumentException(
                f"where={self.where!r} of {self._whose} says which rows {{{{ table }}}} has, and its SQL does not name it. Write "
                "the condition into the query, or read the table with {{ table }}."
            )
        return super().plan_stage(stage)

    def rows(self, spark: SparkSession, table: TableReader) -> DataFrame:
        """Return the rows of the query.

        :raises DeltaTableNotFoundException: if it names ``{{ table }}``, and there is neither a table nor a schema.
        """
        query = self._query
        if query.mentions(TABLE_VIEW):
            table.as_view(TABLE_VIEW, self.where)
        table.others_as_views(query.mentions)
        try:
            for statement in query.preparation:
                engine.run_query(spark, statement, whose=self._whose)
            # As a subquery, where Spark's grammar allows nothing but a query: `WITH ... INSERT` would run at once.
            text = f"SELECT * FROM ({query.query}\n)"  # noqa: S608
            return engine.run_query(spark, text, whose=self._whose, parameters=self.parameters)
        except engine.ParseException as error:
            raise engine.not_a_query(self._whose, error) from error

    @property
    def _whose(self) -> str:
        return f"the stage {self.task_id!r}"
