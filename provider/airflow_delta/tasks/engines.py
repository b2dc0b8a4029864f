"""The engine of a task that works on rows of a table: Spark, or the worker itself."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_delta.contract.choices import Given
from airflow_delta.tasks.declared import Parameters, parameter

SPARK, ARROW = "spark", "arrow"
ENGINES = (SPARK, ARROW)


class EngineParameters(Parameters):
    """Parameters of a task whose work on rows Spark does, or the worker itself.

    :param engine: ``spark``, or ``arrow`` to do the work in the worker, without Spark and Java: for tables that are small. What
        only Spark can do is refused by name before anything is written.
    """

    engine: str = parameter(default=SPARK, choices=ENGINES)

    @property
    def in_worker(self) -> bool:
        """Whether the worker itself does the work."""
        return self.engine == ARROW

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield the options that only go with Spark."""
        for name in ("application", "spark_submit") if given("engine") == ARROW else ():
            if given(name) is not None:
                yield f'{name} is for Spark, and engine="arrow" works without. Leave one of them out.'
