"""Tasks that rewrite rows of a table into other files, batch by batch: their parameters, and the report of all batches."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import WHOLE_NUMBER
from airflow_delta.tasks.base import DeltaOperator, Part
from airflow_delta.tasks.commit.commit_part import CommitPart
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.engines import EngineChoice
from airflow_delta.tasks.identity import stage_identity
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.stage.work import StageWork
from airflow_delta.tasks.start.own_transaction import OwnTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from airflow_delta.table.operations.optimize.bins import RewriteSelection
    from airflow_delta.table.stage.view import TransactionView
    from airflow_delta.table.state.optimize_result import OptimizeResult
    from airflow_delta.tasks.declared import Taken

    Select = Callable[[TransactionView], RewriteSelection]


class RewriteParameters(Parameters):
    """Parameters of a task that rewrites rows of a table into other files.

    Alone (no ``transaction``, no ``transaction_key``, no ``app_id``) such a task has no identity in the log: the files show what
    it has done, and a rerun does what is left. It then conflicts only with commits that remove files that it has rewritten. With
    an identity, or as a stage, it is a transaction like any other.

    :param where: predicate on partition columns; default: the whole table. (templated)
    :param max_file_size: size of the new files in bytes; default: the table's ``delta.targetFileSize``, or 1 GiB. (templated)
    :param batch_size: bytes of input for each commit, if the task runs alone; default: all in one commit. (templated)
    :param parallel: bins that Spark writes at a time. (templated)
    """

    where: str | None = parameter(default=None, templated=True)
    max_file_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    batch_size: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)
    parallel: Taken[int | str, int] = parameter(default=4, templated=True, kind=WHOLE_NUMBER)


class RewriteWork(Part, RewriteParameters):
    """The part of a task that rewrites rows of a table into other files."""

    def selection(self) -> dict[str, Any]:
        """Return the options that select the files to rewrite."""
        return {"where": self.where, "max_file_size": self.max_file_size}

    def plan_options(self) -> dict[str, Any]:
        """Return the options of a stage."""
        return {**self.selection(), "parallel": self.parallel}

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
        log, choice = own.log(delta_conn_id), self.task.hold(EngineChoice)
        clock = Stopwatch()
        with committer.watched(context, log, (own.table, delta_conn_id)), ExitStack() as stack:
            result = engine.run_rewrite(
                log,
                select,
                choice.worker(log, runner.worker(log, stack)),
                identity=stage_identity(context),
                batch_size=self.batch_size,
                parallel=self.parallel,
                spark_table_uri=choice.table_uri(log, runner.spark_table_uri),
                max_restarts=max_restarts,
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
