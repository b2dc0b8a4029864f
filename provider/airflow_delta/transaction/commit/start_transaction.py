"""Starts transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_delta.transaction.commit.optimistic_transaction import OptimisticTransaction

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def start_transaction(log: DeltaLog, snapshot: Snapshot | None = None, **options: Any) -> OptimisticTransaction:
    """Start an optimistic transaction on a table (Delta's ``DeltaLog.startTransaction``).

    :param snapshot: version to read; default: the latest.
    :param options: further arguments of :class:`OptimisticTransaction`.
    """
    return OptimisticTransaction(log, snapshot if snapshot is not None else log.update(), **options)


@contextmanager
def with_new_transaction(log: DeltaLog, snapshot: Snapshot | None = None, **options: Any) -> Iterator[OptimisticTransaction]:
    """Start a transaction that is the thread's active one inside a ``with`` block (Delta's ``withNewTransaction``)."""
    transaction = start_transaction(log, snapshot, **options)
    OptimisticTransaction.set_active(transaction)
    try:
        yield transaction
    finally:
        OptimisticTransaction.clear_active()
