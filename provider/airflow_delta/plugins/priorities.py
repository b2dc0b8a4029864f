"""Which tasks go first when slots are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.task.priority_strategy import PriorityWeightStrategy

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

AHEAD = 10_000


class EndsTransaction(PriorityWeightStrategy):
    """The weight of a task that ends a transaction: above those that begin the next one.

    By Airflow's default a task weighs the more, the more tasks come after it: commit and abort the least, and a start the most.
    As a rule of its own this adds nothing to the weights of the tasks before it, as a large ``priority_weight`` would.
    """

    def get_weight(self, ti: TaskInstance) -> int:
        """Return the task's own weight, ahead of others."""
        return AHEAD + (1 if ti.task is None else ti.task.priority_weight)
