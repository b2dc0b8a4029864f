"""The task after a job: it reads the job's report, checks what was written, and returns the staged write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import StagingException
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.job.left_out import is_left_out
from airflow_delta.tasks.job.plan import PLANNED, STAGED
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.work import GivenTable, StageWork, StageWorkParameters

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.table.stage.stage_view import StageView


class DeltaCollectJobOperator(StageOperator, StageWorkParameters, GivenTable):
    """Collect what a job has staged; made by :func:`~airflow_delta.job_groups.delta_job`.

    Of several runs of the job, the first that ended well counts, from then on.

    :param planned: output of the task that planned the stage. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters` and
    :class:`~airflow_delta.tasks.stage.work.GivenTable`.
    """

    skipped_mode: ClassVar[str] = "append"

    planned: Any = parameter(templated=True)

    def carry_out(self, work: StageWork, context: Context) -> Any:
        """Return the staged write.

        :raises AirflowSkipException: if the task that plans was skipped, as by a branch: what it left earlier does not count.
        """
        if is_left_out(context, self.planned):
            raise AirflowSkipException("The task that plans this stage was skipped, so there is nothing to collect.")
        return super().carry_out(work, context)

    def plan_stage(self, stage: StageView) -> StagedWrite:
        """Return the staged write: the work is done.

        :raises StagingException: if the job left no report, or what was planned is of another transaction or stage.
        :raises DeltaError: if the job failed, with the type of the error there.
        """
        planned = self.planned if isinstance(self.planned, Mapping) else {}
        if STAGED in planned:
            return StagedWrite.from_dict(planned[STAGED])
        own = f"{transaction_directory(stage.handle.transaction_id)}/{stage.own.key}/"
        directory = planned.get(PLANNED)
        if not isinstance(directory, str) or not directory.startswith(own) or "/" in directory.removeprefix(own):
            raise self._not_planned(stage, f"got {self.planned!r} as the plan of its stage, which is none of this transaction")
        request = engine.read_request(stage.log, directory)
        found = (request.transaction_id, request.task_id, request.map_index, request.directory)
        if found != (stage.handle.transaction_id, stage.own.task_id, stage.own.map_index, directory):
            raise self._not_planned(stage, f"found another stage's request in {directory}: {found}")
        report = engine.read_report(stage.log, request)
        return self.opened.collected(lambda: engine.collect_operation(stage, request, report))

    def _not_planned(self, stage: StageView, what: str) -> StagingException:
        return stage.handle.error(
            StagingException,
            f"The task {self.task_id!r} {what}. Nothing was collected. Clear the task that plans the stage, with everything "
            "downstream.",
        )
