"""DELETE and TRUNCATE: rows leave the table, whole files without Spark (Delta's ``DeleteCommand``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.rewrite.rewrite_target import removal_metrics, rewrite_target
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow_delta.log import DeltaLog


def plan_delete(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    predicate: str | None = None,
    options: Mapping[str, str] | None = None,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StageRequest | StagedWrite:
    """Plan a DELETE.

    Without a predicate, or with one that partition values decide, files leave the table whole and nothing is left for Spark.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param predicate: Spark SQL condition of the rows to delete; default: all.
    :param options: options of Spark's Parquet writer for the rows that are written again.
    :param spark_table_uri: URI of the table as Spark reaches it, when it is not the worker's.
    :param after: staged writes of earlier stages of the transaction, on top of which the rows are deleted.
    :raises PredicateException: the predicate does not parse or names an unknown column.
    :raises AppendOnlyException: the table only takes appends.
    :raises DeltaTableNotFoundException: there is no table.
    """
    target = rewrite_target(log, handle, "DELETE", task_id=task_id, map_index=map_index, attempt=attempt, after=after)
    condition = target.parse(predicate)
    parameters = {"predicate": [] if condition is None else [condition.text]}
    files = target.files(condition)
    if condition is None or not files or condition.selects_partitions(file.partition_values for file in files):
        return target.staged(files, condition, parameters=parameters, metrics=removal_metrics(files))
    return target.request(
        files,
        condition,
        condition=condition,
        parameters=parameters,
        deletion_vectors=target.deletion_vectors,
        options=options,
        spark_table_uri=spark_table_uri,
    )


def plan_truncate(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StagedWrite:
    """Plan a TRUNCATE: every file leaves the table. Needs no Spark.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param after: staged writes of earlier stages of the transaction, whose files go as well.
    :raises AppendOnlyException: the table only takes appends.
    :raises DeltaTableNotFoundException: there is no table.
    """
    target = rewrite_target(log, handle, "TRUNCATE", task_id=task_id, map_index=map_index, attempt=attempt, after=after)
    files = target.files(None)
    return target.staged(files, None, metrics={"numRemovedFiles": len(files)})
