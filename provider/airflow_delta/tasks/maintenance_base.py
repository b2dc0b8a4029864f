"""The base of the operations that are always transactions of their own: they replace the table, or delete its files."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.lineage import absolute_table
from airflow_delta.tasks.start.own_transaction import OwnTransaction, OwnTransactionParameters

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog


class DeltaMaintenanceBase(DeltaOperator, OwnTransactionParameters, CommitParameters):
    """Base of the operations that are always transactions of their own: they replace the table, or delete its files.

    :param delta_conn_id: connection of type ``delta``. (templated)
    :param outlets: assets that the task emits; default: the table's, unless the name (or the connection of a relative name) is
        templated, the task is mapped, or there is nothing to commit. Operations that only rearrange or delete files (auto
        compaction, VACUUM) have no default.

    The other parameters are those of :class:`~airflow_delta.tasks.start.own_transaction.OwnTransactionParameters` and
    :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    """

    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    emits_table: ClassVar[bool] = True
    ui_color = "#dae8fc"

    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    @abstractmethod
    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Run the operation and return the XCom value."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        own, committer = self.hold(OwnTransaction), self.hold(CommitPart)
        log = own.log(self.delta_conn_id)
        with committer.watched(context, log, (own.table, self.delta_conn_id)):
            return self.run(log, committer, context)

    def commit_options(self, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Return the identity and the options of the commit, as ``run_transaction`` takes them."""
        attempt = new_attempt(context["ti"].try_number)
        return {"attempt": attempt, **OwnTransaction.of(self).options(context), **committer.options(context)}

    def table_to_write(self) -> str | None:
        """Return the table."""
        return absolute_table(OwnTransaction.of(self).table)
