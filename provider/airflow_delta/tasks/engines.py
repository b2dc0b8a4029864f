"""The engine of a task that works on rows of a table: Spark, the worker itself, or whichever suits the size of the work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.byte_sizes import size_text
from airflow_delta.contract.choices import Given
from airflow_delta.contract.kinds import BYTES
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.declared import Parameters, parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.declared import Taken

    Work = Callable[[StageRequest], tuple[StageRequest, StageReport]]

logger = logging.getLogger(__name__)

SPARK, ARROW, AUTO = "spark", "arrow", "auto"
ENGINES = (SPARK, ARROW, AUTO)

AUTO_BYTES = 512 << 20
"""Bytes of files and deletion vectors that a plan reads, up to which ``engine="auto"`` leaves the work to the worker."""


class MemoryParameters(Parameters):
    """Parameters of a task that the worker itself may carry out.

    :param max_memory: memory of the worker for what does not pass in batches (the source of a MERGE, and which rows it matches):
        bytes, or a size such as ``"2 GiB"``. What takes more is refused before anything is written. Default: a quarter of the
        machine's memory, or of its container's. (templated)
    """

    max_memory: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=BYTES)


class EngineParameters(MemoryParameters):
    """Parameters of a task whose work on rows Spark does, or the worker itself.

    :param engine: ``spark``; ``arrow`` to do the work in the worker, without Spark and Java: for tables that are small. What only
        Spark can do is refused by name before anything is written. ``auto``: the worker does it if the plan reads at most 512 MiB
        of files and if it can, else Spark; the log of the task says which, and why.

    The other parameter is that of :class:`~airflow_delta.tasks.engines.MemoryParameters`.
    """

    engine: str = parameter(default=SPARK, choices=ENGINES)

    @property
    def in_worker(self) -> bool:
        """Whether the worker itself does the work, whatever its size."""
        return self.engine == ARROW

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield the options that do not go with the engine."""
        for name in ("application", "spark_submit") if given("engine") == ARROW else ():
            if given(name) is not None:
                yield f'{name} is for Spark, and engine="arrow" works without. Leave one of them out.'
        if given("engine") in (None, SPARK) and given("max_memory") not in (None, ""):
            yield 'max_memory is for what the worker does itself. Leave it out, or set engine="arrow" or "auto".'


class EngineChoice(Part, EngineParameters):
    """The part of a task whose work on rows Spark does, or the worker itself."""

    def table_uri(self, log: DeltaLog, spark_table_uri: str | None) -> str | None:
        """Return the table's URI for a plan: the worker's if Spark certainly does not work on it."""
        return log.uri if self.in_worker else spark_table_uri

    def carry_out(
        self,
        log: DeltaLog,
        request: StageRequest,
        on_spark: Work,
        *,
        rows: Callable[[], Any] = lambda: None,
        is_begun: Callable[[], bool] = lambda: False,
    ) -> tuple[StageRequest, StageReport]:
        """Have a request carried out by the engine of the task.

        :param on_spark: has Spark carry it out.
        :param rows: returns the rows of its source for the worker.
        :param is_begun: returns whether Spark works on it already, for an earlier try of the task.
        :return: the request that was worked on, and the report.
        """
        if self.engine == SPARK:
            return on_spark(request)
        if self.in_worker:
            return request, engine.run_in_worker(log, request, rows(), max_memory=self.max_memory)
        about = f"engine=auto: {request.operation} of {log.uri} is done by"
        size = bytes_to_read(request)
        if is_begun():
            logger.info("%s Spark: an earlier try has submitted it.", about)
            return on_spark(request)
        most = size_text(AUTO_BYTES)
        if size > AUTO_BYTES:
            logger.info("%s Spark: the plan reads %s, more than %s.", about, size_text(size), most)
            return on_spark(request)
        logger.info("%s the worker: the plan reads %s, not more than %s.", about, size_text(size), most)
        try:
            return request, engine.run_in_worker(log, request, rows(), max_memory=self.max_memory)
        except DeltaUnsupportedOperationException as refusal:
            logger.info("%s Spark: the worker refuses it: %s", about, refusal.message)
        with suppress(Exception):  # what the worker had written is in nobody's report; maintenance deletes what is left
            log.store.delete_tree(request.directory)
        return on_spark(request)

    def worker(self, log: DeltaLog, on_spark: Callable[[StageRequest], StageReport]) -> Callable[[StageRequest], StageReport]:
        """Return a function that has requests carried out, each by the engine that suits it.

        :param on_spark: has Spark carry one out.
        """
        return lambda request: self.carry_out(log, request, lambda asked: (asked, on_spark(asked)))[1]


def bytes_to_read(request: StageRequest) -> int:
    """Return the bytes of the files that a request names, and of their deletion vectors."""
    files = () if request.rewrite is None else request.rewrite.files
    words = sum(file.deletion_vector.num_words for file in files if file.deletion_vector is not None)
    return sum(file.size for file in files) + _BYTES_PER_WORD * words


_BYTES_PER_WORD = 16
