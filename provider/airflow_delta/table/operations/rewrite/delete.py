"""DELETE and TRUNCATE: rows leave the table, whole files without Spark (Delta's ``DeleteCommand``)."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.table.operations.rewrite.target import removal_metrics, rewrite_target
from airflow_delta.table.stage.stage_view import SparkWork, StageView


def plan_delete(
    stage: StageView, *, predicate: str | None = None, options: Mapping[str, str] | None = None
) -> SparkWork | StagedWrite:
    """Plan a DELETE.

    Without a predicate, or with one on partition values, whole files leave the table and Spark is not needed.

    :param predicate: Spark SQL condition of the rows to delete; default: all.
    :param options: options of Spark's Parquet writer for rewritten rows.
    """
    target = rewrite_target(stage, "DELETE")
    condition = target.parse(predicate)
    parameters = {"predicate": [] if condition is None else [condition.text]}
    files = target.files(condition)
    if condition is None or not files or condition.selects_partitions(file.partition_values for file in files):
        return target.staged(files, condition, parameters=parameters, metrics=removal_metrics(files))
    return target.work(
        files,
        condition,
        condition=condition,
        parameters=parameters,
        deletion_vectors=target.deletion_vectors,
        options=options,
    )


def plan_truncate(stage: StageView) -> StagedWrite:
    """Plan a TRUNCATE: every file leaves the table. Needs no Spark."""
    target = rewrite_target(stage, "TRUNCATE")
    files = target.files(None)
    return target.staged(files, None, metrics={"numRemovedFiles": len(files)})
