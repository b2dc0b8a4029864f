"""Bases of the tasks that run one operation on a table: in a transaction of several tasks, or in one of their own.

A transaction that a task begins, for itself or for others: its table and its identity.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_delta import engine
from airflow_delta.contract.choices import ISOLATION_LEVELS, KEY_CHECKS, RERUN_POLICIES, Choices
from airflow_delta.contract.files import new_attempt
from airflow_delta.contract.kinds import LOCATION, TEXT, Kinds
from airflow_delta.contract.payloads import version_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaCommitLink, DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS, REFUSALS
from airflow_delta.task_loops import check_no_loop
from airflow_delta.tasks.base import DeltaOperator, Part, Parts, templated
from airflow_delta.tasks.committing import CommitPart
from airflow_delta.tasks.handle_check import table_uri
from airflow_delta.tasks.identity import default_transaction_key, former_keys, possible_since, try_chain, whole_number
from airflow_delta.tasks.keys import key_user
from airflow_delta.tasks.lineage import absolute_table, set_default_outlets
from airflow_delta.tasks.mapped_identity import check_instance
from airflow_delta.tasks.observability import Stopwatch, TaskMetrics
from airflow_delta.tasks.settlement import settle_before
from airflow_delta.tasks.spark.runner import SparkRunner
from airflow_delta.tasks.stage_work import StageOperator, StageWork

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame, SparkSession

    from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.stage.stage_view import StageView


@dataclass(kw_only=True, eq=False, repr=False)
class OwnTransaction(Part):
    """The part of a task that begins a transaction: its table and its identity.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param transaction_key: identity of the operation in the table's log; a run that finds its key committed follows
        ``rerun_policy``. Default: Dag id, task id, run id, and the mapped value. (templated)
    :param app_id: with ``txn_version``, Delta's monotonic scheme (``txnAppId``) instead of ``transaction_key``. (templated)
    :param txn_version: version that grows with each transaction of ``app_id`` (``txnVersion``), 0 or more. (templated)
    :param rerun_policy: ``skip`` (default), ``append`` (run again), ``fail``, or ``replace`` (first undo what the key added
        before). (templated)
    :param key_check: if another run, or another task, has committed the key: ``warn`` (default), in the task's log and as XCom,
        or ``fail``. A run that Airflow has scheduled for other data than the key's last one is refused either way, as is one that
        has published to the table under another key. ``off``: neither. (templated)
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property. (templated)
    """

    choices: ClassVar[Choices] = {
        "rerun_policy": RERUN_POLICIES,
        "key_check": KEY_CHECKS,
        "isolation_level": ISOLATION_LEVELS,
    }
    kinds: ClassVar[Kinds] = {"table": LOCATION, "transaction_key": TEXT, "app_id": TEXT}
    template_fields: ClassVar[tuple[str, ...]] = (
        "table",
        "transaction_key",
        "app_id",
        "txn_version",
        "rerun_policy",
        "key_check",
        "isolation_level",
    )

    table: str | None = None
    transaction_key: str | None = None
    app_id: str | None = None
    txn_version: int | str | None = None
    rerun_policy: str = "skip"
    key_check: str = "warn"
    isolation_level: str | None = None

    def log(self, delta_conn_id: str | None, *, create: bool = False) -> DeltaLog:
        """Return the table's log.

        :param create: reserve the table in its catalog if it is one of a catalog and does not exist.
        """
        return DeltaHook(delta_conn_id or DeltaHook.default_conn_name).get_log(self.named_table, create=create)

    @property
    def named_table(self) -> str:
        """The table.

        :raises DeltaIllegalArgumentException: if the task names none.
        """
        if not self.table:
            raise DeltaIllegalArgumentException(
                f"The task {self.task.task_id!r} has neither a table nor a transaction. Pass table=<URI>, or transaction=<output "
                "of the start task>."
            )
        return self.table

    def options(self, context: Context) -> dict[str, Any]:
        """Return :meth:`identity` and the tries of the task, which commits by itself."""
        return {**self.identity(context), "tries": try_chain(context)}

    def identity(self, context: Context) -> dict[str, Any]:
        """Return the identity as arguments of :func:`airflow_delta.table.start.begin.begin`."""
        check_no_loop(context)
        key, app_id = self.transaction_key, self.app_id
        given = key or app_id
        if key is None and app_id is None and self.txn_version is None:
            key = default_transaction_key(context)
        else:
            check_instance(context, str(given))
        return {
            "transaction_key": key,
            "app_id": app_id,
            "txn_version": whole_number("txn_version", self.txn_version),
            "rerun_policy": self.rerun_policy,
            "isolation_level": self.isolation_level,
            "former_keys": former_keys(context, given),
            "possible_since": possible_since(context, given),
            "user": key_user(self.task, context, self.key_check),
            "settle": partial(settle_before, context),
        }


OPERATION: Parts = (StageWork, OwnTransaction, CommitPart)
"""Parts of an operation without Spark."""

SPARK_OPERATION: Parts = (*OPERATION, SparkRunner)
"""Parts of an operation whose data work is Spark's."""


class DeltaTableOperator(StageOperator):
    """Base of the operations that a transaction may hold.

    With ``transaction`` (or inside a ``delta_transaction`` group) the task stages the operation, and the commit task publishes it
    together with the other stages. Otherwise the task begins, stages and commits: one version, exactly once for its identity.

    :param max_restarts: how often the operation starts over on the newest version after a conflict, if it is a transaction of
        its own.
    :param outlets: assets that the task emits; default, if it is a transaction of its own: the table's, unless the name (or the
        connection of a relative name) is templated, the task is mapped, or there is nothing to commit. Operations that only
        rearrange files (OPTIMIZE, REORG) have no default.

    The other parameters are those of :class:`~airflow_delta.tasks.stage_work.StageWork`,
    :class:`~airflow_delta.tasks.operation.OwnTransaction` and :class:`~airflow_delta.tasks.committing.CommitPart`.
    Operations that work on Spark also have those of :class:`~airflow_delta.tasks.spark.runner.SparkRunner`.
    """

    parts: ClassVar[Parts] = OPERATION
    template_fields: Sequence[str] = templated(parts)
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = REFUSALS
    creates_table: ClassVar[bool] = False
    emits_table: ClassVar[bool] = True
    staged_mode: ClassVar[str] = "rewrite"

    def __init__(self, *, max_restarts: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_restarts = max_restarts
        set_default_outlets(self, kwargs, StageWork.of(self).delta_conn_id or DeltaHook.default_conn_name)

    def source(self, spark: SparkSession, stage: StageView) -> DataFrame | None:  # noqa: ARG002 - for operations that have one
        """Return the rows of the operation's source; ``None`` if it has none, or the request names it."""
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
        """Have Spark do it, in a session or as an application."""
        if SparkRunner not in self.parts:
            return super().work(stage, request)
        source = partial(self.source, stage=stage)
        return self.hold(SparkRunner).work_on(stage.log, request, source, self.secret_properties)

    def table_to_write(self) -> str | None:
        """Return the table of a transaction of its own; a stage writes nothing visible."""
        return absolute_table(OwnTransaction.of(self).table) if self.is_own_transaction else None


class DeltaMaintenanceBase(DeltaOperator):
    """Base of the operations that are always transactions of their own: they replace the table, or delete its files.

    :param delta_conn_id: connection of type ``delta``. (templated)
    :param outlets: assets that the task emits; default: the table's, unless the name (or the connection of a relative name) is
        templated, the task is mapped, or there is nothing to commit. Operations that only rearrange or delete files (auto
        compaction, VACUUM) have no default.

    The other parameters are those of :class:`~airflow_delta.tasks.operation.OwnTransaction` and
    :class:`~airflow_delta.tasks.committing.CommitPart`.
    """

    parts: ClassVar[Parts] = (OwnTransaction, CommitPart)
    template_fields: Sequence[str] = ("delta_conn_id", *templated(parts))
    operator_extra_links = (DeltaTableLink(), DeltaCommitLink())
    default_retry_policy = FINAL_ERRORS
    emits_table: ClassVar[bool] = True
    ui_color = "#dae8fc"

    def __init__(self, *, delta_conn_id: str = DeltaHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id
        set_default_outlets(self, kwargs, delta_conn_id)

    @abstractmethod
    def run(self, log: DeltaLog, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Run the operation and return the XCom value."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        own, committer = self.hold(OwnTransaction), self.hold(CommitPart)
        log = own.log(self.delta_conn_id)
        with committer.watched(context, log, (own.table, self.delta_conn_id)):
            return self.run(log, committer, context)

    def commit_options(self, committer: CommitPart, context: Context) -> dict[str, Any]:
        """Return the identity and the options of the commit, as ``run_transaction`` takes them."""
        attempt = new_attempt(context["ti"].try_number)
        return {"attempt": attempt, **OwnTransaction.of(self).options(context), **committer.options(context)}

    def table_to_write(self) -> str | None:
        """Return the table."""
        return absolute_table(OwnTransaction.of(self).table)
