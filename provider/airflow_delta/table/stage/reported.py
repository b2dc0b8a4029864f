"""The rows of the table that a stage looked for by key values of its source: narrower than the predicate of the read.

The files that a report lists as rewritten, as the log or an earlier stage has them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_delta.contract.files import KEYS_NAME, encode_manifest, manifest_ref
from airflow_delta.contract.key_values import KeyValues, problem_with
from airflow_delta.contract.operations import ComparedColumns
from airflow_delta.contract.payloads import KeyRead, ManifestRef
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import StagingException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.table.files.footers import check_row_counts
from airflow_delta.table.stage.scan import candidate_files
from airflow_delta.table.stage.stage_view import StageView

INLINE_ROWS = 4 * 1024
"""Bytes of JSON up to which the values travel inside the XCom."""


def key_reads(
    stage: StageView, request: StageRequest, report: StageReport, compared: Sequence[ComparedColumns]
) -> tuple[KeyRead, ...]:
    """Return what a report says about the key values that a stage looked for in the files of ``request.rewrite``.

    :param stage: the view of the attempt that the report is of.
    :param compared: columns that the rows of table and source are equal in.
    :return: nothing if the stage has read everything that the predicate of these files selects.
    :raises StagingException: if the key values are not those of such columns.
    """
    keys = report.keys
    predicate = read_predicate(request)
    if keys is None or (request.scan is not None and (request.scan.predicate or "true") == predicate):
        return ()
    problem = problem_with(keys, stage.target.struct) or _not_compared(keys, compared)
    if problem is not None:
        raise stage.handle.error(
            StagingException,
            f"The report of stage {request.stage} on table {request.table} has key values that the stage cannot have looked for: "
            f"{problem}. Nothing is committed. Clear the start task with everything downstream.",
        )
    rows, file = _stored(stage, keys)
    return (
        KeyRead(
            predicate=predicate,
            columns=keys.columns,
            null_safe=keys.null_safe,
            low=keys.low,
            high=keys.high,
            nulls=keys.nulls,
            rows=rows,
            file=file,
        ),
    )


def read_predicate(request: StageRequest) -> str:
    """Return the predicate of ``ReadSet.predicates`` for the files that a stage rewrites rows of."""
    return (None if request.rewrite is None else request.rewrite.predicate) or "true"


def _not_compared(keys: KeyValues, compared: Sequence[ComparedColumns]) -> str | None:
    known = {(key.column, key.null_safe) for key in compared}
    wrong = next((name for name, safe in zip(keys.columns, keys.null_safe, strict=True) if (name, safe) not in known), None)
    return None if wrong is None else f"{wrong} is not compared"


def _stored(stage: StageView, keys: KeyValues) -> tuple[tuple[tuple[object, ...], ...] | None, ManifestRef | None]:
    """Return the rows, or the file with them if they are many."""
    if keys.rows is None:
        return None, None
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in keys.rows]
    data = encode_manifest(lines)
    if len(data) <= INLINE_ROWS:
        return tuple(map(tuple, keys.rows)), None
    path = f"{stage.directory}/{KEYS_NAME}"
    stage.log.store.put(path, data)
    return None, manifest_ref(path, data, len(lines))


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
