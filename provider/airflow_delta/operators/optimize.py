"""OPTIMIZE, REORG ... APPLY (PURGE) and auto compaction as tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryPolicy

from airflow_delta import exceptions
from airflow_delta.observability import Stopwatch, TaskMetrics
from airflow_delta.operators.committing import DeltaCommittingOperator
from airflow_delta.operators.identity import commit_tags, whole_number
from airflow_delta.operators.origin import check_table_of_result
from airflow_delta.operators.progress import spark_work
from airflow_delta.operators.spark_session import SparkSessionOperator
from airflow_delta.operators.table import DeltaMaintenanceBase, DeltaSparkTableOperator
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import new_attempt
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.commands.optimize.bins import Rewrite
    from airflow_delta.commands.publish.compaction_request import OptimizeResult
    from airflow_delta.log import DeltaLog


class DeltaRewriteOperator(DeltaSparkTableOperator):
    """Base of the operations that put the rows of a table into other files.

    On its own (no ``transaction``, no ``transaction_key``, no ``app_id``) such a task has no identity in the log: what it has
    done shows in the files, and run again it does what is left. It then conflicts only with commits that remove the files that
    it has rewritten. With an identity, or as a stage, it is a transaction like any other.

    :param where: predicate on partition columns; default: the whole table. (templated)
    :param max_file_size: bytes of the files that are written; default 1 GiB, or the table's ``delta.targetFileSize``. (templated)
    :param batch_size: bytes of input that are committed at a time, on its own only; default: all in one commit. (templated)
    :param parallel: bins that Spark writes at a time. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.table.DeltaSparkTableOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaSparkTableOperator.template_fields,
        "where",
        "max_file_size",
        "batch_size",
        "parallel",
    )

    def __init__(
        self,
        *,
        where: str | None = None,
        max_file_size: int | str | None = None,
        batch_size: int | str | None = None,
        parallel: int | str = 4,
        retry_policy: RetryPolicy | None = REFUSALS,  # named here, so that partial() finds the default
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.where = where
        self.max_file_size = max_file_size
        self.batch_size = batch_size
        self.parallel = parallel

    @abstractmethod
    def select(self, log: DeltaLog, handle: TransactionHandle) -> Rewrite:
        """Return what is to be rewritten at the version that was read."""

    def execute(self, context: Context) -> Any:
        """Return the staged write, or what was done: :class:`~airflow_delta.commands.publish.compaction_request.OptimizeResult`.

        :raises DeltaConcurrentModificationException: another commit has removed a file that was rewritten, or rows of it.
        """
        if any(value is not None for value in (self.transaction, self.transaction_key, self.app_id, self.txn_version)):
            return super().execute(context)
        from airflow_delta.commands.optimize.run_optimize import run_rewrite

        log = self._log_of_table(self.delta_conn_id)
        clock = Stopwatch()
        with self._watched(context, log), ExitStack() as stack:
            result = run_rewrite(
                log,
                self.select,
                self._worker(log, stack),
                identity=self._identity(context),
                batch_size=whole_number("batch_size", self.batch_size),
                parallel=int(self.parallel),
                spark_table_uri=self.spark_table_uri,
                policy=self._policy(),
                tags=commit_tags(context),
                user_metadata=self.user_metadata,
                hooks=tuple(self.post_commit_hooks),
            )
        _finish_commits(self, context, result, clock)
        return result.to_dict()

    def _worker(self, log: DeltaLog, stack: ExitStack) -> Any:
        """Return what does the Spark part; one session serves all batches, and none is made when there is nothing to do."""
        if self.application is not None or self.spark_submit is not None:
            return lambda request: self._run_on_spark(log, request)
        return in_session(self, log, stack)

    def _plan_options(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **identity,
            "where": self.where,
            "max_file_size": whole_number("max_file_size", self.max_file_size),
            "parallel": int(self.parallel),
            "spark_table_uri": self.spark_table_uri,
            "after": self._earlier(),
        }


class DeltaOptimizeOperator(DeltaRewriteOperator):
    """Compact the small files of a table, and rewrite those with many deleted rows (``OPTIMIZE``).

    :param z_order_by: columns to order the rows by (``ZORDER BY``); all files of the selected partitions are rewritten.
        (templated)
    :param min_file_size: bytes; smaller files are compacted; default: 1 GiB, or ``max_file_size`` if that is less. (templated)
    :param max_deleted_rows_ratio: share of deleted rows above which a file is rewritten whatever its size. (templated)

    The other parameters are those of :class:`DeltaRewriteOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaRewriteOperator.template_fields,
        "z_order_by",
        "min_file_size",
        "max_deleted_rows_ratio",
    )

    def __init__(
        self,
        *,
        z_order_by: str | Sequence[str] = (),
        min_file_size: int | str | None = None,
        max_deleted_rows_ratio: float | str = 0.05,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.z_order_by = z_order_by
        self.min_file_size = min_file_size
        self.max_deleted_rows_ratio = max_deleted_rows_ratio

    def plan(self, log: DeltaLog, handle: TransactionHandle, identity: Mapping[str, Any]) -> StageRequest | StagedWrite:
        """Plan the OPTIMIZE as a stage."""
        from airflow_delta.commands.optimize.plan_optimize import plan_optimize

        return plan_optimize(log, handle, **self._plan_options(identity), **self._limits())

    def select(self, log: DeltaLog, handle: TransactionHandle) -> Rewrite:
        """Return the files to compact, or to order."""
        from airflow_delta.commands.optimize.plan_optimize import select_for_optimize

        return select_for_optimize(
            log, handle, where=self.where, max_file_size=whole_number("max_file_size", self.max_file_size), **self._limits()
        )

    def _limits(self) -> dict[str, Any]:
        columns = self.z_order_by
        return {
            "z_order_by": [columns] if isinstance(columns, str) else list(columns or ()),
            "min_file_size": whole_number("min_file_size", self.min_file_size),
            "max_deleted_rows_ratio": float(self.max_deleted_rows_ratio),
        }


class DeltaReorgOperator(DeltaRewriteOperator):
    """Rewrite the files that hold deleted rows or dropped columns, so that both are gone (``REORG TABLE ... APPLY (PURGE)``).

    The old files stay until VACUUM deletes them. The parameters are those of :class:`DeltaRewriteOperator`.
    """

    def plan(self, log: DeltaLog, handle: TransactionHandle, identity: Mapping[str, Any]) -> StageRequest | StagedWrite:
        """Plan the REORG as a stage."""
        from airflow_delta.commands.optimize.reorg import plan_reorg

        return plan_reorg(log, handle, **self._plan_options(identity))

    def select(self, log: DeltaLog, handle: TransactionHandle) -> Rewrite:
        """Return the files to purge."""
        from airflow_delta.commands.optimize.reorg import select_for_purge

        return select_for_purge(log, handle, where=self.where, max_file_size=whole_number("max_file_size", self.max_file_size))


class DeltaAutoCompactOperator(SparkSessionOperator, DeltaMaintenanceBase):
    """Compact what a commit has left in many small files: the OPTIMIZE that Delta Spark runs right after such a commit.

    :param committed: output of the task that committed: its ``autoCompaction`` says what to compact, as far as the table asks for
        it (``delta.autoOptimize.autoCompact``). Default: every partition with enough small files now. (templated)
    :param min_files: small files of a partition from which on it is compacted; without ``committed``. (templated)
    :param max_file_size: bytes of the files that are written; those up to half of it are small; without ``committed``.
        (templated)

    The other parameters are those of :class:`~airflow_delta.operators.table.DeltaMaintenanceBase` (an identity is not used: run
    again it compacts what is left) and :class:`~airflow_delta.operators.spark_session.SparkSessionOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaMaintenanceBase.template_fields,
        *SparkSessionOperator.template_fields,
        "committed",
        "min_files",
        "max_file_size",
    )

    def __init__(
        self,
        *,
        committed: Any = None,
        min_files: int | str = 50,
        max_file_size: int | str = 128 << 20,
        retry_policy: RetryPolicy | None = REFUSALS,
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.committed = committed
        self.min_files = min_files
        self.max_file_size = max_file_size

    def execute(self, context: Context) -> dict[str, Any] | None:  # type: ignore[override]
        """Return what was done, ``None`` when nothing was due.

        :raises HandleMismatchException: the result is of another table than the Dag file says.
        """
        if self.committed is not None and self.table is None:
            table = CommitResult.from_dict(self.committed).table
            check_table_of_result(self, context, table)
            self.table = table
        return super().execute(context) or None

    def run(self, log: DeltaLog, context: Context) -> dict[str, Any]:
        """Compact what is due; an empty result when nothing is.

        :raises DeltaIllegalArgumentException: the commit is one to another table.
        """
        from airflow_delta.commands.optimize.auto_compaction import find_request, run_auto_compaction

        committed = None if self.committed is None else CommitResult.from_dict(self.committed)
        if committed is not None and committed.table != log.uri:
            raise exceptions.DeltaIllegalArgumentException(
                f"The task {self.task_id!r} is to compact {log.uri} after a commit to {committed.table}. Leave table= out.",
                table=log.uri,
            )
        request = find_request(log, committed, min_files=int(self.min_files), max_file_size=int(self.max_file_size))
        if request is None:
            self.log.info("Nothing of %s is to be compacted.", log.uri)
            return {}
        ti = context["ti"]
        identity = {
            "task_id": ti.task_id,
            "map_index": -1 if ti.map_index is None else ti.map_index,
            "attempt": new_attempt(ti.try_number),
        }
        clock = Stopwatch()
        with ExitStack() as stack:
            result = run_auto_compaction(
                log,
                request,
                in_session(self, log, stack),
                identity=identity,
                spark_table_uri=self.spark_table_uri,
                policy=self._policy(),
                tags=commit_tags(context),
                user_metadata=self.user_metadata,
                hooks=tuple(self.post_commit_hooks),
            )
        if result is None:
            return {}
        _finish_commits(self, context, result, clock)
        return result.to_dict()


def _finish_commits(task: DeltaCommittingOperator, context: Context, result: OptimizeResult, clock: Stopwatch) -> None:
    """Tell what was committed, batch after batch; the asset event is that of the last."""
    TaskMetrics(context["ti"]).optimized(result, clock.seconds)
    task._commit_clock = None  # several commits: none of them took all of that
    for commit in result.commits[:-1]:
        task._tell_committed(commit, None)
        task._note_commit(task._delta_log, commit)
    if result.commits:
        task._finish(context, result.commits[-1], measured=True)
    _tell(task.log, result)


def in_session(task: SparkSessionOperator, log: DeltaLog, stack: ExitStack) -> Any:
    """Return what does the Spark part in a session of the task, which begins with the first request."""
    sessions: list[Any] = []

    def work(request: StageRequest) -> StageReport:
        from airflow_delta.spark.operations import run_operation

        if not sessions:
            sessions.append(stack.enter_context(task._spark_session()))
        with spark_work(task.log, log, request, session=sessions[0]):
            return run_operation(sessions[0], request)

    return work


def _tell(logger: Any, result: OptimizeResult) -> None:
    logger.info(
        "%s of %s: %s bins in %s partitions, %s commits; %s files became %s, %s stay as they are.",
        result.operation,
        result.table,
        result.num_bins,
        result.num_partitions,
        len(result.commits),
        result.metrics.get("numRemovedFiles", 0),
        result.metrics.get("numAddedFiles", 0),
        result.num_skipped,
    )
