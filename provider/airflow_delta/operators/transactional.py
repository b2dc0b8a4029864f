"""What every stage task shares: the transaction that it works for, and the earlier stages that it builds on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta.observability import Stopwatch, TaskMetrics
from airflow_delta.operators.expected_stages import valid_reports
from airflow_delta.operators.identity import flatten_reports
from airflow_delta.operators.lineage import DeltaLineageOperator
from airflow_delta.operators.origin import open_transaction
from airflow_delta.staging.paths import new_attempt

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.commands.stage.stage_view import StageView
    from airflow_delta.log import DeltaLog
    from airflow_delta.staging.contract import StagedWrite, TransactionHandle
    from airflow_delta.staging.report import StageRequest


class DeltaTransactionalOperator(DeltaLineageOperator):
    """Base of the tasks that stage something for a transaction. Readers of the table see nothing until the commit.

    :param transaction: the handle: output of the start task. Inside a ``delta_transaction`` group it is filled in. (templated)
    :param after: outputs of earlier stages of the same transaction, that this one builds on: it sees the table as they leave it.
        Stages that touch the same files or partitions without it are refused by the commit. (templated)
    :param delta_conn_id: connection to the table; default: the start task's. (templated)
    """

    template_fields: Sequence[str] = ("transaction", "after", "delta_conn_id")
    transaction_role: ClassVar[str] = "stage"
    changes_table: ClassVar[bool] = False
    ui_color = "#e0f2f7"

    def __init__(self, *, transaction: Any = None, after: Any = (), delta_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transaction = transaction
        self.after = after
        self.delta_conn_id = delta_conn_id
        self._stage_of: tuple[TransactionHandle, TaskMetrics, Stopwatch] | None = None
        self._after: tuple[StagedWrite, ...] = ()

    def _open(self, context: Context) -> tuple[DeltaLog, TransactionHandle]:
        return open_transaction(self, context)

    def _identity(self, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        return {
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
            "attempt": new_attempt(ti.try_number),
        }

    def _stage_view(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> StageView:
        """Return what the plan of this stage and all that follows works with."""
        from airflow_delta.commands.stage.stage_view import open_stage

        spark_table_uri = getattr(self, "spark_table_uri", None)
        return open_stage(log, handle, **self._identity(context), after=self._earlier(), spark_table_uri=spark_table_uri)

    def _earlier(self) -> tuple[StagedWrite, ...]:
        """Return the staged writes that this stage builds on; a skipped stage left none."""
        if self.transaction is None and self.after:  # refused when it is planned: they belong to a transaction
            from airflow_delta.staging.contract import StagedWrite

            return tuple(StagedWrite.from_dict(report) for report in flatten_reports(self.after) if report is not None)
        return self._after

    def _skip_if_committed(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> dict[str, Any] | None:
        """Return the report of a stage that has nothing to do, because an earlier run committed this transaction key.

        :raises HandleMismatchException: the handle says so, and the log does not.
        """
        from airflow_delta.commands.stage.stage_view import open_stage, skipped

        if handle.committed is None:
            self._after = tuple(valid_reports(context, flatten_reports(self.after))) if self.after else ()
            self._stage_of = handle, TaskMetrics(context["ti"]), Stopwatch()
            return None
        from airflow_delta.commands.outcome.find_commit import committed_earlier

        committed = committed_earlier(log, handle)
        handle = replace(handle, committed=committed)
        self.log.info(
            "Transaction %s: its key %s is in version %s of %s already: nothing is staged (rerun_policy=%s).",
            handle.transaction_id,
            handle.app_id,
            committed.version,
            handle.table,
            handle.rerun_policy,
        )
        return skipped(open_stage(log, handle, **self._identity(context)), mode=self._mode()).to_dict()

    def _mode(self) -> str:
        """Return the ``mode`` of this task's staged writes."""
        return "rewrite"

    def _tell_plan(self, request: StageRequest) -> None:
        """Log what Spark is asked to do."""
        files = [*(request.scan.files if request.scan else ()), *(request.rewrite.files if request.rewrite else ())]
        self.log.info(
            "Transaction %s: planned %s of stage %s at version %s: %s files (%s bytes) of the table to read.",
            request.transaction_id,
            request.mode if request.operation == "WRITE" else request.operation,
            request.stage,
            request.read_version,
            len(files),
            sum(file.size for file in files),
        )

    def _collected(self, collect: Callable[[], StagedWrite]) -> StagedWrite:
        """Turn files into staged actions, and log what their footers say."""
        clock = Stopwatch()
        staged = collect()
        self.log.info(
            "Transaction %s: read the footers of %s files of stage %s: %s rows, %s bytes; %.1f s.",
            staged.transaction_id,
            staged.num_files,
            staged.stage,
            staged.num_records,
            staged.num_bytes,
            clock.seconds,
        )
        return staged

    def _report(self, staged: StagedWrite) -> Mapping[str, Any]:
        """Log what was staged and return its JSON form."""
        self.log.info(
            "Transaction %s: staged %s of stage %s: %s rows in %s files added, %s files removed, %s bytes; attempt %s. "
            "Nothing is visible before the commit.",
            staged.transaction_id,
            staged.mode if staged.operation == "WRITE" else staged.operation,
            staged.stage,
            staged.num_records,
            staged.num_files,
            staged.num_removed_files,
            staged.num_bytes,
            staged.attempt,
        )
        if self._stage_of is not None:
            handle, metrics, clock = self._stage_of
            metrics.staged(staged, handle.table, clock.seconds)
            self._note_reads(handle, [staged])
        return staged.to_dict()
