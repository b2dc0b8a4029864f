"""A slowly changing dimension of type 2 as a task: a MERGE that keeps every version of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import NAMES, TRUTH
from airflow_delta.contract.options import check_writer_options
from airflow_delta.contract.scd2 import HistoryArguments
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.arrow import ArrowTableReader
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.engines import EngineParameters
from airflow_delta.tasks.merge_source import NamedSource, SourceParameters, take_source
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.spark.runner import RunnerParameters
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.read_versions import ReadVersions, ReadVersionsParameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite
    from airflow_delta.contract.request import StageRequest
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

    def arguments(self, stage: StageView) -> HistoryArguments:
        """Return what the request says of the history, with the columns of the table, checked."""
        columns = engine.history_columns(
            stage,
            keys=self.keys,
            tracked=self.tracked,
            valid_from=self.valid_from,
            valid_to=self.valid_to,
            current=self.current,
            confirmed=self.confirmed,
        )
        return HistoryArguments(
            columns=columns, effective_at=self.effective_at, deleted=self.deleted, full_snapshot=self.full_snapshot
        )


class DeltaScd2MergeOperator(
    DeltaTableOperator,
    RunnerParameters,
    EngineParameters,
    HistoryParameters,
    SourceParameters,
    SqlParameters,
    ReadVersionsParameters,
):
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

    The source has all columns of the table but those of the period and those that the table computes. The table must exist. The
    commit depends on the versions of the source's keys only, so runs on other keys do not conflict.

    :param write_options: options of Spark's Parquet writer, such as ``maxRecordsPerFile``. (templated)

    The other parameters are those of :class:`HistoryParameters`, :class:`~airflow_delta.tasks.merge_source.SourceParameters`,
    :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.stage.read_versions.ReadVersionsParameters`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    template_ext: Sequence[str] = (".sql",)
    sql_fields: ClassVar[tuple[str, ...]] = ("merge_source",)
    by_job: ClassVar[bool | str] = True

    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")
        if self.merge_source is None and self.application is None:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} has no source. Give it as SQL or as a path, or have an application of yours pass it."
            )
        take_source(self)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the MERGE, whose source Spark computes of the source rows and of the versions of the table."""
        history = HistoryOptions.of(self).arguments(stage)
        return engine.plan_history(stage, history, options=self.write_options, **NamedSource.of(self).planned(stage))

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
