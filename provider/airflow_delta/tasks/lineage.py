"""What OpenLineage's provider learns about a task; without that provider nothing is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_delta.tasks.openlineage import is_wanted

if TYPE_CHECKING:
    from logging import Logger

    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_delta.contract.audit import AuditCheck
    from airflow_delta.contract.payloads import CommitResult, StagedWrite, TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog


class TaskLineage:
    """Records which versions of tables a running task has read and written.

    :param logger: the task's logger.
    """

    def __init__(self, logger: Logger | Any) -> None:
        from airflow_delta.tasks.openlineage.lineage import Lineage

        self.tables = Lineage()
        self._logger = logger

    def note_reads(self, handle: TransactionHandle, writes: Sequence[StagedWrite]) -> None:
        """Record the version that stages have read."""
        if is_wanted():
            self.tables.read_by(handle, writes)

    def note_read(self, uri: str, version: int) -> None:
        """Record a version of another table that was read."""
        if is_wanted():
            from airflow_delta.tasks.openlineage.lineage import TableUse

            self.tables.read(TableUse(uri=uri, version=version))

    def note_commit(
        self,
        log: DeltaLog | None,
        result: CommitResult,
        writes: Sequence[StagedWrite] = (),
        *,
        named: tuple[str, str | None] | None = None,
        checks: Callable[[], Iterable[AuditCheck]] | None = None,
    ) -> None:
        """Record a commit with the schema of its version, which the log usually has in memory.

        :param named: the table as the Dag names it, and its connection.
        :param checks: returns what its audits have found.
        """
        if not is_wanted() or (result.committed_before and not result.operation):
            return  # that commit has left the log: its version is only the latest one, whoever made it
        from airflow_delta.tasks.openlineage.lineage import output_of, with_symlink

        schema_string = None
        try:
            if log is not None:
                snapshot = log.snapshot
                if snapshot.version != result.version:  # a commit found in the log: others may have followed
                    snapshot = log.snapshot_at(result.version)
                schema_string = snapshot.metadata.schema_string
        except Exception:
            self._logger.debug("No schema for the lineage of %s", result.table, exc_info=True)
        use = output_of(result, schema_string=schema_string, writes=writes)
        try:
            use = replace(use, checks=() if checks is None else tuple(checks()))
        except Exception:
            self._logger.debug("No checks for the lineage of %s", result.table, exc_info=True)
        self.tables.wrote(with_symlink(use, *(named or (None, None))))


def lineage_on_start(table: str | None) -> OperatorLineage[Any, Any]:
    """Return the lineage of a task that is about to write a table; empty if the table is not known yet."""
    from airflow_delta.tasks.openlineage.facets import operator_lineage
    from airflow_delta.tasks.openlineage.lineage import Lineage, TableUse

    lineage = Lineage()
    if table is not None:
        lineage.wrote(TableUse(uri=table))
    return operator_lineage(lineage)


def lineage_on_complete(noted: TaskLineage) -> OperatorLineage[Any, Any]:
    """Return the lineage that a task has recorded."""
    from airflow_delta.tasks.openlineage.facets import operator_lineage

    return operator_lineage(noted.tables)


def absolute_table(table: Any) -> str | None:
    """Return a table named by a URI or an absolute path; ``None`` for a name that needs its connection."""
    return table if isinstance(table, str) and ("://" in table or table.startswith("/")) else None


def table_of_handle(transaction: Any) -> str | None:
    """Return the table of a handle, parsed or not."""
    table = transaction.get("table") if isinstance(transaction, Mapping) else getattr(transaction, "table", None)
    return absolute_table(table)
