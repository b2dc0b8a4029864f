"""Tasks that do one operation on a table: as a stage of a transaction, or as a transaction of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryPolicy

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.observability import Stopwatch, TaskMetrics
from airflow_delta.operators.committing import FINAL_ERRORS, REFUSALS, DeltaCommittingOperator
from airflow_delta.operators.identity import commit_tags, default_transaction_key, former_keys, text_of, try_chain, whole_number
from airflow_delta.operators.lineage import absolute_table
from airflow_delta.operators.mapped_identity import check_instance
from airflow_delta.operators.run_age import possible_since
from airflow_delta.operators.spark_request import SparkRequestOperator
from airflow_delta.operators.transactional import DeltaTransactionalOperator
from airflow_delta.staging.contract import StagedWrite, TransactionHandle
from airflow_delta.staging.paths import new_attempt
from airflow_delta.staging.report import StageReport, StageRequest

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log import DeltaLog


class DeltaTaskIdentity(DeltaCommittingOperator):
    """Base of the tasks that begin and commit a transaction of their own: its table and its identity.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param transaction_key: identity of the operation in the table's log; a run that finds its key committed follows
        ``rerun_policy``. Default: Dag id, task id, run id, and the value that the instance is mapped to. (templated)
    :param app_id: with ``txn_version``, Delta's monotonic scheme (``txnAppId``) instead of ``transaction_key``. (templated)
    :param txn_version: version that grows with each transaction of ``app_id`` (``txnVersion``), 0 or more. (templated)
    :param rerun_policy: ``skip`` (default), ``append`` (do it again), ``fail``; ``replace`` takes back what the key added
        before. (templated)
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property. (templated)

    The other parameters are those of :class:`~airflow_delta.operators.committing.DeltaCommittingOperator`.
    """

    template_fields: Sequence[str] = (
        "table",
        "transaction_key",
        "app_id",
        "txn_version",
        "rerun_policy",
        "isolation_level",
        *DeltaCommittingOperator.template_fields,
    )

    def __init__(
        self,
        *,
        table: str | None = None,
        transaction_key: str | None = None,
        app_id: str | None = None,
        txn_version: int | str | None = None,
        rerun_policy: str = "skip",
        isolation_level: str | None = None,
        retry_policy: RetryPolicy | None = FINAL_ERRORS,  # named here, so that partial() finds the default
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.table = table
        self.transaction_key = transaction_key
        self.app_id = app_id
        self.txn_version = txn_version
        self.rerun_policy = rerun_policy
        self.isolation_level = isolation_level

    def _log_of_table(self, delta_conn_id: str | None) -> DeltaLog:
        if not self.table:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} has neither a table nor a transaction. Pass table=<URI>, or transaction=<output of "
                "the start task>."
            )
        return DeltaHook(delta_conn_id or DeltaHook.default_conn_name).get_log(self.table)

    def _begin_options(self, context: Context) -> dict[str, Any]:
        """Return the identity as :func:`airflow_delta.commands.begin.begin.begin` takes it."""
        self.transaction_key, self.app_id = text_of(self.transaction_key), text_of(self.app_id)
        key = self.transaction_key
        if key is None and self.app_id is None and self.txn_version is None:
            key = default_transaction_key(context)
        else:
            check_instance(context, str(key or self.app_id))
        return {
            "transaction_key": key,
            "app_id": self.app_id,
            "txn_version": whole_number("txn_version", self.txn_version),
            "rerun_policy": self.rerun_policy,
            "isolation_level": self.isolation_level,
            "tries": try_chain(context),
            "former_keys": former_keys(context, self.transaction_key or self.app_id),
            "possible_since": possible_since(context, self.transaction_key or self.app_id),
        }


class DeltaTableOperator(DeltaTaskIdentity, DeltaTransactionalOperator):
    """Base of the operations that a transaction may hold.

    With ``transaction`` (or inside a ``delta_transaction`` group) the task stages the operation, and the commit task publishes it
    together with the other stages. Without, the task begins, stages and commits: one version, exactly once for its identity.

    :param max_restarts: how often the operation begins anew on the newest version after a conflict with another commit, when it
        is a transaction of its own.

    The other parameters are those of :class:`~airflow_delta.operators.transactional.DeltaTransactionalOperator` and
    :class:`DeltaTaskIdentity`.
    """

    template_fields: Sequence[str] = (*DeltaTransactionalOperator.template_fields, *DeltaTaskIdentity.template_fields)

    def __init__(self, *, max_restarts: int = 0, retry_policy: RetryPolicy | None = REFUSALS, **kwargs: Any) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.max_restarts = max_restarts

    @abstractmethod
    def plan(self, log: DeltaLog, handle: TransactionHandle, identity: Mapping[str, Any]) -> StageRequest | StagedWrite:
        """Plan the operation.

        :param identity: ``task_id``, ``map_index`` and ``attempt``.
        :return: what Spark is asked to do, or the staged write when nothing is left for Spark.
        """

    def begin_options(self) -> dict[str, Any]:
        """Return more parameters of :func:`airflow_delta.commands.begin.begin.begin`, for a transaction of its own."""
        return {"create": False}

    def execute(self, context: Context) -> Any:
        """Return the staged write, or the result of the commit.

        :raises DeltaConcurrentModificationException: another commit conflicts, and no restart is left.
        """
        if self.transaction is not None:
            log, handle = self._open(context)
            self._check_same_table(handle)
            if (skipped := self._skip_if_committed(log, handle, context)) is not None:
                return skipped
            return self._report(self._stage(log, handle, context))
        from airflow_delta.commands.run_transaction import run_transaction

        log = self._log_of_table(self.delta_conn_id)
        writes: list[StagedWrite] = []

        def stage(handle: TransactionHandle) -> list[StagedWrite]:
            writes[:] = [self._stage_alone(log, handle, context)]
            return writes

        with self._watched(context, log):
            result = run_transaction(
                log,
                stage,
                attempt=new_attempt(context["ti"].try_number),
                max_restarts=self.max_restarts,
                policy=self._policy(),
                tags=commit_tags(context),
                user_metadata=self.user_metadata,
                hooks=tuple(self.post_commit_hooks),
                **self._begin_options(context),
                **self.begin_options(),
            )
        return self._finish(context, result, writes)

    def _stage_alone(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> StagedWrite:
        """Stage the operation of a transaction that this task begins and commits; the clock of the commit starts after it."""
        self.log.info(
            "Transaction %s: begins on version %s of %s; key %s.",
            handle.transaction_id,
            handle.read_version,
            handle.table,
            handle.app_id,
        )
        metrics = TaskMetrics(context["ti"])
        metrics.started(handle)
        clock = Stopwatch()
        staged = self._stage(log, handle, context)
        metrics.staged(staged, handle.table, clock.seconds)
        self._note_reads(handle, [staged])
        if self._commit_clock is not None:
            self._commit_clock.restart()
        return staged

    def _table_of_arguments(self) -> str | None:
        # A stage writes nothing that anybody could read: the table is what the commit task has written.
        return None if self.transaction is not None else absolute_table(self.table)

    def _check_same_table(self, handle: TransactionHandle) -> None:
        if self.table and (other := self._log_of_table(self.delta_conn_id or handle.delta_conn_id).uri) != handle.table:
            raise DeltaIllegalArgumentException(
                f"The task {self.task_id!r} names the table {other}, its transaction is one of {handle.table}. Leave table= out, "
                "or move the task out of the transaction.",
                table=handle.table,
                version=handle.read_version,
            )

    def _stage(self, log: DeltaLog, handle: TransactionHandle, context: Context) -> StagedWrite:
        planned = self.plan(log, handle, self._identity(context))
        if isinstance(planned, StagedWrite):
            return planned
        from airflow_delta.commands.operations import collect_operation

        self._tell_plan(planned)
        asked, report = self._work_on_spark(log, planned)
        return self._collected(lambda: collect_operation(log, handle, asked, report))

    def _work_on_spark(self, log: DeltaLog, request: StageRequest) -> tuple[StageRequest, StageReport]:
        """Have Spark work on a request; return the request that was worked on, and the report."""
        return request, self._run_on_spark(log, request)

    def _run_on_spark(self, log: DeltaLog, request: StageRequest) -> StageReport:
        raise NotImplementedError(f"{type(self).__name__} does no work on Spark, {request.operation} asks for it")


class DeltaSparkTableOperator(SparkRequestOperator, DeltaTableOperator):
    """Base of the operations whose data work is Spark's: in a session of this task, or in an application that it submits.

    The parameters are those of :class:`DeltaTableOperator` and
    :class:`~airflow_delta.operators.spark_request.SparkRequestOperator`.
    """

    template_fields: Sequence[str] = (*DeltaTableOperator.template_fields, *SparkRequestOperator.template_fields)


class DeltaMaintenanceBase(DeltaTaskIdentity):
    """Base of the operations that are always transactions of their own: they replace the table, or delete files of it.

    :param delta_conn_id: connection of type ``delta``. (templated)

    The other parameters are those of :class:`DeltaTaskIdentity`.
    """

    template_fields: Sequence[str] = ("delta_conn_id", *DeltaTaskIdentity.template_fields)
    ui_color = "#dae8fc"

    def __init__(self, *, delta_conn_id: str = DeltaHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id

    @abstractmethod
    def run(self, log: DeltaLog, context: Context) -> dict[str, Any]:
        """Do the operation and return what travels in XCom."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done."""
        log = self._log_of_table(self.delta_conn_id)
        with self._watched(context, log):
            return self.run(log, context)

    def _table_of_arguments(self) -> str | None:
        return absolute_table(self.table)

    def _commit_options(self, context: Context) -> dict[str, Any]:
        """Return identity and commit options as ``run_transaction`` and its like take them."""
        return {
            **self._begin_options(context),
            "attempt": new_attempt(context["ti"].try_number),
            "policy": self._policy(),
            "tags": commit_tags(context),
            "user_metadata": self.user_metadata,
            "hooks": tuple(self.post_commit_hooks),
        }
