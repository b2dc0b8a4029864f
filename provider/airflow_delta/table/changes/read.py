"""Read the change data feed in the worker, without Spark: rows of commits as record batches, oldest commit first.

What all rows of a file share (its commit, the kind of change of a data file) is one more partition value for the reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.delta_names import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log import heavy
from airflow_delta.log.statistics.row_counts import live_records
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.changes.find import Changes, find_changes
from airflow_delta.table.read.read_table import Rows, check_limit, limited, parse_where, worker_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_delta.log import AddFile, Snapshot
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.expressions.predicate import Predicate
    from airflow_delta.table.changes.find import ChangedFiles


_TYPES = {CHANGE_TYPE: "string", COMMIT_VERSION: "long", COMMIT_TIMESTAMP: "timestamp"}
_KINDS = (
    ("changes", None, False),
    ("inserts", "insert", False),
    ("deletes", "delete", False),
    ("inserted_rows", "insert", True),
    ("deleted_rows", "delete", True),
)


def read_changes(
    log: DeltaLog,
    *,
    starting_version: int | None = None,
    starting_timestamp: datetime | int | None = None,
    ending_version: int | None = None,
    ending_timestamp: datetime | int | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    snapshot: Snapshot | None = None,
) -> Rows:
    """Return the changed rows: the table's columns, ``_change_type``, ``_commit_version`` and ``_commit_timestamp``.

    ``_change_type`` is ``insert``, ``delete``, ``update_preimage`` or ``update_postimage``. Versions and times as for
    :func:`~airflow_delta.table.changes.find.find_changes`; the other parameters, which may use the added columns too,
    as for :func:`~airflow_delta.table.read.read_table.read_table`. Raises as both do.
    """
    changes = find_changes(
        log,
        starting_version=starting_version,
        starting_timestamp=starting_timestamp,
        ending_version=ending_version,
        ending_timestamp=ending_timestamp,
        snapshot=snapshot,
    )
    forms = {in_files: _Form.of(log, changes, where, in_files=in_files) for in_files in (False, True)}
    if limit is not None:
        counts = [count for commit in changes.commits for count in _counts(commit)] if where is None else []
        check_limit(log, changes.end, counts, limit, complete=where is None)
    schema = worker_rows(log, [], metadata=forms[False].metadata, version=changes.read.version, columns=columns).schema
    return limited(Rows(schema, _batches(log, changes, forms, columns, limit)), log, changes.end, limit)


@dataclass(frozen=True, slots=True)
class _Form:
    """How files are read: those with the kind of change of each row, and those whose rows all changed alike.

    :param predicate: bound to the metadata: the kind of change is a column of the file, or a partition value.
    """

    metadata: Metadata
    predicate: Predicate | None

    @classmethod
    def of(cls, log: DeltaLog, changes: Changes, where: str | None, *, in_files: bool) -> _Form:
        metadata = _with_change_columns(changes.read.metadata, in_files=in_files)
        return cls(metadata, None if where is None else parse_where(log, changes.read.version, metadata, where))

    def selected(self, files: list[AddFile], *, deleted: bool) -> list[AddFile]:
        """Return the files that may have rows to return."""
        predicate = self.predicate
        if predicate is None or not files:
            return files
        if deleted:  # exact statistics leave out the rows that a deletion vector marks
            return [file for file in files if predicate.matches_partition(file.partition_values)]
        return heavy.FileFilter(predicate).filter_actions(files)


def _batches(
    log: DeltaLog, changes: Changes, forms: Mapping[bool, _Form], columns: Sequence[str] | None, limit: int | None
) -> Iterator[pa.RecordBatch]:
    for commit in changes.commits:
        for kind, change_type, deleted in _KINDS:
            form, values = forms[change_type is None], _values(commit, change_type)
            files: list[AddFile] = [
                msgspec.structs.replace(file, partition_values={**file.partition_values, **values})
                for file in getattr(commit, kind)
            ]
            yield from worker_rows(
                log,
                form.selected(files, deleted=deleted),
                metadata=form.metadata,
                version=commit.version,
                predicate=form.predicate,
                columns=columns,
                deleted=deleted,
                limit=limit,
            )


def _with_change_columns(metadata: Metadata, *, in_files: bool) -> Metadata:
    """Return metadata of the table with the columns of the feed.

    :param in_files: the files have the kind of change of each row.
    """
    given = (COMMIT_VERSION, COMMIT_TIMESTAMP) if in_files else tuple(_TYPES)
    return msgspec.structs.replace(
        metadata,
        schema_string=change_schema(TableDefinition.of(metadata)),
        partition_columns=[*metadata.partition_columns, *given],
    )


def change_schema(table: TableDefinition) -> str:
    """Return the schema of a table with the columns of the feed."""
    schema = table.struct
    added = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _TYPES.items()]
    return json.dumps({**schema, "fields": [*schema["fields"], *added]})


def _values(commit: ChangedFiles, change_type: str | None) -> dict[str, str | None]:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=commit.timestamp)
    values: dict[str, str | None] = {COMMIT_VERSION: str(commit.version), COMMIT_TIMESTAMP: time.isoformat()}
    return values if change_type is None else {**values, CHANGE_TYPE: change_type}


def _counts(commit: ChangedFiles) -> Iterator[int | None]:
    for kind, _, deleted in _KINDS:
        for file in getattr(commit, kind):
            yield file.deletion_vector.cardinality if deleted and file.deletion_vector is not None else live_records(file)
