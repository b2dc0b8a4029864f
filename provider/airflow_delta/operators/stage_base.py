"""What every stage task shares: the transaction it works for, and how its rows go into the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.operators.identity import column_names, parse_handle
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.paths import new_attempt

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log import DeltaLog


class DeltaStageBaseOperator(BaseOperator):
    """Base of the tasks that stage rows for a transaction. Readers of the table see nothing until the commit.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param mode: ``append``, ``overwrite`` or ``dynamic`` (overwrite the partitions that the rows are in). (templated)
    :param replace_where: Spark SQL predicate of an ``overwrite``: only rows that satisfy it are replaced, and every new row has
        to satisfy it. (templated)
    :param merge_schema: add columns that the table does not have.
    :param overwrite_schema: let an ``overwrite`` replace the table's schema and partitioning.
    :param partition_by: partition columns; default: the transaction's. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    """

    template_fields: Sequence[str] = ("transaction", "mode", "replace_where", "partition_by", "delta_conn_id")
    ui_color = "#e0f2f7"

    def __init__(
        self,
        *,
        transaction: Any = None,
        mode: str = "append",
        replace_where: str | None = None,
        merge_schema: bool = False,
        overwrite_schema: bool = False,
        partition_by: str | Sequence[str] = (),
        delta_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.transaction = transaction
        self.mode = mode
        self.replace_where = replace_where
        self.merge_schema = merge_schema
        self.overwrite_schema = overwrite_schema
        self.partition_by = partition_by
        self.delta_conn_id = delta_conn_id

    def _open(self) -> tuple[DeltaLog, TransactionHandle]:
        handle = parse_handle(self.transaction, task_id=self.task_id)
        hook = DeltaHook(self.delta_conn_id or handle.delta_conn_id or DeltaHook.default_conn_name)
        return hook.get_log(handle.table), handle

    def _write_options(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "replace_where": self.replace_where,
            "merge_schema": self.merge_schema,
            "overwrite_schema": self.overwrite_schema,
            "partition_by": column_names(self.partition_by),
        }

    def _identity(self, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        return {
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
            "attempt": new_attempt(ti.try_number),
        }

    def _skip_if_committed(self, handle: TransactionHandle, context: Context) -> dict[str, Any] | None:
        """Return the report of a stage that has nothing to do, because an earlier run committed this transaction key."""
        from airflow_delta.commands.write import skip_stage

        if handle.committed is None:
            return None
        self.log.info(
            "Transaction key %s is in version %s of %s already: nothing is staged (rerun_policy=%s).",
            handle.app_id,
            handle.committed.version,
            handle.table,
            handle.rerun_policy,
        )
        return skip_stage(handle, mode=self.mode, **self._identity(context)).to_dict()

    def _report(self, staged: StagedWrite) -> Mapping[str, Any]:
        self.log.info(
            "Staged %s of %s: %s rows, %s files, %s bytes; attempt %s. Nothing is visible before the commit.",
            staged.mode,
            staged.stage,
            staged.num_records,
            staged.num_files,
            staged.num_bytes,
            staged.attempt,
        )
        return staged.to_dict()
