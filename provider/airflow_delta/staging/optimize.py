"""Arguments of OPTIMIZE and REORG: which files to rewrite together."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_delta.staging.arguments import Arguments
from airflow_delta.staging.contract import Payload


@dataclass(frozen=True, kw_only=True, slots=True)
class RowIds(Payload):
    """Columns of row ids, and the first row id of each file of the plan (Delta protocol, "Row Tracking").

    :param columns: physical names of the columns with row ids and row commit versions.
    :param base: first row id of each file.
    :param version: row commit version of each file.
    """

    columns: tuple[str, ...]
    base: tuple[int, ...]
    version: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizeArguments(Arguments):
    """Arguments of OPTIMIZE and REORG.

    :param bins: positions of files in ``StageRequest.rewrite``; the files of a bin are rewritten together.
    :param outputs: number of new files of each bin.
    :param directories: where the files of each bin go, below the directory of the bin; empty: into that itself.
    :param z_order_by: paths of columns.
    :param parallel: bins to write at a time.
    :param row_ids: ``None`` if the table does not track rows.
    :param data_change: for each bin, whether its rows are changes staged by earlier stages.
    :param removes: ``remove`` actions of files staged by earlier stages.
    :param parameters: ``operationParameters`` of the commit.
    """

    bins: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    directories: tuple[str, ...] = ()
    z_order_by: tuple[tuple[str, ...], ...] = ()
    parallel: int = 1
    row_ids: RowIds | None = None
    data_change: tuple[bool, ...] = ()
    removes: tuple[dict, ...] = ()  # type: ignore[type-arg]
    parameters: dict = field(default_factory=dict)  # type: ignore[type-arg]
