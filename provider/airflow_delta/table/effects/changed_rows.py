"""The rows that the commit of an open transaction would add, change and remove, as the change data feed would show them.

From the change data files that the stages wrote, else from the files and deletion vectors that come and go. Rows that a stage
only copied to another file cancel out; what an overwrite replaces by equal rows does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from airflow_delta.contract.delta_names import CHANGE_TYPE
from airflow_delta.contract.schema import variant_columns
from airflow_delta.contract.staging_directory import holds_copies, transaction_directory
from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, Metadata
from airflow_delta.log.actions.decode import DecodedCommit
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.arrow.values import rows_of
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.align import check_values
from airflow_delta.table.changes.find import change_files
from airflow_delta.table.effects.compare import row_digest, take
from airflow_delta.table.effects.later_columns import with_columns_of
from airflow_delta.table.effects.sides import change_rows
from airflow_delta.table.read.read_table import worker_rows

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import TransactionHandle
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.changes.find import ChangedFiles
    from airflow_delta.table.commit.planned_commit import PlannedCommit

INSERT, DELETE = "insert", "delete"


class ChangedRows:
    """The changed rows as a stream, with the columns of the table after the commit and ``_change_type``.

    Memory holds a digest of each row that a stage copied to another file.
    """

    def __init__(self, log: DeltaLog, handle: TransactionHandle, commit: PlannedCommit) -> None:
        """Find the files with the rows.

        :raises DeltaUnsupportedOperationException: if the rows cannot be shown so.
        """
        _check_readable(log, handle, commit)
        self._log, self._handle, self._files = log, handle, _change_files(log, commit)
        self._after = commit.metadata
        self._before = with_columns_of(commit.snapshot.metadata, self._after) if commit.version >= 0 else self._after
        columns = worker_rows(log, [], metadata=self._after, version=self._files.version).schema
        self._schema: pa.Schema = pa.schema([*columns, pa.field(CHANGE_TYPE, pa.string())])
        self._names = list(columns.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; what others read first comes last: nothing of it is kept.

        :raises DeltaAnalysisException: if a column that goes does not fit into the one that comes.
        """
        files = self._files
        for batch in change_rows(self._log, files.changes, self._after, files.version):
            yield self._typed(batch, None)
        copied = [file for file in files.inserts if self._is_copied(file)]
        new = [file for file in files.inserts if not self._is_copied(file)] if copied else files.inserts
        digest = partial(row_digest, columns=self._names)
        stay: Counter[bytes] = Counter()
        for batch in self._rows(copied, self._after):
            stay.update(map(digest, rows_of(batch)))
        for batch in self._rows(files.deletes, self._before):
            gone = self._typed(batch, DELETE)
            yield gone.filter(array([not take(stay, digest(row)) for row in rows_of(gone)], pa.bool_())) if stay else gone
        for batch in self._rows(files.deleted_rows, self._after, deleted=True):
            yield self._typed(batch, DELETE)
        for batch in self._rows(new, self._after):
            yield self._typed(batch, INSERT)
        for batch in self._rows(files.inserted_rows, self._after, deleted=True):
            yield self._typed(batch, INSERT)
        if stay := +stay:  # copies of rows that another stage has brought
            for batch in self._rows(copied, self._after):
                brought = batch.filter(array([take(stay, digest(row)) for row in rows_of(batch)], pa.bool_()))
                yield self._typed(brought, INSERT)

    def _rows(self, files: Sequence[AddFile], metadata: Metadata, *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
        if files:
            yield from worker_rows(self._log, files, metadata=metadata, version=self._files.version, deleted=deleted)

    def _is_copied(self, file: AddFile) -> bool:
        root = f"{transaction_directory(self._handle.transaction_id)}/"
        stage_attempt_file = unquote(file.path).removeprefix(root).split("/", 2)
        return file.path.startswith(root) and len(stage_attempt_file) == 3 and holds_copies(stage_attempt_file[2])

    def _typed(self, batch: pa.RecordBatch, change_type: str | None) -> pa.RecordBatch:
        """Return rows with all columns, in order.

        :param change_type: ``None``: the rows say so themselves.
        """
        columns = []
        for field in self._schema:
            if field.name == CHANGE_TYPE and change_type is not None:
                columns.append(repeated(change_type, batch.num_rows, pa.string()))
            else:
                columns.append(self._cast(batch.column(field.name), field))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        try:
            values = column if column.type == field.type else column.cast(field.type)
            check_values(values)
            return values
        except pa.ArrowException as error:
            raise self._handle.error(
                DeltaAnalysisException,
                f"Rows that transaction {self._handle.transaction_id} removes from table {self._handle.table} have the column "
                f"{field.name} as {column.type}; the commit makes it {field.type} ({error}), so they are not in one table with "
                "the rows that it adds. Preview the whole table instead (only='table').",
            ) from error


def _check_readable(log: DeltaLog, handle: TransactionHandle, commit: PlannedCommit) -> None:
    before = [commit.snapshot.metadata] if commit.version >= 0 else []
    schemas = [TableDefinition.of(metadata).struct for metadata in (commit.metadata, *before)]
    if names := dict.fromkeys(name for schema in schemas for name in variant_columns(schema)):
        raise log.error(
            DeltaUnsupportedOperationException,
            f"Rows that transaction {handle.transaction_id} changes in table {handle.table} cannot be previewed: only Spark "
            f"reads variants (column {', '.join(names)}). Preview the whole table instead (only='table').",
            version=commit.version,
        )
    if taken := [name for name in TableDefinition.of(commit.metadata).schema.names if name.lower() == CHANGE_TYPE]:
        raise log.error(
            DeltaUnsupportedOperationException,
            f"Rows that transaction {handle.transaction_id} changes in table {handle.table} cannot be previewed: its column "
            f"{taken[0]} has the name of the one that tells the kind of change. Preview the whole table instead (only='table').",
            version=commit.version,
        )


def _change_files(log: DeltaLog, commit: PlannedCommit) -> ChangedFiles:
    """Return the files that show the changes, as the change data feed would find them in the commit."""
    info = {"operation": commit.operation.name, "operationMetrics": commit.operation.encoded_metrics()}
    decoded = DecodedCommit(
        commit.version + 1,
        info,
        adds=commit.adds,
        removes=commit.removes,
        cdcs=[action for action in commit.actions if isinstance(action, AddCDCFile)],
    )
    return change_files(log, decoded, 0)
