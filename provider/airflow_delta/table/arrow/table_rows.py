"""Rows of a transaction's table, as a stage without Spark reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaTableNotFoundException
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.read.read_table import Rows, check_limit, limited, worker_rows
from airflow_delta.table.read.row_filter import check_decidable
from airflow_delta.table.stage.scan import candidate_files

if TYPE_CHECKING:
    from airflow_delta.table.stage.view import TransactionView


def table_rows(
    view: TransactionView, where: str | None = None, *, columns: Sequence[str] | None = None, limit: int | None = None
) -> Rows:
    """Return rows of the table at the version that the transaction reads, or as earlier stages leave it.

    Parameters and errors as for :func:`~airflow_delta.table.read.read_table.read_table`.
    """
    handle, target = view.handle, view.target
    if not view.exists:
        raise handle.error(
            DeltaTableNotFoundException,
            f"Table {handle.table} did not exist when the transaction began, so there is nothing to read. Ask "
            "table.exists first.",
        )
    predicate = None if where is None else view.predicate(where)
    if predicate is not None:
        check_decidable(predicate, handle.table, handle.read_version)
    files = candidate_files(view, predicate)
    if limit is not None:
        sure = [file for file in files if predicate is None or predicate.selects_partition(file.partition_values)]
        check_limit(view.log, handle.read_version, [live_records(file) for file in sure], limit, complete=len(sure) == len(files))
    if not target.is_known:
        target = replace(target, schema_string=view.snapshot.metadata.schema_string)
    version = handle.read_version
    rows = worker_rows(
        view.log, files, metadata=target.metadata, version=version, predicate=predicate, columns=columns, limit=limit
    )
    return limited(rows, view.log, version, limit)
