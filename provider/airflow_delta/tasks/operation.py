"""The base of the tasks that run one operation on a table: in a transaction of several tasks, or in one of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.read_versions import version_of
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.tasks.commit.commit_part import CommitParameters, CommitPart
from airflow_delta.tasks.declared import parameter
from airflow_delta.tasks.engines import EngineChoice, EngineParameters
from airflow_delta.tasks.lineage import absolute_table
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.spark.runner import RunnerParameters, SparkRunner
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.work import StageWork, StageWorkParameters
from airflow_delta.tasks.start.own_transaction import OwnTransaction, OwnTransactionParameters
from airflow_delta.tasks.trust.declared_start import table_uri

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView


class DeltaTableOperator(StageOperator, StageWorkParameters, OwnTransactionParameters, CommitParameters):
    """Base of the operations that a transaction may hold.

    With ``transaction`` (or inside a ``delta_transaction`` group) the task stages the operation, and the commit task publishes it
    together with the other stages. Otherwise the task begins, stages and commits: one version, exactly once for its identity.

    :param max_restarts: how often the operation starts over on the newest version after a conflict, if it is a transaction of
        its own.
    :param outlets: assets that the task emits; default, if it is a transaction of its own: the table's, unless the name (or the
        connection of a relative name) is templated, the task is mapped, or there is nothing to commit. Operations that only
        rearrange files (OPTIMIZE, REORG) have no default.

    The other parameters are those of :class:`~airflow_delta.tasks.stage.work.StageWorkParameters`,
    :class:`~airflow_delta.tasks.start.own_transaction.OwnTransactionParameters` and
    :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`. Operations that work on Spark also have those of
    :class:`~airflow_delta.tasks.spark.runner.RunnerParameters`.
    """

    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = REFUSALS
    creates_table: ClassVar[bool] = False
    emits_table: ClassVar[bool] = True
    staged_mode: ClassVar[str] = "rewrite"

    max_restarts: int = parameter(default=0)

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame | None:  # noqa: ARG002 - for operations that have one
        """Return the rows of the operation's source; ``None`` if it has none, or the request names it."""
        return None

    def worker_rows(self, stage: StageView, request: StageRequest) -> Any:  # noqa: ARG002 - for operations that have some
        """Return the rows of the operation's source for the worker itself; ``None`` if it has none."""
        return None

    def did_nothing(self, staged: StagedWrite) -> bool:  # noqa: ARG002 - for operations that may find nothing to do
        """Return whether a transaction of the task's own is not to be committed, since nothing was staged."""
        return False

    def secret_properties(self) -> dict[str, str]:
        """Return secret Spark properties for a submitted application."""
        return {}

    @property
    def is_own_transaction(self) -> bool:
        """Whether no start task has begun the transaction."""
        return StageWork.of(self).transaction is None

    @property
    def skipped_mode(self) -> str:
        """The mode of all such stages."""
        return self.staged_mode

    def open(self, work: StageWork, context: Context) -> None:
        """Open the transaction.

        :raises DeltaIllegalArgumentException: if the task names another table than its transaction.
        """
        super().open(work, context)
        own, handle = OwnTransaction.of(self), work.handle
        conn_id = work.delta_conn_id or handle.delta_conn_id or DeltaHook.default_conn_name
        if own.table and (other := table_uri(own.table, conn_id, handle)) != handle.table:
            raise handle.error(
                DeltaIllegalArgumentException,
                f"The task {self.task_id!r} names the table {other}, but its transaction is one of {handle.table}. Leave table= "
                "out, or move the task out of the transaction.",
            )

    def run_alone(self, work: StageWork, context: Context) -> Any:
        """Begin, stage and commit; return the result of the commit."""
        own, committer = self.hold(OwnTransaction), self.hold(CommitPart)
        log = own.log(work.delta_conn_id, create=self.creates_table)
        writes: list[StagedWrite] = []

        def stage(handle: TransactionHandle) -> list[StagedWrite] | None:
            self.log.info(
                "Transaction %s: begins on %s; key %s.",
                handle.transaction_id,
                version_of(handle.table, handle.read_version),
                handle.app_id,
            )
            TaskMetrics(context["ti"]).started(handle)
            work.open_own(context, log, handle)
            staged = self.stage(work)
            if self.did_nothing(staged):
                writes.clear()
                return None
            writes[:] = [staged]
            work.measure(staged)
            committer.clock = Stopwatch()  # of the commit, not of Spark
            return writes

        with committer.watched(context, log, (own.table, work.delta_conn_id)):
            result = engine.run_transaction(
                log,
                stage,
                attempt=new_attempt(context["ti"].try_number),
                max_restarts=self.max_restarts,
                create=self.creates_table,
                **own.options(context),
                **committer.options(context),
            )
        return committer.finish(context, result, writes)

    def work(self, stage: StageView, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Have Spark do it, in a session or as an application, or do it here."""
        if not isinstance(self, RunnerParameters):
            return super().work(stage, request)
        runner = self.hold(SparkRunner)

        def on_spark(asked: StageRequest) -> tuple[StageRequest, StageReport]:
            return runner.work_on(stage.log, asked, partial(self.source, stage=stage), self.secret_properties)

        if not isinstance(self, EngineParameters):
            return on_spark(request)
        is_begun = partial(runner.has_submitted, stage.log, request)
        rows = partial(self.worker_rows, stage, request)
        return self.hold(EngineChoice).carry_out(stage.log, request, on_spark, rows=rows, is_begun=is_begun)

    def table_uri(self, log: DeltaLog) -> str | None:
        """Return the worker's URI if the worker itself certainly works on the rows."""
        uri = super().table_uri(log)
        return EngineChoice.of(self).table_uri(log, uri) if isinstance(self, EngineParameters) else uri

    def table_to_write(self) -> str | None:
        """Return the table of a transaction of its own; a stage writes nothing visible."""
        return absolute_table(OwnTransaction.of(self).table) if self.is_own_transaction else None
