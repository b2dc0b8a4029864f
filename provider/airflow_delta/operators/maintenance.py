"""Regular maintenance of one or several tables: checkpoint, OPTIMIZE, VACUUM, log cleanup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseXCom

from airflow_delta import engine
from airflow_delta.contract.kinds import HOURS, LOCATIONS, NAMES, TRUTH, WHOLE_NUMBER, taken
from airflow_delta.exceptions import CommitCancelledException, DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.table.operations.maintenance import (
    CANCELLED,
    CHECKPOINT,
    FAILED,
    LOG_CLEANUP,
    OPTIMIZE,
    STEPS,
    VACUUM,
    StepReport,
    TableReport,
    maintain,
    ordered_steps,
)
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import EngineChoice, EngineParameters
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.lineage import absolute_table
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.sql_parameters import SqlParameters

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.state.optimize_result import OptimizeResult
    from airflow_delta.tasks.declared import Taken


class DeltaMaintenanceOperator(DeltaOperator, SessionParameters, EngineParameters, CommitParameters, SqlParameters):
    """Maintain tables in one task: the given steps, in their fixed order, table by table.

    ``checkpoint`` writes a checkpoint if enough commits have followed the last one, ``optimize`` compacts small files, ``vacuum``
    deletes files that no version within the retention needs, including staged files of abandoned transactions, and
    ``log_cleanup`` deletes the part of the log older than ``delta.logRetentionDuration``. Only ``optimize`` needs Spark, unless
    ``engine`` says that the worker does it. If a step fails, the others still run, and the task fails at the end. A rerun does
    what is left.

    Returns JSON, pushed as XCom even if the task fails: ``tables`` with ``table``, ``versionBefore``, ``versionAfter`` and
    ``steps`` (``step``, ``status``, ``seconds``, and details), and ``numFailedSteps``.

    :param tables: one or several: URIs, absolute paths, or names below the connection's base path. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    :param steps: some of ``checkpoint``, ``optimize``, ``vacuum`` and ``log_cleanup``; default: those without Spark. (templated)
    :param min_commits: write a checkpoint after this many commits since the last one; default: the table's
        ``delta.checkpointInterval``. (templated)
    :param where: for OPTIMIZE: predicate on partition columns; default: the whole table. (templated)
    :param z_order_by: for OPTIMIZE: columns to order the rows by (``ZORDER BY``). (templated)
    :param min_file_size: for OPTIMIZE: smaller files are compacted, in bytes. (templated)
    :param max_file_size: for OPTIMIZE: size of the new files, in bytes. (templated)
    :param batch_size: for OPTIMIZE: bytes of input for each commit. (templated)
    :param parallel: for OPTIMIZE: bins that Spark writes at a time. (templated)
    :param retention_hours: for VACUUM: minimum age of files to delete, or a ``timedelta``; default: the table's
        ``delta.deletedFileRetentionDuration``. (templated)
    :param retention_check: for VACUUM: refuse a retention below that property.
    :param lite: for VACUUM: delete only what commits since the last VACUUM removed; does not list the table, so it does not find
        abandoned staged files.
    :param transaction_timeout_hours: for VACUUM: age at which a staged transaction without commit or abort counts as abandoned.
        (templated)
    :param logging_enabled: for VACUUM: commit VACUUM START and VACUUM END.
    :param max_paths: number of deleted paths to list in the result of a step.

    The other parameters are those of :class:`~airflow_delta.tasks.engines.EngineParameters` and
    :class:`~airflow_delta.tasks.spark.session.SessionParameters` and, for the commits of OPTIMIZE and VACUUM, of
    :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters` (its ``checkpoint`` is not the step).
    """

    by_job: ClassVar[bool | str] = "commits by itself: use DeltaOptimizeOperator"
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    ui_color = "#dae8fc"

    tables: Taken[str | Sequence[str], tuple[str, ...]] = parameter(templated=True, kind=LOCATIONS)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)
    steps: Taken[str | Sequence[str], tuple[str, ...]] = parameter(
        default=(CHECKPOINT, VACUUM, LOG_CLEANUP), templated=True, kind=NAMES, choices=STEPS
    )
    min_commits: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    where: str | None = parameter(default=None, templated=True)
    z_order_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    min_file_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    max_file_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    batch_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    parallel: Taken[int | str, int] = parameter(default=4, templated=True, kind=WHOLE_NUMBER)
    retention_hours: Taken[timedelta | float | str | None, float | None] = parameter(default=None, templated=True, kind=HOURS)
    retention_check: bool = parameter(default=True, kind=TRUTH)
    lite: bool = parameter(default=False, kind=TRUTH)
    transaction_timeout_hours: Taken[timedelta | float | str, float | None] = parameter(
        default=7 * 24.0, templated=True, kind=HOURS
    )
    logging_enabled: bool = parameter(default=True, kind=TRUTH)
    max_paths: int = parameter(default=0)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done.

        :raises DeltaIllegalArgumentException: if no table or an unknown step is named; nothing was done.
        :raises ExceptionGroup: if several steps failed; a single failure is raised unchanged.
        """
        names = self.tables
        if not names:
            raise DeltaIllegalArgumentException(f"The task {self.task_id!r} names no table. Pass tables=<URI> or a list of URIs.")
        steps = ordered_steps(self.steps)
        committer, session = self.hold(CommitPart), self.hold(TaskSession)
        vacuum = self._vacuum_options(committer, context)
        with ExitStack() as stack:

            def optimize(log: DeltaLog) -> OptimizeResult:
                return self._optimize(log, session, stack, committer, context)

            reports = [self._maintain(name, steps, optimize, vacuum, committer, context) for name in names]
        errors = [error for report in reports for error in report.errors]
        result = {"tables": [report.to_dict() for report in reports], "numFailedSteps": len(errors)}
        if self.is_cancelled:
            errors.append(CommitCancelledException(f"The maintenance task {self.task_id!r} was cancelled between two steps."))
        if errors:
            if self.do_xcom_push:  # a task that fails returns nothing
                context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)
            raise _one_error(errors, self.task_id)
        return result

    def _maintain(
        self,
        name: str,
        steps: Sequence[str],
        optimize: Callable[[DeltaLog], OptimizeResult],
        vacuum: dict[str, Any],
        committer: CommitPart,
        context: Context,
    ) -> TableReport:
        """Run the steps for one table; an error before the first step is reported as its failure."""
        try:
            log = DeltaHook(self.delta_conn_id).get_log(name)
            with committer.watched(context, log):
                return maintain(
                    log,
                    steps,
                    min_commits=self.min_commits,
                    optimize=optimize,
                    vacuum=vacuum,
                    max_paths=self.max_paths,
                    cancelled=lambda: self.is_cancelled,
                    on_step=lambda table, report: self._tell_step(table, report, context),
                )
        except Exception as error:
            self.log.exception("The maintenance of %s did not start", name)
            return TableReport(table=name, steps=(StepReport(step=steps[0], status=FAILED, error=error),))

    def _vacuum_options(self, committer: CommitPart, context: Context) -> dict[str, Any]:
        timeout = self.transaction_timeout_hours
        return {
            "retention_hours": self.retention_hours,
            "retention_check": self.retention_check,
            "lite": self.lite,
            **({} if timeout is None else {"transaction_timeout_hours": timeout}),
            "logging_enabled": self.logging_enabled,
            "policy": committer.policy(),
            "tags": committer.tags(context),
            "user_metadata": committer.user_metadata,
        }

    def _optimize(
        self, log: DeltaLog, session: TaskSession, stack: ExitStack, committer: CommitPart, context: Context
    ) -> OptimizeResult:
        clock, choice = Stopwatch(), self.hold(EngineChoice)
        result = engine.run_rewrite(
            log,
            lambda view: engine.select_for_optimize(
                view,
                where=self.where,
                z_order_by=list(self.z_order_by),
                min_file_size=self.min_file_size,
                max_file_size=self.max_file_size,
            ),
            choice.worker(log, session.worker(log, stack)),
            identity=stage_identity(context),
            batch_size=self.batch_size,
            parallel=self.parallel,
            spark_table_uri=choice.table_uri(log, session.spark_table_uri),
            **committer.options(context),
        )
        TaskMetrics(context["ti"]).optimized(result, clock.seconds)
        for commit in result.commits:
            committer.note(commit)
        return result

    def _tell_step(self, table: str, report: StepReport, context: Context) -> None:
        """Log a step and send its metrics."""
        details = {name: value for name, value in report.details.items() if name != "paths"}
        facts = ", ".join(f"{name}={value}" for name, value in details.items() if value is not None)
        text = f"{report.status}{f' ({facts})' if facts else ''}, {report.seconds:.1f} s"
        if report.error is not None:
            text += f": {type(report.error).__name__}: {report.error}"
        level = self.log.warning if report.status in (FAILED, CANCELLED) else self.log.info
        level("Maintenance of %s: %s: %s", table, report.step, text)
        metrics = TaskMetrics(context["ti"])
        metrics.timing("maintenance.duration", report.seconds, table=table, step=report.step, status=report.status)
        if report.status == FAILED:
            metrics.count("maintenance.failed", table=table, step=report.step)
        elif report.step == VACUUM and report.status != CANCELLED:
            metrics.vacuumed(
                table,
                files=details["numFiles"],
                directories=details["numDirectories"],
                size=details["numBytes"],
                seconds=report.seconds,
            )
        elif report.step == LOG_CLEANUP and report.status != CANCELLED:
            metrics.count("log_cleanup.files", details["numFiles"], table=table)

    def table_to_write(self) -> str | None:
        """Return the table if there is exactly one and it is to be compacted."""
        names = taken("tables", self.tables, LOCATIONS)  # also before they are taken
        return absolute_table(names[0]) if len(names) == 1 and OPTIMIZE in taken("steps", self.steps, NAMES) else None


def _one_error(errors: Sequence[Exception], task_id: str) -> Exception:
    if len(errors) == 1:
        return errors[0]
    return ExceptionGroup(f"{len(errors)} steps of the maintenance task {task_id!r} failed; the others ran", list(errors))
