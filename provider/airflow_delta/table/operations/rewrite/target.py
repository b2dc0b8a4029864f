"""An operation that rewrites rows, before Spark: whether the table allows it, and which files it has to read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.arguments import RewriteArguments
from airflow_delta.contract.delta_names import ENABLE_DELETION_VECTORS
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite
from airflow_delta.exceptions import AppendOnlyException, DeltaTableNotFoundException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import AddFile
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.table.files.rules import table_rules
from airflow_delta.table.operations.rewrite.collect import collect_rewrite
from airflow_delta.table.stage.data_change import refuse_rearranged, refuse_untold
from airflow_delta.table.stage.scan import candidate_files, row_ids_of, scan_of
from airflow_delta.table.stage.stage_view import SparkWork, StageView

if TYPE_CHECKING:
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.log.table_definition import TableDefinition
    from airflow_delta.table.operations.rewrite.collect import Collect


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """The table whose rows an operation rewrites, as earlier stages of the transaction leave it.

    :param started: start, by a monotonic clock in seconds.
    :param removes_rows: whether the operation may remove or change rows that are there.
    """

    stage: StageView
    operation: str
    started: float
    removes_rows: bool = True

    @property
    def table(self) -> TableDefinition:
        """What the table is."""
        return self.stage.target

    def parse(self, predicate: str | None) -> Predicate | None:
        """Return a condition on the rows of the table; ``None`` for all rows."""
        return None if predicate is None else self.stage.predicate(predicate)

    def files(self, predicate: Predicate | None) -> list[AddFile]:
        """Return the files that may hold rows that a condition selects."""
        return candidate_files(self.stage, predicate)

    @property
    def deletion_vectors(self) -> bool:
        """Whether rows may be marked as deleted instead of written out of their files."""
        enabled = self.table.configuration.get(ENABLE_DELETION_VECTORS, "false").lower() == "true"
        return enabled and "deletionVectors" in self.table.features

    def work(
        self,
        files: Sequence[AddFile],
        planned_for: Predicate | None,
        *,
        condition: Predicate | None = None,
        arguments: RewriteArguments | None = None,
        parameters: Mapping[str, Any] | None = None,
        deletion_vectors: bool = False,
        collect: Collect = collect_rewrite,
        **request: Any,
    ) -> SparkWork:
        """Return what is left for Spark.

        :param files: from :meth:`files`.
        :param planned_for: the condition that they were selected by: what the stage depends on.
        :param condition: the condition that Spark evaluates on their rows; ``None``: all rows.
        :param arguments: of the operation.
        :param parameters: ``operationParameters`` of the commit.
        :param collect: turns the report into the staged write.
        :param request: other fields of :class:`~airflow_delta.contract.request.StageRequest`.
        """
        rules = table_rules(self.table)
        if self.removes_rows:
            refuse_rearranged(self.stage, self.operation, files)
        if rules.change_data and files:
            # A DELETE with deletion vectors writes no change data, nor does a MERGE that only inserts.
            tells = self.removes_rows and not (deletion_vectors and self.operation == "DELETE")
            refuse_untold(self.stage, self.operation, tells=tells)
        planned = self.stage.request(
            replace(
                arguments or RewriteArguments(),
                operation_parameters=dict(parameters or {}),
                row_ids=row_ids_of(self.stage.definition, files),
            ),
            operation=self.operation,
            mode="rewrite",
            predicate=None if condition is None else condition.text,
            rewrite=scan_of(self.stage, files, planned_for),
            rules=rules,
            deletion_vectors=deletion_vectors,
            **request,
        )
        return SparkWork(planned, partial(collect, self.stage))

    def staged(
        self,
        removed: Sequence[AddFile],
        planned_for: Predicate | None,
        *,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, int] | None = None,
    ) -> StagedWrite:
        """Return the staged write of an operation that needs no Spark: files leave the table whole, or nothing happens.

        :param removed: all files that the condition selects.
        """
        refuse_rearranged(self.stage, self.operation, removed)
        if removed and table_rules(self.table).change_data:
            refuse_untold(self.stage, self.operation, tells=False)
        elapsed = int((time.monotonic() - self.started) * 1000)
        return self.stage.staged(
            removes=[file.remove(0) for file in removed],
            operation=self.operation,
            parameters=dict(parameters or {}),
            metrics={**(metrics or {}), "executionTimeMs": elapsed},
            mode="rewrite",
            reads=DeclaredReads(
                predicates=("true" if planned_for is None else planned_for.text,), files=tuple(file.path for file in removed)
            ),
        )


def rewrite_target(stage: StageView, operation: str, *, removes_rows: bool = True) -> RewriteTarget:
    """Return the table for an operation that rewrites rows, after checking that it allows the operation.

    :param removes_rows: whether the operation may remove or change rows that are there.
    :raises DeltaIllegalStateException: if the transaction is committed already.
    :raises DeltaTableNotFoundException: if there is no table yet.
    :raises AppendOnlyException: if the table only takes appends.
    """
    started = time.monotonic()
    stage.check_open()
    handle = stage.handle
    if not stage.exists:
        raise handle.error(
            DeltaTableNotFoundException,
            f"Table {handle.table} did not exist when the transaction began, so {operation} finds no rows. Create it first, or "
            "plan the operation on top of the stage that does (after=).",
        )
    if removes_rows and stage.is_append_only:
        raise handle.error(
            AppendOnlyException,
            f"{operation} would change rows of table {handle.table} version {handle.read_version}, which only takes appends "
            "(delta.appendOnly=true, DELTA_CANNOT_MODIFY_APPEND_ONLY). If rows may change, unset the property first, in a "
            "commit of its own.",
        )
    return RewriteTarget(stage, operation, started, removes_rows)


def removal_metrics(removed: Sequence[AddFile]) -> dict[str, int]:
    """Return the metrics of files that leave the table whole; without row counts if statistics lack them, as in Delta."""
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
