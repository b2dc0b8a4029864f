"""After a conflict or an abort, have Airflow run a transaction's tasks again, from its start task on.

A worker cannot clear tasks itself. If every task of the Dag is the start task or downstream of it, the whole run is cleared, as
``TriggerDagRunOperator`` does with ``reset_dag_run``; any task may ask for that. Otherwise Airflow's REST API clears the start
task and everything after it, as the button in the UI does; that needs a user. Either way the running task, a commit or one
before it, is cleared too, and Airflow ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta import engine
from airflow_delta.airflow_internals.tasks import reset_run
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.restart.clearing import clear_with_downstream
from airflow_delta.tasks.restart.tasks_again import TasksAgain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import AbortResult, TransactionHandle
    from airflow_delta.exceptions import DeltaConcurrentModificationException
    from airflow_delta.log.delta_log import DeltaLog


ON_CONFLICT = ON_CLEAR = ("fail", "restart")


@dataclass(frozen=True, slots=True)
class RestartScope:
    """What to clear: the start task of the transaction and everything after it.

    :param start_task_id: its task id.
    :param map_index: its map index in a mapped task group, otherwise -1.
    :param is_whole_run: whether that is every task of the Dag.
    :param others: the start tasks of the other tables of its publication.
    """

    start_task_id: str
    map_index: int
    is_whole_run: bool
    others: tuple[str, ...] = ()

    @property
    def markers(self) -> list[Any]:
        """The start tasks in the form of the REST API."""
        names = (self.start_task_id, *self.others)
        return [name if self.map_index < 0 else [name, self.map_index] for name in names]


def restart_scope(
    context: Context, task: Any, setting: str = "on_conflict='restart'", *, publication: Any = None
) -> RestartScope:
    """Return what to clear for a task of a transaction: the start task that it depends on, and what depends on that.

    :param setting: what asks for it, for the error.
    :param publication: the commit task in the Dag file of the publication that the transaction is part of.
    :raises DeltaIllegalArgumentException: if there is no such task, or more than one, or it is mapped on its own.
    """
    dag: Any = context["dag"]
    definition: Any = dag.task_dict[task.task_id]
    given = getattr(definition, "transaction", None)
    if given is None:
        given = getattr(definition, "partial_kwargs", {}).get("transaction")
    starts = {source.task_id: source for source, _ in XComArg.iter_xcom_references(given)}
    all_starts = dict(starts)
    if publication is not None:
        all_starts |= {source.task_id: source for source, _ in XComArg.iter_xcom_references(publication.transactions)}
        starts = dict(list(all_starts.items())[:1])
    if len(starts) != 1:
        raise DeltaIllegalArgumentException(
            f"{setting} of {task.task_id!r} clears the start task that transaction= refers to, but it refers to "
            f"{len(starts)} tasks. Pass the output of one start task, or use delta_transaction."
        )
    ((start_task_id, start),) = starts.items()
    if start.is_mapped:
        raise DeltaIllegalArgumentException(
            f"{setting} of {task.task_id!r}: the start task {start_task_id!r} is mapped on its own, so its "
            "instances cannot be cleared one by one. Map a task group that holds the whole transaction."
        )
    ti = context["ti"]
    in_mapped_group = start.get_closest_mapped_task_group() is not None
    map_index = -1 if ti.map_index is None or not in_mapped_group else int(ti.map_index)
    inside = {*all_starts, *(name for each in all_starts.values() for name in each.get_flat_relative_ids(upstream=False))}
    others = tuple(name for name in all_starts if name != start_task_id)
    return RestartScope(start_task_id, map_index, not in_mapped_group and inside >= set(dag.task_dict), others)


class Restart(TasksAgain):
    """Restarts a transaction. Made before the commit, so that mistakes show without a conflict.

    :param task: the running task of the transaction.
    :param max_restarts: restarts by one task instance until it has done its work or given up.
    :param conn_id: connection to Airflow's REST API; may be ``None`` if the whole run can be cleared.
    :param setting: what asks for it, for errors.
    :param publication: the commit task in the Dag file of the publication that the transaction is part of.
    :raises DeltaIllegalArgumentException: if this transaction cannot be restarted.
    """

    def __init__(
        self,
        context: Context,
        task: Any,
        *,
        max_restarts: int,
        conn_id: str | None,
        setting: str = "on_conflict='restart'",
        publication: Any = None,
    ) -> None:
        super().__init__(context, task, max_restarts=max_restarts, conn_id=conn_id)
        self._scope = restart_scope(context, task, setting, publication=publication)
        if self._scope.is_whole_run and not conn_id and not _may_be_triggered(context["dag"]):
            raise DeltaIllegalArgumentException(
                f"{setting} of {task.task_id!r} clears the run as TriggerDagRunOperator does, which the Dag's "
                "allowed_run_types forbid. Add DagRunType.OPERATOR_TRIGGERED to them, or pass restart_conn_id=<connection with "
                "the URL of the API server and a user who may edit this Dag's task instances>."
            )
        if not self._scope.is_whole_run and not conn_id:
            raise DeltaIllegalArgumentException(
                f"{setting} of {task.task_id!r} has to clear {self._scope.start_task_id!r} and everything after "
                "it, but not the other tasks of the Dag: only Airflow's REST API does that. Pass restart_conn_id=<connection "
                "with the URL of the API server and a user who may edit this Dag's task instances>, or give the transaction a "
                "Dag of its own."
            )

    def after(self, conflict: DeltaConcurrentModificationException, log: DeltaLog, handle: TransactionHandle) -> bool:
        """Abort the transaction and have its tasks run again. Does not return if Airflow ends the task.

        :return: whether the log has the transaction after all, because another attempt of this commit was faster.
        """
        number = self._next(handle)
        if number is None:
            return False
        cause = f"aborted after a conflict ({type(conflict).__name__}); restart {number} of {self._max_restarts}"
        return self._restart(log, handle, cause)

    def of_aborted(self, handle: TransactionHandle) -> None:
        """Have the tasks of an aborted transaction run again. Does not return if Airflow ends the task."""
        if self._is_restarted(handle):  # by another task of the transaction: what it began is not to be cleared again
            self._task.log.info("Transaction %s: it was aborted, and is being restarted already.", handle.transaction_id)
            self._wait_for_end(handle)
            return
        number = self._next(handle)
        if number is None:
            return
        self._task.log.info(
            "Transaction %s: it was aborted; restart %s of %s clears %s and everything after it.",
            handle.transaction_id,
            number,
            self._max_restarts,
            self._scope.start_task_id,
        )
        self._ask(handle, self._clear, self._scope.start_task_id)

    def go_on(self, log: DeltaLog, handle: TransactionHandle) -> None:
        """Go on with a restart of this transaction that an earlier attempt counted and did not bring to its end.

        Does nothing if there is none, and does not return if Airflow ends the task.
        """
        if self._number_of(handle) is not None:
            self._restart(log, handle, "an earlier attempt ended before Airflow was asked to restart it; its restart")

    def _restart(self, log: DeltaLog, handle: TransactionHandle, cause: str) -> bool:
        given_up = self._give_up(log, handle)
        if given_up.outcome == "committed":
            return True
        self._task.log.info(
            "Transaction %s: %s clears %s and everything after it. %s",
            handle.transaction_id,
            cause,
            self._scope.start_task_id,
            given_up.reason,
        )
        self._ask(handle, self._clear, self._scope.start_task_id)
        return False

    def _give_up(self, log: DeltaLog, handle: TransactionHandle) -> AbortResult:
        return engine.abort(log, handle)

    def _is_restarted(self, handle: TransactionHandle) -> bool:
        """Return whether the start task is to run, or has run, again since it began this transaction."""
        ti, scope = self._context["ti"], self._scope
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[scope.start_task_id], run_ids=[ti.run_id]).get(ti.run_id, {})
        name = scope.start_task_id if scope.map_index < 0 else f"{scope.start_task_id}_{scope.map_index}"
        if states.get(name) != "success":
            return True
        latest = ti.xcom_pull(task_ids=scope.start_task_id, map_indexes=scope.map_index)
        return isinstance(latest, Mapping) and latest.get("transactionId") != handle.transaction_id

    def _clear(self) -> None:
        ti = self._context["ti"]
        if self._conn_id:
            clear_with_downstream(self._conn_id, dag_id=ti.dag_id, run_id=ti.run_id, tasks=self._scope.markers)
        else:
            reset_run(ti.dag_id, ti.run_id)


def _may_be_triggered(dag: Any) -> bool:
    """Return whether tasks may trigger runs of this Dag; Airflow asks the same before it clears one."""
    allowed = getattr(dag, "allowed_run_types", None)
    return allowed is None or "operator_triggered" in {kind.value for kind in allowed}
