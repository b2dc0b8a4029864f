"""The rows that the commit of an open transaction would add, change and remove, as a Delta table that holds them itself.

What the change data feed would show of the commit, with the same ``_change_type``: from the change data files that the stages
wrote, else from the files and deletion vectors that come and go. Rows that a stage only copied to another file cancel out.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from airflow_delta.contract.delta_names import CHANGE_TYPE, COLUMN_ID, COLUMN_MAPPING_MODE, PHYSICAL_NAME
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.schema import variant_columns
from airflow_delta.contract.staging_directory import CHANGES_DIRECTORY, NO_TASK, transaction_directory
from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.log.actions.actions import AddCDCFile, AddFile, CommitInfo, Metadata, encode_actions
from airflow_delta.log.actions.decode import DecodedCommit
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.arrow.values import rows_of
from airflow_delta.log.features.protocol import required_protocol
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, to_json
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.align import check_values
from airflow_delta.table.arrow.files import RowWriter, WrittenFile
from airflow_delta.table.changes.find import change_files
from airflow_delta.table.diff.compare import row_digest
from airflow_delta.table.preview.spelling import guarded
from airflow_delta.table.preview.table_preview import Preview, commit_to_preview, location, new_directory, preview_id
from airflow_delta.table.read.read_table import worker_rows
from airflow_delta.transaction.prepare.commit_info import ENGINE_INFO

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.changes.find import ChangedFiles
    from airflow_delta.table.preview.table_preview import CommitToPreview

INSERT, DELETE = "insert", "delete"
_COPIED = re.compile(r"[0-9a-f]{8}-copied(-\d+)?")
"""Directory of an attempt with rows that stay as they were."""


def preview_changes(
    log: DeltaLog,
    handle: TransactionHandle,
    staged: Sequence[StagedWrite | Mapping[str, Any]],
    *,
    table_uri: str | None = None,
    task: str = NO_TASK,
    attempt: str | None = None,
) -> Preview:
    """Write the rows that the commit of some stages would change, replacing what earlier attempts of the task wrote.

    The columns are those of the table after the commit, and ``_change_type``: ``insert``, ``update_preimage``,
    ``update_postimage`` or ``delete``. Updates are distinguished from removed and new rows where the stages wrote change data
    (``delta.enableChangeDataFeed``). Memory holds a digest of each row that a stage copied to another file.

    :param staged: results of the stages, in any order.
    :param table_uri: URI of the table for readers, if it differs from that of this process (``s3a://`` for Spark).
    :param task: key of the task, from :func:`~airflow_delta.contract.staging_directory.stage_key`: each has a table of its own.
    :param attempt: of the task, from :func:`~airflow_delta.contract.staging_directory.new_attempt`; default: another first one.

    Also raises as :func:`~airflow_delta.table.preview.table_preview.commit_to_preview` and
    :func:`~airflow_delta.table.read.read_table.worker_rows` do.
    """
    commit = commit_to_preview(log, handle, staged)
    _check_readable(log, handle, commit)
    directory = new_directory(log, handle, CHANGES_DIRECTORY, task, attempt)
    schema_string = _plain_schema(commit.metadata.schema_string)
    writer = RowWriter(
        log.store,
        directory,
        TableDefinition.of_rows(schema_string).schema,
        (),
        mapped=False,
        compression="snappy",
        most_rows=None,
    )
    counts: Counter[str] = Counter()
    try:
        for batch in _ChangedRows(log, handle, commit, _change_files(log, commit)).batches():
            counts.update(batch.column(CHANGE_TYPE).to_pylist())
            writer.write(batch)
        writer.close()
    finally:
        writer.discard()
    now = int(time.time() * 1000)
    metadata = Metadata(id=preview_id(directory), schema_string=schema_string, created_time=now)
    info = CommitInfo(timestamp=now, operation="WRITE", operation_parameters={}, engine_info=ENGINE_INFO)
    adds = [_add(file, now) for file in writer.files]
    log.store.put(f"{directory}/{commit_file(0)}", encode_actions([info, guarded(required_protocol(metadata)), metadata, *adds]))
    added, removed = commit.adds, commit.removes
    return Preview(
        path=location(log, directory, table_uri),
        version=0,
        base_version=commit.version,
        num_files=len(adds),
        num_added_files=len(added),
        num_removed_files=len(removed),
        num_added_records=total(live_records(file) for file in added),
        num_removed_records=total(live_records(file) for file in removed),
        changes=dict(counts),
    )


def _check_readable(log: DeltaLog, handle: TransactionHandle, commit: CommitToPreview) -> None:
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


def _change_files(log: DeltaLog, commit: CommitToPreview) -> ChangedFiles:
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


class _ChangedRows:
    """The changed rows as a stream, with the columns of the table after the commit and ``_change_type``."""

    def __init__(self, log: DeltaLog, handle: TransactionHandle, commit: CommitToPreview, files: ChangedFiles) -> None:
        self._log, self._handle, self._files = log, handle, files
        self._after = commit.metadata
        before = commit.snapshot.metadata if commit.version >= 0 else self._after
        self._before = _with_later_columns(before, self._after)
        columns = worker_rows(log, [], metadata=self._after, version=files.version).schema
        self._schema: pa.Schema = pa.schema([*columns, pa.field(CHANGE_TYPE, pa.string())])
        self._names = list(columns.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; what others read first comes last: nothing of it is kept."""
        files = self._files
        if files.changes:
            metadata = msgspec.structs.replace(self._after, schema_string=_with_change_type(self._after.schema_string))
            for batch in self._rows(files.changes, metadata):
                yield self._typed(batch, None)
            return
        copied = [file for file in files.inserts if self._is_copied(file)]
        new = [file for file in files.inserts if not self._is_copied(file)] if copied else files.inserts
        stay: Counter[bytes] = Counter()
        for batch in self._rows(copied, self._after):
            stay.update(row_digest(row, self._names) for row in rows_of(batch))
        for batch in self._rows(files.deletes, self._before):
            yield self._without(self._typed(batch, DELETE), stay)
        for batch in self._rows(files.deleted_rows, self._after, deleted=True):
            yield self._typed(batch, DELETE)
        for batch in self._rows(new, self._after):
            yield self._typed(batch, INSERT)
        for batch in self._rows(files.inserted_rows, self._after, deleted=True):
            yield self._typed(batch, INSERT)
        if stay := +stay:  # copies of rows that another stage has brought
            for batch in self._rows(copied, self._after):
                yield self._typed(self._only(batch, stay), INSERT)

    def _rows(self, files: Sequence[AddFile], metadata: Metadata, *, deleted: bool = False) -> Iterator[pa.RecordBatch]:
        if files:
            yield from worker_rows(self._log, files, metadata=metadata, version=self._files.version, deleted=deleted)

    def _is_copied(self, file: AddFile) -> bool:
        root = f"{transaction_directory(self._handle.transaction_id)}/"
        parts = unquote(file.path).split("/")
        return file.path.startswith(root) and len(parts) > 5 and _COPIED.fullmatch(parts[4]) is not None

    def _without(self, batch: pa.RecordBatch, rows: Counter[bytes]) -> pa.RecordBatch:
        """Return the rows that are not among others, and take those that are out of them."""
        return (
            batch.filter(array([not _take(rows, row_digest(row, self._names)) for row in rows_of(batch)], pa.bool_()))
            if rows
            else batch
        )

    def _only(self, batch: pa.RecordBatch, rows: Counter[bytes]) -> pa.RecordBatch:
        return batch.filter(array([_take(rows, row_digest(row, self._names)) for row in rows_of(batch)], pa.bool_()))

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


def _with_later_columns(before: Metadata, after: Metadata) -> Metadata:
    """Return the metadata that read files of before a commit with the names and the order of the columns of after it.

    A column is what has its physical name, at every depth (Delta protocol, "Column Mapping"): one that is renamed keeps its
    values, and one that takes the name of a dropped one has none of these. Columns have their types of before; new ones are null.
    """
    old, new = TableDefinition.of(before), TableDefinition.of(after)
    pairing = _Pairing(was_mapped=old.column_mapping != "none", is_mapped=new.column_mapping != "none")
    partitions = {name.lower() for name in before.partition_columns}
    pairs = pairing.pairs(old.schema, new.schema)
    mode = old.column_mapping if old.column_mapping != "none" else "name"
    return msgspec.structs.replace(
        before,
        schema_string=to_json(pairing.struct(old.schema, new.schema)),
        partition_columns=[field.name for field, was in pairs if was is not None and was.name.lower() in partitions],
        configuration={**before.configuration, COLUMN_MAPPING_MODE: mode},
    )


class _Pairing:
    """Which field of before a commit is which after it.

    Without column mapping after the commit, fields are known by name, whatever its case.
    """

    def __init__(self, *, was_mapped: bool, is_mapped: bool) -> None:
        self._was_mapped = was_mapped
        self._is_mapped = is_mapped

    def pairs(self, old: StructType, new: StructType) -> list[tuple[StructField, StructField | None]]:
        """Return the fields of after, each with what it was."""
        if not self._is_mapped:
            known = {field.name.lower(): field for field in old}
            return [(field, known.get(field.name.lower())) for field in new]
        known = {self._in_files(field): field for field in old}
        return [(field, known.get(field.physical_name)) for field in new]

    def struct(self, old: StructType, new: StructType) -> StructType:
        return StructType(tuple(self._field(field, was) for field, was in self.pairs(old, new)))

    def _field(self, field: StructField, was: StructField | None) -> StructField:
        if was is None:  # a name that no file has, and no id
            return StructField(field.name, field.data_type, metadata={PHYSICAL_NAME: f"new-{uuid.uuid4()}"})
        metadata = {**was.metadata, PHYSICAL_NAME: self._in_files(was)}
        if not self._was_mapped:
            metadata.pop(COLUMN_ID, None)
        return replace(field, data_type=self._type(was.data_type, field.data_type), metadata=metadata)

    def _in_files(self, was: StructField) -> str:
        return was.physical_name if self._was_mapped else was.name

    def _type(self, old: DataType, new: DataType) -> DataType:
        match old, new:
            case StructType(), StructType():
                return self.struct(old, new)
            case ArrayType(), ArrayType():
                return replace(old, element_type=self._type(old.element_type, new.element_type))
            case MapType(), MapType():
                key, value = self._type(old.key_type, new.key_type), self._type(old.value_type, new.value_type)
                return replace(old, key_type=key, value_type=value)
        return old  # without column mapping, its fields have the names that they have in files


def _take(rows: Counter[bytes], digest: bytes) -> bool:
    if rows[digest] <= 0:
        return False
    rows[digest] -= 1
    return True


def _add(file: WrittenFile, now: int) -> AddFile:
    return AddFile(
        path=file.path,
        partition_values={},
        size=file.size,
        modification_time=now,
        data_change=True,
        stats=json.dumps({"numRecords": file.num_rows}),
    )


def _plain_schema(schema_string: str) -> str:
    """Return the schema of the changed rows: nothing of the table's rules, names in files and generated values is left."""
    return json.dumps(_nullable(json.loads(_with_change_type(schema_string))))


def _with_change_type(schema_string: str) -> str:
    schema = json.loads(schema_string)
    column = {"name": CHANGE_TYPE, "type": "string", "nullable": True, "metadata": {}}
    return json.dumps({**schema, "fields": [*schema["fields"], column]})


def _nullable(data_type: Any) -> Any:
    if not isinstance(data_type, dict):
        return data_type
    match data_type["type"]:
        case "struct":
            fields = [
                {"name": f["name"], "type": _nullable(f["type"]), "nullable": True, "metadata": {}} for f in data_type["fields"]
            ]
            return {"type": "struct", "fields": fields}
        case "array":
            return {**data_type, "elementType": _nullable(data_type["elementType"]), "containsNull": True}
        case "map":
            types = {name: _nullable(data_type[name]) for name in ("keyType", "valueType")}
            return {**data_type, **types, "valueContainsNull": True}
    return data_type
