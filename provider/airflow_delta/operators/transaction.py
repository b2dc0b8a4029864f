"""Begin, commit and abort: the three tasks around the stages of a transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseXCom
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION, NAMES, PROPERTIES, SCHEMA, TEXT, TRUTH, WHOLE_NUMBER
from airflow_delta.contract.read_versions import version_of, what_was_read
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    StagingException,
)
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink, DeltaTransactionLink
from airflow_delta.links.pages import PAGE_KEY, transaction_page
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.airflow_tasks_test import warn_if_tested
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.checks.evidence import Evidence
from airflow_delta.tasks.checks.seen import check_seen, held_checks
from airflow_delta.tasks.checks.upstream import check_upstream, tasks_between
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.dag_file import has_previews
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.ended import is_aborted
from airflow_delta.tasks.identity import new_transaction_id
from airflow_delta.tasks.keys.users import committing_user
from airflow_delta.tasks.lineage import table_of_handle
from airflow_delta.tasks.observability import TaskMetrics
from airflow_delta.tasks.restart.checks import ON_OUTDATED, check_again
from airflow_delta.tasks.restart.restart import ON_CLEAR, ON_CONFLICT, Restart
from airflow_delta.tasks.settlement import settle_earlier
from airflow_delta.tasks.start.own_transaction import OwnTransaction, OwnTransactionParameters
from airflow_delta.tasks.start.reservation import open_or_reserve
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import expected_stages, valid_reports
from airflow_delta.tasks.unpublished import unpublished

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.declared import Taken

_LISTED = 20
"""Files of a conflict in the task's log."""


class DeltaStartTransactionOperator(DeltaOperator, OwnTransactionParameters):
    """Begin a transaction: pin the table's version and set the transaction's identity. The list of files is not read.

    An ordinary task, not a setup: clearing a stage keeps the transaction, clearing this task begins a new one. Its default key is
    the Dag id, the id of the group (or of the task, outside of one), the run id, and the value that the group is mapped to.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    :param partition_by: partition columns of a new table. (templated)
    :param schema: schema of a new table in Spark's JSON form; default: that of the staged rows. (templated)
    :param properties: properties of a new table. (templated)
    :param description: description of a new table. (templated)
    :param create: let the commit create a missing table; otherwise a missing table is an error.

    The other parameters are those of :class:`~airflow_delta.tasks.start.own_transaction.OwnTransactionParameters`.
    """

    transaction_role: ClassVar[str] = "start"
    default_retry_policy = FINAL_ERRORS
    operator_extra_links = (DeltaTableLink(), DeltaTransactionLink())
    ui_color = "#d5e8d4"

    table: str = parameter(templated=True, kind=LOCATION)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)
    partition_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    schema: Taken[str | Mapping[str, Any] | None, str | None] = parameter(
        default=None, templated=True, kind=SCHEMA, renderer="json"
    )
    properties: Mapping[str, str] | None = parameter(default=None, templated=True, kind=PROPERTIES, renderer="json")
    description: str | None = parameter(default=None, templated=True, kind=TEXT)
    create: bool = parameter(default=True, kind=TRUTH)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the transaction's handle.

        :raises DeltaIllegalArgumentException: if the identity, the policy or the table's name is not valid.
        :raises TransactionAlreadyCommittedException: if the key is in the log and the policy is ``fail``, or ``replace`` and
            another writer has changed what it added; or if the run has published to the table under another key.
        :raises TransactionExpiredException: if the run may be older than the keys and commits that are left in the log.
        """
        own = self.hold(OwnTransaction)
        identity = own.identity(context)
        log = open_or_reserve(
            self, context, own.named_table, self.delta_conn_id or DeltaHook.default_conn_name, create=self.create
        )
        settle_earlier(self, context, log, str(identity["transaction_key"] or identity["app_id"]))
        handle = engine.begin(
            log,
            partition_by=self.partition_by,
            schema=self.schema,
            configuration=self.properties,
            description=self.description,
            create=self.create,
            delta_conn_id=self.delta_conn_id,
            transaction_id=new_transaction_id(context),
            **identity,
        )
        handle = replace(handle, given_table=own.table)
        self.log.info(
            "Transaction %s: begins on %s; key %s, txnVersion %s, rerun_policy %s%s.",
            handle.transaction_id,
            version_of(handle.table, handle.read_version),
            handle.app_id,
            handle.txn_version,
            handle.rerun_policy,
            f"; the key is already in version {handle.committed.version}: stages will do nothing" if handle.committed else "",
        )
        TaskMetrics(context["ti"]).started(handle)
        told = handle.to_dict()
        context["ti"].xcom_push(key=PAGE_KEY, value=transaction_page(told))
        return told


class DeltaCommitOperator(DeltaOperator, CommitParameters):
    """Commit what the stages wrote as one version, or nothing.

    A lost race for a version is retried here, without Spark; a logical conflict is final for the transaction, and Airflow does
    not retry it either. A retry of a commit that was written succeeds with the same result, and emits the asset event.

    Nothing is published if any task between start and commit, not only one right before the commit, has failed, was
    ``upstream_failed``, or has not ended; skipped tasks and teardowns do not count. Only ``trigger_rule`` named on this task (not
    in ``default_args``) changes that: with ``all_done`` or the like the commit publishes although others failed, as long as every
    stage has reported. Rules that do not wait for all tasks before it are refused: ``always``, ``one_success``,
    ``one_failed`` and ``one_done``.

    :param transaction: the handle: output of the start task. (templated)
    :param staged: outputs of the stages: one, several, or mapped. Every instance of these tasks must have reported. (templated)
    :param allow_skipped: publish without stages that were skipped (needs a trigger rule that lets the commit run then). If all
        were, the commit is skipped too.
    :param on_conflict: after a logical conflict ``fail`` (default), or ``restart``: abort the transaction and clear the start
        task and everything after it, so that they run again on the newest version. (templated)
    :param on_clear: if a task of the transaction runs after an abort, because it was cleared without the start task: ``fail``
        (default), or ``restart``: clear the start task and everything after it, as ``on_conflict`` does. (templated)
    :param on_outdated: if tasks between start and commit have not seen what would be published, or a check that must hold for it
        has read rows that others have changed since: ``fail``, or ``check_again``: clear them and everything after them; what is
        staged stays. Default: ``check_again`` with ``on_conflict="restart"`` and ``restart_conn_id``. (templated)
    :param max_restarts: maximum number of restarts, and of such clears, by one task without success in between. (templated)
    :param restart_conn_id: connection to Airflow's REST API for ``check_again`` and ``restart``: the URL of the API server as
        host, login and password of a user who may edit this Dag's task instances. Not needed for ``restart`` if every task of the
        Dag is the start task or downstream of it: the whole run is cleared then. (templated)
    :param keep_preview: how long the previews of the transaction (:class:`~airflow_delta.operators.preview.DeltaPreviewOperator`)
        stay after the commit: a ``timedelta``, or a number of days. Default: they are deleted.
    :param record_approvals: name in the log who has answered the approvals (``ApprovalOperator`` and the like), by the id that
        Airflow has of them, and what. The log is read by whoever reads the table.
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    :param table: the transaction's table; default: the start task's. Needed only if no start task is upstream. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    """

    transaction_role: ClassVar[str] = "commit"
    changes_table: ClassVar[bool] = True
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    transaction: Any = parameter(templated=True)
    staged: Any = parameter(templated=True)
    allow_skipped: bool = parameter(default=False, kind=TRUTH)
    on_conflict: str = parameter(default="fail", templated=True, choices=ON_CONFLICT)
    on_clear: str = parameter(default="fail", templated=True, choices=ON_CLEAR)
    on_outdated: str | None = parameter(default=None, templated=True, choices=ON_OUTDATED)
    max_restarts: Taken[int | str, int | None] = parameter(default=3, templated=True, kind=WHOLE_NUMBER)
    restart_conn_id: str | None = parameter(default=None, templated=True)
    keep_preview: timedelta | float | None = parameter(default=None)
    record_approvals: bool = parameter(default=False, kind=TRUTH)
    delta_conn_id: str | None = parameter(default=None, templated=True)
    table: str | None = parameter(default=None, templated=True, kind=LOCATION)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the commit's result, and fill in the asset events of the outlets.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file.
        :raises MissingStageException: if an instance of a stage did not report.
        :raises UpstreamFailedException: if a task between start and commit failed or has not ended, unless ``trigger_rule`` of
            this task accepts that.
        :raises ChecksOutdatedException: if such a task has not seen what the stages before it have staged since, with the same
            exception, or a check that must hold for what is published may not, and no check again is left.
        :raises AirflowSkipException: if every stage was skipped and ``allow_skipped`` allows that.
        :raises DeltaConcurrentModificationException: if another commit conflicts and no restart is left.
        :raises TransactionAbortedException: if the transaction was aborted and no restart is left.
        :raises CommitStateUnknownException: if the store did not say whether the entry was written; a retry settles it.
        :raises DeltaIllegalArgumentException: if this transaction cannot be restarted, or ``on_conflict`` or ``on_clear`` is not
            valid.
        """
        restart, again = self._restart(context), check_again(self, context)
        committer = self.hold(CommitPart)
        log, handle = open_transaction(self, context)
        staged: list[StagedWrite] = []
        expected: dict[tuple[str, int], str | None] | None = None
        all_skipped = False
        if handle.committed is None:
            staged = valid_reports(context, handle, flatten_reports(self.staged))
            expected = expected_stages(self, context, staged, allow_skipped=self.allow_skipped)
            all_skipped = expected is None
        self.log.info(
            "Transaction %s: committing %s staged writes (%s files, %s bytes) to %s; %s.",
            handle.transaction_id,
            len(staged),
            sum(write.num_files for write in staged),
            sum(write.num_bytes for write in staged),
            handle.table,
            what_was_read(handle.read_version),
        )
        self.lineage.note_reads(handle, staged)
        if restart is not None:
            restart.go_on(log, handle)
        check = partial(self._check, context, handle, staged, restart, all_skipped=all_skipped)
        try:
            result = self._publish(committer, context, log, handle, staged, expected, check)
        except DeltaConcurrentModificationException as conflict:
            self._note_conflict(context, log, handle, staged, conflict)
            if restart is None or self.on_conflict != "restart" or not restart.after(conflict, log, handle):
                raise
            result = self._publish(committer, context, log, handle, staged, expected, check)
        except ChecksOutdatedException as outdated:
            if again is not None:
                again.after(outdated, handle)
            raise
        except StagingException:
            if restart is not None and self.on_clear == "restart" and is_aborted(log, handle):
                restart.of_aborted(handle)
            raise
        for counted in (restart, again):
            if counted is not None:
                counted.succeeded()
        self._end_previews(context, log, handle)
        return committer.finish(context, result, staged)

    def _note_conflict(
        self,
        context: Context,
        log: DeltaLog,
        handle: TransactionHandle,
        staged: Sequence[StagedWrite],
        conflict: DeltaConcurrentModificationException,
    ) -> None:
        """Log the conflicting files, for readers of the preview."""
        if not has_previews(self, context):
            return
        try:
            files = engine.note_conflict(log, handle, staged, conflict)
        except Exception as error:  # noqa: BLE001 - the conflict is what the task fails with
            self.log.warning("Transaction %s: the files that conflict are not known: %s", handle.transaction_id, error)
            return
        listed = [f"{file['path']} ({file['change']})" for file in files[:_LISTED]]
        self.log.error(
            "Transaction %s conflicts with version %s of %s over %s files: %s%s. The preview stays until the abort.",
            handle.transaction_id,
            conflict.winning_version,
            handle.table,
            len(files),
            ", ".join(listed),
            ", ..." if len(files) > _LISTED else "",
        )

    def _end_previews(self, context: Context, log: DeltaLog, handle: TransactionHandle) -> None:
        if has_previews(self, context):
            engine.end_previews(log, handle.transaction_id, keep=self.keep_preview)

    def _check(
        self,
        context: Context,
        handle: TransactionHandle,
        staged: Sequence[StagedWrite],
        restart: Restart | None,
        evidence: Evidence,
        *,
        all_skipped: bool,
    ) -> dict[str, str]:
        check_upstream(self, context, handle)
        if all_skipped:
            if restart is not None:
                restart.succeeded()
            raise AirflowSkipException(
                f"Transaction {handle.transaction_id} on table {handle.table}: every stage was skipped, so there is nothing to "
                "publish, and the commit is skipped too (allow_skipped=True)."
            )
        return check_seen(self, evidence, handle, staged, approvals=self.record_approvals)

    def _publish(
        self,
        committer: CommitPart,
        context: Context,
        log: DeltaLog,
        handle: TransactionHandle,
        staged: Sequence[StagedWrite],
        expected: Mapping[tuple[str, int], str | None] | None,
        check: Callable[[Evidence], dict[str, str]],
    ) -> CommitResult:
        options = committer.options(context)
        evidence = Evidence(context, tasks_between(self, context))
        committer.evidence = evidence
        held = {} if handle.committed is not None else held_checks(evidence)
        if own := held.get(handle.transaction_id):
            options["policy"] = replace(options["policy"], check_winners=engine.HeldChecks(log, handle, own, staged))
        with committer.watched(context, log, (handle.given_table, handle.delta_conn_id)):
            return engine.publish(
                log,
                handle,
                staged,
                attempt=new_attempt(context["ti"].try_number),
                expected=expected,
                user=committing_user(self, context),
                check=partial(check, evidence),
                **options,
            )

    def _restart(self, context: Context) -> Restart | None:
        asked = [
            f"{name}='restart'"
            for name, value, values in (("on_conflict", self.on_conflict, ON_CONFLICT), ("on_clear", self.on_clear, ON_CLEAR))
            if self._checked(name, value, values) == "restart"
        ]
        if not asked:
            return None
        limit = self.max_restarts
        return Restart(
            context, self, max_restarts=3 if limit is None else limit, conn_id=self.restart_conn_id, setting=" and ".join(asked)
        )

    def _checked(self, name: str, value: str, values: Sequence[str]) -> str:
        if value not in values:
            raise DeltaIllegalArgumentException(f"{name} of {self.task_id!r} must be one of {', '.join(values)}, got {value!r}.")
        return value

    def table_to_write(self) -> str | None:
        """Return the table of the handle."""
        return table_of_handle(self.transaction)


class DeltaAbortOperator(DeltaOperator):
    """Abort a transaction that was not committed, and delete what it staged if no live commit can still publish it.

    Meant as the teardown of the transaction: does nothing after a commit, or if the start task never ran. Fails if nothing was
    published and the run would end as success nevertheless: it was marked as failed while tasks ran, or the commit was marked as
    success. Airflow counts that only through a teardown with ``on_failure_fail_dagrun`` after this task, such as the ``watcher``
    of ``delta_transaction``.

    :param transaction: the handle: output of the start task. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    :param table: the transaction's table; default: the start task's. (templated)
    """

    transaction_role: ClassVar[str] = "abort"
    changes_table: ClassVar[bool] = True
    default_retry_policy = FINAL_ERRORS
    ui_color = "#f8cecc"

    transaction: Any = parameter(templated=True)
    delta_conn_id: str | None = parameter(default=None, templated=True)
    table: str | None = parameter(default=None, templated=True, kind=LOCATION)

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Return what was done; ``None`` if there is no transaction.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file. Nothing is deleted.
        :raises TransactionAbortedException: if no failed task would show that nothing was published.
        """
        if self.transaction is None:
            self.log.info("The start task returned no transaction: nothing to abort.")
            return None
        log, handle = open_transaction(self, context)
        warn_if_tested(self, handle.table, f"abort transaction {handle.transaction_id} of")
        result = engine.abort(log, handle)
        self.log.info("Transaction %s: abort: %s. %s", handle.transaction_id, result.outcome, result.reason)
        if log.managed_as is not None and handle.read_version < 0 and result.outcome != "committed":
            self.log.info(
                "The new table %s was not created. The catalog keeps its reservation, at %s; the start task finds it again if it "
                "is cleared.",
                log.managed_as,
                log.uri,
            )
        TaskMetrics(context["ti"]).aborted(result)
        value = result.to_dict()
        if result.outcome != "committed" and (lost := unpublished(self, context, handle)) is not None:
            level = logging.INFO if lost.is_meant else logging.WARNING
            self.log.log(level, "Transaction %s: nothing of it is published: %s; %s.", handle.transaction_id, lost.why, lost.rows)
            if lost.is_hidden:
                if self.do_xcom_push:
                    context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)
                raise lost.error(handle)
        return value
