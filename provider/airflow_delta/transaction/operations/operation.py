"""Delta's operations, with name, parameters and metrics (Delta's ``DeltaOperations``)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_delta.transaction.operations.on_data import DataOperations
from airflow_delta.transaction.operations.on_table import TableOperations


@dataclass(frozen=True)
class Operation(DataOperations, TableOperations):
    """What a commit does, as recorded in ``commitInfo``; there is a constructor for each of Delta's operations.

    An operation that Delta does not have is created by name: ``Operation("MY JOB", {"source": "x"})``.
    """

    __slots__ = ()
