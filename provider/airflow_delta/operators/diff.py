"""A preview between the stages and the commit of a transaction: the rows that it would add, remove and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.audit import stages_of
from airflow_delta.contract.check_records import DIFF
from airflow_delta.contract.kinds import NAMES, WHOLE_NUMBER
from airflow_delta.links.delta import DeltaTransactionLink
from airflow_delta.retry_policies import AUDIT_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.ended import check_not_aborted
from airflow_delta.tasks.stage.work import GivenTable
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.tasks.declared import Taken


class DeltaDiffOperator(DeltaOperator, GivenTable):
    """Show which rows the commit of a transaction would add, remove and change; for the body of an approval. Without Spark.

    Place it between stages and commit, as an audit; what is staged is checked as the commit checks it. Rows that a stage only
    copies to another file cancel out. Returns JSON: ``transactionId``, ``table``, ``readVersion``, ``alreadyCommitted``,
    ``version`` (that it is compared with), ``stages`` (as of an audit), ``keys``, ``exact``, ``added``, ``removed``, ``changed``
    (``None`` without ``keys``), ``schemaChanges`` (``kind``: ``new``, ``dropped``, ``renamed`` or ``type``; ``column``,
    ``before``, ``after``), ``sample``, and ``body``: all of it as Markdown. If there are more rows to compare than ``limit``,
    ``exact`` is false and the counts are upper bounds, without a sample.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param staged: outputs of the stages: one, several, or mapped. Default inside a ``delta_transaction`` group: all its stages
        that do not come after this task. (templated)
    :param keys: columns that identify a row: a row that is removed and added with the same keys has changed. (templated)
    :param sample: number of rows of each kind to show. Users who may read XComs can read them: 0 shows none. (templated)
    :param limit: number of rows to compare of the files that come, and of those that go; default: 1,000,000. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)

    The other parameter is that of :class:`~airflow_delta.tasks.stage.work.GivenTable`.
    """

    transaction_role: ClassVar[str] = "audit"
    check_kind: ClassVar[str] = DIFF
    changes_table: ClassVar[bool] = False
    operator_extra_links = (DeltaTransactionLink(),)
    default_retry_policy = AUDIT_ERRORS
    ui_color = "#fff2cc"

    transaction: Any = parameter(default=None, templated=True)
    staged: Any = parameter(default=None, templated=True)
    keys: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    sample: Taken[int | str, int] = parameter(default=10, templated=True, kind=WHOLE_NUMBER)
    limit: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    delta_conn_id: str | None = parameter(default=None, templated=True)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the diff.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file.
        :raises MissingStageException: if no stage has reported.
        :raises StageConflictException: if the commit would refuse the stages.
        :raises DeltaIllegalArgumentException: if a key is not a column, or a number is not valid.
        :raises TransactionAbortedException: if the transaction was aborted.
        """
        log, handle = open_transaction(self, context)
        committed = engine.committed_before(log, handle) if handle.committed is None else engine.committed_earlier(log, handle)
        if committed is None:
            check_not_aborted(self, context, log, handle)
            return self._diff(log, handle, context)
        body = f"Nothing will be published: the transaction is already in version {committed.version} of {handle.table}."
        self.log.info("Transaction %s: %s", handle.transaction_id, body)
        none = {"added": 0, "removed": 0, "changed": 0 if self.keys else None}
        sample: dict[str, Any] = {"added": [], "removed": [], "changed": []}
        return self._result(
            handle,
            {
                "version": committed.version,
                "stages": {},
                "keys": list(self.keys),
                "exact": True,
                **none,
                "schemaChanges": [],
                "sample": sample,
            },
            body,
            committed=True,
        )

    def _diff(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> dict[str, Any]:
        sample, limit = self.sample, self.limit
        table = engine.AuditedTable(log, handle, valid_reports(context, handle, flatten_reports(self.staged)))
        found = engine.staged_diff(
            table,
            keys=self.keys,
            sample=engine.SAMPLE if sample is None else sample,
            limit=engine.ROWS_COMPARED if limit is None else limit,
        )
        self.log.info("Transaction %s: %s", handle.transaction_id, engine.summary(found))
        diff = {**engine.diff_to_dict(found), "version": table.version, "stages": stages_of(table.writes)}
        return self._result(handle, diff, engine.diff_to_text(found), committed=False)

    def _result(self, handle: TransactionHandle, diff: dict[str, Any], body: str, *, committed: bool) -> dict[str, Any]:
        known = {name: value for name, value in diff.items() if name not in ("table", "readVersion")}
        return {
            "transactionId": handle.transaction_id,
            "table": handle.table,
            "readVersion": handle.read_version,
            "alreadyCommitted": committed,
            **known,
            "body": body,
        }
