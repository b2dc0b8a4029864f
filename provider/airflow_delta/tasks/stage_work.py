"""What every stage does around its own work: find its transaction and the stages that it builds on, and report.

Tell of a schema that drifted: an event of the engine, a metric, and an XCom for whoever decides what to do about it.

What a stage's function has read of the table, for the conflict check of the commit.
"""

from __future__ import annotations

import dataclasses
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, final

from airflow_delta import engine
from airflow_delta.contract.files import marked
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import SchemaDriftException
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.task_loops import check_no_loop
from airflow_delta.tasks.base import DeltaOperator, Part
from airflow_delta.tasks.ended import find_end
from airflow_delta.tasks.expected_stages import valid_reports
from airflow_delta.tasks.handle_check import definition_mark, open_transaction
from airflow_delta.tasks.identity import flatten_reports, stage_identity
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.write_options import WriteOptions

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_delta.contract.payloads import CommitResult, TransactionHandle
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import SparkWork, StageView


STAGE_COLOR = "#e0f2f7"


@dataclass(kw_only=True, eq=False, repr=False)
class GivenTable(Part):
    """The part of a task that only works for a transaction begun by a start task.

    :param table: the transaction's table. Needed only if no start task is upstream of this task: then nothing else in the Dag
        file says which table the handle may name. (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("table",)

    table: str | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class StageWork(Part):
    """The part of a task that stages something for a transaction. Readers of the table see nothing until the commit.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param after: outputs of earlier stages of the same transaction to build on: this stage sees the table as they leave it.
        Without it, the commit refuses stages that touch the same files or partitions. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("transaction", "after", "delta_conn_id")
    default_retry_policy: ClassVar[RetryPolicy | None] = FINAL_ERRORS

    transaction: Any = None
    after: Any = ()
    delta_conn_id: str | None = None

    log: DeltaLog = field(init=False)
    handle: TransactionHandle = field(init=False)
    context: Context = field(init=False)
    _end: CommitResult | None = field(init=False, default=None)

    def open(self, context: Context) -> None:
        """Find the transaction that the task got as XCom, and whether it is still open.

        :raises HandleMismatchException: if it is not the one in the Dag file, or nothing there says which table it may be about.
        :raises TransactionAbortedException: if it was aborted.
        :raises DeltaIllegalArgumentException: if the task is inside a task loop.
        """
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

    def view(self, spark_table_uri: str | None = None) -> StageView:
        """Return what the plan of this stage works with, and all that follows."""
        return engine.open_stage(self.log, self.handle, **self._identity, after=self._earlier(), spark_table_uri=spark_table_uri)

    def _earlier(self) -> tuple[StagedWrite, ...]:
        """The staged writes that this stage builds on; a skipped stage left none."""
        reports = flatten_reports(self.after) if self.after else ()
        if self.transaction is not None:
            return tuple(valid_reports(self.context, self.handle, reports))
        return tuple(StagedWrite.from_dict(report) for report in reports if report is not None)  # the plan refuses them

    def report_if_committed(self, mode: str) -> dict[str, Any] | None:
        """Return the report of a stage that has nothing to do because its transaction, or its key, is committed.

        :raises HandleMismatchException: if the handle says so but the log does not.
        """
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


EVENT = "delta.stage.schemaDrift"
"""Name of the event."""

DRIFT_KEY = "delta_schema_drift"
"""XCom of a stage that refused its rows: ``table``, ``version`` read, and ``differences``
(:class:`airflow_delta.contract.drift.SchemaDifference`).
"""


@contextmanager
def drift_told(context: Context, handle: TransactionHandle) -> Iterator[None]:
    """Record a schema drift that ends the block."""
    try:
        yield
    except SchemaDriftException as error:
        differences = list(error.differences)
        told = {"table": handle.table, "version": handle.read_version, "differences": differences}
        ti = context["ti"]
        engine.record_event(
            EVENT, handle.table, {"txnId": handle.transaction_id, "taskId": ti.task_id, **told}, level=logging.INFO
        )
        metrics = TaskMetrics(ti)
        for difference in differences:
            metrics.count("stage.schema_drift", table=handle.table, kind=difference["kind"])
        ti.xcom_push(key=DRIFT_KEY, value=told)
        raise


class StageReadRecorder:
    """Records reads of the table that a stage is for."""

    def __init__(self, stage: StageView) -> None:
        self._stage = stage
        self._predicates: list[str] = []
        self._whole_table = False

    def note(self, predicate: str | None) -> None:
        """Record a read of the rows that satisfy a predicate, or of the whole table."""
        if predicate is None:
            self._whole_table = True
        else:
            self._predicates.append(predicate)

    @property
    def exists(self) -> bool:
        """Whether the table existed when the transaction began."""
        return self._stage.handle.read_version >= 0

    def add_reads(self, staged: StagedWrite) -> StagedWrite:
        """Return the staged write with the reads of this reader added."""
        if not self._whole_table and not self._predicates:
            return staged
        own, others = staged.reads, tuple(self._predicates)
        reads = dataclasses.replace(
            own,
            predicates=tuple(dict.fromkeys((*own.predicates, *others))),
            whole_table=own.whole_table or self._whole_table,
            selected=own.selected and not self._whole_table,
            # All rows of these predicates were read, whichever of them the stage itself has looked for.
            marked=tuple(text for text in own.marked if text not in others),
            scanned=tuple(dict.fromkeys((*own.scanned, *others))),
            keys=tuple(key for key in own.keys if key.predicate not in others),
        )
        return dataclasses.replace(staged, reads=reads)


class StageOperator(DeltaOperator):
    """Template of a task that stages something for a transaction.

    All such tasks run :meth:`execute`: open the transaction, end if it is done, plan, work, collect, report. A subclass says what
    it plans (:meth:`plan_stage`) and who does the work (:meth:`work`).
    """

    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = STAGE_COLOR

    opened: StageWork
    """The transaction for which the running task stages."""

    _reads: StageReadRecorder | None = None

    @abstractmethod
    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the stage, before anything is written.

        :return: the work to do, or the staged write if nothing is left to do.
        """

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Do what was planned.

        :return: the request that was worked on (that of an earlier try if its work was taken over), and the report.
        """
        raise NotImplementedError(f"{type(self).__name__} plans work ({request.operation}) that nobody does")

    @final
    def execute(self, context: Context) -> Any:
        """Return the staged write, or the result of the commit if the task is a transaction of its own.

        :raises HandleMismatchException: if the transaction is not the one in the Dag file.
        :raises TransactionAbortedException: if it was aborted.
        :raises StagingException: if the work ended without staging.
        """
        work = self.hold(StageWork)
        if self.is_own_transaction:
            return self.run_alone(work, context)
        self.open(work, context)
        if (done := work.report_if_committed(self.skipped_mode)) is not None:
            return done
        return work.report(self.stage(work))

    @final
    def stage(self, work: StageWork) -> StagedWrite:
        """Plan, do the work, and collect what it has staged, with the reads that were recorded meanwhile."""
        self.opened, self._reads = work, None
        with drift_told(work.context, work.handle):
            stage = work.view(self.table_uri(work.log))
            planned = self.plan_stage(stage)
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


def change_bounds(start: int | datetime, end: int | datetime | None) -> dict[str, Any]:
    """Return the parameters of a range of commits, whose ends are versions or times."""
    bounds: dict[str, Any] = {"starting_timestamp" if isinstance(start, datetime) else "starting_version": start}
    if end is not None:
        bounds["ending_timestamp" if isinstance(end, datetime) else "ending_version"] = end
    return bounds
