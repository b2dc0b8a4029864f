"""The files that a report lists as rewritten, as the log or an earlier stage has them."""

from __future__ import annotations

from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.files.footers import check_row_counts
from airflow_delta.table.stage.scan import candidate_files
from airflow_delta.table.stage.stage_view import StageView


def rewritten_files(stage: StageView, request: StageRequest, report: StageReport) -> list[AddFile]:
    """Return the files that an attempt has rewritten.

    :raises StagingException: if a file was not there when the stage was planned.
    :raises RowCountMismatchException: if a file has another number of rows than the log says.
    """
    wanted = list(dict.fromkeys(report.rewritten_files))
    if not wanted:
        return []
    text = None if request.rewrite is None else request.rewrite.predicate
    live = {file.path: file for file in candidate_files(stage, None if text is None else stage.predicate(text))}
    lost = next((path for path in wanted if path not in live), None)
    if lost is not None:
        raise stage.handle.error(
            StagingException,
            f"Stage {request.stage} reports the rewritten file {lost}, which is not among the files of table {stage.log.uri} "
            f"version {stage.handle.read_version} that it was planned on. Clear the start task with everything downstream.",
        )
    files = [live[path] for path in wanted]
    check_row_counts(stage.log.store, files, operation=request.operation, version=stage.handle.read_version)
    return files
