"""One attempt of a stage: its name, and the report that is its own."""

from __future__ import annotations

from typing import Any, NamedTuple

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.staging_directory import stage_key
from airflow_delta.exceptions import StagingException


class StageAttempt(NamedTuple):
    """The name of one execution of a stage, in its transaction.

    :param attempt: unique (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    """

    task_id: str
    map_index: int
    attempt: str

    @property
    def key(self) -> str:
        """Name of the stage in paths."""
        return stage_key(self.task_id, self.map_index)

    @property
    def names(self) -> dict[str, Any]:
        """The fields that say in a request and in a staged write whose they are."""
        return {"stage": self.key, "task_id": self.task_id, "map_index": self.map_index, "attempt": self.attempt}


def check_report(handle: TransactionHandle, request: StageRequest, report: StageReport) -> None:
    """Check that a report is that of a request, and names directories of the attempt only.

    :raises StagingException: if it is of another execution, or names others.
    """
    asked = {"transaction_id": handle.transaction_id, "stage": request.stage, "attempt": request.attempt}
    for name, expected in asked.items():
        if getattr(report, name) != expected:
            raise handle.error(
                StagingException,
                f"The report of stage {request.stage} is of another execution: {name} is {getattr(report, name)!r}, expected "
                f"{expected!r}. Clear the start task with everything downstream.",
            )
    names = (*report.directories, *report.copied_directories, *report.change_directories, *report.vector_directories)
    if any("/" in name or name.startswith(".") for name in names):
        raise handle.error(StagingException, f"The report of stage {request.stage} names directories outside its attempt")
