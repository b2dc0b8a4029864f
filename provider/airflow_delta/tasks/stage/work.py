"""The work of a stage for its transaction: find that, and the stages to build on, and report what was staged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.staging_directory import marked
from airflow_delta.dag_rules.task_loops import check_no_loop
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import Part
from airflow_delta.tasks.dag_file import Each, argument_of
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.ended import find_end
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.trust.definition_mark import definition_mark
from airflow_delta.tasks.trust.handle import open_transaction
from airflow_delta.tasks.trust.received import flatten_reports
from airflow_delta.tasks.trust.reports import check_not_lost, valid_reports

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView


class GivenTable(Parameters):
    """Parameters of a task that only works for a transaction begun by a start task.

    :param table: the transaction's table. Needed only if no start task is upstream of this task: then nothing else in the Dag
        file says which table the handle may name. (templated)
    """

    table: str | None = parameter(default=None, templated=True, kind=LOCATION)


class StageWorkParameters(Parameters):
    """Parameters of a task that stages something for a transaction. Readers of the table see nothing until the commit.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param after: outputs of earlier stages of the same transaction to build on: this stage sees the table as they leave it.
        Without it, the commit refuses stages that touch the same files or partitions. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    """

    default_retry_policy: ClassVar[RetryPolicy | None] = FINAL_ERRORS

    transaction: Any = parameter(default=None, templated=True)
    after: Any = parameter(default=(), templated=True)
    delta_conn_id: str | None = parameter(default=None, templated=True)


class StageWork(Part, StageWorkParameters):
    """The part of a task that stages something for a transaction. Readers of the table see nothing until the commit."""

    log: DeltaLog
    handle: TransactionHandle
    context: Context
    _end: CommitResult | None = None

    def open(self, context: Context) -> None:
        """Find the transaction that the task got as XCom, and whether it is still open."""
        check_no_loop(context)
        self.open_own(context, *open_transaction(self.task, context))
        self._identity["attempt"] = marked(self._identity["attempt"], definition_mark(self.handle))  # the commit looks for it
        if self.handle.committed is None:
            self._end = find_end(self.task, context, self.log, self.handle)

    def open_own(self, context: Context, log: DeltaLog, handle: TransactionHandle) -> None:
        """Work for a transaction that the task itself has begun."""
        self.log, self.handle = log, handle
        self._identity = stage_identity(context)
        self.context = context
        self._metrics, self._clock = TaskMetrics(context["ti"]), Stopwatch()

    def stage_as(self, task_id: str) -> None:
        """Plan for another task, whose output is the staged write."""
        self._identity["task_id"] = task_id

    def view(self, spark_table_uri: str | None = None) -> StageView:
        """Return what the plan of this stage works with, and all that follows."""
        return engine.open_stage(self.log, self.handle, **self._identity, after=self._earlier(), spark_table_uri=spark_table_uri)

    def _earlier(self) -> tuple[StagedWrite, ...]:
        """The staged writes that this stage builds on; a skipped stage left none."""
        reports = flatten_reports(self.after) if self.after else ()
        if self.transaction is not None:
            writes = valid_reports(self.context, self.handle, reports)
            definition = self.context["dag"].task_dict.get(self.task.task_id)
            outputs = argument_of(definition, "after", None) if definition is not None else None
            if outputs and not isinstance(outputs, Each):
                check_not_lost(self.context, self.handle, writes, outputs)
            return tuple(writes)
        return tuple(StagedWrite.from_dict(report) for report in reports if report is not None)  # the plan refuses them

    def report_if_committed(self, mode: str) -> dict[str, Any] | None:
        """Return the report of a stage that has nothing to do because its transaction, or its key, is committed."""
        if self.handle.committed is None and self._end is None:
            return None
        committed = engine.committed_earlier(self.log, self.handle) if self._end is None else self._end
        handle = replace(self.handle, committed=committed)
        if self._end is None:
            self.task.log.info(
                "Transaction %s: its key %s is already in version %s of %s: nothing is staged (rerun_policy=%s).",
                handle.transaction_id,
                handle.app_id,
                committed.version,
                handle.table,
                handle.rerun_policy,
            )
        else:
            self.task.log.warning(
                "Transaction %s is already committed, as version %s of %s: rows of this stage would not be published, so nothing "
                "is staged. To publish this run again, clear the start task with everything downstream; its rerun_policy (%s) "
                "decides what happens then: 'replace' publishes the new rows instead of the old ones.",
                handle.transaction_id,
                committed.version,
                handle.table,
                handle.rerun_policy,
            )
        return engine.skipped(engine.open_stage(self.log, handle, **self._identity), mode=mode).to_dict()

    def tell_plan(self, request: StageRequest) -> None:
        """Log what Spark is asked to do."""
        files = [*(request.scan.files if request.scan else ()), *(request.rewrite.files if request.rewrite else ())]
        self.task.log.info(
            "Transaction %s: planned %s of stage %s at version %s: reads %s files (%s bytes) of the table.",
            request.transaction_id,
            request.mode if request.operation == "WRITE" else request.operation,
            request.stage,
            request.read_version,
            len(files),
            sum(file.size for file in files),
        )

    def collected(self, collect: Callable[[], StagedWrite]) -> StagedWrite:
        """Turn files into staged actions, and log what their footers say."""
        clock = Stopwatch()
        staged = collect()
        self.task.log.info(
            "Transaction %s: read the footers of %s files of stage %s: %s rows, %s bytes; %.1f s.",
            staged.transaction_id,
            staged.num_files,
            staged.stage,
            staged.num_records,
            staged.num_bytes,
            clock.seconds,
        )
        return staged

    def report(self, staged: StagedWrite) -> Mapping[str, Any]:
        """Log what was staged and return its JSON form."""
        self.task.log.info(
            "Transaction %s: staged %s of stage %s: %s rows in %s files added, %s files removed, %s bytes; attempt %s. "
            "Nothing is visible until the commit.",
            staged.transaction_id,
            staged.mode if staged.operation == "WRITE" else staged.operation,
            staged.stage,
            staged.num_records,
            staged.num_files,
            staged.num_removed_files,
            staged.num_bytes,
            staged.attempt,
        )
        self.measure(staged)
        return staged.to_dict()

    def measure(self, staged: StagedWrite) -> None:
        """Send the metrics of what was staged, and record what was read."""
        self._metrics.staged(staged, self.handle.table, self._clock.seconds)
        self.task.lineage.note_reads(self.handle, [staged])
