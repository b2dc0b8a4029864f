"""What a task does if its transaction has ended before it began to work: it was cleared, or runs late."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import WHOLE_NUMBER, taken
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.dag_file import argument_of, scope_of, start_tasks
from airflow_delta.tasks.restart.restart import ON_CLEAR, Restart
from airflow_delta.tasks.trust.handle import open_transaction

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)


def warn_of_abort(task: Any, context: Context) -> None:
    """Log, in a task that is not ours and runs again, that the transaction it stands in was aborted.

    A check of an author's own may pass then, long after its rows are gone, and only the commit would refuse. A look for each of
    the transactions between whose start and commit the task stands.
    """
    for start in task.get_flat_relatives(upstream=True):
        if role_of(start) != "start" or not any(role_of(other) == "commit" for other in task.get_flat_relatives(upstream=False)):
            continue
        handle = context["ti"].xcom_pull(task_ids=start.task_id)
        if handle is None:
            continue
        between = SimpleNamespace(task_id=task.task_id, transaction=handle, delta_conn_id=None, changes_table=False)
        log, opened = open_transaction(between, context, start=start)
        if is_aborted(log, opened):
            logger.error("What this task does will not be published: %s", engine.aborted_error(opened))


def find_end(task: Any, context: Context, log: DeltaLog, handle: TransactionHandle) -> CommitResult | None:
    """Return the commit of a stage's transaction; ``None`` while the transaction is open.

    :raises TransactionAbortedException: if it was aborted and Airflow does not restart it (``on_clear`` of the commit).
    """
    runs_again = int(context["ti"].try_number) > 1
    found = engine.ended(log, handle, runs_again=runs_again)
    if found is None:
        if runs_again:
            with contextlib.suppress(Exception):  # mistakes in on_clear are the commit's to tell, not a live stage's
                if (restart := _restart_of(task, context)) is not None:
                    restart.succeeded()
        return None
    if found.committed is None:
        raise _aborted(task, context, handle)
    return found.committed


def check_not_aborted(task: Any, context: Context, log: DeltaLog, handle: TransactionHandle) -> None:
    """Refuse to work for an aborted transaction, of which the log holds no commit.

    :raises TransactionAbortedException: if it was aborted and Airflow does not restart it (``on_clear`` of the commit).
    """
    if engine.is_marked_aborted(log, handle.transaction_id):
        raise _aborted(task, context, handle)


def is_aborted(log: DeltaLog, handle: TransactionHandle) -> bool:
    """Return whether a transaction was aborted, and the log holds no commit of it."""
    found = engine.ended(log, handle, runs_again=True)
    return found is not None and found.committed is None


def _aborted(task: Any, context: Context, handle: TransactionHandle) -> Exception:
    """Return the error of a task of an aborted transaction, after asking for a restart if the Dag file wants that."""
    if (restart := _restart_of(task, context)) is not None:
        restart.of_aborted(handle)
    return engine.aborted_error(handle)


def _restart_of(task: Any, context: Context) -> Restart | None:
    """Return how to restart the transaction of a task, as ``on_clear`` of its commit says.

    The parameters of the commit in the Dag file count, rendered for this task.

    :raises DeltaIllegalArgumentException: if the transaction cannot be restarted, or ``on_clear`` is not valid.
    """
    commit = _commit_of(task, context)
    if commit is None:
        return None
    scope = scope_of(commit, context)

    def value(name: str, default: Any) -> Any:
        return commit.render_template(argument_of(commit, name, default), scope)

    on_clear = value("on_clear", "fail")
    if on_clear not in ON_CLEAR:
        raise DeltaIllegalArgumentException(
            f"on_clear of {commit.task_id!r} must be one of {', '.join(ON_CLEAR)}, got {on_clear!r}."
        )
    if on_clear == "fail":
        return None
    limit = taken("max_restarts", value("max_restarts", 3), WHOLE_NUMBER)
    return Restart(
        context,
        task,
        max_restarts=3 if limit is None else limit,
        conn_id=value("restart_conn_id", None),
        setting="on_clear='restart'",
        publication=commit if hasattr(commit, "transactions") else None,
    )


def _commit_of(task: Any, context: Context) -> Any:
    """Return the commit of a task's transaction as in the Dag file; ``None`` if the Dag file does not show one."""
    starts = start_tasks(task, context)
    if not starts or len(starts) > 1:
        return None
    (start,) = starts
    commits = [
        other
        for other in start.get_flat_relatives(upstream=False)
        if role_of(other) == "commit" and start in (start_tasks(other, context) or ())
    ]
    return commits[0] if len(commits) == 1 else None
