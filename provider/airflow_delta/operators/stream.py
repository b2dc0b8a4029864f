"""Run a streaming query over the data that has arrived since the last run, and commit each batch exactly once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import Asset, AssetAlias, get_current_context

from airflow_delta.assets.delta import delta_asset
from airflow_delta.assets.events import events_extra
from airflow_delta.contract.choices import ISOLATION_LEVELS, STREAM_MODES
from airflow_delta.contract.kinds import JSON_TEXT, LOCATION, NAMES, TEXT, TRUTH, WHOLE_NUMBER
from airflow_delta.contract.options import check_writer_options
from airflow_delta.exceptions import DeltaError, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.tasks.airflow_tasks_test import warn_if_tested
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.conflict_detection import detection_tags
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.functions import INJECTED, call_injected, without_injected
from airflow_delta.tasks.identity import commit_tags
from airflow_delta.tasks.outlets import withdraw_default_outlets
from airflow_delta.tasks.spark.ending import within
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.transaction.conflict_detection import LEVELS

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_delta.contract.payloads import CommitResult
    from airflow_delta.streaming import DeltaBatchSink
    from airflow_delta.tasks.declared import Taken


class DeltaStreamOperator(DeltaOperator, SessionParameters, PythonOperator):
    """Call a function with a Spark session, write the streaming DataFrame that it returns to a Delta table, and end.

    The query processes all data that is available when it starts (trigger ``availableNow``), in as many batches as its source
    gives, and the next run continues from its checkpoint. A run that is killed and retried commits no batch twice. Returns JSON:
    ``table``, ``queryId``, ``version`` (of the last batch, ``null`` without one) and ``batches``, the commits of this run, with
    ``batchId``, ``version``, ``numFiles``, ``numRecords`` and ``numBytes``.

    :param python_callable: function that returns a streaming DataFrame; may name ``spark`` among its parameters.
    :param table: URI, absolute path, or name below the base path of the connection; the first batch creates it. (templated)
    :param checkpoint_location: directory of the query's checkpoint, as Spark reaches it. One query, one checkpoint. (templated)
    :param mode: ``append``, or ``complete``: each batch is the whole result and replaces the table's rows. (templated)
    :param merge_schema: add columns that the table does not have. (templated)
    :param overwrite_schema: let a batch of a ``complete`` query replace the table's schema. (templated)
    :param partition_by: partition columns of a new table. (templated)
    :param query_id: ``appId`` of the commits; required on Spark Connect, see
        :class:`~airflow_delta.streaming.sink.DeltaBatchSink`. (templated)
    :param reads_table: the query reads the same table, so a concurrent change to it is a conflict.
    :param write_options: options of Spark's Parquet writer. (templated)
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property. (templated)
    :param conflict_detection: how closely to look at what others committed since a batch began: ``delta``, ``statistics`` or
        ``rows``, as in :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`. (templated)
    :param max_restarts: how often a batch starts over on the newest version after a conflict.
    :param assume_new_batch: id of a batch that is known not to be in the table, if the query has paused for so long that the
        table no longer shows it, or the table is a clone. (templated)
    :param user_metadata: text for ``commitInfo.userMetadata``; a mapping or a list becomes JSON. (templated)
    :param delta_conn_id: connection to the table. (templated)
    :param outlets: assets that the task emits; default: the table's, unless the name (or the connection of a relative name) is
        templated, the task is mapped, or there is no new batch.

    The other parameters are those of :class:`~airflow_delta.tasks.spark.session.SessionParameters`.
    """

    by_job: ClassVar[bool | str] = "commits each batch of a stream by itself, in a session of the worker"
    default_retry_policy = REFUSALS
    emits_table = True

    table: str = parameter(templated=True, kind=LOCATION)
    checkpoint_location: str = parameter(templated=True)
    mode: str = parameter(default="append", templated=True, choices=STREAM_MODES)
    merge_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    overwrite_schema: Taken[bool | str, bool] = parameter(default=False, templated=True, kind=TRUTH)
    partition_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    query_id: str | None = parameter(default=None, templated=True, kind=TEXT)
    reads_table: bool = parameter(default=False, kind=TRUTH)
    write_options: Mapping[str, Any] | None = parameter(default=None, templated=True)
    isolation_level: str | None = parameter(default=None, templated=True, choices=ISOLATION_LEVELS)
    conflict_detection: str = parameter(default="rows", templated=True, choices=LEVELS)
    max_restarts: int = parameter(default=0)
    assume_new_batch: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    user_metadata: Any = parameter(default=None, templated=True, kind=JSON_TEXT)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        kwargs.setdefault("show_return_value_in_logs", False)
        named = inspect.signature(inspect.unwrap(python_callable)).parameters
        if unknown := [name for name in INJECTED if name in named and name != "spark"]:
            raise DeltaIllegalArgumentException(
                f"The function of a streaming query gets only spark, not {', '.join(unknown)}: there is no transaction before "
                "its batches run. Rename the parameter."
            )
        super().__init__(python_callable=without_injected(python_callable), **kwargs)
        check_writer_options(self.write_options, whose=f"The task {self.task_id!r}")
        self._query: StreamingQuery | None = None

    def execute_callable(self) -> Any:
        """Run the query until it ends, and return what it has committed.

        :raises DeltaIllegalArgumentException: if the function does not return a streaming DataFrame.
        :raises DeltaError: if a batch could not be committed; earlier batches stay committed.
        """
        from airflow_delta.table.positions.batches import committed_batches

        context = get_current_context()
        hook = DeltaHook(self.delta_conn_id)
        log = hook.get_log(self.table)
        since = log.update().version + 1
        session = self.hold(TaskSession)
        sink = self._sink(hook, session.spark_table_uri, context)
        warn_if_tested(self, log.uri, "change")
        with session.session(log) as spark:
            result = call_injected(self.python_callable, self.op_args, self.op_kwargs, {"spark": spark})
            found = self._run(self._streaming(result), sink)
        query_id = self.query_id or found
        return self._report(context, log.uri, query_id, committed_batches(log, query_id, since=since))

    def on_kill(self) -> None:
        """Stop the query; committed batches stay."""
        if self._query is not None:
            within(1.0, self._query.stop, what="Stopping the query", logger=self.log)  # the base class ends the rest
        super().on_kill()

    def _sink(self, hook: DeltaHook, spark_table_uri: str | None, context: Context) -> DeltaBatchSink:
        from airflow_delta.streaming import DeltaBatchSink

        return DeltaBatchSink(
            self.table,
            hook=hook,
            mode=self.mode,
            merge_schema=self.merge_schema,
            overwrite_schema=self.overwrite_schema,
            partition_by=self.partition_by,
            query_id=self.query_id,
            reads_table=self.reads_table,
            options={key: str(value) for key, value in (self.write_options or {}).items()},
            spark_table_uri=spark_table_uri,
            isolation_level=self.isolation_level,
            conflict_detection=self.conflict_detection,
            max_restarts=self.max_restarts,
            assume_new_batch=self.assume_new_batch,
            user_metadata=self.user_metadata,
            tags={**commit_tags(context), **detection_tags(self.conflict_detection)},
        )

    def _streaming(self, result: Any) -> DataFrame:
        if not getattr(result, "isStreaming", False):
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} returned {type(result).__name__}, expected a streaming DataFrame (spark.readStream). "
                "For a batch DataFrame, use @task.delta_stage."
            )
        streaming: DataFrame = result
        return streaming

    def _run(self, df: DataFrame, sink: DeltaBatchSink) -> str:
        """Run the query until it has processed all available data, and return its id."""
        writer = df.writeStream.foreachBatch(sink).outputMode(self.mode).trigger(availableNow=True)
        self._query = query = writer.option("checkpointLocation", self.checkpoint_location).start()
        try:
            query.awaitTermination()
        except Exception as failure:
            if isinstance(sink.failure, DeltaError):  # Spark reports it as text only
                raise sink.failure from failure
            raise
        finally:
            self._query = None
            query.stop()
        return str(query.id)

    def _report(self, context: Context, table: str, query_id: str, batches: Sequence[CommitResult]) -> dict[str, Any]:
        last = batches[-1] if batches else None
        self.log.info(
            "Query %s committed %s batches to %s: %s rows; %s.",
            query_id,
            len(batches),
            table,
            sum(batch.num_records or 0 for batch in batches),
            "no new data" if last is None else f"the last one is version {last.version}",
        )
        if last is None:
            withdraw_default_outlets(self)
        else:
            self._emit(context, batches)
        return {
            "table": table,
            "queryId": query_id,
            "version": None if last is None else last.version,
            "batches": [
                {
                    "batchId": batch.txn_version,
                    "version": batch.version,
                    "numFiles": batch.num_files,
                    "numRecords": batch.num_records,
                    "numBytes": batch.num_bytes,
                }
                for batch in batches
            ],
        }

    def _emit(self, context: Context, batches: Sequence[CommitResult]) -> None:
        """Put the versions of all batches into the events of the outlets: a run emits one event, not one for each batch."""
        extra = events_extra(batches)
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(extra)
            elif isinstance(outlet, AssetAlias):
                context["outlet_events"][outlet].add(delta_asset(self.table, self.delta_conn_id), extra=extra)
