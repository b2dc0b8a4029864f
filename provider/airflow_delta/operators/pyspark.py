"""Stage the DataFrame that a PySpark callable returns, in the worker's own Spark session or through Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from airflow.providers.standard.operators.python import PythonOperator

from airflow_delta import engine
from airflow_delta.contract.options import check_writer_options
from airflow_delta.contract.sql_parameters import with_given
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.functions import call_function, not_a_dataframe, without_injected
from airflow_delta.tasks.spark.progress import spark_work
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.new_rows import NewRowsParameters
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.read_versions import OtherTable, OtherTables, ReadVersions, ReadVersionsParameters
from airflow_delta.tasks.stage.reads import StageReadRecorder, change_bounds
from airflow_delta.tasks.stage.work import GivenTable, StageWorkParameters
from airflow_delta.tasks.stage.write_options import WriteOptions, WriteParameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


class TableReader(StageReadRecorder):
    """Reads the table as the transaction sees it, and records the reads for the conflict check of the commit.

    ``table()`` is the whole table, ``table("month = '2013-01-01'")`` the rows that satisfy a predicate; the worker prunes
    partitions and skips files. A narrower predicate means fewer conflicts with concurrent commits.
    """

    def __init__(self, spark: SparkSession, stage: StageView, others: OtherTables | None = None) -> None:
        super().__init__(stage)
        self._spark = spark
        self._others = others

    def __call__(self, predicate: str | None = None, *, parameters: Mapping[str, Any] | None = None) -> DataFrame:
        """Return rows of the table at the version that the transaction reads, or as the stages of ``after`` leave it.

        :param predicate: Spark SQL predicate.
        :param parameters: values of named parameters (``:day``) in ``predicate``.
        :raises DeltaTableNotFoundException: if the table does not exist yet.
        """
        predicate = with_given(predicate, parameters, whose="predicate")
        plan = engine.plan_scan(self._stage, predicate)
        self.note(predicate)
        return engine.read_scan_plan(self._spark, plan)

    def changes(self, start: int | datetime, end: int | datetime | None = None) -> DataFrame:
        """Return the rows that changed between two commits, both inclusive (``airflow_delta.spark.changes.read_change_plan``).

        Committed changes are final, so no concurrent commit conflicts with this read.

        :param start: a version, or a time (naive: UTC): the first commit at or after it.
        :param end: a version, or a time: the last commit at or before it. Default: the version that the transaction reads.
        :raises DeltaIllegalStateException: if the table did not record changes throughout the range.
        """
        plan = engine.plan_changes(
            self._stage.log,
            **change_bounds(start, end),
            spark_table_uri=self._stage.spark_table_uri,
            snapshot=self._stage.snapshot,
            transaction_id=self._stage.handle.transaction_id,
        )
        return engine.read_change_plan(self._spark, plan)

    def other(self, name: str, predicate: str | None = None, *, parameters: Mapping[str, Any] | None = None) -> DataFrame:
        """Return rows of another table, at its version in ``read_versions``; no commit to it conflicts with this read.

        :param name: as ``read_versions`` has it.
        :param predicate: Spark SQL predicate.
        :param parameters: values of named parameters (``:day``) in ``predicate``.
        :raises DeltaIllegalArgumentException: if ``read_versions`` does not have the table.
        """
        if self._others is None:
            raise DeltaIllegalArgumentException(f"This stage has no read_versions, so it cannot read the table {name!r} by them.")
        return self._read(self._others.read(name), with_given(predicate, parameters, whose="predicate"))

    def new_rows(
        self,
        name: str,
        predicate: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        **options: Unpack[NewRowsParameters],
    ) -> DataFrame:
        """Return the rows of another table that this one does not have yet; the commit records that it has them now.

        The rows are those that commits added after the position of the last run. No commit to that table conflicts with this
        read; a concurrent run that reads the same does.

        :param name: URI, absolute path, or name below the base path of the stage's connection.
        :param predicate: Spark SQL predicate; rows that do not satisfy it are passed over for good.
        :param parameters: values of named parameters (``:day``) in ``predicate``.
        :param options: :class:`~airflow_delta.tasks.stage.new_rows.NewRowsParameters`.
        :raises DeltaUnsupportedOperationException: if rows were removed meanwhile.
        :raises VersionNotFoundException: if commits have left its log before they were read.
        :raises DeltaFileNotFoundException: if VACUUM has deleted files before they were read.
        """
        if self._others is None:
            raise DeltaIllegalArgumentException(f"This stage reads no other tables, so it cannot read the new rows of {name!r}.")
        predicate = with_given(predicate, parameters, whose="predicate")
        found = self._others.sources.find(self._stage, name, options)
        rows = engine.read_scan_plan(self._spark, engine.scan_new_rows(found, predicate))
        self.note_source(found.position)
        return rows

    def _read(self, table: OtherTable, predicate: str | None) -> DataFrame:
        return engine.read_scan_plan(self._spark, engine.plan_version_scan(table.log, table.version, predicate))

    def as_view(self, name: str, predicate: str | None = None, *, parameters: Mapping[str, Any] | None = None) -> None:
        """Give these rows a name in SQL; a table that does not exist yet has none, if its schema is known.

        :param name: of the temporary view; the next call in this session replaces it.
        :param predicate: Spark SQL predicate.
        :param parameters: values of named parameters (``:day``) in ``predicate``.
        :raises DeltaTableNotFoundException: if the table does not exist and the start task was given no schema.
        """
        target = self._stage.target
        if self._stage.exists or not target.is_known:
            rows = self(predicate, parameters=parameters)
        else:
            self.note(None)
            rows = self._spark.createDataFrame([], engine.StructType.fromJson(target.struct))
        rows.createOrReplaceTempView(name)


class DeltaStagePySparkOperator(
    StageOperator,
    StageWorkParameters,
    GivenTable,
    WriteParameters,
    SqlParameters,
    ReadVersionsParameters,
    SessionParameters,
    PythonOperator,
):
    """Call a function with a Spark session and stage the DataFrame that it returns.

    The function may name ``spark`` (the session), ``table`` (a :class:`TableReader`) and ``transaction`` (the handle) among its
    parameters. The session comes from the connection, as for Airflow's ``@task.pyspark``: a Spark Connect URL, a master, or a
    local session if the default connection does not exist. It is stopped at the end if this task made it.

    :param python_callable: function that returns a DataFrame.
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.stage.work.GivenTable`, :class:`~airflow_delta.tasks.stage.write_options.WriteParameters`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters` and
    :class:`~airflow_delta.tasks.spark.session.SessionParameters`.
    """

    by_job: ClassVar[bool | str] = (
        "calls a function in a session of the worker: without an operator, a program of yours writes rows"
    )

    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        super().__init__(python_callable=without_injected(python_callable), **kwargs)  # type: ignore[call-arg] # PythonOperator's
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")

    def plan_stage(self, stage: StageView) -> SparkWork:
        """Plan the write."""
        return WriteOptions.of(self).plan(stage, options=self.write_options)

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Write the rows, in the session that has made them.

        :raises DeltaIllegalArgumentException: if the function returns something other than a DataFrame.
        :raises SchemaMismatchException: if the rows do not fit the table.
        """
        others = self.hold(ReadVersions).tables(self.opened)
        with self.hold(TaskSession).session(stage.log) as spark:
            self._reads = table = TableReader(spark, stage, others)
            found = self._rows(spark, table)
            with spark_work(self.log, stage.log, request, session=spark):
                return request, engine.stage_dataframe(spark, found, request)

    def _rows(self, spark: SparkSession, table: TableReader) -> DataFrame:
        result = call_function(self, {"spark": spark, "table": table, "transaction": self.opened.handle})
        if not isinstance(result, engine.DataFrame):
            raise not_a_dataframe(self.task_id, result, "to write")
        return result
