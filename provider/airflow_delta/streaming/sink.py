"""The sink of a streaming query: ``df.writeStream.foreachBatch(DeltaBatchSink(table))``.

A micro-batch is a transaction of its own with the query's id as ``appId`` and the batch's id as ``version`` (Delta's
``DeltaSink``). Spark runs a batch again when it was not told that it is done; what the log holds already is not committed twice.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, TransactionExpiredException
from airflow_delta.staging.contract import CommitResult, Json, StagedWrite, TransactionHandle
from airflow_delta.staging.options import check_writer_options
from airflow_delta.staging.paths import new_attempt
from airflow_delta.streaming.checkpoint import QUERY_ID, planned_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_delta.hooks.delta import DeltaHook
    from airflow_delta.log import DeltaLog

logger = logging.getLogger(__name__)

OUTPUT_MODES = {"append": "Append", "complete": "Complete"}
"""Output modes of a query that a Delta table can take, with the names that ``operationParameters`` has for them."""

_MAX_RESULTS = 1000
"""Batches that a sink remembers: a query may run for months."""

_KEEP_IDENTITIES: dict[str, str | None] = {"delta.setTransactionRetentionDuration": None}
"""A query that stood still for however long must still find its last batch in a table that it has made."""


class DeltaBatchSink:
    """Commit every micro-batch of a streaming query to a Delta table, each exactly once.

    Nothing is read or written before the first batch. The sink holds plain values only, so that Spark Connect can send it to its
    server, storage options included.

    :param table: URI of the table; with ``hook`` also a name below its base path. The first batch creates it.
    :param storage_options: options of the object store, see :func:`airflow_delta.log.storage.factory.store_for`.
    :param mode: ``append``, or ``complete`` (a batch is the whole result and replaces the table's rows); must be the query's
        output mode.
    :param merge_schema: columns that the table does not have are added to it.
    :param overwrite_schema: a batch of a ``complete`` query replaces the table's schema.
    :param partition_by: partition columns of a table that is created.
    :param query_id: the ``appId`` of the commits. Default: the query's own id, which Spark keeps in the checkpoint. Spark Connect
        does not tell it: give a text that lives as long as the checkpoint does, and change it when the checkpoint is deleted,
        since the new query counts its batches from 0 again.
    :param reads_table: the query reads the same table: a commit that changed it since is a conflict.
    :param options: options of Spark's Parquet writer.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not this process's.
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property.
    :param max_restarts: how often a batch is begun anew on the newest version after a conflict with another commit.
    :param user_metadata: ``commitInfo.userMetadata`` of every commit.
    :param tags: ``commitInfo.tags`` of every commit.
    :param hook: connection to the table, instead of ``storage_options``.
    :param assume_new_batch: id of a batch that is known not to be in the table, where the table cannot tell any more: keys expire
        (``delta.setTransactionRetentionDuration``), and the query may have stood still for longer.
    :ivar results: the last 1000 commits of this object, by batch, as far as it ran in this process. Queries that run at the
        same time need a sink each.
    :ivar failure: the error that ended the query, as far as it ran in this process.
    :raises DeltaIllegalArgumentException: if the arguments contradict each other.
    """

    def __init__(
        self,
        table: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        mode: str = "append",
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: Sequence[str] = (),
        query_id: str | None = None,
        reads_table: bool = False,
        options: Mapping[str, str] | None = None,
        spark_table_uri: str | None = None,
        isolation_level: str | None = None,
        max_restarts: int = 0,
        user_metadata: str | None = None,
        tags: Mapping[str, str] | None = None,
        hook: DeltaHook | None = None,
        assume_new_batch: int | None = None,
    ) -> None:
        if mode not in OUTPUT_MODES:
            raise DeltaIllegalArgumentException(
                f"A Delta table cannot take the output mode {mode!r} of a query; use append or complete. For updates, MERGE each "
                f"batch (table {table}).",
                table=table,
            )
        check_writer_options(options, whose=f"The sink of table {table}")
        if overwrite_schema and mode != "complete":
            raise DeltaIllegalArgumentException(f"overwrite_schema needs mode='complete' (table {table})", table=table)
        if hook is not None and storage_options is not None:
            raise DeltaIllegalArgumentException(f"Give hook or storage_options, not both (table {table})", table=table)
        self.table = table if hook is None else hook.table_uri(table)
        self._storage_options = dict(storage_options or {}) if hook is None else hook.storage_options(self.table)
        self.mode = mode
        self.query_id = query_id
        self._write: dict[str, Any] = {
            "mode": "append" if mode == "append" else "overwrite",
            "merge_schema": merge_schema,
            "overwrite_schema": overwrite_schema,
            "options": dict(options or {}),
            "spark_table_uri": spark_table_uri,
        }
        self._partition_by = tuple(partition_by)
        self._reads_table = reads_table
        self._isolation_level = isolation_level
        self._max_restarts = max_restarts
        self._user_metadata = user_metadata
        self._tags = dict(tags or {})
        self._assume_new_batch = assume_new_batch
        self.results: dict[int, CommitResult] = {}
        self.failure: BaseException | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Commit a micro-batch, unless the log holds it.

        :raises DeltaAnalysisException: if a column has the type ``void``.
        :raises DeltaConcurrentModificationException: if another commit conflicts; the restarted query runs the batch again.
        """
        try:
            self.results[batch_id] = self.commit(df, batch_id)
            if len(self.results) > _MAX_RESULTS:
                del self.results[next(iter(self.results))]
        except BaseException as error:
            self.failure = error
            raise

    def commit(self, df: DataFrame, batch_id: int) -> CommitResult:
        """Commit a micro-batch, unless the log holds it, and return its commit; raises as calling the sink does."""
        from airflow_delta.commands.run_transaction import run_transaction
        from airflow_delta.log import DeltaLog

        query_id = self.query_id or _query_id(df, self.table)
        _check_types(df, self.table)
        log = DeltaLog.for_table(self.table, self._storage_options or None)
        try:
            result = run_transaction(
                log,
                lambda handle: [self._stage(log, handle, df, query_id, batch_id)],
                attempt=new_attempt(),
                max_restarts=self._max_restarts,
                tags=self._tags,
                user_metadata=self._user_metadata,
                app_id=query_id,
                txn_version=batch_id,
                partition_by=self._partition_by,
                configuration=_KEEP_IDENTITIES,
                isolation_level=self._isolation_level,
                possible_since=lambda: None if batch_id == self._assume_new_batch else planned_at(df, batch_id),
            )
        except TransactionExpiredException as expired:
            raise TransactionExpiredException(
                f"Whether batch {batch_id} of query {query_id} is in table {self.table} can no longer be told: the query has "
                "stood still for longer than the table keeps its keys (delta.setTransactionRetentionDuration) and its log. "
                f"Nothing is committed. Look at the table: if it lacks the rows of the batch, give assume_new_batch={batch_id}; "
                "if it has them, begin a new query (checkpoint and query_id) where this one stopped.",
                table=self.table,
                version=expired.version,
            ) from expired
        if result.committed_before:
            logger.info("Batch %s of query %s is in version %s of %s already.", batch_id, query_id, result.version, self.table)
        else:
            logger.info("Batch %s of query %s is version %s of %s.", batch_id, query_id, result.version, self.table)
        return result

    def _stage(self, log: DeltaLog, handle: TransactionHandle, df: DataFrame, query_id: str, batch_id: int) -> StagedWrite:
        from airflow_delta.commands.begin.read_snapshot import read_snapshot
        from airflow_delta.commands.write.plan_write import collect_stage, plan_stage
        from airflow_delta.spark.stage import stage_dataframe
        from airflow_delta.transaction import Operation

        request = plan_stage(log, handle, task_id=f"batch-{batch_id}", attempt=new_attempt(), **self._write)
        staged = collect_stage(log, handle, request, stage_dataframe(df.sparkSession, df, request))
        replaced = self.mode == "complete" and handle.read_version >= 0
        metrics = {
            "numAddedFiles": staged.num_files,
            "numRemovedFiles": read_snapshot(log, handle).num_files if replaced else 0,
            "numOutputBytes": staged.num_bytes,
        }
        if staged.num_records is not None:
            metrics["numOutputRows"] = staged.num_records
        operation = Operation.streaming_update(OUTPUT_MODES[self.mode], query_id, batch_id)
        reads = dataclasses.replace(staged.reads, whole_table=True) if self._reads_table else staged.reads
        return dataclasses.replace(
            staged, operation=operation.name, parameters=dict(operation.parameters), metrics=metrics, reads=reads
        )


def _query_id(df: DataFrame, table: str) -> str:
    """Return the id of the query that the running batch belongs to."""
    context = getattr(df.sparkSession, "_sc", None)  # a session of Spark Connect has none
    found = None if context is None else context.getLocalProperty(QUERY_ID)
    if not found:
        raise DeltaIllegalArgumentException(
            f"The id of the streaming query that writes to {table} is not known here (Spark Connect does not tell it): give "
            "DeltaBatchSink a query_id that lives as long as the checkpoint of the query.",
            table=table,
        )
    return str(found)


def _check_types(df: DataFrame, table: str) -> None:
    """Check that no column has the type ``void``: a stream cannot know which type later batches will have.

    :raises DeltaAnalysisException: if one has (Delta: DELTA_NULL_SCHEMA_IN_STREAMING_WRITE).
    """

    def is_void(data_type: Any) -> bool:
        if isinstance(data_type, str):
            return data_type == "void"
        nested: list[Any] = [data_type.get(key) for key in ("elementType", "keyType", "valueType") if key in data_type]
        fields: list[Json] = data_type.get("fields", [])
        return any(map(is_void, [*nested, *(f["type"] for f in fields)]))

    void = [f["name"] for f in df.schema.jsonValue()["fields"] if is_void(f["type"])]
    if void:
        raise DeltaAnalysisException(
            f"The streaming query writes the columns {', '.join(void)} with the type void to {table} "
            "(DELTA_NULL_SCHEMA_IN_STREAMING_WRITE). Cast them to the type that they shall have.",
            table=table,
        )
