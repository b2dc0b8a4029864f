"""The base of the tasks that stage something: open the transaction, plan, work, collect, report."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, final

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.checks.seen import note_attempt
from airflow_delta.tasks.stage.reads import StageReadRecorder
from airflow_delta.tasks.stage.schema_drift import drift_told
from airflow_delta.tasks.stage.work import StageWork
from airflow_delta.tasks.stage.write_options import WriteOptions

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView

STAGE_COLOR = "#e0f2f7"


class StageOperator(DeltaOperator):
    """Template of a task that stages something for a transaction.

    All such tasks run :meth:`execute`: open the transaction, end if it is done, plan, work, collect, report. A subclass says what
    it plans (:meth:`plan_stage`) and who does the work (:meth:`work`).
    """

    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = STAGE_COLOR

    @abstractmethod
    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the stage, before anything is written.

        :return: the work to do, or the staged write if nothing is left to do.
        """

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Do what was planned.

        :return: the request that was worked on (that of an earlier try if its work was taken over), and the report.
        """
        raise NotImplementedError(f"{type(self).__name__} plans work ({request.operation}) that nothing carries out")

    @final
    def execute(self, context: Context) -> Any:
        """Return the staged write, or the result of the commit if the task is a transaction of its own."""
        work = self.hold(StageWork)
        if self.is_own_transaction:
            return self.run_alone(work, context)
        self.open(work, context)
        return self.carry_out(work, context)

    def carry_out(self, work: StageWork, context: Context) -> Any:
        """Stage for the open transaction, and return the staged write; a task that only plans returns its plan."""
        done = work.report_if_committed(self.skipped_mode)
        value = work.report(self.stage(work)) if done is None else done
        note_attempt(context, value)
        return value

    @final
    def make_plan(self, work: StageWork) -> tuple[StageView, SparkWork | StagedWrite]:
        """Plan the stage: return what it is planned on, and the work, or the staged write if nothing is left to do."""
        self.opened: StageWork = work
        self._reads: StageReadRecorder | None = None
        stage = work.view(self.table_uri(work.log))
        return stage, self.plan_stage(stage)

    @final
    def stage(self, work: StageWork) -> StagedWrite:
        """Plan, do the work, and collect what it has staged, with the reads that were recorded meanwhile."""
        with drift_told(work.context, work.handle):
            stage, planned = self.make_plan(work)
            if isinstance(planned, StagedWrite):
                return planned
            work.tell_plan(planned.request)
            asked, report = self.work(stage, planned.request)
            staged = work.collected(lambda: planned.collect(asked, report))
        return staged if self._reads is None else self._reads.add_reads(staged)

    def open(self, work: StageWork, context: Context) -> None:
        """Open the transaction, and refuse what can be known to fail before anything is planned."""
        work.open(context)

    @property
    def is_own_transaction(self) -> bool:
        """Whether the task begins and commits its transaction by itself."""
        return False

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Begin, stage and commit; return the result of the commit."""
        raise NotImplementedError(f"{type(self).__name__} only stages for the transaction of a start task")

    @property
    def skipped_mode(self) -> str:
        """The mode in the report of a stage that has nothing to do."""
        return WriteOptions.of(self).mode

    def table_uri(self, log: DeltaLog) -> str | None:  # noqa: ARG002 - for stages that work where the worker's URI is right
        """Return the URI of the table where the work is done; ``None`` if it follows from the worker's."""
        uri: str | None = getattr(self, "spark_table_uri", None)
        return uri
