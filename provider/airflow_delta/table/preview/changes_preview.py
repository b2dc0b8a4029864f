"""The rows that the commit of an open transaction would add, change and remove, as a Delta table that holds them itself."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import CHANGE_TYPE
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import CHANGES_DIRECTORY, NO_TASK
from airflow_delta.log.actions.actions import AddFile, CommitInfo, Metadata, encode_actions
from airflow_delta.log.features.protocol import required_protocol
from airflow_delta.log.statistics.row_counts import live_records, total
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.table.arrow.files import RowWriter, WrittenFile
from airflow_delta.table.commit.planned_commit import planned_commit
from airflow_delta.table.effects.changed_rows import ChangedRows
from airflow_delta.table.effects.sides import with_change_type
from airflow_delta.table.preview.spelling import guarded
from airflow_delta.table.preview.table_preview import Preview, location, new_directory, preview_id
from airflow_delta.transaction.prepare.commit_info import ENGINE_INFO

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog


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

    Also raises as :func:`~airflow_delta.table.commit.planned_commit.planned_commit` and
    :func:`~airflow_delta.table.read.read_table.worker_rows` do.
    """
    commit = planned_commit(log, handle, staged)
    rows = ChangedRows(log, handle, commit)
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
        for batch in rows.batches():
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
    return json.dumps(_nullable(json.loads(with_change_type(schema_string))))


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
