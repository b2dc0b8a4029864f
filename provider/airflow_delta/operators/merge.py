"""MERGE as a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.python import PythonOperator

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.pyspark import TableReader, call_injected, without_injected
from airflow_delta.operators.table import DeltaSparkTableOperator
from airflow_delta.staging.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.staging.options import CONNECTION, check_source, check_writer_options

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.commands.stage.stage_view import SparkWork, StageView
    from airflow_delta.log import DeltaLog
    from airflow_delta.staging.contract import StagedWrite, TransactionHandle

__all__ = [
    "DeltaMergeOperator",
    "DeltaMergePySparkOperator",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
]


class DeltaMergeOperator(DeltaSparkTableOperator):
    """Merge the rows of a source into a table: MERGE INTO, with ``*``, several clauses and schema evolution.

    Without ``clauses`` it is an upsert: ``[when_matched_update(), when_not_matched_insert()]``.

    :param source: Spark SQL text; a mapping with ``sql``, or with ``format``, ``path``, ``options`` and ``conn_id`` (a connection
        that brings login, password and the options in ``spark_options`` of its extra, which nobody sees); or a function of
        ``spark`` that returns a DataFrame (in-process sessions only). (templated, as far as it is text)
    :param condition: Spark SQL over a row of the table and one of the source: whether they match. (templated)
    :param clauses: made with :func:`when_matched_update`, :func:`when_not_matched_insert`, ...; the first of its kind whose
        condition is true decides a row. (templated)
    :param source_alias: name of the source in conditions and expressions. (templated)
    :param target_alias: name of the table in them. (templated)
    :param merge_schema: columns that only the source has are added to the table, as far as a clause has ``*``.
    :param options: options of Spark's Parquet writer. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.table.DeltaSparkTableOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaSparkTableOperator.template_fields,
        "merge_source",
        "condition",
        "clauses",
        "source_alias",
        "target_alias",
        "options",
    )
    template_fields_renderers = {**DeltaSparkTableOperator.template_fields_renderers, "clauses": "json", "condition": "sql"}

    def __init__(
        self,
        *,
        source: str | Mapping[str, Any] | Callable[[SparkSession], DataFrame] | None = None,
        condition: str,
        clauses: Sequence[Mapping[str, Any]] | None = None,
        source_alias: str = "source",
        target_alias: str = "target",
        merge_schema: bool = False,
        options: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_source(source, whose=f"the task {self.task_id!r}")
        check_writer_options(options, whose=f"The task {self.task_id!r}")
        # Airflow calls what it finds in a template field.
        self.merge_source = None if callable(source) else source
        self._source_function = source if callable(source) else None
        self.condition = condition
        self.clauses = [when_matched_update(), when_not_matched_insert()] if clauses is None else clauses
        self.source_alias = source_alias
        self.target_alias = target_alias
        self.merge_schema = merge_schema
        self.options = options

    def plan(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        from airflow_delta.commands.merge.plan_merge import plan_merge

        return plan_merge(
            stage,
            condition=self.condition,
            clauses=self.clauses,
            source=self._named_source(),
            source_alias=self.source_alias,
            target_alias=self.target_alias,
            merge_schema=self.merge_schema,
            options=self.options,
        )

    def source(self, spark: SparkSession) -> DataFrame | None:
        """Return the source of an in-process session; ``None`` when the request names all of it."""
        if self._source_function is not None:
            return self._source_function(spark)
        named = self._named_source()
        if named is None or not named.get(CONNECTION):
            return None
        from airflow_delta.spark.operations import read_source

        return read_source(spark, named, self._secret_options(named))

    def secret_properties(self) -> dict[str, str]:
        """Return the options of the source's connection, for an application that is submitted."""
        from airflow_delta.operators.source_options import secret_property

        named = self._named_source()
        return secret_property(self._secret_options(named)) if named is not None and named.get(CONNECTION) else {}

    def _secret_options(self, named: Mapping[str, Any]) -> dict[str, str]:
        from airflow_delta.operators.source_options import source_options

        return source_options(str(named[CONNECTION]), str(named.get("format", "parquet")))

    def _named_source(self) -> dict[str, Any] | None:
        if isinstance(self.merge_source, str):
            check_source(self.merge_source, whose=f"the task {self.task_id!r}")
            return {"sql": self.merge_source}
        if isinstance(self.merge_source, Mapping):
            check_source(self.merge_source, whose=f"the task {self.task_id!r}")  # rendered
            return dict(self.merge_source)
        if self._source_function is not None and (self.spark_submit is not None or self.application is not None):
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} submits its MERGE, so the source cannot be a Python function. Give it as SQL or as a "
                "path, or have the application pass it: delta_stage(spark).run(source)."
            )
        return None


class DeltaMergePySparkOperator(DeltaMergeOperator, PythonOperator):
    """Call a function with a Spark session and merge the DataFrame that it returns into a table.

    The function may name ``spark`` (the session), ``table`` (a :class:`~airflow_delta.operators.pyspark.TableReader`) and
    ``transaction`` (the handle) among its parameters.

    :param python_callable: function that returns the source.

    The other parameters are those of :class:`DeltaMergeOperator`, without ``source`` and without submitting.
    """

    template_fields: Sequence[str] = (*DeltaMergeOperator.template_fields, *PythonOperator.template_fields)

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        super().__init__(python_callable=without_injected(python_callable), **kwargs)
        self._planned: StageView | None = None
        self._reader: TableReader | None = None
        named = self.merge_source is not None or self._source_function is not None
        if named or self.spark_submit is not None or self.application is not None:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} merges what its function returns: source, spark_submit and application have no place "
                "there. Use DeltaMergeOperator."
            )

    def execute(self, context: Context) -> Any:
        """Return the staged write, or the result of the commit.

        :raises DeltaConcurrentModificationException: another commit conflicts, and no restart is left.
        """
        self.op_kwargs = self.determine_kwargs({**context, **self.op_kwargs})
        return DeltaMergeOperator.execute(self, context)

    def plan(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        self._planned = stage
        return super().plan(stage)

    def source(self, spark: SparkSession) -> DataFrame:
        """Return what the function returns.

        :raises DeltaIllegalArgumentException: it is no DataFrame.
        """
        from pyspark.sql import DataFrame

        if self._planned is None:
            raise DeltaIllegalArgumentException(f"The task {self.task_id!r} was not planned")
        self._reader = TableReader(spark, self._planned)
        injected = {"spark": spark, "table": self._reader, "transaction": self._planned.handle}
        result = call_injected(self.python_callable, self.op_args, self.op_kwargs, injected)
        if not isinstance(result, DataFrame):
            raise DeltaIllegalArgumentException(
                f"The function of {self.task_id!r} returned {type(result).__name__}, expected a Spark DataFrame to merge."
            )
        return result

    def _stage(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> StagedWrite:
        staged = super()._stage(log, handle, context)
        return staged if self._reader is None else self._reader.add_reads(staged)
