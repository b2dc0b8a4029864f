"""The operations of Delta: names, parameters, and what the engine needs to know of each (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_delta.transaction.operations.kinds import KINDS
from airflow_delta.transaction.operations.on_data import DataOperations
from airflow_delta.transaction.operations.on_table import TableOperations

CHANGES_DATA = frozenset(name for name, kind in KINDS.items() if kind.changes_data)
"""Operations that change data even where their actions say ``dataChange=false``."""


@dataclass(frozen=True)
class Operation(DataOperations, TableOperations):
    """What a commit does, as ``commitInfo`` records it: one constructor for each of Delta's operations.

    An operation that Delta does not have is made by name: ``Operation("MY JOB", {"source": "x"})``.
    """

    __slots__ = ()
