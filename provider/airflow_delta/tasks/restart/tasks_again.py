"""Have Airflow run some tasks again, at most some number of times, and be ended by it: the running task is one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.observability import TaskMetrics

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle

STATE_KEY = "delta_restarts"
"""Key in the state store of the task, which Airflow keeps across tries and clears."""

WAIT_FOR_END = 120.0
"""Seconds that a cleared task waits for Airflow to end it, which takes a heartbeat (5 s) and the grace time (5 s)."""


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
