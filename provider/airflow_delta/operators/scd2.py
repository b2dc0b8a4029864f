"""A slowly changing dimension of type 2 as a task: a MERGE that keeps every version of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import NAMES, TRUTH
from airflow_delta.contract.options import CONNECTION, check_is_query, check_source, check_writer_options
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.merge import make_views
from airflow_delta.operators.pyspark import TableReader
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.merge import check_reads_in_sql
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.spark.source_options import source_options
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.scd2 import HistoryColumns
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.tasks.declared import Taken


class HistoryParameters(Parameters):
    """Parameters of a task that keeps a history: what a version is.

    :param keys: columns that say what a row is about; nulls are equal. (templated)
    :param effective_at: Spark SQL over a source row: since when it is so. It is cast to the type of ``valid_from``. (templated)
    :param tracked: columns whose changes make a new version, compared with ``<=>``; default: all but the keys, the columns of the
        period, and those that the table computes. The other columns are those of the row that began the version. (templated)
    :param deleted: Spark SQL over a source row: the key ended then. Only keys and time of such a row count. (templated)
    :param full_snapshot: the source is all there is, at one time: keys that it does not have ended then. The commit then depends
        on the whole table.
    :param valid_from: column with the time when a version began: a date or a timestamp. (templated)
    :param valid_to: column with the time when it ended, exclusive; null if it did not. (templated)
    :param current: boolean column: whether it has not ended; ``None``: the table has none. (templated)
    :param confirmed: column with an array of times: when a source row changed nothing in the version. With it, late rows are
        exact even between two rows of equal values; ``None``: the table has none. (templated)
    """

    keys: Taken[str | Sequence[str], tuple[str, ...]] = parameter(templated=True, kind=NAMES)
    effective_at: str = parameter(templated=True, renderer="sql")
    tracked: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    deleted: str | None = parameter(default=None, templated=True)
    full_snapshot: bool = parameter(default=False, kind=TRUTH)
    valid_from: str = parameter(default="valid_from", templated=True)
    valid_to: str = parameter(default="valid_to", templated=True)
    current: str | None = parameter(default="is_current", templated=True)
    confirmed: str | None = parameter(default=None, templated=True)


class HistoryOptions(Part, HistoryParameters):
    """The part of a task that keeps a history: what a version is."""

    def columns(self, stage: StageView) -> HistoryColumns:
        """Return the columns of the table, checked."""
        return engine.history_columns(
            stage,
            keys=self.keys,
            tracked=self.tracked,
            valid_from=self.valid_from,
            valid_to=self.valid_to,
            current=self.current,
            confirmed=self.confirmed,
        )


class DeltaScd2MergeOperator(DeltaTableOperator, RunnerParameters, HistoryParameters, SqlParameters, ReadVersionsParameters):
    """Keep every version of the rows of a source: a slowly changing dimension of type 2, as one MERGE.

    A source row says what is so since ``effective_at``. The versions of a key are what all its rows say, in the order of their
    times, whenever they arrive:

    - A row whose tracked columns differ from those before its time begins a version, which ends the one before it. Late rows
      split versions; the bounds are always those of their neighbours.
    - A row that changes nothing makes no version. Without a ``confirmed`` column it leaves no trace: a change that arrives later,
      though it happened earlier, then counts until the next version of the table.
    - A row of the time of an earlier one replaces it: so a source is corrected. In one source, rows of one key and time must be
      equal.
    - A ``deleted`` row ends the version of its time; a later row begins a new one after the gap. If there is none to end, it
      leaves no trace.
    - With ``confirmed``, no deletes and no two values for one time, tracked columns and periods do not depend on the order in
      which sources arrive. Snapshots without it must arrive in the order of their times.
    - The same source again changes nothing.

    The table must exist. The commit depends on the versions of the source's keys only, so runs on other keys do not conflict.

    :param source: Spark SQL, or the path of a ``.sql`` file; a mapping or a function as for
        :class:`~airflow_delta.operators.merge.DeltaMergeOperator`. It has all columns of the table but those of the period and
        those that the table computes. (templated unless it is a function)
    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`HistoryParameters`, :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`, without submitting.
    """

    template_ext: Sequence[str] = (".sql",)
    sql_fields: ClassVar[tuple[str, ...]] = ("merge_source",)

    merge_source: str | Mapping[str, Any] | Callable[[SparkSession], DataFrame] = parameter(
        alias="source", templated=True, renderer="sql"
    )
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        source = self.merge_source
        check_source(source, whose=f"the task {self.task_id!r}")
        check_is_query(source, whose=f"the task {self.task_id!r}")
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")
        if SparkRunner.of(self).submits:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} computes versions in a session: it takes no spark_submit or application. Name the "
                "cluster by spark_conn_id (a master, or Spark Connect)."
            )
        check_reads_in_sql(self, source)
        # Airflow would call a function in a template field.
        self.merge_source = None if callable(source) else source  # type: ignore[assignment]
        self._source_function = source if callable(source) else None

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE."""
        self._columns = HistoryOptions.of(self).columns(stage)
        return engine.plan_history(stage, self._columns, self.write_options)

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame:
        """Return the versions that begin, change and go."""
        options = HistoryOptions.of(self)
        self._reads = reader = TableReader(spark, stage, self.hold(ReadVersions).tables(self.opened))
        rows = self._rows(spark, reader)
        # The MERGE has read the rows with the keys of its source, and without a full snapshot these are of the same keys.
        table = reader() if options.full_snapshot else engine.read_scan_plan(spark, engine.plan_scan(stage))
        history = engine.History(self._columns, stage.target.struct, table=stage.log.uri, version=stage.handle.read_version)
        return history.source(
            table, rows, effective_at=options.effective_at, deleted=options.deleted, full_snapshot=options.full_snapshot
        )

    def _rows(self, spark: SparkSession, reader: TableReader) -> DataFrame:
        if self._source_function is not None:
            return self._source_function(spark)
        check_source(self.merge_source, whose=f"the task {self.task_id!r}")  # rendered
        check_is_query(self.merge_source, whose=f"the task {self.task_id!r}")
        named = dict(self.merge_source) if isinstance(self.merge_source, Mapping) else {"sql": self.merge_source}
        make_views(reader, named, whose=f"the task {self.task_id!r}")
        conn_id = named.get(CONNECTION)
        secrets = source_options(str(conn_id), str(named.get("format", "parquet"))) if conn_id else {}
        rows = engine.read_source(spark, named, secrets)
        if rows is None:
            raise DeltaIllegalArgumentException(f"The source of the task {self.task_id!r} is empty. Give it as SQL or as a path.")
        return rows
