"""The log of a table that one can start transactions on (Delta's ``DeltaLog``): :class:`airflow_delta.log.DeltaLog`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.log import delta_log

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.commit.optimistic_transaction import OptimisticTransaction


class DeltaLog(delta_log.DeltaLog):
    """The log of one table, with transactions; see :class:`airflow_delta.log.delta_log.DeltaLog`."""

    def start_transaction(self, snapshot: Snapshot | None = None, **options: Any) -> OptimisticTransaction:
        """Start an optimistic transaction, see :func:`airflow_delta.transaction.start_transaction`."""
        from airflow_delta.transaction.commit.start_transaction import start_transaction

        return start_transaction(self, snapshot, **options)

    def with_new_transaction(
        self, snapshot: Snapshot | None = None, **options: Any
    ) -> AbstractContextManager[OptimisticTransaction]:
        """Start a transaction that is the active one of its thread inside a ``with`` block."""
        from airflow_delta.transaction.commit.start_transaction import with_new_transaction

        return with_new_transaction(self, snapshot, **options)
