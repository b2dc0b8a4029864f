"""An audit between the stages and the commit of a transaction: nothing is published unless it passes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseXCom

from airflow_delta import engine
from airflow_delta.contract.audit import BOUNDS, COMMIT, HOLDS_AT, RATIOS, READ, WARN, audit_definition, key_of, limits_problem
from airflow_delta.contract.check_records import AUDIT
from airflow_delta.contract.choices import FAIL_OR_WARN, Given, check_literals, choice_problem, is_literal
from airflow_delta.contract.read_versions import read_version_name, what_was_read
from airflow_delta.exceptions import DeltaAuditFailedException, DeltaIllegalArgumentException
from airflow_delta.links.delta import DeltaTransactionLink
from airflow_delta.retry_policies import AUDIT_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.ended import check_not_aborted
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.work import GivenTable
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.audit import AuditCheck, AuditReport, HeldCheck, SqlCheck
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.audit.audited_table import AuditedTable

__all__ = ["AUDIT_ERRORS", "DeltaAuditOperator"]


class DeltaAuditOperator(DeltaOperator, GivenTable, SqlParameters, RunnerParameters):
    """Check what a transaction has staged before its commit publishes it. If the audit fails, nothing is published.

    Place it between stages and commit; inside a ``delta_transaction`` group the commit waits for it automatically. All checks
    run, and each is logged. Spark starts only for ``checks``: the others use totals and statistics.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param staged: outputs of the stages: one, several, or mapped. Default inside a ``delta_transaction`` group: all its stages
        that do not come after this task. (templated)
    :param checks: Spark SQL queries by name. Each returns one row whose first column is a boolean; null fails. They may name the
        views ``staged`` (the staged rows), ``result`` (the table as the commit would leave it) and ``before`` (the table at the
        version that the transaction reads). Instead of a query: a mapping with ``sql`` and ``on_failure``. (templated)
    :param min_rows: minimum number of staged rows. (templated)
    :param max_rows: maximum number of staged rows. (templated)
    :param rows_change: ``{"min_ratio": ..., "max_ratio": ...}``: rows of the table after the commit divided by rows before it.
        A table without rows passes. (templated)
    :param max_null_fraction: by column, the fraction of staged rows, from 0 to 1, that may be null. (templated)
    :param value_range: by column, ``{"min": ..., "max": ...}`` of the staged values, both inclusive. (templated)
    :param freshness: ``{"column": ..., "max_age": ..., "now": ...}``: how old the newest staged value may be, as ``timedelta`` or
        in seconds; ``now`` defaults to the time of the check. (templated)
    :param partitions: predicate on partition columns: the commit adds and removes files only in partitions that satisfy it.
        (templated)
    :param unique: column, or several that are one key: no two staged rows share it, nor a staged row and one that stays. Nulls
        equal nothing. ``{"columns": ..., "limit": ...}`` sets how many rows of the stages, and of the table, may be read for it:
        5,000,000. (templated)
    :param holds_at: ``commit``: what a check says of the table holds in the version that is published, or nothing is. Rows that
        others change meanwhile, and that it has read, make it outdated; ``rows_change`` and ``unique`` are computed again.
        ``read``: it holds for the version that the transaction reads. Default: ``commit`` for ``rows_change`` and ``unique``,
        ``read`` for ``checks``. (templated)
    :param on_failure: ``fail`` (default) or ``warn``, for checks that do not set it. (templated)
    :param on_undecidable: ``fail`` (default) or ``warn``, if statistics cannot decide a check. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.GivenTable` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True
    transaction_role: ClassVar[str] = "audit"
    check_kind: ClassVar[str] = AUDIT
    changes_table: ClassVar[bool] = False
    operator_extra_links = (DeltaTransactionLink(),)
    default_retry_policy = AUDIT_ERRORS
    ui_color = "#fff2cc"

    transaction: Any = parameter(default=None, templated=True)
    staged: Any = parameter(default=None, templated=True)
    checks: Mapping[str, str | Mapping[str, str]] | None = parameter(default=None, templated=True, renderer="json")
    min_rows: int | str | None = parameter(default=None, templated=True)
    max_rows: int | str | None = parameter(default=None, templated=True)
    rows_change: Mapping[str, Any] | None = parameter(default=None, templated=True)
    max_null_fraction: Mapping[str, Any] | None = parameter(default=None, templated=True)
    value_range: Mapping[str, Mapping[str, Any]] | None = parameter(default=None, templated=True)
    freshness: Mapping[str, Any] | None = parameter(default=None, templated=True)
    partitions: str | None = parameter(default=None, templated=True)
    unique: str | Sequence[str] | Mapping[str, Any] | None = parameter(default=None, templated=True)
    holds_at: str | None = parameter(default=None, templated=True, choices=HOLDS_AT)
    on_failure: str = parameter(default="fail", templated=True, choices=FAIL_OR_WARN)
    on_undecidable: str = parameter(default="fail", templated=True, choices=FAIL_OR_WARN)
    delta_conn_id: str | None = parameter(default=None, templated=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_literals(self, self.literal_problems)

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:
        """Yield limits of the wrong shape; they may be templates and XComs, as a whole or in part."""
        limits = {"rows_change": (given("rows_change") or None, RATIOS)}
        ranges = given("value_range")
        if isinstance(ranges, Mapping):
            limits |= {f"value_range.{column}": (each, BOUNDS) for column, each in ranges.items()}
        elif ranges and _is_plain(ranges):
            yield f"value_range must be a mapping by column, got {ranges!r}."
        key = given("unique")
        parts = key.values() if isinstance(key, Mapping) else key if isinstance(key, list | tuple) else [key]
        if key and all(map(_is_plain, parts)):
            try:
                key_of(key)
            except ValueError as error:
                yield f"{error}."
        for name, (value, keys) in limits.items():
            if _is_plain(value) and (problem := limits_problem(name, value, keys)) is not None:
                yield f"{problem}."

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report of the audit; it is pushed as XCom even if the audit fails.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file.
        :raises DeltaAuditFailedException: if a check failed or could not be decided.
        :raises DeltaIllegalArgumentException: if a check is not valid, or there is none.
        :raises MissingStageException: if no stage has reported.
        :raises StageConflictException: if the commit would refuse the stages.
        :raises TransactionAbortedException: if the transaction was aborted.
        :raises TransactionAlreadyCommittedException: if another execution committed the key and its policy is ``fail``.
        """
        log, handle = open_transaction(self, context)
        report = self.audit(log, handle, context)
        for check in report.checks:
            self._log_check(handle, check)
        value = report.to_dict()
        if report.passed:
            return value
        if self.do_xcom_push:
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)
        raise handle.error(
            DeltaAuditFailedException,
            f"Transaction {handle.transaction_id} on table {handle.table} ({read_version_name(handle.read_version)}) failed its "
            f"audit: {'; '.join(f'{check.name}: {check.message}' for check in report.failed)}. Nothing is published. Clear the "
            "start task to stage again in a new transaction.",
            failed=tuple(check.name for check in report.failed),
        )

    def audit(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> AuditReport:
        """Return the report of the audit."""
        report, table, queries = self.begin(log, handle, context)
        if table is None or not queries:
            return report
        return engine.with_answers(report, self._ask(log, table, queries, context))

    def begin(
        self, log: DeltaLog, handle: TransactionHandle, context: Context
    ) -> tuple[AuditReport, AuditedTable | None, list[SqlCheck]]:
        """Return what is found without Spark, the table that this is about, and the queries that are left.

        :return: no table if nothing will be published.
        """
        if (problem := choice_problem("holds_at", self.holds_at, HOLDS_AT)) is not None:
            raise DeltaIllegalArgumentException(f"The audit {self.task_id!r}: {problem}")
        queries = engine.parse_sql_checks(self.checks, on_failure=self.on_failure)
        limits: dict[str, Any] = {
            "min_rows": self.min_rows,
            "max_rows": self.max_rows,
            "rows_change": self.rows_change,
            "max_null_fraction": self.max_null_fraction,
            "value_range": self.value_range,
            "freshness": self.freshness,
            "partitions": self.partitions,
            "unique": self.unique,
            "on_failure": self.on_failure,
            "on_undecidable": self.on_undecidable,
        }
        statistics = engine.statistics_checks(**limits)
        if not queries and not statistics.checks:
            raise DeltaIllegalArgumentException(
                f"The audit {self.task_id!r} has no checks. Pass checks=, or one of min_rows, max_rows, rows_change, "
                "max_null_fraction, value_range, freshness, partitions and unique."
            )
        if (done := self.nothing_to_check(log, handle, context)) is not None:
            return done, None, []
        table = engine.AuditedTable(log, handle, valid_reports(context, handle, flatten_reports(self.staged)))
        self.log.info(
            "Transaction %s: auditing %s rows of %s stages for %s; %s.",
            handle.transaction_id,
            table.rows_staged,
            len(table.writes),
            handle.table,
            what_was_read(handle.read_version),
        )
        outcomes = statistics.run(table)
        held = self._at_commit(table, queries, outcomes)
        definition = audit_definition(queries, self.parameters, holds_at=self.holds_at, **limits)
        report = engine.audit_report(handle, outcomes, table.writes, held, version=table.version, definition=definition)
        return report, table, queries

    def nothing_to_check(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> AuditReport | None:
        """Return the report of an audit of what is public already; ``None`` if there is something to check.

        :raises TransactionAbortedException: if the transaction was aborted.
        """
        # As the commit asks: there is nothing to hold back if the rows are public already, or never will be.
        committed = engine.committed_before(log, handle) if handle.committed is None else engine.committed_earlier(log, handle)
        if committed is not None:
            self.log.info(
                "Transaction %s: its key %s is already in version %s of %s: nothing will be published, so nothing is checked.",
                handle.transaction_id,
                handle.app_id,
                committed.version,
                handle.table,
            )
            return engine.audit_report(handle, (), already_committed=True)
        check_not_aborted(self, context, log, handle)
        return None

    @property
    def reporting_task_id(self) -> str:
        """The task whose report the commit reads."""
        return self.task_id

    def _at_commit(self, table: AuditedTable, queries: Sequence[SqlCheck], outcomes: Sequence[AuditCheck]) -> list[HeldCheck]:
        """Return what the commit asks again."""
        held: list[HeldCheck] = []
        for each in outcomes if self.holds_at != READ else ():
            if each.name == "rows_change" and self.rows_change:
                held += engine.held_ratio(table, self.rows_change, each, self.reporting_task_id)
            elif each.name == "unique" and self.unique:
                held += engine.held_unique(table, self.unique, each, self.reporting_task_id)
        return held + (engine.held_queries(table, queries, self.reporting_task_id) if self.holds_at == COMMIT else [])

    def _ask(self, log: DeltaLog, table: AuditedTable, queries: Sequence[SqlCheck], context: Context) -> list[AuditCheck]:
        runner = self.hold(SparkRunner)
        request = engine.plan_sql_checks(table, queries, **stage_identity(context), spark_table_uri=runner.spark_table_uri)
        try:
            return engine.judge_answers(queries, runner.run(log, request))
        finally:
            if runner.submits:
                self._clean_up(log, request.directory)

    def _clean_up(self, log: DeltaLog, directory: str) -> None:
        """Delete the request and the report of a submitted audit: no commit references them."""
        try:
            log.store.delete_tree(directory)
        except Exception as error:  # noqa: BLE001 - the verdict stands; maintenance deletes leftovers
            self.log.warning("Could not delete %s of table %s: %s", directory, log.uri, error)

    def _log_check(self, handle: TransactionHandle, check: AuditCheck) -> None:
        if check.passed:
            level, verdict = logging.INFO, "passed"
        elif check.severity == WARN:
            level, verdict = logging.WARNING, "failed (warning only)"
        else:
            level, verdict = logging.ERROR, "FAILED"
        self.log.log(level, "Transaction %s: check %s %s: %s", handle.transaction_id, check.name, verdict, check.message)


def _is_plain(value: Any) -> bool:
    """Return whether a parameter is given, and its shape is known before the task runs."""
    return is_literal(value) or isinstance(value, Mapping | list | tuple | int | float)
