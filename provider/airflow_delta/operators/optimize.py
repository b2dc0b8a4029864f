"""OPTIMIZE, REORG ... APPLY (PURGE) and auto compaction as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine, exceptions
from airflow_delta.contract.kinds import NAMES, NUMBER, TRUTH, WHOLE_NUMBER
from airflow_delta.contract.payloads import CommitResult, StagedWrite
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.tasks.commit.commit_part import CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import EngineChoice, EngineParameters
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.maintenance_base import DeltaMaintenanceBase
from airflow_delta.tasks.observability import Stopwatch
from airflow_delta.tasks.operation import DeltaTableOperator
from airflow_delta.tasks.rewrite_work import RewriteParameters, RewriteWork, finish_batches
from airflow_delta.tasks.spark.runner import RunnerParameters
from airflow_delta.tasks.spark.session import SessionParameters, TaskSession
from airflow_delta.tasks.sql_parameters import SqlParameters
from airflow_delta.tasks.stage.work import StageWork
from airflow_delta.tasks.start.own_transaction import OwnTransaction
from airflow_delta.tasks.trust.handle import check_table_of_result

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.operations.optimize.bins import RewriteSelection
    from airflow_delta.table.stage.stage_view import SparkWork, StageView
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.tasks.declared import Taken


class DeltaOptimizeOperator(DeltaTableOperator, RunnerParameters, EngineParameters, RewriteParameters, SqlParameters):
    """Compact the small files of a table, and rewrite those with many deleted rows; cluster a clustered table (``OPTIMIZE``).

    :param z_order_by: columns to order the rows by (``ZORDER BY``); rewrites all files of the selected partitions. (templated)
    :param full: of a clustered table, also rewrite the files that were clustered by other columns (``OPTIMIZE FULL``).
    :param min_file_size: smaller files are compacted, in bytes; default: 1 GiB, or ``max_file_size`` if that is less. (templated)
    :param max_deleted_rows_ratio: a file with a larger share of deleted rows is rewritten whatever its size. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.rewrite_work.RewriteParameters`,
    :class:`~airflow_delta.tasks.operation.DeltaTableOperator`, :class:`~airflow_delta.tasks.engines.EngineParameters` and
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True
    emits_table = False

    z_order_by: Taken[str | Sequence[str], tuple[str, ...]] = parameter(default=(), templated=True, kind=NAMES)
    full: bool = parameter(default=False, kind=TRUTH)
    min_file_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    max_deleted_rows_ratio: Taken[float | str, float] = parameter(default=0.05, templated=True, kind=NUMBER)

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
        return {
            "z_order_by": list(self.z_order_by),
            "full": self.full,
            "min_file_size": self.min_file_size,
            "max_deleted_rows_ratio": self.max_deleted_rows_ratio,
        }


class DeltaReorgOperator(DeltaTableOperator, RunnerParameters, EngineParameters, RewriteParameters, SqlParameters):
    """Rewrite the files that hold deleted rows or dropped columns, so that both are gone (``REORG TABLE ... APPLY (PURGE)``).

    The old files stay until VACUUM deletes them. The parameters are those of
    :class:`~airflow_delta.tasks.rewrite_work.RewriteParameters`, :class:`~airflow_delta.tasks.operation.DeltaTableOperator`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    by_job: ClassVar[bool | str] = True
    emits_table = False

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


class DeltaAutoCompactOperator(DeltaMaintenanceBase, SessionParameters, EngineParameters):
    """Compact the small files that a commit has left: the OPTIMIZE that Delta Spark runs right after such a commit.

    :param committed: output of the task that committed: its ``autoCompaction`` says what to compact, if the table has
        ``delta.autoOptimize.autoCompact``. Default: every partition with enough small files now. (templated)
    :param min_files: without ``committed``: compact a partition if it has this many small files. (templated)
    :param max_file_size: without ``committed``: size of the new files in bytes; files up to half of it are small. (templated)

    The other parameters are those of :class:`~airflow_delta.tasks.maintenance_base.DeltaMaintenanceBase`,
    :class:`~airflow_delta.tasks.engines.EngineParameters` and :class:`~airflow_delta.tasks.spark.session.SessionParameters`. The
    identity is not used: a rerun compacts what is left.
    """

    by_job: ClassVar[bool | str] = "commits by itself: use DeltaOptimizeOperator"
    emits_table = False
    default_retry_policy = REFUSALS

    committed: Any = parameter(default=None, templated=True)
    min_files: Taken[int | str, int] = parameter(default=50, templated=True, kind=WHOLE_NUMBER)
    max_file_size: Taken[int | str, int] = parameter(default=128 << 20, templated=True, kind=WHOLE_NUMBER)

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
        request = engine.find_request(log, committed, min_files=self.min_files, max_file_size=self.max_file_size)
        if request is None:
            self.log.info("Nothing to compact in %s.", log.uri)
            return {}
        session, choice = self.hold(TaskSession), self.hold(EngineChoice)
        clock = Stopwatch()
        with ExitStack() as stack:
            result = engine.run_auto_compaction(
                log,
                request,
                choice.worker(log, session.worker(log, stack)),
                identity=stage_identity(context),
                spark_table_uri=choice.table_uri(log, session.spark_table_uri),
                **committer.options(context),
            )
        return finish_batches(committer, context, result, clock)
