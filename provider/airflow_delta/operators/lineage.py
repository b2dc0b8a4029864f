"""The methods that OpenLineage's provider calls on an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_delta.openlineage import wanted

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_delta.log import DeltaLog
    from airflow_delta.openlineage.lineage import Lineage
    from airflow_delta.staging.contract import CommitResult, StagedWrite, TransactionHandle


class DeltaLineageOperator(BaseOperator):
    """Base of the tasks that tell which tables they read and wrote. Without OpenLineage's provider this does nothing."""

    @cached_property
    def _lineage(self) -> Lineage:
        from airflow_delta.openlineage.lineage import Lineage

        return Lineage()

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the table that the task is to write, as far as its arguments alone tell."""
        from airflow_delta.openlineage.facets import operator_lineage
        from airflow_delta.openlineage.lineage import Lineage, TableUse

        lineage = Lineage()
        if (table := self._table_of_arguments()) is not None:
            lineage.wrote(TableUse(uri=table))
        return operator_lineage(lineage)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - as it is called
        """Return the versions that the task has read and written."""
        from airflow_delta.openlineage.facets import operator_lineage

        return operator_lineage(self._lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the versions that the task had read, and those that it had committed before it failed."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def _table_of_arguments(self) -> str | None:
        """Return the table of a task that commits; ``None`` for a stage, and where a connection would have to be asked."""
        return None

    def _note_reads(self, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
        if wanted():
            self._lineage.read_by(handle, writes)

    def _note_commit(self, log: DeltaLog | None, result: CommitResult, writes: Sequence[StagedWrite] = ()) -> None:
        """Note what was committed, with the schema of that version; the log has it in memory by now, as a rule."""
        if not wanted() or (result.committed_before and not result.operation):
            return  # the log has forgotten that commit: its version is only the latest one, whoever made it
        from airflow_delta.openlineage.lineage import output_of, with_symlink

        schema_string = None
        try:
            if log is not None:
                snapshot = log.snapshot
                if snapshot.version != result.version:  # a commit that was found in the log: others may have come after it
                    snapshot = log.snapshot_at(result.version)
                schema_string = snapshot.metadata.schema_string
        except Exception:
            self.log.debug("The schema of %s is not known for its lineage", result.table, exc_info=True)
        use = output_of(result, schema_string=schema_string, writes=writes)
        self._lineage.wrote(with_symlink(use, *(self._given_table() or (None, None))))

    def _given_table(self) -> tuple[str, str | None] | None:
        """Return the table as the Dag names it, and its connection; ``None``: it does not."""
        return None


def absolute_table(table: Any) -> str | None:
    """Return a table that is named by an URI or an absolute path; ``None`` for any other, which only its connection tells."""
    return table if isinstance(table, str) and ("://" in table or table.startswith("/")) else None


def table_of_handle(transaction: Any) -> str | None:
    """Return the table of a handle, before or after it was parsed."""
    table = transaction.get("table") if isinstance(transaction, Mapping) else getattr(transaction, "table", None)
    return absolute_table(table)
