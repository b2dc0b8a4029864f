"""Checks of an audit in SQL: each is a query over views of the table before and after the commit, which Spark answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_delta.contract.audit import (
    AUDIT_OPERATION,
    BEFORE,
    FAIL,
    RESULT,
    STAGED,
    VIEWS,
    AuditArguments,
    AuditCheck,
    AuditReport,
    SqlAnswer,
    SqlCheck,
    stages_of,
)
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.queries import check_query
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import ChecksOutdatedException, DeltaIllegalArgumentException, StagingException
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.audit.checks import by_name, check_severity
from airflow_delta.table.stage.attempt import check_report
from airflow_delta.table.stage.stage_view import open_stage


def parse_sql_checks(checks: Mapping[str, Any] | None, *, on_failure: str = FAIL) -> list[SqlCheck]:
    """Return the SQL checks of an author: a query by name, or a mapping with ``sql`` and ``on_failure``.

    :param on_failure: for checks that do not set it.
    :raises DeltaIllegalArgumentException: if a check is neither, or would run something on Spark's driver.
    """
    parsed = []
    for name, check in by_name("checks", checks).items():
        given = {"sql": check} if isinstance(check, str) else check
        if not isinstance(given, Mapping) or set(given) - {"sql", "on_failure"} or not str(given.get("sql") or "").strip():
            raise DeltaIllegalArgumentException(
                f"The check {name!r} must be a query, or a mapping with sql and on_failure, got {check!r}"
            )
        check_query(str(given["sql"]), whose=f"the check {name!r}")
        severity = check_severity(f"on_failure of the check {name!r}", given.get("on_failure", on_failure))
        parsed.append(SqlCheck(name=str(name), sql=str(given["sql"]), on_failure=severity))
    return parsed


def plan_sql_checks(
    table: AuditedTable,
    checks: Sequence[SqlCheck],
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    spark_table_uri: str | None = None,
    report: AuditReport | None = None,
) -> StageRequest:
    """Return what Spark is asked: the checks, and a scan of every view that one of them names.

    :param report: what was found without Spark, for :func:`collect_audit`.
    :param attempt: unique name of this execution (:func:`airflow_delta.contract.staging_directory.new_attempt`).
    """
    text = "\n".join(check.sql for check in checks)
    named = [view for view in VIEWS if re.search(rf"\b{view}\b", text, re.IGNORECASE)]  # a false match only adds a view
    views = {view: table.scan(view, spark_table_uri=spark_table_uri).to_dict() for view in named}
    stage = open_stage(
        table.log,
        table.handle,
        task_id=task_id,
        map_index=map_index,
        attempt=attempt,
        spark_table_uri=spark_table_uri,
    )
    return replace(stage, given_target=table.target).request(
        AuditArguments(checks=tuple(checks), views=views, report=None if report is None else report.to_dict()),
        operation=AUDIT_OPERATION,
        mode="audit",
    )


def collect_audit(
    handle: TransactionHandle, request: StageRequest, answers: StageReport, staged: Sequence[StagedWrite]
) -> AuditReport:
    """Return the outcome of an audit whose queries a job has answered, elsewhere and some time ago.

    :param request: planned with the report of what was found without Spark.
    :param staged: what there is to audit now.
    :raises StagingException: if request or answers are not of such an audit.
    :raises ChecksOutdatedException: if stages have run again since it was planned.
    """
    arguments = AuditArguments.of(request) if request.operation == AUDIT_OPERATION else None
    if arguments is None or arguments.report is None:
        raise handle.error(StagingException, f"The request of {request.stage} is one of {request.operation!r}, and no audit.")
    check_report(handle, request, answers)
    report = AuditReport.from_dict(arguments.report)
    if report.stages != stages_of(staged):
        raise handle.error(
            ChecksOutdatedException,
            f"Stages of table {handle.table} have run again since the audit {request.task_id!r} of version {report.version} was "
            "planned, so its job has looked at other rows. Nothing is published. Clear the task that plans the audit, with "
            "everything downstream.",
        )
    return with_answers(report, judge_answers(arguments.checks, answers))


def with_answers(report: AuditReport, outcomes: Sequence[AuditCheck]) -> AuditReport:
    """Return the report of an audit with what its queries have said."""
    checks = (*report.checks, *outcomes)
    return replace(report, checks=checks, passed=all(check.passed or check.severity != FAIL for check in checks))


def plan_checks_of_tables(
    tables: Mapping[str, AuditedTable],
    checks: Sequence[SqlCheck],
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    spark_table_uri: str | None = None,
) -> StageRequest:
    """Return what Spark is asked about several tables: for a table ``t`` the views ``t``, ``t_staged`` and ``t_before``.

    :param tables: by the name of their views; the request is one of the first.
    """
    text = "\n".join(check.sql for check in checks)
    views = {}
    for name, table in tables.items():
        for view, of in ((name, RESULT), (f"{name}_{STAGED}", STAGED), (f"{name}_{BEFORE}", BEFORE)):
            if re.search(rf"\b{re.escape(view)}\b", text, re.IGNORECASE):
                views[view] = table.scan(of).to_dict()
    first = next(iter(tables.values()))
    stage = open_stage(
        first.log, first.handle, task_id=task_id, map_index=map_index, attempt=attempt, spark_table_uri=spark_table_uri
    )
    return replace(stage, given_target=first.target).request(
        AuditArguments(checks=tuple(checks), views=views), operation=AUDIT_OPERATION, mode="audit"
    )


def judge_answers(checks: Sequence[SqlCheck], report: StageReport) -> list[AuditCheck]:
    """Return the outcome of SQL checks; a null or a missing answer is a failure."""
    answers = {answer.name: answer for answer in map(SqlAnswer.from_dict, report.answers)}
    outcomes = []
    for check in checks:
        found = answers.get(check.name, SqlAnswer(name=check.name, problem="the Spark job left no answer"))
        figures = ", ".join(f"{name} = {value}" for name, value in found.figures.items())
        said = found.problem or f"the query says {'null' if found.passed is None else str(found.passed).lower()}"
        outcomes.append(
            AuditCheck(
                name=check.name,
                passed=found.passed is True,
                severity=check.on_failure,
                value=found.passed,
                message=f"{said}; {figures}" if figures else said,
            )
        )
    return outcomes
