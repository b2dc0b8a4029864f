"""MERGE as a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from airflow_delta.contract.options import CONNECTION, check_is_query, check_source, check_writer_options
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.pyspark import TableReader
from airflow_delta.tasks.base import TABLE_VIEW
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.functions import call_function, not_a_dataframe, without_injected
from airflow_delta.tasks.merge import MergeParameters, MergeStatement, check_reads_in_sql, reads_table
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.spark.source_options import secret_property, source_options
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite
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


class DeltaMergeOperator(DeltaTableOperator, RunnerParameters, MergeParameters, SqlParameters, ReadVersionsParameters):
    """Merge the rows of a source into a table: MERGE INTO, with ``*``, several clauses and schema evolution.

    Without ``clauses`` it is an upsert: ``[when_matched_update(), when_not_matched_insert()]``.

    ``{{ table }}`` in the SQL of a source is a view of the table at the version that the transaction reads, which then counts as
    read as a whole (in-process sessions only). There, each table of ``read_versions`` is a view, too: its name is the last part
    of the table's location.

    :param source: Spark SQL, or the path of a ``.sql`` file as Airflow looks for templates; a mapping with ``sql``, or with
        ``format``, ``path``, ``options`` and ``conn_id`` (a connection that supplies login, password and the ``spark_options`` of
        its extra, all kept secret); or a function of ``spark`` that returns a DataFrame (in-process sessions only). (templated
        unless it is a function)

    The other parameters are those of :class:`~airflow_delta.tasks.merge.MergeParameters`,
    :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    template_ext: Sequence[str] = (".sql",)
    sql_fields: ClassVar[tuple[str, ...]] = ("merge_source",)

    merge_source: str | Mapping[str, Any] | Callable[[SparkSession], DataFrame] | None = parameter(
        default=None, alias="source", templated=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        source = self.merge_source
        check_source(source, whose=f"the task {self.task_id!r}")
        check_is_query(source, whose=f"the task {self.task_id!r}")
        check_writer_options(MergeStatement.of(self).options, whose=f"The task {self.task_id!r}")
        check_reads_in_sql(self, source)
        # Airflow would call a function in a template field.
        self.merge_source = None if callable(source) else source
        self._source_function = source if callable(source) else None

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        return MergeStatement.of(self).plan(stage, self._named_source())

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame | None:
        """Return the source for an in-process session; ``None`` if the request names it."""
        if self._source_function is not None:
            return self._source_function(spark)
        named = self._named_source()
        if named is not None and not SparkRunner.of(self).submits:
            self._reads = reader = TableReader(spark, stage, self.hold(ReadVersions).tables(self.opened))
            make_views(reader, named, whose=f"the task {self.task_id!r}")
        if named is None or not named.get(CONNECTION):
            return None
        return engine.read_source(spark, named, self._secret_options(named))

    def secret_properties(self) -> dict[str, str]:
        """Return the options of the source's connection, for a submitted application."""
        named = self._named_source()
        return secret_property(self._secret_options(named)) if named is not None and named.get(CONNECTION) else {}

    def _secret_options(self, named: Mapping[str, Any]) -> dict[str, str]:
        return source_options(str(named[CONNECTION]), str(named.get("format", "parquet")))

    def _named_source(self) -> dict[str, Any] | None:
        if isinstance(self.merge_source, str | Mapping):
            check_source(self.merge_source, whose=f"the task {self.task_id!r}")  # rendered
            check_is_query(self.merge_source, whose=f"the task {self.task_id!r}")
            named = {"sql": self.merge_source} if isinstance(self.merge_source, str) else dict(self.merge_source)
            if reads_table(named) and SparkRunner.of(self).submits:
                raise DeltaIllegalArgumentException(
                    f"The task {self.task_id!r} submits its MERGE, so its source cannot read {{{{ table }}}}. Leave spark_submit "
                    "and application out, or compute the source in an application of your own."
                )
            return named
        if self._source_function is not None and SparkRunner.of(self).submits:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} submits its MERGE, so its source cannot be a Python function. Pass SQL or a path, or "
                "have the application pass it: delta_stage(spark).run(source)."
            )
        return None


def make_views(reader: TableReader, named: Mapping[str, Any], *, whose: str) -> None:
    """Give the SQL of a source the views that it names: the table, and those of ``read_versions``."""
    if reads_table(named):
        reader.as_view(TABLE_VIEW)
    if named.get("sql") and reader.has_others:
        reader.others_as_views(engine.SqlQuery.parse(str(named["sql"]), whose=whose).mentions)


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
        return MergeStatement.of(self).plan(stage, None)

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame:
        """Return what the function returns.

        :raises DeltaIllegalArgumentException: if it is not a DataFrame.
        """
        self._reads = reader = TableReader(spark, stage, self.hold(ReadVersions).tables(self.opened))
        result = call_function(self, {"spark": spark, "table": reader, "transaction": stage.handle})
        if not isinstance(result, engine.DataFrame):
            raise not_a_dataframe(self.task_id, result, "to merge")
        return result
