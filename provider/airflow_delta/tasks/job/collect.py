"""The task after a job: it reads the job's report, checks what was written, and returns the staged write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.staging_directory import stage_key, transaction_directory
from airflow_delta.exceptions import StagingException
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.job.left_out import is_left_out
from airflow_delta.tasks.job.plan import PLANNED, SKIPPED, STAGED
from airflow_delta.tasks.stage.operator import StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView
    from airflow_delta.tasks.base import DeltaOperator
    from airflow_delta.tasks.stage.work import StageWork


class CollectsJob(StageOperator):
    """Collects what a job has staged; mixed into the operator that planned it, since the commit asks the Dag file what it may do.

    Of several runs of the job, the first that ended well counts, from then on.

    :param planned: output of the task that planned the stage. (templated)
    """

    default_retry_policy: ClassVar[RetryPolicy | None] = FINAL_ERRORS

    planned: Any = parameter(templated=True)

    @property
    def is_own_transaction(self) -> bool:
        """Never: what a job stages is for the commit of a transaction."""
        return False

    def carry_out(self, work: StageWork, context: Context) -> Any:
        """Return the staged write.

        :raises AirflowSkipException: if the task that plans was skipped, as by a branch: what it left earlier does not count.
        """
        if is_left_out(context, self.planned):
            raise AirflowSkipException("The task that plans this stage was skipped, so there is nothing to collect.")
        return super().carry_out(work, context)

    def plan_stage(self, stage: StageView) -> StagedWrite:
        """Return the staged write: the work is done.

        :raises AirflowSkipException: if that was decided when the stage was planned.
        :raises StagingException: if the job left no report, or what was planned is of another transaction or stage.
        :raises DeltaError: if the job failed, with the type of the error there.
        """
        planned = self.planned if isinstance(self.planned, Mapping) else {}
        if SKIPPED in planned:
            raise AirflowSkipException(str(planned[SKIPPED]))
        if STAGED in planned:
            return StagedWrite.from_dict(planned[STAGED])
        identity = {"task_id": stage.own.task_id, "map_index": stage.own.map_index}
        request = planned_request(self, stage.log, stage.handle, identity, self.planned)
        report = engine.read_report(stage.log, request)
        collect = getattr(self, "collect_job", engine.collect_operation)
        return self.opened.collected(lambda: collect(stage, request, report))


def planned_request(
    task: DeltaOperator, log: DeltaLog, handle: TransactionHandle, identity: Mapping[str, Any], given: Any
) -> StageRequest:
    """Return the request of the job that a task collects.

    :param identity: ``task_id`` and ``map_index`` of the task.
    :param given: output of the task that planned.
    :raises StagingException: if it is of another transaction or task.
    """
    own = f"{transaction_directory(handle.transaction_id)}/{stage_key(identity['task_id'], identity['map_index'])}/"
    directory = given.get(PLANNED) if isinstance(given, Mapping) else None
    if not isinstance(directory, str) or not directory.startswith(own) or "/" in directory.removeprefix(own):
        raise not_planned(task, handle, f"got {given!r} as the plan of its stage, which is none of this transaction")
    request = engine.read_request(log, directory)
    found = (request.transaction_id, request.task_id, request.map_index, request.directory)
    if found != (handle.transaction_id, identity["task_id"], identity["map_index"], directory):
        raise not_planned(task, handle, f"found another stage's request in {directory}: {found}")
    return request


def not_planned(task: DeltaOperator, handle: TransactionHandle, what: str) -> StagingException:
    """Return the error of a task that has nothing to collect."""
    return handle.error(
        StagingException,
        f"The task {task.task_id!r} {what}. Nothing was collected. Clear the task that plans the stage, with everything "
        "downstream.",
    )
