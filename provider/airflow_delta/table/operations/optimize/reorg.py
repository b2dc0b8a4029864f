"""Plan a REORG ... APPLY (PURGE): rewrite files without deleted rows and without dropped columns."""

from __future__ import annotations

from airflow_delta.contract.delta_names import MATERIALIZED_PREFIX
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.table.operations.optimize.bins import Bin, RewriteSelection, bins_of, has_deleted_rows
from airflow_delta.table.operations.optimize.dropped_columns import files_with_dropped_columns
from airflow_delta.table.operations.optimize.options import DEFAULT_FILE_SIZE, partition_predicate, target_file_size
from airflow_delta.table.operations.optimize.plan import PARALLEL, check_exists, stage_of
from airflow_delta.table.stage.data_change import to_rearrange
from airflow_delta.table.stage.scan import candidate_files
from airflow_delta.table.stage.stage_view import SparkWork, StageView
from airflow_delta.table.stage.view import TransactionView


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
    view.log.store.committer.check_allowed("REORG")
    check_exists(view)
    table = view.target
    if "clustering" in table.features and where is not None:
        raise table.error(
            DeltaUnsupportedOperationException, f"REORG of the clustered table {table.table} takes no predicate. Leave it out."
        )
    predicate = partition_predicate(view, where, "REORG")
    files = candidate_files(view, predicate)
    dropped = files_with_dropped_columns(
        view.log,
        files,
        view.schema,
        mapped=table.column_mapping != "none",
        known=[value for key, value in table.configuration.items() if key.startswith(MATERIALIZED_PREFIX)],
    )
    chosen = [file for file in files if file.path in dropped or has_deleted_rows(file)]
    max_size = max_file_size if max_file_size is not None else target_file_size(table) or DEFAULT_FILE_SIZE
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
