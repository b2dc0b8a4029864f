"""The door from light modules of transactions to heavy ones, which import pyarrow.

A blind append imports only light ones: a name is looked up when it is used. Types: ``heavy.pyi``.
"""

from __future__ import annotations

from airflow_delta.lazy import door

_HOMES = {
    "CarriedRows": "airflow_delta.transaction.conflicts.carried_rows",
    "RearrangedRows": "airflow_delta.transaction.conflicts.rearranged_rows",
    "all_rows": "airflow_delta.transaction.conflicts.moved_rows",
    "find_moved": "airflow_delta.transaction.conflicts.moved_rows",
    "old_files_of": "airflow_delta.transaction.conflicts.moved_rows",
    "rows_in": "airflow_delta.transaction.conflicts.moved_rows",
}

__all__ = sorted(_HOMES)

__getattr__ = door(__name__, _HOMES)
