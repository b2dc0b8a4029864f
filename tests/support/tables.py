"""Tables written by hand, action by action: what the log must be able to read, without the code that writes it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_delta.log.actions.actions import (
    Action,
    AddFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
    encode_actions,
)

TABLE_ID = "5fba94ed-9794-4965-ba6e-6ee3c0d22af9"
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "part", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)


def metadata(**changes: Any) -> Metadata:
    """Metadata of a table with the columns ``id`` (long) and ``part`` (string)."""
    return Metadata(**{"id": TABLE_ID, "schema_string": SCHEMA, "created_time": 1_700_000_000_000, **changes})


def protocol(reader: int = 1, writer: int = 2, **features: list[str]) -> Protocol:
    """A protocol action."""
    return Protocol(min_reader_version=reader, min_writer_version=writer, **features)


def add(path: str, *, part: str | None = None, size: int = 100, **changes: Any) -> AddFile:
    """A file; ``part`` makes it one of a table partitioned by ``part``."""
    values = {} if part is None else {"part": part}
    return AddFile(
        **{
            "path": path,
            "partition_values": values,
            "size": size,
            "modification_time": 1_700_000_000_000,
            "data_change": True,
            **changes,
        }
    )


def remove(path: str, *, part: str | None = None, size: int | None = 100, deleted_at: int = 1_700_000_000_000) -> RemoveFile:
    """A tombstone."""
    values = {} if part is None else {"part": part}
    return RemoveFile(
        path=path,
        deletion_timestamp=deleted_at,
        data_change=True,
        extended_file_metadata=True,
        partition_values=values,
        size=size,
    )


def txn(app_id: str, version: int, last_updated: int | None = None) -> SetTransaction:
    """An application's transaction."""
    return SetTransaction(app_id=app_id, version=version, last_updated=last_updated)


def info(operation: str = "WRITE", **changes: Any) -> CommitInfo:
    """A commitInfo."""
    return CommitInfo(**{"timestamp": 1_700_000_000_000, "operation": operation, "txn_id": str(uuid.uuid4()), **changes})


def log_path(table: Path | str, name: str) -> Path:
    """Path of a file of ``_delta_log``."""
    return Path(table) / "_delta_log" / name


def commit_path(table: Path | str, version: int) -> Path:
    """Path of a commit file."""
    return log_path(table, f"{version:020d}.json")


def write_commit(table: Path | str, version: int, *actions: Action, at: int | None = None) -> Path:
    """Write a commit file; a commitInfo comes first unless one is given.

    :param at: modification time in milliseconds.
    """
    path = commit_path(table, version)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: Sequence[Action] = actions if any(isinstance(action, CommitInfo) for action in actions) else (info(), *actions)
    path.write_bytes(encode_actions(lines))
    if at is not None:
        os.utime(path, ns=(at * 1_000_000, at * 1_000_000))
    return path


def write_compaction(table: Path | str, first: int, last: int, *actions: Action) -> Path:
    """Write a log compaction file."""
    path = log_path(table, f"{first:020d}.{last:020d}.compacted.json")
    path.write_bytes(encode_actions(actions))
    return path


def create_table(table: Path | str, *actions: Action, configuration: dict[str, str] | None = None, **changes: Any) -> Path:
    """Write commit 0: protocol, metadata and further actions."""
    return write_commit(table, 0, protocol(), metadata(configuration=configuration or {}, **changes), *actions)


def append(table: Path | str, version: int, files: int = 1, **changes: Any) -> Path:
    """Write a commit that adds files ``<version>-<n>.parquet``."""
    return write_commit(table, version, *(add(f"{version}-{number}.parquet", **changes) for number in range(files)))


def table_with_commits(table: Path | str, latest: int) -> Path:
    """Write a table of the versions 0 to ``latest``, one file each."""
    create_table(table, add("0-0.parquet"))
    for version in range(1, latest + 1):
        append(table, version)
    return Path(table)


def write_checkpoint_by_hand(table: Path | str, version: int, actions: Sequence[Action], *, parts: int = 1) -> list[Path]:
    """Write a classic checkpoint with the given actions, without statistics columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text_map = pa.map_(pa.string(), pa.string())
    kinds: dict[str, pa.StructType] = {
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", text_map),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("tags", text_map),
            ]
        ),
        "remove": pa.struct(
            [
                ("path", pa.string()),
                ("deletionTimestamp", pa.int64()),
                ("dataChange", pa.bool_()),
                ("extendedFileMetadata", pa.bool_()),
                ("partitionValues", text_map),
                ("size", pa.int64()),
            ]
        ),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("name", pa.string()),
                ("description", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", text_map)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", text_map),
                ("createdTime", pa.int64()),
            ]
        ),
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        ),
        "domainMetadata": pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
    }

    def row(action: Action) -> dict[str, Any]:
        ((kind, value),) = json.loads(encode_actions([action])).items()
        if kind == "metaData":
            value["format"]["options"] = list(value["format"]["options"].items())
        for name in ("partitionValues", "tags", "configuration"):
            if isinstance(value.get(name), dict):
                value[name] = list(value[name].items())
        return {kind: value}

    rows = [row(action) for action in actions]
    paths = []
    for part in range(parts):
        middle = "" if parts == 1 else f".{part + 1:010d}.{parts:010d}"
        name = f"{version:020d}.checkpoint{middle}.parquet"
        path = log_path(table, name)
        content = pa.Table.from_pylist(rows[part::parts], schema=pa.schema(list(kinds.items())))
        pq.write_table(content, path)
        paths.append(path)
    return paths


def write_last_checkpoint(table: Path | str, version: int, **fields: Any) -> Path:
    """Write ``_last_checkpoint``."""
    path = log_path(table, "_last_checkpoint")
    path.write_text(json.dumps({"version": version, "size": 1, **fields}))
    return path
