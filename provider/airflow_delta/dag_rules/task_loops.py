"""Airflow's task loops (since 3.4), in which no task of a transaction can be.

A transaction knows a task by Dag run, task id and map index, and these are the same in all iterations. It would take a second one
for a retry of the first, and its rows would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow.sdk import Context

_WHY = (
    "All its iterations have the same Dag run, task id and map index, so the second would be taken for a retry of the first, and "
    "its rows would be lost. Let the loop return what is to be written and write it in a task after the loop, or map the task "
    "(expand) over what the iterations work on."
)


def loop_problem(task: Any) -> str | None:
    """Return what is wrong with a task that stages or commits if it is inside a task loop.

    :param task: as the Dag file defines it, mapped or not.
    """
    group = task.task_group
    while group is not None:
        # Airflow's class for it is not public; no other group has this.
        if getattr(group, "max_iterations", None) is not None:
            return f"it is inside the task loop {group.group_id!r}. {_WHY}"
        group = group.parent_group
    return None


def check_no_loop(context: Context) -> None:
    """Refuse to stage or commit in an iteration of a task loop, whatever the Dag file showed.

    :raises DeltaIllegalArgumentException: if the running task is in one.
    """
    if context.get("loop") is not None:
        raise DeltaIllegalArgumentException(f"The task {context['ti'].task_id!r} is inside a task loop. {_WHY}")
