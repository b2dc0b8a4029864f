"""What the pages show of an open transaction: rows by partition, a sample, columns before and after, at a bounded cost.

Runs in the reader's process, like :mod:`airflow_delta.ui.data`, so nothing here knows Airflow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaError,
    DeltaFileNotFoundException,
    DeltaIllegalStateException,
    DeltaLogCorruptedException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    StagedFileException,
    StagingException,
    VersionNotFoundException,
)
from airflow_delta.ui.commit_rows import (
    ROWS,
    RowsNotShownError,
    cell_text,
    cell_texts,
    column_text,
    data_limits,
    sampled_columns,
)
from airflow_delta.ui.limits import check_size

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.effects.review import ColumnState, Review

SAMPLE = 10
"""Rows of each kind that are shown."""

PARTITIONS = 100
"""Partitions that are listed."""

COLUMNS = 40
_SCHEMA_CHANGES = 100
STATISTICS = 20_000
"""Statistics of single columns of single files that are looked at."""


class StagedFilesGoneError(DeltaError):
    """Staged files of the transaction have been deleted."""


class NotStagedError(DeltaError):
    """The commit would refuse what is staged, or nothing is."""


def staged_rows(
    log: DeltaLog, *, handle: Mapping[str, Any], staged: Sequence[Mapping[str, Any]], rows: bool = False
) -> dict[str, Any]:
    """Return what the commit of some stages would do; values are text.

    :param handle: the transaction's, from its start task.
    :param staged: what its stages reported.
    :param rows: whether the viewer may read rows; otherwise no data file is opened, and no value of a row is returned.
    :raises StagedFilesGoneError: if staged files are gone: the transaction was aborted, or its files were deleted.
    :raises NotStagedError: if the commit would refuse the stages.
    :raises RowsNotShownError: if its rows cannot be read here.
    :raises ReadLimitException: if the log of the table is too long, or too many deletion vectors change.
    """
    from airflow_delta.table.effects.review import ReviewLimits, review

    check_size(log)
    latest = log.snapshot.version
    limits = ReviewLimits(data=data_limits() if rows else None, rows=ROWS, columns=COLUMNS, statistics=STATISTICS)
    try:
        found = review(log, TransactionHandle.from_dict(handle), staged, limits=limits, sample=SAMPLE if rows else 0)
    except (StagedFileException, DeltaFileNotFoundException) as error:
        raise log.error(StagedFilesGoneError, error.message) from error
    except (DeltaLogCorruptedException, DeltaTableNotFoundException, VersionNotFoundException):
        raise  # they have pages of their own
    except StagingException as error:
        raise log.error(NotStagedError, error.message) from error
    except (DeltaAnalysisException, DeltaIllegalStateException, DeltaUnsupportedOperationException) as error:
        raise log.error(RowsNotShownError, error.message) from error
    return {"latest": latest, "rows": rows, **_told(found, rows=rows)}


def _told(found: Review, *, rows: bool) -> dict[str, Any]:
    sampled = [*found.added_rows, *found.removed_rows]
    columns = sampled_columns(sampled)
    shown = columns[:COLUMNS]
    cells, added = [cell_texts(row, shown) for row in sampled], len(found.added_rows)
    partitions = [
        {
            "values": {column_text(name): cell_text(value) for name, value in one.values.items()},
            "added": one.added,
            "removed": one.removed,
        }
        for one in found.partitions[:PARTITIONS]
    ]
    return {
        "operation": found.operation,
        "read_version": found.read_version,
        "num_added_files": found.num_added_files,
        "num_removed_files": found.num_removed_files,
        "exact": found.exact,
        "added": _total(one.added for one in found.partitions),
        "removed": _total(one.removed for one in found.partitions),
        "partitions": partitions,
        "num_partitions": len(found.partitions),
        "schema_changes": [
            {name: cell_text(value) for name, value in change.to_dict().items()}
            for change in found.schema_changes[:_SCHEMA_CHANGES]
        ],
        "whole": found.whole,
        "statistics": [
            {
                "name": column_text(column.name),
                "type": cell_text(column.type),
                "before": _state(column.before, values=rows),
                "after": _state(column.after, values=rows),
            }
            for column in found.columns
        ],
        "num_columns": found.num_columns,
        "columns": [column_text(name) for name in shown],
        "num_sampled_columns": len(columns),
        "sample": {"added": cells[:added], "removed": cells[added:]},
    }


def _state(state: ColumnState | None, *, values: bool) -> dict[str, Any] | None:
    """Return the statistics of a column: bounds are values of rows."""
    if state is None:
        return None
    bounds = {"min": cell_text(state.low), "max": cell_text(state.high)} if values else {"min": None, "max": None}
    return {"nulls": state.nulls, "distinct": state.distinct, **bounds}


def _total(counts: Any) -> int | None:
    found = list(counts)
    return None if None in found else sum(found)
