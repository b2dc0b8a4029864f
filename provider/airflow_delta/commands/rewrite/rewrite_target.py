"""An operation that rewrites rows, before Spark: what it may do to the table, and the files that it has to look at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_delta.commands.begin.read_snapshot import parse_predicate
from airflow_delta.commands.files.adds import DataFiles
from airflow_delta.commands.files.row_counts import live_records
from airflow_delta.commands.files.rules import table_rules
from airflow_delta.commands.rewrite.collect_rewrite import PARAMETERS
from airflow_delta.commands.stage.after import after_arguments, handle_after, load_earlier, stage_id
from airflow_delta.commands.stage.data_change import refuse_rearranged, refuse_untold
from airflow_delta.commands.stage.scan import candidate_files, scan_of, spark_table
from airflow_delta.commands.stage.staged_write import staged_write
from airflow_delta.exceptions import AppendOnlyException, DeltaIllegalStateException, DeltaTableNotFoundException
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.staging.contract import ReadSet, StagedWrite, TransactionHandle
from airflow_delta.staging.paths import attempt_directory, stage_key
from airflow_delta.staging.report import StageRequest

if TYPE_CHECKING:
    from airflow_delta.commands.stage.load import StageActions
    from airflow_delta.log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """The table that an operation rewrites rows of, as earlier stages of the transaction leave it.

    :param handle: with the schema and the partitioning that it has there.
    :param begun: the handle of the transaction.
    :param stages: the earlier stages.
    :param started: seconds of a monotonic clock.
    :param removes_rows: whether the operation may remove or change rows that are there.
    """

    log: DeltaLog
    handle: TransactionHandle
    begun: TransactionHandle
    stages: Sequence[StageActions]
    operation: str
    task_id: str
    map_index: int
    attempt: str
    started: float
    removes_rows: bool = True

    @property
    def stage(self) -> str:
        """Key of the stage."""
        return stage_key(self.task_id, self.map_index)

    def parse(self, predicate: str | None) -> Predicate | None:
        """Return a condition on the rows of the table; ``None`` for all rows.

        :raises PredicateException: it does not parse or names an unknown column.
        """
        return None if predicate is None else parse_predicate(self.log, self.handle, predicate)

    def files(self, predicate: Predicate | None) -> list[AddFile]:
        """Return the files that may hold rows that a condition selects."""
        return candidate_files(self.log, self.begun, predicate, self.stages)

    @property
    def deletion_vectors(self) -> bool:
        """Whether rows may be marked as deleted instead of written out of their files."""
        enabled = self.handle.configuration.get("delta.enableDeletionVectors", "false").lower() == "true"
        return enabled and "deletionVectors" in self.handle.features

    def request(
        self,
        files: Sequence[AddFile],
        planned_for: Predicate | None,
        *,
        condition: Predicate | None = None,
        arguments: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        deletion_vectors: bool = False,
        options: Mapping[str, str] | None = None,
        spark_table_uri: str | None = None,
        **request: Any,
    ) -> StageRequest:
        """Return what Spark is asked to do.

        :param files: from :meth:`files`.
        :param planned_for: the condition that they were asked for: what the stage depends on.
        :param condition: the condition that Spark evaluates on their rows; ``None``: all are selected.
        :param arguments: of the operation.
        :param parameters: ``operationParameters`` of the commit.
        :param request: other fields of :class:`~airflow_delta.staging.report.StageRequest`.
        """
        rules = table_rules(self.handle)
        if self.removes_rows:
            refuse_rearranged(self.begun, self.operation, files, self.stages)
        if rules.change_data and files:
            # A DELETE that marks rows writes no change data, nor does a MERGE that only inserts.
            tells = self.removes_rows and not (deletion_vectors and self.operation == "DELETE")
            refuse_untold(self.begun, self.operation, self.stages, tells=tells)
        own = {**(arguments or {}), PARAMETERS: dict(parameters or {}), **after_arguments(self.stages)}
        return StageRequest(
            transaction_id=self.handle.transaction_id,
            table=spark_table(self.log, spark_table_uri),
            read_version=self.handle.read_version,
            stage=self.stage,
            task_id=self.task_id,
            map_index=self.map_index,
            attempt=self.attempt,
            directory=attempt_directory(self.handle.transaction_id, self.stage, self.attempt),
            operation=self.operation,
            mode="rewrite",
            predicate=None if condition is None else condition.text,
            schema_string=self.handle.schema_string,
            partition_columns=self.handle.partition_columns,
            options={key: str(value) for key, value in (options or {}).items()},
            rewrite=scan_of(self.log, self.handle, files, planned_for, spark_table_uri=spark_table_uri),
            rules=rules,
            arguments=own,
            deletion_vectors=deletion_vectors,
            **request,
        )

    @property
    def after(self) -> list[str]:
        """Ids of the earlier stages."""
        return [stage_id(stage.write) for stage in self.stages]

    def staged(
        self,
        removed: Sequence[AddFile],
        planned_for: Predicate | None,
        *,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, int] | None = None,
    ) -> StagedWrite:
        """Return the staged write of an operation that needs no Spark: files leave the table whole, or nothing happens.

        :param removed: the files, all that the condition selects.
        """
        refuse_rearranged(self.begun, self.operation, removed, self.stages)
        if removed and table_rules(self.handle).change_data:
            refuse_untold(self.begun, self.operation, self.stages, tells=False)
        elapsed = int((time.monotonic() - self.started) * 1000)
        return staged_write(
            self.log,
            self.handle,
            DataFiles(),
            DataFiles(),
            [file.remove(0) for file in removed],
            [],
            stage=self.stage,
            task_id=self.task_id,
            map_index=self.map_index,
            attempt=self.attempt,
            operation=self.operation,
            parameters=dict(parameters or {}),
            metrics={**(metrics or {}), "executionTimeMs": elapsed},
            after=tuple(self.after),
            mode="rewrite",
            schema_string=self.handle.schema_string,
            partition_columns=self.handle.partition_columns,
            reads=ReadSet(
                predicates=("true" if planned_for is None else planned_for.text,), files=tuple(file.path for file in removed)
            ),
        )


def rewrite_target(
    log: DeltaLog,
    handle: TransactionHandle,
    operation: str,
    *,
    task_id: str,
    map_index: int = -1,
    attempt: str,
    after: Sequence[StagedWrite | Mapping[str, Any]] = (),
    removes_rows: bool = True,
) -> RewriteTarget:
    """Return the table for an operation that rewrites rows, checked to allow it.

    :param attempt: unique name of this execution (:func:`airflow_delta.staging.paths.new_attempt`).
    :param after: staged writes of earlier stages of the transaction, whose outcome the operation works on.
    :param removes_rows: whether the operation may remove or change rows that are there.
    :raises DeltaIllegalStateException: the transaction is committed already.
    :raises DeltaTableNotFoundException: there is no table yet.
    :raises AppendOnlyException: the table only takes appends.
    :raises StageConflictException: the earlier stages build on others that are not given.
    """
    started = time.monotonic()
    if handle.committed is not None:
        raise DeltaIllegalStateException(
            f"Transaction {handle.app_id!r} is committed in version {handle.committed.version} of table {handle.table}; there is "
            "nothing to stage. Clear the start task with another rerun_policy to do it again.",
            table=handle.table,
            version=handle.committed.version,
        )
    stages = load_earlier(log, handle, after) if after else []
    if handle.read_version < 0 and not stages:
        raise DeltaTableNotFoundException(
            f"Table {handle.table} did not exist when the transaction began, so {operation} finds no rows. Create it first, or "
            "plan the operation on top of the stage that does (after=).",
            table=handle.table,
        )
    if removes_rows and handle.configuration.get("delta.appendOnly", "false").lower() == "true":
        raise AppendOnlyException(
            f"{operation} would change rows of table {handle.table} version {handle.read_version}, which only takes appends "
            "(delta.appendOnly=true, DELTA_CANNOT_MODIFY_APPEND_ONLY). If rows may change, unset the property first.",
            table=handle.table,
            version=handle.read_version,
        )
    target = handle_after(handle, stages)
    return RewriteTarget(log, target, handle, stages, operation, task_id, map_index, attempt, started, removes_rows)


def removal_metrics(removed: Sequence[AddFile]) -> dict[str, int]:
    """Return the metrics of files that leave the table whole; none of rows where statistics do not tell (as in Delta)."""
    rows = [live_records(file) for file in removed]
    metrics = {
        "numRemovedFiles": len(removed),
        "numRemovedBytes": sum(file.size for file in removed),
        "numAddedBytes": 0,
        "numAddedChangeFiles": 0,
        "numDeletionVectorsAdded": 0,
        "numDeletionVectorsRemoved": sum(file.deletion_vector is not None for file in removed),
        "numDeletionVectorsUpdated": 0,
    }
    if any(count is None for count in rows):
        return metrics
    return {**metrics, "numDeletedRows": sum(count or 0 for count in rows), "numCopiedRows": 0, "numAddedFiles": 0}
