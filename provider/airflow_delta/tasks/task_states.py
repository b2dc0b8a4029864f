"""The state of every task instance of some tasks in this run, as Airflow has it, by task id and map index."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context


ABSENT = "not in this run: the Dag file has it since"
"""State of a task that was added to the Dag file after the run began. Airflow may make its instance only after the commit."""

_LONGEST = 4_000
"""Characters of task ids in one question: they travel in a URL, of which proxies take 8 KiB."""


def instances(context: Context, task_ids: Collection[str]) -> dict[tuple[str, int], str | None]:
    """Return the state of every task instance that a task waits for; inside a mapped group, those of its map index.

    A task of the Dag file that the run does not have is there as :data:`ABSENT`.
    """
    ti = context["ti"]
    group = context["task"].get_closest_mapped_task_group()
    inside = {task.task_id for task in group.iter_tasks()} if group is not None else set()
    states = states_in_run(context, task_ids)
    found = {
        (task_id, map_index): state
        for (task_id, map_index), state in states.items()
        if state != "removed" and (task_id not in inside or map_index == ti.map_index)
    }
    known = {task_id for task_id, _ in states if task_id not in inside} | {task_id for task_id, _ in found}
    for task_id in sorted(set(task_ids) - known):
        found[task_id, -1] = states.get((task_id, -1), ABSENT)  # of a group: the task that was not expanded
    return found


def states_in_run(context: Context, task_ids: Collection[str]) -> dict[tuple[str, int], str | None]:
    """Return the state of every task instance of the tasks in this run."""
    ti = context["ti"]
    found: dict[tuple[str, int], str | None] = {}
    for asked in _unambiguous(task_ids):
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=asked, run_ids=[ti.run_id]).get(ti.run_id, {})
        for name, state in states.items():
            task_id, _, index = (name, "", "-1") if name in asked else name.rpartition("_")
            found[task_id, int(index)] = state
    return found


def _unambiguous(task_ids: Collection[str]) -> list[list[str]]:
    """Return the tasks in few questions to Airflow, and one for each whose answer could be another's: ``a_1`` may be a task, or
    instance 1 of the task ``a``.
    """
    alone = {task_id for task_id in task_ids if (parts := task_id.rpartition("_"))[0] in task_ids and parts[2].isdecimal()}
    asked: list[list[str]] = []
    length = _LONGEST
    for task_id in sorted(set(task_ids) - alone):
        length += len("&task_ids=") + len(task_id)
        if length > _LONGEST:
            asked.append([])
            length = len(task_id)
        asked[-1].append(task_id)
    return [*asked, *([task_id] for task_id in sorted(alone))]


def name_of(task_id: str, map_index: int) -> str:
    """Return a task instance as messages name it."""
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"
