"""The request and the reports of a job that runs elsewhere, as files beside those of its attempt.

A service may run a job twice: two drivers at once, one after the other, or one that comes back a day later. Each run writes
below directories of its own and leaves a report of its own. Which one is collected is decided here, on the store that also
decides which commit is the next version: the first who collects puts its choice if there is none yet, and everyone else takes
that one.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_delta import exceptions
from airflow_delta.contract.request import StageReport, StageRequest, is_report_of
from airflow_delta.contract.sealed import sealed, unsealed
from airflow_delta.contract.staging_directory import COLLECTED_NAME, REPORT_DIRECTORY, REQUEST_NAME
from airflow_delta.exceptions import DeltaError, StageFailedException, StagingException

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.storage.base import FileStatus


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
    """Read the report that a job elsewhere left in the attempt's directory: the first good one, of several.

    From then on it is the one of this attempt, whatever another run of the job leaves.

    :raises StagingException: if there is none: it is not known here whether a run of the job still works.
    :raises DeltaError: the typed error that the stage itself reported.
    """
    directory = f"{request.directory}/{REPORT_DIRECTORY}"
    runs = _runs(log, directory)
    if (collected := _collected(log, request)) is not None:
        if collected not in runs:
            raise log.error(
                StagingException,
                f"The report of stage {request.stage} that was collected is gone ({collected} of table {log.uri}). Clear the "
                "task that planned the stage, with everything downstream.",
                version=request.read_version,
            )
        return _report(log, request, runs[collected])
    if not runs:
        raise log.error(
            StagingException,
            f"The job of stage {request.stage} has left no report at {log.uri}/{directory}, {_other_traces(log, request)}, or "
            "its program does not call delta_stage(spark).write(df). It may also still be running, if the task that runs it does "
            "not wait for its end. Nothing was collected. See the job's own log, then clear the task that runs it, with "
            "everything downstream.",
            version=request.read_version,
        )
    error: DeltaError | None = None
    for run, parts in runs.items():
        try:
            report = _report(log, request, parts)
        except DeltaError as failed:
            error = failed
            continue
        choice = json.dumps({"report": run}).encode()
        try:
            log.store.put_if_absent(f"{request.directory}/{COLLECTED_NAME}", choice)
        except FileExistsError:
            return read_report(log, request)
        return report
    assert error is not None
    raise error


def reported_error(log: DeltaLog, request: StageRequest) -> DeltaError | None:
    """Return the error that a stage left on storage, unless a run has staged; it says more than that the application failed."""
    error: DeltaError | None = None
    for left in reports_left(log, request):
        if not isinstance(left, DeltaError):
            return None
        error = left
    return error


def reports_left(log: DeltaLog, request: StageRequest) -> list[StageReport | DeltaError]:
    """Return what the runs of a job have left so far, oldest first: reports, and the typed errors of those that failed.

    Unlike :func:`read_report`, it chooses none.
    """
    found: list[StageReport | DeltaError] = []
    for parts in _runs(log, f"{request.directory}/{REPORT_DIRECTORY}").values():
        try:
            found.append(_report(log, request, parts))
        except DeltaError as error:
            found.append(error)
    return found


def _other_traces(log: DeltaLog, request: StageRequest) -> str:
    """Say whether a job without a report has left anything else, and what that means if it has ended.

    Runs write into directories of their own; directly in the attempt's is what the worker has put there.
    """
    start = len(request.directory) + 1
    files = [status for status in log.store.list_recursive(request.directory) if "/" in status.path[start:]]
    if not files:
        return "and no other file: it did not run for this plan, ended before it wrote anything"
    last = datetime.fromtimestamp(max(status.modification_time for status in files) / 1000, UTC)
    return f"but other files ({len(files)}, the last one of {last:%Y-%m-%d %H:%M:%S} UTC): it was stopped before its end"


def _runs(log: DeltaLog, directory: str) -> dict[str, list[FileStatus]]:
    """Return the files of each report by its directory, in the order in which they were left."""
    found: dict[str, list[FileStatus]] = {}
    for status in log.store.list_recursive(directory):
        # Below _temporary are those of a run that is still leaving its report.
        if status.name.startswith("part-") and status.size and "/_temporary/" not in status.path:
            found.setdefault(status.path.rpartition("/")[0], []).append(status)
    return dict(sorted(found.items(), key=lambda run: (min(part.modification_time for part in run[1]), run[0])))


def _collected(log: DeltaLog, request: StageRequest) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads(log.store.read(f"{request.directory}/{COLLECTED_NAME}"))["report"])
    return None


def _report(log: DeltaLog, request: StageRequest, parts: list[FileStatus]) -> StageReport:
    paths = sorted(part.path for part in parts)
    try:
        text = b"".join(log.store.read_many(paths)).decode()
        report = StageReport.from_dict(unsealed(text, f"The report of stage {request.stage} for table {log.uri}"))
    except ValueError as error:
        raise log.error(StagingException, f"The report of stage {request.stage} in {paths[0]} is not JSON: {error}") from error
    if not is_report_of(report, request):
        raise log.error(
            StagingException,
            f"The report in {paths[0]} of table {log.uri} is of another request: of stage {report.stage}, attempt "
            f"{report.attempt}, transaction {report.transaction_id}, instead of {request.stage}, {request.attempt}, "
            f"{request.transaction_id}. Run the job with the arguments that the task before it returned.",
        )
    if report.error_class is None:
        return report
    kind = getattr(exceptions, report.error_class, None)
    typed = kind if isinstance(kind, type) and issubclass(kind, DeltaError) else StageFailedException
    more = {"differences": report.differences} if issubclass(typed, exceptions.SchemaDriftException) else {}
    raise typed(
        f"Stage {request.stage} failed on the cluster: {report.error_message or report.error_class}",
        table=log.uri,
        version=request.read_version,
        **more,
    )
