"""How long the tables of a publication must keep their logs: whoever goes on with it has these alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from airflow_delta.contract.delta_names import LOG_RETENTION_DURATION, SET_TRANSACTION_RETENTION_DURATION
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log.features.properties import DAY, WEEK
from airflow_delta.table.definition.altered_table import is_alter
from airflow_delta.table.stage.earlier_stages import definition_after, in_order
from airflow_delta.table.stage.load import StageActions
from airflow_delta.table.state.read_snapshot import definition_read, snapshot_of_transaction

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.table_definition import TableDefinition


def check_retention(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
    """Refuse a table that forgets within a week what a publication is decided by: whoever goes on with it has the logs alone.

    :param writes: may create the table, or change its properties.
    :raises DeltaUnsupportedOperationException: if its log, or its transaction ids, are kept for less.
    """
    names = (LOG_RETENTION_DURATION, SET_TRANSACTION_RETENTION_DURATION)
    for table, name in product(definitions_in_force(log, handle, writes), names):
        kept = table.properties.get(name)
        if kept is not None and int(kept) < WEEK:
            raise handle.error(
                DeltaUnsupportedOperationException,
                f"The transaction on table {handle.table} cannot be part of a publication of several tables: {name} is "
                f"{int(kept) / DAY:g} days. A publication whose worker is killed goes on from the logs alone, and must find its "
                "decision and its states there for at least 7 days. Raise the property.",
            )


def definitions_in_force(log: DeltaLog, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> list[TableDefinition]:
    """Return what the table is, if there is one, and what it is after the stages, if they create or alter it."""
    tables = [log.snapshot.definition] if log.snapshot.version >= 0 else []
    if not tables or any(write.definition or is_alter(write) for write in writes):
        before = definition_read(handle, lambda: snapshot_of_transaction(log, handle))
        stages = in_order(handle, [StageActions(write) for write in writes])
        tables.append(definition_after(before, stages, seed=handle.transaction_id))
    return tables
