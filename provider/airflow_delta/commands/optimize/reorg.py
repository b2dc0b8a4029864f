"""Plan a REORG ... APPLY (PURGE): files are rewritten without deleted rows, and without columns that the table has dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.optimize.bins import (
    DEFAULT_FILE_SIZE,
    Bin,
    Rewrite,
    bins_of,
    files_with_dropped_columns,
    has_deleted_rows,
)
from airflow_delta.commands.optimize.optimize_options import partition_predicate, target_file_size
from airflow_delta.commands.optimize.plan_optimize import PARALLEL, stage_of, target_of
from airflow_delta.commands.stage.after import load_earlier
from airflow_delta.commands.stage.data_change import to_rearrange
from airflow_delta.commands.stage.scan import candidate_files
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log import DeltaLog


def plan_reorg(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    where: str | None = None,
    max_file_size: int | None = None,
    parallel: int = PARALLEL,
    spark_table_uri: str | None = None,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
) -> StageRequest | StagedWrite:
    """Plan a REORG PURGE as a stage of a transaction; its parameters are those of :func:`select_for_purge`.

    :param parallel: bins that Spark writes at a time.
    """
    earlier = load_earlier(log, handle, after) if after else []
    rewrite = select_for_purge(log, handle, where=where, max_file_size=max_file_size, earlier=earlier)
    identity = {"task_id": task_id, "map_index": map_index, "attempt": attempt}
    return stage_of(log, handle, rewrite, identity, parallel=parallel, spark_table_uri=spark_table_uri, earlier=earlier)


def select_for_purge(
    log: DeltaLog,
    handle: TransactionHandle,
    *,
    where: str | None = None,
    max_file_size: int | None = None,
    earlier: Sequence[StageActions] = (),
) -> Rewrite:
    """Select the files with deleted rows, or with columns that the table does not have, whatever their size.

    The footer of every file that the predicate selects is read, as Delta does: the log does not tell of dropped columns.

    :param where: predicate on partition columns.
    :param max_file_size: bytes of a bin, which becomes one file; default 1 GiB, or the property ``delta.targetFileSize``.
    :raises DeltaAnalysisException: the predicate names other columns.
    :raises StagedFileException: a file is gone.
    """
    from airflow_delta.log.features import column_mapping
    from airflow_delta.log.schema.types import parse_schema

    target = target_of(handle, earlier)
    if "clustering" in handle.features and where is not None:
        raise DeltaUnsupportedOperationException(
            f"REORG of the clustered table {handle.table} takes no predicate. Leave it out.", table=handle.table
        )
    predicate = partition_predicate(log, target, where, "REORG")
    files = candidate_files(log, handle, predicate, earlier)
    dropped = files_with_dropped_columns(
        log,
        files,
        parse_schema(target.schema_string or ""),
        mapped=column_mapping.mode(target.configuration) != "none",
        known=[value for key, value in target.configuration.items() if key.startswith("delta.rowTracking.materialized")],
    )
    chosen = [file for file in files if file.path in dropped or has_deleted_rows(file)]
    max_size = max_file_size if max_file_size is not None else target_file_size(handle) or DEFAULT_FILE_SIZE
    bins: tuple[Bin, ...] = ()
    for group in to_rearrange(handle, chosen, earlier):
        bins += bins_of(group, max_size, single=True)
    return Rewrite(
        operation="REORG",
        parameters={"predicate": [] if where is None else [where], "applyPurge": True},
        predicate=None if predicate is None else predicate.text,
        bins=bins,
        max_file_size=max_size,
        num_considered=len(files),
    )
