"""A transaction that a task begins, for itself or for others: its table and its identity."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.choices import ISOLATION_LEVELS, KEY_CHECKS, RERUN_POLICIES
from airflow_delta.contract.kinds import LOCATION, TEXT, WHOLE_NUMBER
from airflow_delta.dag_rules.task_loops import check_no_loop
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.identity import try_chain
from airflow_delta.tasks.keys.age import possible_since
from airflow_delta.tasks.keys.default_key import default_transaction_key, former_keys
from airflow_delta.tasks.keys.mapped_value import check_instance
from airflow_delta.tasks.keys.users import key_user
from airflow_delta.tasks.settlement import settle_before

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.declared import Taken


class OwnTransactionParameters(Parameters):
    """Parameters of a task that begins a transaction: its table and its identity.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param transaction_key: identity of the operation in the table's log; a run that finds its key committed follows
        ``rerun_policy``. Default: Dag id, task id, run id, and the mapped value. (templated)
    :param app_id: with ``txn_version``, Delta's monotonic scheme (``txnAppId``) instead of ``transaction_key``. (templated)
    :param txn_version: version that grows with each transaction of ``app_id`` (``txnVersion``), 0 or more. (templated)
    :param rerun_policy: ``skip`` (default), ``append`` (run again), ``fail``, or ``replace`` (first undo what the key added
        before). (templated)
    :param key_check: if another run, or another task, has committed the key: ``warn`` (default), in the task's log and as XCom,
        or ``fail``. A run that Airflow has scheduled for other data than the key's last one is refused either way, as is one that
        has published to the table under another key. ``off``: neither. (templated)
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property. (templated)
    """

    table: str | None = parameter(default=None, templated=True, kind=LOCATION)
    transaction_key: str | None = parameter(default=None, templated=True, kind=TEXT)
    app_id: str | None = parameter(default=None, templated=True, kind=TEXT)
    txn_version: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    rerun_policy: str = parameter(default="skip", templated=True, choices=RERUN_POLICIES)
    key_check: str = parameter(default="warn", templated=True, choices=KEY_CHECKS)
    isolation_level: str | None = parameter(default=None, templated=True, choices=ISOLATION_LEVELS)


class OwnTransaction(Part, OwnTransactionParameters):
    """The part of a task that begins a transaction: its table and its identity."""

    def log(self, delta_conn_id: str | None, *, create: bool = False) -> DeltaLog:
        """Return the table's log.

        :param create: reserve the table in its catalog if it is one of a catalog and does not exist.
        """
        return DeltaHook(delta_conn_id or DeltaHook.default_conn_name).get_log(self.named_table, create=create)

    @property
    def named_table(self) -> str:
        """The table.

        :raises DeltaIllegalArgumentException: if the task names none.
        """
        if not self.table:
            raise DeltaIllegalArgumentException(
                f"The task {self.task.task_id!r} has neither a table nor a transaction. Pass table=<URI>, or transaction=<output "
                "of the start task>."
            )
        return self.table

    def options(self, context: Context) -> dict[str, Any]:
        """Return :meth:`identity` and the tries of the task, which commits by itself."""
        return {**self.identity(context), "tries": try_chain(context)}

    def identity(self, context: Context) -> dict[str, Any]:
        """Return the identity as arguments of :func:`airflow_delta.table.start.begin.begin`."""
        check_no_loop(context)
        key, app_id = self.transaction_key, self.app_id
        given = key or app_id
        if key is None and app_id is None and self.txn_version is None:
            key = default_transaction_key(context)
        else:
            check_instance(context, str(given))
        return {
            "transaction_key": key,
            "app_id": app_id,
            "txn_version": self.txn_version,
            "rerun_policy": self.rerun_policy,
            "isolation_level": self.isolation_level,
            "former_keys": former_keys(context, given),
            "possible_since": possible_since(context, given),
            "user": key_user(self.task, context, self.key_check),
            "settle": partial(settle_before, context),
        }
