"""Tables written by hand, action by action: what the log must be able to read, without the code that writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_delta.log.actions.actions import Action, CommitInfo, encode_actions
from support.actions import SCHEMA, TABLE_ID, add, as_json, info, metadata, protocol, remove, txn

__all__ = ["SCHEMA", "TABLE_ID", "add", "info", "metadata", "protocol", "remove", "txn"]


def log_path(table: Path | str, name: str) -> Path:
    """Path of a file of ``_delta_log``."""
    return Path(table) / "_delta_log" / name


def commit_path(table: Path | str, version: int) -> Path:
    """Path of a commit file."""
    return log_path(table, f"{version:020d}.json")


def crc_path(table: Path | str, version: int) -> Path:
    """Path of a checksum file."""
    return log_path(table, f"{version:020d}.crc")


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
        ((kind, value),) = as_json(action).items()
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
