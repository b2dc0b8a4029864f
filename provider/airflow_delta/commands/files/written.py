"""Check that the worker finds what Spark wrote: a missing directory is never an empty one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import StagedFileException, StagingException
from airflow_delta.staging.report import NUM_BYTES, NUM_FILES, NUM_ROWS, StageReport, StageRequest

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus


def check_written(
    log: DeltaLog, request: StageRequest, report: StageReport, directory: str, statuses: Sequence[FileStatus]
) -> None:
    """Check the number of files and bytes of a directory.

    :param directory: its name below the attempt's.
    :raises StagedFileException: if the files are not those that Spark wrote.
    :raises StagingException: if the report does not say what Spark wrote.
    """
    said = _said(log, request, report, directory)
    found = {NUM_FILES: len(statuses), NUM_BYTES: sum(status.size for status in statuses)}
    if any(said[name] is not None and said[name] != count for name, count in found.items()) or (said[NUM_ROWS] and not statuses):
        raise _differs(log, request, report, directory, f"{found[NUM_FILES]} files of {found[NUM_BYTES]} bytes")


def check_rows(log: DeltaLog, request: StageRequest, report: StageReport, directory: str, rows: int) -> None:
    """Check the number of rows of a directory, after its footers were read.

    :raises StagedFileException: if the number of rows is not the one that Spark wrote.
    """
    if _said(log, request, report, directory)[NUM_ROWS] != rows:
        raise _differs(log, request, report, directory, f"{rows} rows")


def _said(log: DeltaLog, request: StageRequest, report: StageReport, directory: str) -> dict[str, int | None]:
    said = report.written.get(directory)
    if said is None or not isinstance(said.get(NUM_ROWS), int):
        raise StagingException(
            f"The report of stage {request.stage} does not say how many rows Spark wrote to {directory}: it comes from another "
            "version of airflow-provider-delta. Use one version for worker and cluster, and "
            "clear the start task with everything downstream.",
            table=log.uri,
            version=request.read_version,
        )
    return {name: said.get(name) for name in (NUM_FILES, NUM_ROWS, NUM_BYTES)}


def _differs(log: DeltaLog, request: StageRequest, report: StageReport, directory: str, found: str) -> StagedFileException:
    said = _said(log, request, report, directory)
    wrote = f"{said[NUM_ROWS]} rows"
    if said[NUM_FILES] is not None:
        wrote += f" in {said[NUM_FILES]} files of {said[NUM_BYTES]} bytes"
    return StagedFileException(
        f"Stage {request.stage}: Spark wrote {wrote} to {report.path or request.path}/{directory}, the worker finds {found} in "
        f"{log.uri.rstrip('/')}/{request.directory}/{directory}. Both must be the same place, shared by driver, executors and "
        "worker: check spark_table_uri, and that no machine writes to its own disk. Nothing was staged.",
        table=log.uri,
        version=request.read_version,
    )
