"""Which stages a commit expects: every task instance that Airflow knows of the stage tasks, by task id and map index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from airflow_delta.exceptions import MissingStageException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.operators.transaction import DeltaCommitOperator
    from airflow_delta.staging.contract import StagedWrite, TransactionHandle


def check_all_reported(
    commit: DeltaCommitOperator, context: Context, handle: TransactionHandle, staged: Sequence[StagedWrite]
) -> None:
    """Refuse a commit that lacks the report of a stage.

    Position in a mapped result is not the map index: members are compared by the identity that each report carries.

    :raises MissingStageException: a task instance of a stage task did not report, or no stage reported.
    """
    reported = {(write.task_id, write.map_index) for write in staged}
    task_ids = {write.task_id for write in staged} | set(_stage_tasks(commit, context))
    expected = _instances(context, sorted(task_ids))
    missing = [
        (task_id, map_index, state)
        for (task_id, map_index), state in sorted(expected.items())
        if (task_id, map_index) not in reported and not (commit.allow_skipped and state == "skipped")
    ]
    if missing or not staged:
        names = ", ".join(
            f"{task_id}{f'[{map_index}]' if map_index >= 0 else ''} ({state or 'not run'})"
            for task_id, map_index, state in missing[:20]
        )
        raise MissingStageException(
            f"{len(missing) or 'All'} of {len(expected)} stage task instances did not report to transaction "
            f"{handle.transaction_id} on {handle.table}: {names or 'no stage reported'}. Nothing is committed. "
            "Clear the missing stages, and the commit with them.",
            table=handle.table,
            version=handle.read_version,
        )


def _stage_tasks(commit: DeltaCommitOperator, context: Context) -> Iterable[str]:
    """Yield the ids of the stage tasks that the commit is wired to (its arguments are rendered, the Dag's are not)."""
    from airflow_delta.operators.transactional import DeltaTransactionalOperator

    definition = context["dag"].task_dict.get(commit.task_id)
    for task, _ in XComArg.iter_xcom_references(getattr(definition, "staged", None)):
        operator_class: Any = getattr(task, "operator_class", None) or type(task)
        if issubclass(operator_class, DeltaTransactionalOperator):
            yield task.task_id


def _instances(context: Context, task_ids: list[str]) -> dict[tuple[str, int], str | None]:
    """Return the state of every task instance of the tasks in this run; of its own map index, inside a mapped group."""
    ti = context["ti"]
    found: dict[tuple[str, int], str | None] = {}
    for task_id in task_ids:  # one by one: in an answer for several, "a_1" may be a task or instance 1 of the task "a"
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task_id], run_ids=[ti.run_id]).get(ti.run_id, {})
        for name, state in states.items():
            found[task_id, -1 if name == task_id else int(name.removeprefix(f"{task_id}_"))] = state
    group = context["task"].get_closest_mapped_task_group()
    inside = {task.task_id for task in group.iter_tasks()} if group is not None else set()
    return {
        (task_id, map_index): state
        for (task_id, map_index), state in found.items()
        if state != "removed" and (task_id not in inside or map_index == ti.map_index)
    }
