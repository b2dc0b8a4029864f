"""A preview between the stages and the commit of a transaction: a Delta table of what is staged, for any engine to check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.audit import stages_of
from airflow_delta.contract.check_records import PREVIEW
from airflow_delta.contract.choices import PREVIEWS
from airflow_delta.contract.staging_directory import stage_key
from airflow_delta.links.delta import DeltaTransactionLink
from airflow_delta.retry_policies import AUDIT_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.ended import check_not_aborted
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.stage.work import GivenTable
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaPreviewOperator(DeltaOperator, GivenTable):
    """Write what a transaction has staged as a Delta table of its own, for any engine to read before the commit publishes it.

    Place it between stages and commit, and checks or approvals after it; what is staged is checked as the commit checks it. It
    shows the commit on top of the newest version, or of the one that was read if it conflicts with a later one. No data is
    copied for ``only="table"``: the files are named where they are. Readers read it by its path; no writer can write to it. It
    is not an asset, and goes with the transaction.

    Returns JSON: ``transactionId``, ``table``, ``readVersion``, ``only``, ``stages`` (as of an audit), ``alreadyCommitted``,
    ``path``, ``version``, ``baseVersion`` (of the table, which the commit would come after), ``numFiles``, ``numAddedFiles``,
    ``numRemovedFiles``, ``numAddedRecords`` and ``numRemovedRecords`` (``None`` if statistics lack them). If the transaction is
    already committed, ``path`` and ``version`` are those of the table itself, or ``None`` for the changes.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param staged: outputs of the stages: one, several, or mapped. Default inside a ``delta_transaction`` group: all its stages
        that do not come after this task. (templated)
    :param only: ``table`` (default): the table as the commit leaves it, in time that grows with its number of files; or
        ``changes``: the rows that the commit adds, changes and removes, with ``_change_type`` as in the change data feed.
        (templated)
    :param table_uri: URI of the table for readers of the preview, if it differs from this task's (``s3a://`` for Spark).
        (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)

    The other parameter is that of :class:`~airflow_delta.tasks.stage.work.GivenTable`.
    """

    transaction_role: ClassVar[str] = "audit"
    check_kind: ClassVar[str] = PREVIEW
    writes_preview: ClassVar[bool] = True
    changes_table: ClassVar[bool] = False
    operator_extra_links = (DeltaTransactionLink(),)
    default_retry_policy = AUDIT_ERRORS
    ui_color = "#fff2cc"

    transaction: Any = parameter(default=None, templated=True)
    staged: Any = parameter(default=None, templated=True)
    only: str = parameter(default="table", templated=True, choices=PREVIEWS)
    table_uri: str | None = parameter(default=None, templated=True)
    delta_conn_id: str | None = parameter(default=None, templated=True)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return where the preview is, and what it holds.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file.
        :raises MissingStageException: if no stage has reported.
        :raises StageConflictException: if the commit would refuse the stages.
        :raises StagedFileException: if a staged file is gone.
        :raises TransactionAbortedException: if the transaction was aborted.
        """
        log, handle = open_transaction(self, context)
        committed = engine.committed_before(log, handle) if handle.committed is None else engine.committed_earlier(log, handle)
        if committed is not None:
            self.log.info("Transaction %s: already in version %s of %s.", handle.transaction_id, committed.version, handle.table)
            return engine.published(handle, committed, only=self.only)
        check_not_aborted(self, context, log, handle)
        staged = valid_reports(context, handle, flatten_reports(self.staged))
        me = stage_identity(context)
        value = engine.write_preview(
            log,
            handle,
            staged,
            only=self.only,
            table_uri=self.table_uri,
            task=stage_key(me["task_id"], me["map_index"]),
            attempt=me["attempt"],
        )
        value["stages"] = stages_of(staged)
        self.log.info(
            "Transaction %s: %s files added and %s removed can be read as a Delta table at %s, version %s, as if committed after "
            "version %s of %s. Nothing is published.",
            handle.transaction_id,
            value["numAddedFiles"],
            value["numRemovedFiles"],
            value["path"],
            value["version"],
            value["baseVersion"],
            handle.table,
        )
        return value
