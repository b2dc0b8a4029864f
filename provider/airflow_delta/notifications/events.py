"""What the context of a task callback shows: why a transaction was not published."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.read_versions import what_was_read
from airflow_delta.exceptions import DeltaAuditFailedException, DeltaConcurrentModificationException, DeltaError
from airflow_delta.operators.maintenance import DeltaMaintenanceOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.task_notes import masked_by_airflow
from airflow_delta.tasks.job.inside import error_of_job, job_around
from airflow_delta.tasks.trust.received import flatten_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

logger = logging.getLogger(__name__)

CONFLICT, REJECTED, FAILED, ABANDONED = KINDS = ("conflict", "rejected", "failed", "abandoned")

CLEAR_START = "What to do: clear the start task with everything after it, which stages the rows again in a new transaction."
_LOST = (
    "What to do: nobody reads these rows, and their files are deleted. Run again what staged them: clear the start task of that "
    "run."
)
_MAX_REASON = 2_000


def delta_events(context: Context) -> Iterator[dict[str, Any]]:
    """Yield what happened to a transaction, or to several, in the task whose callback has this context.

    The callbacks of a Dag, and those that Airflow's Dag processor runs for a task that was killed, have no error to look at.
    """
    if context.get("ti") is None or context.get("task") is None:
        return
    error = context.get("exception")
    conflict = _find(error, DeltaConcurrentModificationException)
    if conflict is not None:
        yield _conflict(context, conflict)
    elif _is_rejected(context, error):
        yield _rejected(context, error)
    elif error is not None and _is_of_transaction(context):
        yield _failed(context, _of_job(context) or error)
    if isinstance(context["task"], (DeltaVacuumOperator, DeltaMaintenanceOperator)):
        yield from _abandoned(context)


# -- conflict -----------------------------------------------------------------------------------------------------------------


def _conflict(context: Context, error: DeltaConcurrentModificationException) -> dict[str, Any]:
    staged = _staged(context)
    table = error.table or staged["table"]
    return _event(
        context,
        CONFLICT,
        f"{type(error).__name__} on {table}: the commit of {context['ti'].task_id} is refused",
        error.message,
        **{**staged, "table": table},
        exception=type(error).__name__,
        version=error.winning_version,
        commit_info=None if error.winning_commit is None else dict(error.winning_commit),
    )


# -- rejected audit -----------------------------------------------------------------------------------------------------------


def _is_rejected(context: Context, error: BaseException | str | None) -> bool:
    """Return whether the task is a check between stages and commit, and said no."""
    if error is None and _answer(context).get("approved") is not False:
        return False
    definition = _definition(context)
    if job_around(definition) is not None:
        return False
    if definition is None:
        return _find(error, DeltaAuditFailedException) is not None
    role = getattr(_class_of(definition), "transaction_role", None)
    if role == "audit":
        return True
    upstream = {getattr(_class_of(task), "transaction_role", None) for task in definition.get_flat_relatives(upstream=True)}
    own = (DeltaCommitOperator, DeltaAbortOperator)
    return (
        role is None
        and "stage" in upstream
        and not issubclass(_class_of(definition), own)
        and any(issubclass(_class_of(task), DeltaCommitOperator) for task in definition.get_flat_relatives(upstream=False))
    )


def _rejected(context: Context, error: BaseException | str | None) -> dict[str, Any]:
    staged = _staged(context)
    failed = _find(error, DeltaAuditFailedException)
    answer = _answer(context)
    too_late = error is not None and answer.get("error_type") == "timeout"
    by = None if too_late else _person(answer.get("responded_by_user"))
    asked = answer.get("subject") or context["ti"].task_id
    if failed is not None:
        reason = failed.message
    elif too_late:
        reason = f"Nobody answered {asked!r} in time.\n{CLEAR_START}"
    elif answer.get("approved") is False:
        reason = f"{asked!r} was rejected {f'by {by}' if by else 'because nobody answered in time'}.\n{CLEAR_START}"
    else:
        reason = f"{type(error).__name__}: {str(error)[:_MAX_REASON]}\n{CLEAR_START}"
    table = (failed.table if failed is not None else None) or staged["table"]
    return _event(
        context,
        REJECTED,
        f"Rows for {table or 'a Delta table'} were rejected by {context['ti'].task_id}: nothing is published",
        reason,
        **{**staged, "table": table},
        exception=None if error is None else type(error).__name__,
        checks=list(failed.failed) if failed is not None else None,
        rejected_by=by,
    )


def _answer(context: Context) -> Mapping[str, Any]:
    """Return what a human-in-the-loop task keeps of its question and of the answer; empty for any other task."""
    summary = getattr(context["task"], "hitl_summary", None)
    return summary if isinstance(summary, Mapping) else {}


def _person(user: Any) -> str | None:
    name = user.get("name") or user.get("id") if isinstance(user, Mapping) else user
    return str(name) if name else None


# -- any other failure --------------------------------------------------------------------------------------------------------


def _is_of_transaction(context: Context) -> bool:
    """Return whether the task is a start, a commit, or between them; a retry that is left has callbacks of its own."""
    definition = _definition(context)
    if definition is None or issubclass(_class_of(definition), DeltaCommitOperator):
        return definition is not None
    upstream = [definition, *definition.get_flat_relatives(upstream=True)]
    return any(getattr(_class_of(task), "transaction_role", None) == "start" for task in upstream) and any(
        issubclass(_class_of(task), DeltaCommitOperator) for task in definition.get_flat_relatives(upstream=False)
    )


def _failed(context: Context, error: BaseException | str) -> dict[str, Any]:
    staged = _staged(context)
    table, task_id = staged["table"] or "a Delta table", context["ti"].task_id
    name = "" if isinstance(error, str) else type(error).__name__
    # Of a long error, such as Spark's, the first line says it.
    line = next(iter(str(error).strip().splitlines()), "")[:_MAX_REASON]
    reason = ": ".join(filter(None, (name, line)))
    if issubclass(_class_of(_definition(context)), DeltaCommitOperator):
        title = f"The commit of {task_id} to {table} failed"  # a hook may have failed after it, or its outcome be unknown
    else:
        title, reason = f"{task_id} failed before the commit to {table}: nothing is published", f"{reason}\n{CLEAR_START}"
    return _event(context, FAILED, title, reason, **staged, exception=name or None)


# -- abandoned transactions ---------------------------------------------------------------------------------------------------


def _abandoned(context: Context) -> Iterator[dict[str, Any]]:
    """Yield an event for each table whose VACUUM gave up transactions, from the result of the task."""
    ti = context["ti"]
    result = ti.xcom_pull(task_ids=ti.task_id, map_indexes=-1 if ti.map_index is None else ti.map_index)
    if not isinstance(result, Mapping):
        return
    done = [(result.get("table"), result)]
    done += [(table.get("table"), step) for table in result.get("tables", ()) for step in table.get("steps", ())]
    for table, step in done:
        if found := step.get("abandonedTransactions"):
            some = f"{len(found)} abandoned transactions" if len(found) > 1 else "1 abandoned transaction"
            reason = "\n".join([*map(_line, found), _LOST])
            yield _event(context, ABANDONED, f"{some} of {table}", reason, table=table, transactions=list(found))


def _line(transaction: Mapping[str, Any]) -> str:
    last = datetime.fromtimestamp(transaction["lastModified"] / 1000, UTC).isoformat(timespec="seconds")
    stages = ", ".join(transaction["stages"]) or "no stage"
    return (
        f"- {transaction['transactionId']}: {transaction['numFiles']} files, {transaction['numBytes']} bytes of {stages}, last "
        f"written at {last}"
    )


# -- common to all ------------------------------------------------------------------------------------------------------------


def _event(context: Context, kind: str, title: str, reason: str, **facts: Any) -> dict[str, Any]:
    ti = context["ti"]
    rows, read = facts.get("num_records"), facts.get("read_version")
    mapped = ti.map_index is not None and int(ti.map_index) >= 0
    lines = [
        title,
        f"Dag {ti.dag_id}, run {ti.run_id}, task {ti.task_id}{f', map index {ti.map_index}' if mapped else ''}",
        "" if rows is None else f"Staged rows: {rows}{'' if read is None else f'; {what_was_read(read)}'}",
        reason,
    ]
    known: dict[str, Any] = dict.fromkeys(_FACTS)
    # Messages leave Airflow, which masks only its own logs.
    known |= {**facts, "kind": kind, "title": masked_by_airflow(title), "reason": masked_by_airflow(reason)}
    known["message"] = masked_by_airflow("\n".join(line for line in lines if line)) + f"\nLog: {ti.log_url}"
    known |= {name: getattr(ti, name) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number", "log_url")}
    return known


_FACTS = (
    "table",
    "transaction_id",
    "read_version",
    "num_records",
    "exception",
    "version",
    "commit_info",
    "checks",
    "rejected_by",
    "transactions",
)


def _of_job(context: Context) -> DeltaError | None:
    """Return what the job says for which a task of another provider has failed."""
    try:
        return error_of_job(context)
    except Exception:
        logger.warning("A notification lacks what the job of %s reports", context["ti"].task_id, exc_info=True)
        return None


def _staged(context: Context) -> dict[str, Any]:
    """Return the transaction that the task works for, and how many rows its stages report; ``None`` for what is unknown.

    The task's own arguments say so, or the XComs of the start task and the stages before it.
    """
    found: dict[str, Any] = dict.fromkeys(("table", "transaction_id", "read_version", "num_records"))
    task = context["task"]
    try:
        handle = getattr(task, "transaction", None)
        handle = handle if isinstance(handle, Mapping) else _pull(context, "start")  # what was not rendered says nothing
        if not isinstance(handle, Mapping):
            return {**found, "table": getattr(task, "table", None)}
        found |= {"table": handle.get("table"), "transaction_id": handle.get("transactionId")}
        found["read_version"] = handle.get("readVersion")
        reports = [
            report
            for report in flatten_reports(getattr(task, "staged", None) or _pull(context, "stage"))
            if report is not None and report.get("transactionId") == handle.get("transactionId")
        ]
        counts = [count for report in reports if isinstance(count := report.get("numRecords"), int)]
        if counts and len(counts) == len(reports):
            found["num_records"] = sum(counts)
    except Exception:
        logger.warning("A notification lacks what is in the XComs of %s", context["ti"].task_id, exc_info=True)
    return found


def _pull(context: Context, role: str) -> Any:
    """Return the XComs of the tasks with a role before this one, in its own instance of a mapped group."""
    ti, definition = context["ti"], _definition(context)
    if definition is None:
        return None
    found: list[Any] = []
    group = definition.get_closest_mapped_task_group()
    for task in definition.get_flat_relatives(upstream=True):
        if getattr(_class_of(task), "transaction_role", None) == role:
            mine = group is not None and task.get_closest_mapped_task_group() is group
            # Of a mapped stage all instances, which it takes a list of names for.
            found.append(ti.xcom_pull(task_ids=task.task_id, map_indexes=ti.map_index) if mine else ti.xcom_pull([task.task_id]))
    if role != "start":
        return found
    handles = [handle for handle in flatten_reports(found) if handle is not None]
    return handles[0] if len(handles) == 1 else None


def _definition(context: Context) -> Any:
    """Return the task as in the Dag file."""
    tasks: Mapping[str, Any] = getattr(context.get("dag"), "task_dict", {})
    return tasks.get(context["ti"].task_id)


def _class_of(task: Any) -> type:
    return getattr(task, "operator_class", None) or type(task)


def _find(error: Any, kind: type[Any]) -> Any:
    """Return the error of a kind among an error, those of its group, and what it was raised from."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        if isinstance(current, kind):
            return current
        seen.add(id(current))
        inner: Sequence[BaseException] = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        waiting += [*inner, current.__cause__]
    return None
