"""Commit, abort and audit of a publication: several tables, all or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseXCom

from airflow_delta import engine
from airflow_delta import publication as publications
from airflow_delta.contract.audit import COMMIT, HOLDS_AT, PublicationAuditReport, audit_definition, stages_of
from airflow_delta.contract.check_records import PUBLICATION_AUDIT
from airflow_delta.contract.choices import FAIL_OR_WARN, choice_problem
from airflow_delta.contract.kinds import TRUTH, WHOLE_NUMBER
from airflow_delta.contract.read_versions import read_version_name
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    DeltaAuditFailedException,
    DeltaConcurrentModificationException,
    DeltaError,
    DeltaIllegalArgumentException,
    StagingException,
)
from airflow_delta.links.delta import DeltaTableLink
from airflow_delta.retry_policies import AUDIT_ERRORS, FINAL_ERRORS
from airflow_delta.tasks.airflow_tasks_test import warn_if_tested
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.checks.evidence import Evidence
from airflow_delta.tasks.checks.seen import check_seen, held_checks
from airflow_delta.tasks.checks.upstream import check_upstream, tasks_between
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.ended import check_not_aborted, is_aborted
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.keys.users import committing_user
from airflow_delta.tasks.observability import TaskMetrics
from airflow_delta.tasks.publication import (
    PublicationRestart,
    PublishedTable,
    emit_tables,
    failed_outcome,
    note_outcome,
    open_tables,
    outlets_of,
    with_reports,
)
from airflow_delta.tasks.restart.checks import ON_OUTDATED, check_again
from airflow_delta.tasks.restart.restart import ON_CLEAR, ON_CONFLICT
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.unpublished import unpublished

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.audit import AuditCheck, SqlCheck
    from airflow_delta.publication import Member, PublicationAbort, PublicationOptions, PublicationResult
    from airflow_delta.table.audit.audited_table import AuditedTable
    from airflow_delta.tasks.declared import Taken

ON_LATE_CONFLICT = ("undo", "keep")


class DeltaCommitPublicationOperator(DeltaOperator, CommitParameters):
    """Commit what the stages of several transactions wrote: one version of each table, or nothing on any.

    The log of one table, the anchor, holds the decision; a retry, a clear or another worker goes on from the logs, wherever this
    task was killed. Refuses to publish for the same reasons as
    :class:`~airflow_delta.operators.transaction.DeltaCommitOperator`. Made by ``delta_publication``.

    :param transactions: the handles: outputs of the start tasks, one for each table. (templated)
    :param staged: for each of them the outputs of its stages. (templated)
    :param anchor: position in ``transactions`` of the table that holds the decision; default: chosen by what the stages do.
    :param on_late_conflict: ``undo`` (default) or ``keep`` what is published, if a writer that does not know publications
        conflicts after the decision. (templated)
    :param intents: announce the publication on the other tables first.
    :param patience: seconds to wait for another publication that this task may not settle.
    :param on_conflict: after a conflict with nothing left public, ``fail`` (default) or ``restart``: clear the start tasks and
        everything after them. (templated)
    :param on_clear: if a task of the publication runs after an abort, because it was cleared without the start tasks: ``fail``
        (default) or ``restart``. (templated)
    :param on_outdated: as of :class:`~airflow_delta.operators.transaction.DeltaCommitOperator`. (templated)
    :param max_restarts: maximum number of restarts by one task without success in between. (templated)
    :param restart_conn_id: connection to Airflow's REST API for ``restart`` and ``check_again``. (templated)
    :param record_approvals: as of :class:`~airflow_delta.operators.transaction.DeltaCommitOperator`.

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    """

    transaction_role: ClassVar[str] = "commit"
    changes_table: ClassVar[bool] = True
    operator_extra_links = (DeltaTableLink(),)
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    transactions: Sequence[Any] = parameter(templated=True)
    staged: Sequence[Any] = parameter(templated=True)
    anchor: int | None = parameter(default=None)
    on_late_conflict: str = parameter(default="undo", templated=True, choices=ON_LATE_CONFLICT)
    intents: bool = parameter(default=True, kind=TRUTH)
    patience: float = parameter(default=60.0)
    on_conflict: str = parameter(default="fail", templated=True, choices=ON_CONFLICT)
    on_clear: str = parameter(default="fail", templated=True, choices=ON_CLEAR)
    on_outdated: str | None = parameter(default=None, templated=True, choices=ON_OUTDATED)
    max_restarts: Taken[int | str, int | None] = parameter(default=3, templated=True, kind=WHOLE_NUMBER)
    restart_conn_id: str | None = parameter(default=None, templated=True)
    record_approvals: bool = parameter(default=False, kind=TRUTH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 0:
            raise DeltaIllegalArgumentException(f"The task {self.task_id!r}: patience must be 0 or more, got {self.patience!r}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the publication, its outcome, and the result of each table; fill in the asset events of the outlets.

        :raises HandleMismatchException: if a transaction, or a report, is not one of the Dag file.
        :raises MissingStageException: if an instance of a stage did not report.
        :raises UpstreamFailedException: if a task between start and commit failed or has not ended.
        :raises ChecksOutdatedException: if one has not seen what the stages before it have staged since, or others have changed
            what an audit has read that must hold for the versions that are published.
        :raises DeltaAuditFailedException: if such an audit fails after what others have committed.
        :raises DeltaConcurrentModificationException: if a commit conflicts on a table before the decision; nothing is published.
        :raises PublicationUndoneException: if one did after it, and what was published is taken back.
        :raises PublicationSplitException: if that could not be taken back, or was not to be; final.
        :raises PublicationPendingException: if a table cannot be reached now; a retry goes on.
        :raises TransactionAbortedException: if the publication was given up.
        :raises DeltaUnsupportedOperationException: if a stage cannot be part of a publication.
        """
        self._check_rendered()
        committer = self.hold(CommitPart)
        tables = open_tables(self, context)
        if len(tables) < len(self.transactions):
            raise StagingException(
                f"The task {self.task_id!r} got no transaction from one of its start tasks. Nothing is published. Clear the "
                "start tasks with everything downstream."
            )
        tables = with_reports(self, context, tables)
        for table in tables:
            self.log.info(
                "Transaction %s: %s staged writes (%s files) for %s; %s.",
                table.handle.transaction_id,
                len(table.writes),
                sum(write.num_files for write in table.writes),
                table.handle.table,
                read_version_name(table.handle.read_version),
            )
            self.lineage.note_reads(table.handle, table.writes)
        members = [self._member(committer, context, table) for table in tables]
        first = tables[0]
        restart, again = self._restart(context, members), check_again(self, context)
        if restart is not None:
            restart.go_on(first.log, first.handle)
        try:
            result = self._publish(committer, context, tables, members)
        except DeltaConcurrentModificationException as conflict:
            if restart is None or self.on_conflict != "restart" or not restart.after(conflict, first.log, first.handle):
                raise
            result = self._publish(committer, context, tables, members)
        except ChecksOutdatedException as outdated:
            if again is not None:
                again.after(outdated, first.handle)
            raise
        except StagingException:
            aborted = [table for table in tables if is_aborted(table.log, table.handle)]
            if restart is not None and self.on_clear == "restart" and aborted:
                restart.of_aborted(first.handle)
            raise
        for counted in (restart, again):
            if counted is not None:
                counted.succeeded()
        return self._finish(committer, context, tables, result)

    def _check_rendered(self) -> None:
        for name, allowed in self.choices.items():
            if (value := getattr(self, name)) not in allowed and not (value is None and name == "on_outdated"):
                raise DeltaIllegalArgumentException(
                    f"{name} of {self.task_id!r} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}."
                )

    def _member(self, committer: CommitPart, context: Context, table: PublishedTable) -> Member:
        return publications.Member(
            log=table.log,
            handle=table.handle,
            staged=table.writes,
            expected=table.expected,
            tags=committer.tags(context, outlets_of(self, table)),
            user_metadata=self.user_metadata,
            conflict_detection=self.conflict_detection,
            hooks=tuple(self.post_commit_hooks),
            user=committing_user(self, context, table.start),
        )

    def _options(self, tables: Sequence[PublishedTable]) -> PublicationOptions:
        return publications.PublicationOptions(
            on_late_conflict=self.on_late_conflict,  # type: ignore[arg-type]
            anchor=None if self.anchor is None else tables[self.anchor].handle.table,
            intents=self.intents,
            patience=self.patience,
        )

    def _publish(
        self, committer: CommitPart, context: Context, tables: Sequence[PublishedTable], members: Sequence[Member]
    ) -> PublicationResult:
        first = tables[0]
        metrics = TaskMetrics(context["ti"])
        committer.evidence = Evidence(context, tasks_between(self, context))
        held = held_checks(committer.evidence)
        members = [replace(member, held=held.get(member.handle.transaction_id, ())) for member in members]
        try:
            with committer.watched(context, first.log, first.name):
                return publications.publish_tables(
                    members,
                    attempt=new_attempt(context["ti"].try_number),
                    options=self._options(tables),
                    policy=committer.policy(),
                    check=partial(self._check, context, tables, committer.evidence),
                )
        except DeltaError as error:
            outcome = failed_outcome(error)
            note = {
                "publication": getattr(error, "publication", None),
                "outcome": outcome,
                "tables": [table.handle.table for table in tables],
            }
            note_outcome(self, context, note)
            metrics.count("publication", table=error.table or first.handle.table, outcome=outcome)
            raise

    def _check(self, context: Context, tables: Sequence[PublishedTable], evidence: Evidence) -> dict[str, str]:
        first, *others = tables
        check_upstream(self, context, first.handle, [table.handle.table for table in others])
        writes = [write for table in tables for write in table.writes]
        return check_seen(self, evidence, first.handle, writes, approvals=self.record_approvals)

    def _finish(
        self, committer: CommitPart, context: Context, tables: Sequence[PublishedTable], result: PublicationResult
    ) -> dict[str, Any]:
        metrics = TaskMetrics(context["ti"])
        seconds = None if committer.clock is None else committer.clock.seconds
        self.log.info(
            "Publication %s: %s, decided by %s%s: %s.",
            result.publication,
            result.outcome,
            result.anchor,
            " (by an earlier attempt)" if result.committed_before else "",
            ", ".join(f"version {commit.version} of {uri}" for uri, commit in result.tables.items() if commit is not None),
        )
        for table in tables:
            commit = result.tables[table.handle.table]
            if commit is not None:
                committer.about(table.log, table.name)
                committer.note(commit, table.writes)
                metrics.committed(commit)
        metrics.count("publication", table=result.anchor, outcome=result.outcome)
        metrics.timing("publication.duration", None if result.committed_before else seconds, table=result.anchor)
        note_outcome(self, context, {"publication": result.publication, "outcome": result.outcome, "tables": list(result.tables)})
        emit_tables(self, context, tables, result)
        return result.to_dict()

    def _restart(self, context: Context, members: Sequence[Member]) -> PublicationRestart | None:
        asked = [
            f"{name}='restart'"
            for name, value in (("on_conflict", self.on_conflict), ("on_clear", self.on_clear))
            if value == "restart"
        ]
        if not asked:
            return None
        limit = self.max_restarts
        restart = PublicationRestart(
            context,
            self,
            max_restarts=3 if limit is None else limit,
            conn_id=self.restart_conn_id,
            setting=" and ".join(asked),
            publication=context["dag"].task_dict[self.task_id],
        )
        restart.abort = partial(_abort, members)
        return restart


def _abort(members: Sequence[Member]) -> PublicationAbort:
    return publications.abort_tables(members)


class DeltaAbortPublicationOperator(DeltaOperator):
    """Give up a publication that is not decided, on all its tables, and delete what was staged if no live commit can publish it.

    If it is decided, it is brought to its end instead, and nothing is deleted. Meant as the teardown of the publication; fails in
    the cases in which :class:`~airflow_delta.operators.transaction.DeltaAbortOperator` does.

    :param transactions: the handles: outputs of the start tasks, one for each table. (templated)
    """

    transaction_role: ClassVar[str] = "abort"
    changes_table: ClassVar[bool] = True
    default_retry_policy = FINAL_ERRORS
    ui_color = "#f8cecc"

    transactions: Sequence[Any] = parameter(templated=True)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Return what was done; ``None`` if no start task has begun a transaction.

        :raises HandleMismatchException: if a transaction is not the one in the Dag file. Nothing is deleted.
        :raises PublicationPendingException: if a decided publication could not be brought to its end; a retry goes on.
        :raises TransactionAbortedException: if no failed task would show that nothing was published.
        """
        tables = open_tables(self, context)
        if not tables:
            self.log.info("No start task returned a transaction: nothing to abort.")
            return None
        for table in tables:
            warn_if_tested(self, table.handle.table, f"abort transaction {table.handle.transaction_id} of")
        result = _abort([publications.Member(log=table.log, handle=table.handle) for table in tables])
        self.log.info("Publication %s: abort: %s. %s", result.publication, result.outcome, result.reason)
        metrics = TaskMetrics(context["ti"])
        for each in result.tables.values():
            metrics.aborted(each)
        value = result.to_dict()
        if result.outcome == "refused":
            lost = [(table, found) for table in tables if (found := unpublished(self, context, table.handle)) is not None]
            for table, found in lost:
                level = logging.INFO if found.is_meant else logging.WARNING
                self.log.log(
                    level,
                    "Transaction %s: nothing of it is published on %s: %s; %s.",
                    table.handle.transaction_id,
                    table.handle.table,
                    found.why,
                    found.rows,
                )
            for table, found in lost:
                if found.is_hidden:
                    if self.do_xcom_push:
                        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)
                    raise found.error(table.handle)
        return value


class DeltaAuditPublicationOperator(DeltaOperator, SqlParameters, RunnerParameters):
    """Check what the transactions of a publication have staged, over all its tables, before any of it is visible.

    Place it into the block of ``delta_publication``, beside the transactions; the commit waits for it. For checks of one table,
    put a :class:`~airflow_delta.operators.audit.DeltaAuditOperator` into the block of its transaction.

    :param checks: Spark SQL queries by name. Each returns one row whose first column is a boolean; null fails. For a transaction
        ``orders`` they may name the views ``orders`` (the table as the commit would leave it), ``orders_staged`` (the staged
        rows) and ``orders_before`` (the table before the commit). Instead of a query: a mapping with ``sql`` and ``on_failure``.
        (templated)
    :param holds_at: ``commit``: what a check has read of each table holds in the versions that are published, or nothing is.
        ``read`` (default): it holds for the versions that the audit sees. (templated)
    :param on_failure: ``fail`` (default) or ``warn``, for checks that do not set it. (templated)
    :param transactions: the handles; filled in by ``delta_publication``. (templated)
    :param staged: for each of them the outputs of its stages; filled in by ``delta_publication``. (templated)
    :param names: for each of them the name of its views; filled in by ``delta_publication``.

    The other parameters are those of :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`; its session reads all tables
    with the credentials of the first.
    """

    by_job: ClassVar[bool | str] = "is over several tables: use DeltaAuditOperator in each transaction"
    transaction_role: ClassVar[str] = "audit_publication"
    check_kind: ClassVar[str] = PUBLICATION_AUDIT
    changes_table: ClassVar[bool] = False
    default_retry_policy = AUDIT_ERRORS
    ui_color = "#fff2cc"

    checks: Mapping[str, str | Mapping[str, str]] = parameter(templated=True, renderer="json")
    holds_at: str | None = parameter(default=None, templated=True, choices=HOLDS_AT)
    on_failure: str = parameter(default="fail", templated=True, choices=FAIL_OR_WARN)
    transactions: Sequence[Any] = parameter(default=(), templated=True)
    staged: Sequence[Any] = parameter(default=(), templated=True)
    names: Sequence[str] = parameter(default=())

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the report of the audit; it is pushed as XCom even if the audit fails.

        :raises HandleMismatchException: if a transaction is not the one in the Dag file.
        :raises DeltaAuditFailedException: if a check failed.
        :raises DeltaIllegalArgumentException: if a check is not valid, or there is none.
        :raises MissingStageException: if no stage of a table has reported.
        :raises TransactionAbortedException: if a transaction was aborted.
        """
        if (problem := choice_problem("holds_at", self.holds_at, HOLDS_AT)) is not None:
            raise DeltaIllegalArgumentException(f"The audit {self.task_id!r}: {problem}")
        queries = engine.parse_sql_checks(self.checks, on_failure=self.on_failure)
        if not queries:
            raise DeltaIllegalArgumentException(f"The audit {self.task_id!r} has no checks. Pass checks=.")
        tables = with_reports(self, context, open_tables(self, context))
        read = {table.handle.table: table.handle.read_version for table in tables}
        # There is nothing to hold back of what is public already; whether that is all of it, or an error, says the commit.
        if any(table.handle.committed is not None or engine.committed_before(table.log, table.handle) for table in tables):
            self.log.info("A key of the publication is committed already: nothing is checked.")
            return PublicationAuditReport(tables=read, versions=read, passed=True, already_committed=True).to_dict()
        for table in tables:
            check_not_aborted(self, context, table.log, table.handle)
        audited = {
            name: engine.AuditedTable(table.log, table.handle, table.writes)
            for name, table in zip(self.names, tables, strict=True)
        }
        outcomes = self._ask(audited, queries, context)
        for check in outcomes:
            level = logging.INFO if check.passed else logging.WARNING if check.severity == "warn" else logging.ERROR
            self.log.log(level, "Check %s %s: %s", check.name, "passed" if check.passed else "FAILED", check.message)
        failed = [check for check in outcomes if not check.passed and check.severity == "fail"]
        value = PublicationAuditReport(
            tables=read,
            versions={table.handle.table: table.version for table in audited.values()},
            stages=stages_of(write for table in audited.values() for write in table.writes),
            held=tuple(engine.held_queries_of_tables(audited, queries, self.task_id) if self.holds_at == COMMIT else ()),
            definition=audit_definition(queries, self.parameters, holds_at=self.holds_at),
            passed=not failed,
            checks=tuple(outcomes),
        ).to_dict()
        if not failed:
            return value
        if self.do_xcom_push:
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)
        raise DeltaAuditFailedException(
            f"The publication of {', '.join(read)} failed its audit: "
            f"{'; '.join(f'{check.name}: {check.message}' for check in failed)}. Nothing is published on any of them. Clear the "
            "start tasks to stage again.",
            failed=tuple(check.name for check in failed),
            table=next(iter(read)),
        )

    def _ask(self, audited: Mapping[str, AuditedTable], queries: Sequence[SqlCheck], context: Context) -> list[AuditCheck]:
        runner = self.hold(SparkRunner)
        request = engine.plan_checks_of_tables(
            audited, queries, **stage_identity(context), spark_table_uri=runner.spark_table_uri
        )
        log = next(iter(audited.values())).log
        try:
            return engine.judge_answers(queries, runner.run(log, request))
        finally:
            if runner.submits:
                try:
                    log.store.delete_tree(request.directory)
                except Exception as error:  # noqa: BLE001 - the verdict stands; maintenance deletes leftovers
                    self.log.warning("Could not delete %s of table %s: %s", request.directory, log.uri, error)
