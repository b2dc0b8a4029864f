"""The values of one column in files of a commit, for keys of asset events that statistics do not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.log.arrow.values import readable
from airflow_delta.table.read.read_table import worker_rows

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import AddFile, Metadata
    from airflow_delta.log.delta_log import DeltaLog


def column_values(
    log: DeltaLog, files: Sequence[AddFile], *, metadata: Metadata, version: int, column: str, deleted: bool
) -> Iterator[tuple[AddFile, Any]]:
    """Yield each file with each of the values that a column has in it; dates and times that Python cannot hold are text.

    :param metadata: of the version whose columns to read.
    :param deleted: of the rows that deletion vectors mark, instead of the others.
    """
    for file in files:
        seen: set[Any] = set()
        for batch in worker_rows(log, [file], metadata=metadata, version=version, columns=[column], deleted=deleted):
            for value in readable(batch.column(0).unique()):
                if value not in seen:
                    seen.add(value)
                    yield file, value
