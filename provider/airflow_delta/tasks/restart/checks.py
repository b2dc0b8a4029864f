"""Run outdated checks again, with everything after them; the stages stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.contract.choices import choice_problem
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.restart.clearing import clear_with_downstream
from airflow_delta.tasks.restart.tasks_again import TasksAgain
from airflow_delta.tasks.task_states import name_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.exceptions import ChecksOutdatedException

ON_OUTDATED = ("fail", "check_again")


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
    limit = task.max_restarts
    return CheckAgain(context, task, max_restarts=3 if limit is None else limit, conn_id=task.restart_conn_id)
