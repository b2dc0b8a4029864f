"""Which tasks go first when slots are few."""

from __future__ import annotations

from typing import Any

from airflow.task.priority_strategy import PriorityWeightStrategy

AHEAD = 10_000


class EndsTransaction(PriorityWeightStrategy):
    """The weight of a task that ends a transaction: above those that begin the next one.

    By Airflow's default a task weighs the more, the more tasks come after it: commit and abort the least, and a start the most.
    As a rule of its own this adds nothing to the weights of the tasks before it, as a large ``priority_weight`` would.
    """

    def get_weight(self, ti: Any) -> int:
        """Return the task's own weight, ahead of others."""
        return AHEAD + int(ti.task.priority_weight)
