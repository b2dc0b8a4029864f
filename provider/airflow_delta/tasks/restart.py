"""After a conflict or an abort, have Airflow run a transaction's tasks again, from its start task on.

A worker cannot clear tasks itself. There are two ways to have Airflow do it:

- If every task of the Dag is the start task or downstream of it, the whole run is cleared, as ``TriggerDagRunOperator`` does
  with ``reset_dag_run``; any task may ask for that.
- Otherwise Airflow's REST API clears the start task and everything after it, as the button in the UI does; that needs a user.

Either way the running task, a commit or one before it, is cleared too, and Airflow ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta import engine
from airflow_delta.airflow_internals.tasks import reset_run
from airflow_delta.contract.choices import choice_problem
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.clearing import clear_with_downstream
from airflow_delta.tasks.expected_stages import name_of
from airflow_delta.tasks.identity import whole_number
from airflow_delta.tasks.observability import TaskMetrics

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import AbortResult, TransactionHandle
    from airflow_delta.exceptions import ChecksOutdatedException, DeltaConcurrentModificationException
    from airflow_delta.log.delta_log import DeltaLog


ON_CONFLICT = ON_CLEAR = ("fail", "restart")
ON_OUTDATED = ("fail", "check_again")

STATE_KEY = "delta_restarts"
"""Key in the state store of the task, which Airflow keeps across tries and clears."""

WAIT_FOR_END = 120.0
"""Seconds that a cleared task waits for Airflow to end it, which takes a heartbeat (5 s) and the grace time (5 s)."""


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


class TasksAgain:
    """Has Airflow run tasks of a transaction again, at most some number of times, which the task's state store counts.

    :param task: the running task of the transaction.
    :param max_restarts: times that one task instance asks for it until it has done its work or given up.
    :param conn_id: connection to Airflow's REST API.
    :raises DeltaIllegalArgumentException: if ``max_restarts`` is not valid.
    """

    def __init__(self, context: Context, task: Any, *, max_restarts: int, conn_id: str | None) -> None:
        if max_restarts < 0:
            raise DeltaIllegalArgumentException(f"max_restarts must be 0 or more, got {max_restarts}.")
        self._context = context
        self._task = task
        self._max_restarts = max_restarts
        self._conn_id = conn_id

    def _ask(self, handle: TransactionHandle, clear: Callable[[], Any], tasks: str) -> None:
        """Ask Airflow to clear tasks. Does not return if it ends the task.

        :param tasks: names of the tasks, for errors.
        """
        try:
            clear()
        except Exception as error:
            self._task.log.exception("Could not clear %s", tasks)
            self._tell("failed", handle, f"Airflow did not clear {tasks} ({error}). Clear the start task")
            return
        TaskMetrics(self._context["ti"]).count("restart", table=handle.table, outcome="requested")
        self._wait_for_end(handle)

    def _next(self, handle: TransactionHandle) -> int | None:
        """Count a restart and return its number; ``None`` if there is none to begin."""
        if self._task.is_cancelled:
            self._tell("failed", handle, "the task was told to stop, so it is not restarted from here")
            return None
        number = self._claim(handle)
        if number is None:
            self._tell(
                "exhausted", handle, f"{self._max_restarts} restarts were not enough, it fails. Clear the start task to try again"
            )
        return number

    def succeeded(self) -> None:
        """Reset the count of restarts, for later reruns of this run. Never fails: what the task was to do is done."""
        store = self._context.get("task_state_store")
        try:
            # Even if there were none, after a rerun: the number of tries says nothing about restarts then.
            if store is not None and (isinstance(store.get(STATE_KEY), dict) or int(self._context["ti"].try_number) > 1):
                store.set(STATE_KEY, {"restarts": 0})
        except Exception:
            self._task.log.warning("Could not reset the count of restarts", exc_info=True)

    def _number_of(self, handle: TransactionHandle) -> int | None:
        """Return the number of a restart of this transaction that was counted already; ``None`` if there is none."""
        store: Any = self._context.get("task_state_store")
        entry = store.get(STATE_KEY) if store is not None else None
        if not isinstance(entry, dict) or entry.get("transactionId") != handle.transaction_id:
            return None
        return int(entry["restarts"])

    def _claim(self, handle: TransactionHandle) -> int | None:
        """Count a restart and return its number; ``None`` if none is left.

        The count is in the task's state store, which refuses writes of an attempt that Airflow has given up: of two live
        attempts, one restarts. If a clear drops the store, the number of tries is the bound.
        """
        if (counted := self._number_of(handle)) is not None:
            return counted
        store: Any = self._context.get("task_state_store")
        entry = store.get(STATE_KEY) if store is not None else None
        done = entry.get("restarts") if isinstance(entry, dict) else None
        if not isinstance(done, int):
            tries = int(self._context["ti"].try_number)
            done = self._max_restarts if tries > (self._max_restarts + 1) * (int(self._task.retries or 0) + 1) else 0
        left = done < self._max_restarts
        if store is not None:
            # If none is left: clearing the start task by hand allows all of them again.
            store.set(STATE_KEY, {"restarts": done + 1, **self._begun(handle)} if left else {"restarts": 0})
        return done + 1 if left else None

    def _begun(self, handle: TransactionHandle) -> dict[str, str]:
        """Return what the store keeps for a later try that is to go on with what was counted."""
        return {"transactionId": handle.transaction_id}

    def _wait_for_end(self, handle: TransactionHandle) -> None:
        """Wait for Airflow to end this task: it was cleared while running, and Airflow ignores its result from here on.

        If it ended by itself, callbacks and the log would report a failure.
        """
        end = time.monotonic() + WAIT_FOR_END
        while time.monotonic() < end:
            time.sleep(0.5)
        self._tell("failed", handle, "the run was cleared, but Airflow did not end this task")

    def _tell(self, outcome: str, handle: TransactionHandle, text: str) -> None:
        TaskMetrics(self._context["ti"]).count("restart", table=handle.table, outcome=outcome)
        self._task.log.error("Transaction %s: %s.", handle.transaction_id, text)


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


class CheckAgain(TasksAgain):
    """Has Airflow run outdated checks again, with everything after them; the stages stay as they are.

    :raises DeltaIllegalArgumentException: if there is no connection: only Airflow's REST API clears single tasks.
    """

    def __init__(self, context: Context, task: Any, *, max_restarts: int, conn_id: str | None) -> None:
        super().__init__(context, task, max_restarts=max_restarts, conn_id=conn_id)
        if not conn_id:
            raise DeltaIllegalArgumentException(
                f"on_outdated='check_again' of {task.task_id!r} clears single tasks: only Airflow's REST API does that. Pass "
                "restart_conn_id=<connection with the URL of the API server and a user who may edit this Dag's task instances>."
            )

    def after(self, outdated: ChecksOutdatedException, handle: TransactionHandle) -> None:
        """Have the outdated checks run again. Does not return if Airflow ends the task."""
        tasks = [name if index < 0 else [name, index] for name, index in outdated.checks]
        if not tasks or (number := self._next(handle)) is None:
            return
        names = ", ".join(name_of(*check) for check in outdated.checks)
        self._task.log.info(
            "Transaction %s: %s Check %s of %s clears %s and everything after it.",
            handle.transaction_id,
            outdated.message,
            number,
            self._max_restarts,
            names,
        )
        ti = self._context["ti"]
        self._ask(
            handle,
            lambda: clear_with_downstream(str(self._conn_id), dag_id=ti.dag_id, run_id=ti.run_id, tasks=tasks),
            names,
        )

    def _begun(self, handle: TransactionHandle) -> dict[str, str]:  # noqa: ARG002 - as of the base
        return {}  # who finds the checks outdated again counts again


def check_again(task: Any, context: Context) -> CheckAgain | None:
    """Return how a commit has outdated checks run again; ``None`` if it is to fail.

    :param task: the commit, rendered.
    :raises DeltaIllegalArgumentException: if ``on_outdated`` or ``max_restarts`` is not valid, or there is no connection.
    """
    asked = task.on_outdated
    if asked is None:
        asked = "check_again" if task.on_conflict == "restart" and task.restart_conn_id else "fail"
    if (problem := choice_problem("on_outdated", asked, ON_OUTDATED)) is not None:
        raise DeltaIllegalArgumentException(f"The task {task.task_id!r}: {problem}")
    if asked == "fail":
        return None
    limit = whole_number("max_restarts", task.max_restarts)
    return CheckAgain(context, task, max_restarts=3 if limit is None else limit, conn_id=task.restart_conn_id)


def _may_be_triggered(dag: Any) -> bool:
    """Return whether tasks may trigger runs of this Dag; Airflow asks the same before it clears one."""
    allowed = getattr(dag, "allowed_run_types", None)
    return allowed is None or "operator_triggered" in {kind.value for kind in allowed}
