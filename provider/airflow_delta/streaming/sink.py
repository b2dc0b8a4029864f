"""The sink of a streaming query: ``df.writeStream.foreachBatch(DeltaBatchSink(table))``.

Each micro-batch is a transaction with the query's id as ``appId`` and the batch's id as ``version`` (Delta's ``DeltaSink``).
Spark runs a batch again if it does not know that it succeeded; a batch that the log already holds is not committed again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.delta_names import SET_TRANSACTION_RETENTION_DURATION
from airflow_delta.contract.options import check_writer_options
from airflow_delta.contract.payloads import CommitResult, Json, StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException, TransactionExpiredException
from airflow_delta.streaming.checkpoint import QUERY_ID, planned_at
from airflow_delta.table.positions.batches import check_batch_not_cloned, unknown_batch
from airflow_delta.transaction.conflict_detection import check_level
from airflow_delta.transaction.policy import check_user_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_delta.hooks.delta import DeltaHook
    from airflow_delta.log.delta_log import DeltaLog


logger = logging.getLogger(__name__)

OUTPUT_MODES = {"append": "Append", "complete": "Complete"}
"""Output modes that a Delta table supports, and their names in ``operationParameters``."""

_MAX_RESULTS = 1000
"""How many results a sink keeps: a query may run for months."""

_KEEP_IDENTITIES: dict[str, str | None] = {SET_TRANSACTION_RETENTION_DURATION: None}
"""A query must find its last batch in a table that it created, however long it has not run."""


class DeltaBatchSink:
    """Commit every micro-batch of a streaming query to a Delta table, each exactly once.

    Nothing is read or written before the first batch. The sink holds plain values only, so that Spark Connect can send it to its
    server, storage options included.

    :param table: URI of the table; with ``hook``, a name below its base path works too. The first batch creates the table.
    :param storage_options: options of the object store, see :func:`airflow_delta.log.storage.factory.store_for`.
    :param mode: ``append``, or ``complete`` (a batch is the whole result and replaces the table's rows); must be the query's
        output mode.
    :param merge_schema: add columns that the table does not have.
    :param overwrite_schema: batches of a ``complete`` query replace the table's schema.
    :param partition_by: partition columns, if the table is created.
    :param query_id: the ``appId`` of the commits. Default: the query's own id, which Spark keeps in the checkpoint. Spark Connect
        does not have it: give an id that stays the same as long as the checkpoint exists, and a new one after the checkpoint is
        deleted, since the new query counts its batches from 0 again.
    :param reads_table: the query reads the same table, and concurrent commits conflict.
    :param options: options of Spark's Parquet writer.
    :param spark_table_uri: URI of the table for Spark, if it differs from this process's.
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property.
    :param conflict_detection: how closely a commit checks concurrent commits since the version that its batch read:
        ``delta``, ``statistics`` or ``rows``; see :class:`~airflow_delta.transaction.policy.CommitPolicy`.
    :param max_restarts: how often a batch starts over on the newest version after a conflict with another commit.
    :param user_metadata: ``commitInfo.userMetadata`` of every commit.
    :param tags: ``commitInfo.tags`` of every commit.
    :param hook: connection to the table, instead of ``storage_options``.
    :param assume_new_batch: id of a batch that is known not to be in the table, if the table no longer holds the query's key
        (``delta.setTransactionRetentionDuration``), or began as a clone of one that did.
    :ivar results: the last 1000 commits of this object, by batch, if it runs in this process. Concurrent queries need one sink
        each.
    :ivar failure: the error that ended the query, if it runs in this process.
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
        conflict_detection: str = "rows",
        max_restarts: int = 0,
        user_metadata: str | None = None,
        tags: Mapping[str, str] | None = None,
        hook: DeltaHook | None = None,
        assume_new_batch: int | None = None,
    ) -> None:
        if mode not in OUTPUT_MODES:
            raise DeltaIllegalArgumentException(
                f"A Delta table does not support the output mode {mode!r}; use append or complete. For updates, MERGE each "
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
        self._connection = None if hook is None or hook.connection is None else hook.delta_conn_id
        self.mode = mode
        self.query_id = query_id
        self._write: dict[str, Any] = {
            "mode": "append" if mode == "append" else "overwrite",
            "merge_schema": merge_schema,
            "overwrite_schema": overwrite_schema,
            "options": dict(options or {}),
        }
        self._spark_table_uri = spark_table_uri
        self._partition_by = tuple(partition_by)
        self._reads_table = reads_table
        self._isolation_level = isolation_level
        self._conflict_detection = check_level(conflict_detection)
        self._max_restarts = max_restarts
        check_user_metadata(user_metadata)
        self._user_metadata = user_metadata
        self._tags = dict(tags or {})
        self._assume_new_batch = assume_new_batch
        self.results: dict[int, CommitResult] = {}
        self.failure: BaseException | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Commit a micro-batch, unless the log holds it.

        :raises DeltaAnalysisException: if a column has the type ``void``.
        :raises DeltaIllegalStateException: if the table began as a clone that may have the batch.
        :raises TransactionExpiredException: if the table may have forgotten the batch.
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
        """Commit a micro-batch, unless the log holds it, and return its commit. Raises like a call of the sink."""
        query_id = self.query_id or _query_id(df, self.table)
        _check_types(df, self.table)
        log = engine.DeltaLog.for_table(self.table, self._storage_options or None, connection=self._connection)

        def planned() -> int | None:
            return None if batch_id == self._assume_new_batch else planned_at(df, batch_id)

        def stage(handle: TransactionHandle) -> list[StagedWrite]:
            if self.mode == "append":  # a complete batch replaces the rows that it has added before
                check_batch_not_cloned(log, query_id, batch_id, planned)
            return [self._stage(log, handle, df, query_id, batch_id)]

        try:
            result = engine.run_transaction(
                log,
                stage,
                attempt=new_attempt(),
                max_restarts=self._max_restarts,
                policy=engine.CommitPolicy(conflict_detection=self._conflict_detection),
                tags=self._tags,
                user_metadata=self._user_metadata,
                app_id=query_id,
                txn_version=batch_id,
                partition_by=self._partition_by,
                configuration=_KEEP_IDENTITIES,
                isolation_level=self._isolation_level,
                possible_since=planned,
            )
        except TransactionExpiredException as expired:
            why = (
                "the query has been down for longer than the table keeps its keys (delta.setTransactionRetentionDuration) and log"
            )
            raise unknown_batch(TransactionExpiredException, log, query_id, batch_id, why) from expired
        if result.committed_before:
            logger.info("Batch %s of query %s is in version %s of %s already.", batch_id, query_id, result.version, self.table)
        else:
            logger.info("Batch %s of query %s is version %s of %s.", batch_id, query_id, result.version, self.table)
        return result

    def _stage(self, log: DeltaLog, handle: TransactionHandle, df: DataFrame, query_id: str, batch_id: int) -> StagedWrite:
        stage = engine.open_stage(
            log, handle, task_id=f"batch-{batch_id}", attempt=new_attempt(), spark_table_uri=self._spark_table_uri
        )
        request = engine.plan_stage(stage, **self._write)
        staged = engine.collect_stage(stage, request, engine.stage_dataframe(df.sparkSession, df, request))
        replaced = self.mode == "complete" and handle.read_version >= 0
        metrics = {
            "numAddedFiles": staged.num_files,
            "numRemovedFiles": stage.snapshot.num_files if replaced else 0,
            "numOutputBytes": staged.num_bytes,
        }
        if staged.num_records is not None:
            metrics["numOutputRows"] = staged.num_records
        operation = engine.Operation.streaming_update(OUTPUT_MODES[self.mode], query_id, batch_id)
        reads = dataclasses.replace(staged.reads, whole_table=True, selected=False) if self._reads_table else staged.reads
        return dataclasses.replace(
            staged, operation=operation.name, parameters=dict(operation.parameters), metrics=metrics, reads=reads
        )


def _query_id(df: DataFrame, table: str) -> str:
    """Return the id of the running batch's query."""
    context = getattr(df.sparkSession, "_sc", None)  # Spark Connect has none
    found = None if context is None else context.getLocalProperty(QUERY_ID)
    if not found:
        raise DeltaIllegalArgumentException(
            f"The id of the streaming query that writes to {table} is unknown (Spark Connect does not have it): give "
            "DeltaBatchSink a query_id that stays the same as long as the checkpoint exists.",
            table=table,
        )
    return str(found)


def _check_types(df: DataFrame, table: str) -> None:
    """Check that no column has the type ``void``: the type of later batches is unknown.

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
            "(DELTA_NULL_SCHEMA_IN_STREAMING_WRITE). Cast them to the intended type.",
            table=table,
        )
