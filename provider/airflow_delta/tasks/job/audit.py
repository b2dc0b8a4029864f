"""An audit whose queries a job answers: the task before it looks at the stages and asks, the task after it judges.

What the audit says of the transaction is the second task's: the commit waits for it, and its report names the attempts and the
version that the first one has looked at. Only that one looks: the answers of a job are never mixed with what is there later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.spark_versions import check_request
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.job.collect import not_planned, planned_request
from airflow_delta.tasks.job.left_out import is_left_out
from airflow_delta.tasks.job.plan import PLANNED, UNASKED, JobParameters, put_job
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.audit import AuditReport
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog


class PlansAudit(DeltaOperator, JobParameters):
    """Does all of an audit that comes before its queries; mixed into the operator of the audit."""

    transaction_role: ClassVar[str] = "job"

    @property
    def reporting_task_id(self) -> str:
        """The task that judges."""
        return self.stage_task_id

    def execute(self, context: Context) -> Any:
        """Look at the stages, and return where the job works.

        :raises SparkVersionException: if what is read has what ``spark_version`` lacks.
        :raises AirflowSkipException: if there is no query: the job's task is skipped, too, and the second task does the audit.
        """
        audit: Any = self
        log, handle = open_transaction(self, context)
        report, table, queries = audit.begin(log, handle, context)
        if table is None or not queries:
            context["ti"].xcom_push(key="return_value", value={UNASKED: True})
            raise AirflowSkipException("The audit has no query for a job.")
        identity = {**stage_identity(context), "task_id": self.stage_task_id}
        request = engine.plan_sql_checks(table, queries, report=report, **identity, spark_table_uri=audit.spark_table_uri)
        if self.spark_version is not None:
            check_request(self.spark_version, request)
        for key, value in put_job(log, request).items():
            context["ti"].xcom_push(key=key, value=value)
        return {PLANNED: request.directory}


class CollectsAudit(DeltaOperator):
    """Judges the answers of a job; mixed into the operator of the audit.

    :param planned: output of the task that planned the audit. (templated)
    :param planned_by: id of that task, which has to run again with this one if the audit is outdated.
    """

    planned: Any = parameter(templated=True)
    planned_by: str = parameter()

    def audit(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> AuditReport:
        """Return the report of the audit.

        :raises AirflowSkipException: if the task that plans was skipped, as by a branch.
        :raises ChecksOutdatedException: if stages have run again since the audit was planned.
        :raises StagingException: if the job left no report, or the plan is of another audit.
        :raises DeltaError: if the job failed, with the type of the error there.
        """
        audit: Any = self
        if is_left_out(context, self.planned):
            raise AirflowSkipException("The task that plans this audit was skipped, so there is nothing to judge.")
        if isinstance(self.planned, dict) and self.planned.get(UNASKED):
            report: AuditReport
            report, table, queries = audit.begin(log, handle, context)
            if table is not None and queries:
                raise not_planned(self, handle, "has queries now, and had none when it was planned")
            return report
        done: AuditReport | None = audit.nothing_to_check(log, handle, context)
        if done is not None:
            return done
        request = planned_request(self, log, handle, stage_identity(context), self.planned)
        staged = valid_reports(context, handle, flatten_reports(audit.staged))
        return engine.collect_audit(handle, request, engine.read_report(log, request), staged)
