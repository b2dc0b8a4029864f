"""OPTIMIZE, REORG ... APPLY (PURGE) and auto compaction as tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine, exceptions
from airflow_delta.contract.kinds import TRUTH, Kinds
from airflow_delta.contract.payloads import CommitResult, StagedWrite
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.tasks.base import DeltaOperator, Part, Parts, templated
from airflow_delta.tasks.committing import CommitPart
from airflow_delta.tasks.handle_check import check_table_of_result
from airflow_delta.tasks.identity import stage_identity, whole_number
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.operation import SPARK_OPERATION, DeltaMaintenanceBase, DeltaTableOperator, OwnTransaction
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.spark.session import TaskSession
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage_work import StageWork

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.operations.optimize.bins import RewriteSelection
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.table.state.optimize_result import OptimizeResult

    Select = Callable[[TransactionView], RewriteSelection]


@dataclass(kw_only=True, eq=False, repr=False)
class RewriteWork(Part):
    """The part of a task that rewrites rows of a table into other files.

    Alone (no ``transaction``, no ``transaction_key``, no ``app_id``) such a task has no identity in the log: the files show what
    it has done, and a rerun does what is left. It then conflicts only with commits that remove files that it has rewritten. With
    an identity, or as a stage, it is a transaction like any other.

    :param where: predicate on partition columns; default: the whole table. (templated)
    :param max_file_size: size of the new files in bytes; default: the table's ``delta.targetFileSize``, or 1 GiB. (templated)
    :param batch_size: bytes of input for each commit, if the task runs alone; default: all in one commit. (templated)
    :param parallel: bins that Spark writes at a time. (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("where", "max_file_size", "batch_size", "parallel")

    where: str | None = None
    max_file_size: int | str | None = None
    batch_size: int | str | None = None
    parallel: int | str = 4

    def selection(self) -> dict[str, Any]:
        """Return the options that select the files to rewrite."""
        return {"where": self.where, "max_file_size": whole_number("max_file_size", self.max_file_size)}

    def plan_options(self) -> dict[str, Any]:
        """Return the options of a stage."""
        return {**self.selection(), "parallel": int(self.parallel)}

    @staticmethod
    def is_alone(task: DeltaOperator) -> bool:
        """Return whether a task has no identity in the log."""
        own = OwnTransaction.of(task)
        given = (StageWork.of(task).transaction, own.transaction_key, own.app_id, own.txn_version)
        return all(value is None for value in given)

    def run(self, context: Context, select: Select, max_restarts: int) -> dict[str, Any]:
        """Rewrite in one commit for each ``batch_size``.

        :param select: returns what to rewrite at the version that was read.
        :param max_restarts: how often to start over after a conflict.
        :return: JSON form of :class:`~airflow_delta.table.state.optimize_result.OptimizeResult`.
        """
        own, committer, runner = self.task.hold(OwnTransaction), self.task.hold(CommitPart), self.task.hold(SparkRunner)
        delta_conn_id = StageWork.of(self.task).delta_conn_id
        log = own.log(delta_conn_id)
        clock = Stopwatch()
        with committer.watched(context, log, (own.table, delta_conn_id)), ExitStack() as stack:
            result = engine.run_rewrite(
                log,
                select,
                runner.worker(log, stack),
                identity=stage_identity(context),
                batch_size=whole_number("batch_size", self.batch_size),
                parallel=int(self.parallel),
                spark_table_uri=runner.spark_table_uri,
                max_restarts=max_restarts,
                **committer.options(context),
            )
        return finish_batches(committer, context, result, clock)


REWRITE: Parts = (*SPARK_OPERATION, RewriteWork, SqlParameters)


class DeltaOptimizeOperator(DeltaTableOperator):
    """Compact the small files of a table, and rewrite those with many deleted rows; cluster a clustered table (``OPTIMIZE``).

    :param z_order_by: columns to order the rows by (``ZORDER BY``); rewrites all files of the selected partitions. (templated)
    :param full: of a clustered table, also rewrite the files that were clustered by other columns (``OPTIMIZE FULL``).
    :param min_file_size: smaller files are compacted, in bytes; default: 1 GiB, or ``max_file_size`` if that is less. (templated)
    :param max_deleted_rows_ratio: a file with a larger share of deleted rows is rewritten whatever its size. (templated)

    The other parameters are those of :class:`RewriteWork`, :class:`~airflow_delta.tasks.operation.DeltaTableOperator` and
    :class:`~airflow_delta.tasks.spark.runner.SparkRunner`.
    """

    parts: ClassVar[Parts] = REWRITE
    emits_table = False
    kinds: ClassVar[Kinds] = {"full": TRUTH}
    template_fields: Sequence[str] = (*templated(parts), "z_order_by", "min_file_size", "max_deleted_rows_ratio")
    template_fields_renderers = SparkRunner.template_fields_renderers

    def __init__(
        self,
        *,
        z_order_by: str | Sequence[str] = (),
        full: bool = False,
        min_file_size: int | str | None = None,
        max_deleted_rows_ratio: float | str = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.z_order_by = z_order_by
        self.full = full
        self.min_file_size = min_file_size
        self.max_deleted_rows_ratio = max_deleted_rows_ratio

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Return the :class:`~airflow_delta.table.state.optimize_result.OptimizeResult` as JSON, or the result of the commit.

        :raises DeltaConcurrentModificationException: if others have changed files of every bin, and rows cannot be followed.
        """
        if RewriteWork.is_alone(self):
            return self.hold(RewriteWork).run(context, self.select, self.max_restarts)
        return super().run_alone(work, context)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the OPTIMIZE as a stage."""
        return engine.plan_optimize(stage, **RewriteWork.of(self).plan_options(), **self._limits())

    def select(self, view: TransactionView) -> RewriteSelection:
        """Return the files to compact, or to order."""
        return engine.select_for_optimize(view, **RewriteWork.of(self).selection(), **self._limits())

    def _limits(self) -> dict[str, Any]:
        columns = self.z_order_by
        return {
            "z_order_by": [columns] if isinstance(columns, str) else list(columns or ()),
            "full": self.full,
            "min_file_size": whole_number("min_file_size", self.min_file_size),
            "max_deleted_rows_ratio": float(self.max_deleted_rows_ratio),
        }


class DeltaReorgOperator(DeltaTableOperator):
    """Rewrite the files that hold deleted rows or dropped columns, so that both are gone (``REORG TABLE ... APPLY (PURGE)``).

    The old files stay until VACUUM deletes them. The parameters are those of :class:`RewriteWork`,
    :class:`~airflow_delta.tasks.operation.DeltaTableOperator` and :class:`~airflow_delta.tasks.spark.runner.SparkRunner`.
    """

    parts: ClassVar[Parts] = REWRITE
    emits_table = False
    template_fields: Sequence[str] = templated(parts)
    template_fields_renderers = SparkRunner.template_fields_renderers

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Return the :class:`~airflow_delta.table.state.optimize_result.OptimizeResult` as JSON, or the result of the commit.

        :raises DeltaConcurrentModificationException: if others have changed files of every bin, and rows cannot be followed.
        """
        if RewriteWork.is_alone(self):
            return self.hold(RewriteWork).run(context, self.select, self.max_restarts)
        return super().run_alone(work, context)

    def plan_stage(self, stage: StageView) -> SparkWork | StagedWrite:
        """Plan the REORG as a stage."""
        return engine.plan_reorg(stage, **RewriteWork.of(self).plan_options())

    def select(self, view: TransactionView) -> RewriteSelection:
        """Return the files to purge."""
        return engine.select_for_purge(view, **RewriteWork.of(self).selection())


class DeltaAutoCompactOperator(DeltaMaintenanceBase):
    """Compact the small files that a commit has left: the OPTIMIZE that Delta Spark runs right after such a commit.

    :param committed: output of the task that committed: its ``autoCompaction`` says what to compact, if the table has
        ``delta.autoOptimize.autoCompact``. Default: every partition with enough small files now. (templated)
    :param min_files: without ``committed``: compact a partition if it has this many small files. (templated)
    :param max_file_size: without ``committed``: size of the new files in bytes; files up to half of it are small. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.operation.DeltaMaintenanceBase` and
    :class:`~airflow_delta.tasks.spark.session.TaskSession`. The identity is not used: a rerun compacts what is left.
    """

    parts: ClassVar[Parts] = (*DeltaMaintenanceBase.parts, TaskSession)
    emits_table = False
    template_fields: Sequence[str] = (
        *DeltaMaintenanceBase.template_fields,
        *TaskSession.template_fields,
        "committed",
        "min_files",
        "max_file_size",
    )
    default_retry_policy = REFUSALS

    def __init__(
        self, *, committed: Any = None, min_files: int | str = 50, max_file_size: int | str = 128 << 20, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.committed = committed
        self.min_files = min_files
        self.max_file_size = max_file_size

    def execute(self, context: Context) -> dict[str, Any] | None:  # type: ignore[override]
        """Return what was done; ``None`` if nothing was due.

        :raises HandleMismatchException: if the result names another table than the Dag file.
        """
        if self.committed is not None and OwnTransaction.of(self).table is None:
            table = CommitResult.from_dict(self.committed).table
            check_table_of_result(self, context, table)
            self.table = table
        return super().execute(context) or None

    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Compact what is due; returns an empty result if nothing is.

        :raises DeltaIllegalArgumentException: if the commit went to another table.
        """
        committed = None if self.committed is None else CommitResult.from_dict(self.committed)
        if committed is not None and committed.table != log.uri:
            raise log.error(
                exceptions.DeltaIllegalArgumentException,
                f"The task {self.task_id!r} names the table {log.uri}, but the commit went to {committed.table}. Leave table= "
                "out.",
            )
        request = engine.find_request(log, committed, min_files=int(self.min_files), max_file_size=int(self.max_file_size))
        if request is None:
            self.log.info("Nothing to compact in %s.", log.uri)
            return {}
        session = self.hold(TaskSession)
        clock = Stopwatch()
        with ExitStack() as stack:
            result = engine.run_auto_compaction(
                log,
                request,
                session.worker(log, stack),
                identity=stage_identity(context),
                spark_table_uri=session.spark_table_uri,
                **committer.options(context),
            )
        return finish_batches(committer, context, result, clock)


def finish_batches(committer: CommitPart, context: Context, result: OptimizeResult, clock: Stopwatch) -> dict[str, Any]:
    """Log and measure the commits of all batches, and return the result as JSON; the asset event is that of the last."""
    TaskMetrics(context["ti"]).optimized(result, clock.seconds)
    for commit in result.commits:
        committer.note(commit)
    if result.commits:
        committer.emit(context, result.commits[-1])
    committer.task.log.info(
        "%s of %s: %s bins in %s partitions, %s commits; %s files became %s, %s are unchanged.",
        result.operation,
        result.table,
        result.num_bins,
        result.num_partitions,
        len(result.commits),
        result.metrics.get("numRemovedFiles", 0),
        result.metrics.get("numAddedFiles", 0),
        result.num_skipped,
    )
    if result.num_dropped_bins:
        committer.task.log.info(
            "%s bins were dropped: other commits have compacted or changed their files meanwhile.", result.num_dropped_bins
        )
    return result.to_dict()
