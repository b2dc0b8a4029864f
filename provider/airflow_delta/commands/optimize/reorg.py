"""Plan a REORG ... APPLY (PURGE): rewrite files without deleted rows and without dropped columns."""

from __future__ import annotations

from airflow_delta.commands.optimize.bins import (
    DEFAULT_FILE_SIZE,
    Bin,
    RewriteSelection,
    bins_of,
    files_with_dropped_columns,
    has_deleted_rows,
)
from airflow_delta.commands.optimize.optimize_options import partition_predicate, target_file_size
from airflow_delta.commands.optimize.plan_optimize import PARALLEL, check_exists, stage_of
from airflow_delta.commands.stage.data_change import to_rearrange
from airflow_delta.commands.stage.scan import candidate_files
from airflow_delta.commands.stage.stage_view import SparkWork, StageView
from airflow_delta.commands.stage.view import TransactionView
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.staging.contract import StagedWrite


def plan_reorg(
    stage: StageView,
    *,
    where: str | None = None,
    max_file_size: int | None = None,
    parallel: int = PARALLEL,
) -> SparkWork | StagedWrite:
    """Plan a REORG PURGE as a stage of a transaction; its parameters are those of :func:`select_for_purge`.

    :param parallel: bins that Spark writes at a time.
    """
    return stage_of(stage, select_for_purge(stage, where=where, max_file_size=max_file_size), parallel=parallel)


def select_for_purge(view: TransactionView, *, where: str | None = None, max_file_size: int | None = None) -> RewriteSelection:
    """Select the files of any size with deleted rows, or with columns that the table does not have.

    Like Delta, this reads the footer of every file that the predicate selects: the log does not show dropped columns.

    :param where: predicate on partition columns.
    :param max_file_size: bytes of a bin, which becomes one file; default: 1 GiB, or the property ``delta.targetFileSize``.
    :raises DeltaAnalysisException: if the predicate names other columns.
    :raises StagedFileException: if a file is gone.
    """
    from airflow_delta.log.features import column_mapping

    check_exists(view)
    handle = target = view.target
    if "clustering" in handle.features and where is not None:
        raise DeltaUnsupportedOperationException(
            f"REORG of the clustered table {handle.table} takes no predicate. Leave it out.", table=handle.table
        )
    predicate = partition_predicate(view, where, "REORG")
    files = candidate_files(view, predicate)
    dropped = files_with_dropped_columns(
        view.log,
        files,
        view.schema,
        mapped=column_mapping.mode(target.configuration) != "none",
        known=[value for key, value in target.configuration.items() if key.startswith("delta.rowTracking.materialized")],
    )
    chosen = [file for file in files if file.path in dropped or has_deleted_rows(file)]
    max_size = max_file_size if max_file_size is not None else target_file_size(handle) or DEFAULT_FILE_SIZE
    bins: tuple[Bin, ...] = ()
    for group in to_rearrange(view, chosen):
        bins += bins_of(group, max_size, single=True)
    return RewriteSelection(
        operation="REORG",
        parameters={"predicate": [] if where is None else [where], "applyPurge": True},
        predicate=None if predicate is None else predicate.text,
        bins=bins,
        max_file_size=max_size,
        num_considered=len(files),
    )
