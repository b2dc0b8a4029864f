"""The engine of a task that works on rows of a table: Spark, or the worker itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import Given
from airflow_delta.contract.kinds import BYTES
from airflow_delta.tasks.declared import Parameters, parameter

if TYPE_CHECKING:
    from airflow_delta.tasks.declared import Taken

SPARK, ARROW = "spark", "arrow"
ENGINES = (SPARK, ARROW)


class MemoryParameters(Parameters):
    """Parameters of a task that the worker itself may carry out.

    :param max_memory: memory of the worker for what does not pass in batches (the source of a MERGE, and which rows it matches):
        bytes, or a size such as ``"2 GiB"``. What takes more is refused before anything is written. Default: a quarter of the
        machine's memory, or of its container's. (templated)
    """

    max_memory: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=BYTES)


class EngineParameters(MemoryParameters):
    """Parameters of a task whose work on rows Spark does, or the worker itself.

    :param engine: ``spark``, or ``arrow`` to do the work in the worker, without Spark and Java: for tables that are small. What
        only Spark can do is refused by name before anything is written.

    The other parameter is that of :class:`~airflow_delta.tasks.engines.MemoryParameters`.
    """

    engine: str = parameter(default=SPARK, choices=ENGINES)

    @property
    def in_worker(self) -> bool:
        """Whether the worker itself does the work."""
        return self.engine == ARROW

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield the options that do not go with the engine."""
        for name in ("application", "spark_submit") if given("engine") == ARROW else ():
            if given(name) is not None:
                yield f'{name} is for Spark, and engine="arrow" works without. Leave one of them out.'
        if given("engine") in (None, SPARK) and given("max_memory") not in (None, ""):
            yield 'max_memory is for what the worker does itself. Leave it out, or set engine="arrow".'
