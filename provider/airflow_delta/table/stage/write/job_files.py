"""The request and the report of a job that runs elsewhere, as files beside those of its attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_delta import exceptions
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.contract.staging_directory import REPORT_DIRECTORY, REQUEST_NAME
from airflow_delta.exceptions import DeltaError, StageFailedException, StagingException

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


def put_request(log: DeltaLog, request: StageRequest) -> str:
    """Write the request beside the attempt's files for a job that runs elsewhere; return its URI as Spark reaches it."""
    log.store.put(f"{request.directory}/{REQUEST_NAME}", sealed(request).encode())
    return f"{request.path}/{REQUEST_NAME}"


def read_request(log: DeltaLog, directory: str) -> StageRequest:
    """Read back the request that an earlier try of a stage put.

    :param directory: ``directory`` of that request.
    :raises StagingException: if it is gone, or damaged.
    """
    path = f"{directory}/{REQUEST_NAME}"
    try:
        return StageRequest.from_dict(unsealed(log.store.read(path).decode(), f"The request {path} of table {log.uri}"))
    except (FileNotFoundError, ValueError) as error:
        raise log.error(
            StagingException,
            f"The request of an earlier try of this stage cannot be read ({path} of table {log.uri}: {error}). Clear the task.",
        ) from error


def read_report(log: DeltaLog, request: StageRequest) -> StageReport:
    """Read the report that a job elsewhere left in the attempt's directory.

    :raises StagingException: if there is none: the job ended without staging.
    :raises DeltaError: the typed error that the stage itself reported.
    """
    directory = f"{request.directory}/{REPORT_DIRECTORY}"
    parts = sorted(s.path for s in log.store.list_recursive(directory) if s.name.startswith("part-") and s.size)
    if not parts:
        raise log.error(
            StagingException,
            f"The job of stage {request.stage} ended without staging anything for table {log.uri} (no report in "
            f"{directory}). Does it call delta_stage(spark).write(df)?",
            version=request.read_version,
        )
    try:
        text = b"".join(log.store.read_many(parts)).decode()
        report = StageReport.from_dict(unsealed(text, f"The report of stage {request.stage} for table {log.uri}"))
    except ValueError as error:
        raise log.error(StagingException, f"The report of stage {request.stage} in {directory} is not JSON: {error}") from error
    if report.error_class is not None:
        kind = getattr(exceptions, report.error_class, None)
        typed = kind if isinstance(kind, type) and issubclass(kind, DeltaError) else StageFailedException
        more = {"differences": report.differences} if issubclass(typed, exceptions.SchemaDriftException) else {}
        raise typed(
            f"Stage {request.stage} failed on the cluster: {report.error_message or report.error_class}",
            table=log.uri,
            version=request.read_version,
            **more,
        )
    return report


def reported_error(log: DeltaLog, request: StageRequest) -> DeltaError | None:
    """Return the error that a stage left on storage; it says more than that the application failed."""
    try:
        read_report(log, request)
    except StagingException:
        return None
    except DeltaError as reported:
        return reported
    return None
