"""The source of a task that merges: SQL or a path, which its request names, or rows of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.options import CONNECTION, check_is_query, check_source
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.base import TABLE_VIEW, Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.engines import AUTO
from airflow_delta.tasks.functions import call_injected, check_no_session, without_injected
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.spark.source_options import secret_property, source_options
from airflow_delta.tasks.stage.read_versions import ReadVersions
from airflow_delta.tasks.stage.source_views import plan_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.request import StageRequest
    from airflow_delta.table.stage.stage_view import StageView

_READ_BY = {"read_versions": "other", "new_rows": "new_rows"}


class SourceParameters(Parameters):
    """The source of a task that merges.

    :param source: Spark SQL, or the path of a ``.sql`` file as Airflow looks for templates; a mapping with ``sql``, or with
        ``format``, ``path``, ``options`` and ``conn_id`` (a connection that supplies login, password and the ``spark_options`` of
        its extra, all kept secret); or a function of ``spark`` that returns a DataFrame (in-process sessions only). Left out if
        ``application`` passes it. With ``engine="arrow"``: SQL that selects rows and columns of ``{{ table }}``, of a table of
        ``read_versions`` or ``new_rows``, or of the files at a path; ``format`` ``parquet`` or ``delta`` with ``path``; or a
        function that returns a pyarrow, pandas or Polars frame and may name ``table`` and ``transaction``. (templated, unless it
        is a function)
    """

    merge_source: str | Mapping[str, Any] | Callable[..., Any] | None = parameter(
        default=None, alias="source", templated=True, renderer="sql"
    )


class NamedSource(Part, SourceParameters):
    """The part of a task that merges a source. In the Dag file, :func:`take_source` has looked at it."""

    def planned(self, stage: StageView) -> dict[str, Any]:
        """Return what a plan says of the source, checked as rendered: ``source``, and the tables that its SQL reads.

        :raises DeltaIllegalArgumentException: if it is a function, and the task has no session.
        """
        named = self._named()
        if named is None or not named.get("sql"):
            return {"source": named}
        tables = self.task.hold(ReadVersions).tables(self.task.opened)
        return {"source": named, **plan_views(stage, tables, str(named["sql"])).fields()}

    def rows(self, spark: SparkSession) -> DataFrame | None:
        """Return the rows in a session; ``None`` if the request names them."""
        if self._function is not None:
            rows: DataFrame = self._function(spark)
            return rows
        named = self._named()
        if named is None or named.get("sql") or not named.get(CONNECTION):
            return None
        return engine.read_source(spark, named, _secret_options(named))

    def worker_rows(self, stage: StageView, request: StageRequest, reader: Any) -> Any:
        """Return the rows for the worker itself.

        :param reader: with which a function reads the table.
        :raises DeltaUnsupportedOperationException: if only Spark reads them.
        """
        if self._function is not None:
            return call_injected(without_injected(self._function), (), {}, {"table": reader, "transaction": stage.handle})
        work = self.task.opened
        hook = DeltaHook(work.delta_conn_id or work.handle.delta_conn_id or DeltaHook.default_conn_name)
        others = self.task.hold(ReadVersions).tables(work)
        tables = {name: table.log for name, table in others.views().items()} | others.sources.logs()
        tables[TABLE_VIEW] = stage.log
        return engine.named_rows(request, self._named() or {}, tables, hook.get_log, max_memory=self.task.max_memory)

    def secret_properties(self) -> dict[str, str]:
        """Return the options of the source's connection, for a submitted application."""
        named = self._named()
        return secret_property(_secret_options(named)) if named is not None and named.get(CONNECTION) else {}

    @property
    def _function(self) -> Any:
        return self.task._source_function

    def _named(self) -> dict[str, Any] | None:
        source, whose = self.merge_source, self.task.task_id
        if isinstance(source, str | Mapping):
            check_source(source, whose=f"the task {whose!r}")  # rendered
            check_is_query(source, whose=f"the task {whose!r}")
            return {"sql": source} if isinstance(source, str) else dict(source)
        if self._function is not None and SparkRunner.of(self.task).submits:
            raise DeltaIllegalArgumentException(
                f"The task {whose!r} submits its MERGE, so its source cannot be a Python function. Pass SQL or a path, or have "
                "the application pass it: delta_stage(spark).run(source)."
            )
        return None


def take_source(task: Any) -> None:
    """Check the source of a task in the Dag file, and keep a function apart: Airflow would call one in a template field.

    :raises DeltaIllegalArgumentException: if it has secrets, or ``read_versions`` or ``new_rows`` that it cannot read.
    """
    source = task.merge_source
    check_source(source, whose=f"the task {task.task_id!r}")
    check_is_query(source, whose=f"the task {task.task_id!r}")
    passed = source is None and task.application is not None
    is_other = passed or callable(source) or (isinstance(source, Mapping) and not source.get("sql"))  # an output may be anything
    given = next((name for name in _READ_BY if getattr(task, name) is not None), None)
    if given is not None and is_other:
        raise DeltaIllegalArgumentException(
            f"The task {task.task_id!r} has {given}: views for the SQL of a source. Its source is not such SQL. Use "
            f"@task.delta_merge, whose function reads table.{_READ_BY[given]}(...), or leave {given} out."
        )
    if callable(source) and task.engine == AUTO:
        raise DeltaIllegalArgumentException(
            f'The task {task.task_id!r} has engine="auto", and a function as source, which returns what one engine reads. Set '
            'engine="spark" or "arrow", or give the source as SQL or as a path.'
        )
    if callable(source) and task.in_worker:
        check_no_session(source, task_id=task.task_id)
    task.merge_source = None if callable(source) else source
    task._source_function = source if callable(source) else None


def _secret_options(named: Mapping[str, Any]) -> dict[str, str]:
    return source_options(str(named[CONNECTION]), str(named.get("format", "parquet")))
