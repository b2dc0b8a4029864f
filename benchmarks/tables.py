"""Synthetic Delta logs of a given size, as a foreign engine would have written them. The data files do not exist: nothing reads them."""

from __future__ import annotations

import datetime
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATES = [(datetime.date(2024, 1, 1) + datetime.timedelta(days=d)).isoformat() for d in range(90)]
COUNTRIES = ["AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL", "PL", "SE"]
DATA_COLUMNS = ["id", *(f"c{i}" for i in range(9))]
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": n, "type": t, "nullable": True, "metadata": {}}
            for n, t in [*((c, "long") for c in DATA_COLUMNS), ("date", "string"), ("country", "string")]
        ],
    }
)
METADATA = {
    "id": "11111111-2222-3333-4444-555555555555",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": SCHEMA,
    "partitionColumns": ["date", "country"],
    "configuration": {"delta.checkpointInterval": "1000000"},
    "createdTime": 1_700_000_000_000,
}
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
V2_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["v2Checkpoint"],
    "writerFeatures": ["v2Checkpoint", "appendOnly", "invariants"],
}
V2_METADATA = {**METADATA, "configuration": {**METADATA["configuration"], "delta.checkpointPolicy": "v2"}}
NOW = 1_795_000_000_000
ROWS = 1000


def commit_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def write_commit(table: Path, version: int, actions: list[dict]) -> None:
    commit_path(table, version).write_text("".join(json.dumps(a, separators=(",", ":")) + "\n" for a in actions))


def partition(i: int) -> dict[str, str]:
    return {"date": DATES[i % 90], "country": COUNTRIES[i // 90 % 10]}


def stats(i: int) -> str:
    low = {c: i * ROWS + k for k, c in enumerate(DATA_COLUMNS)}
    high = {c: v + ROWS - 1 for c, v in low.items()}
    return json.dumps(
        {"numRecords": ROWS, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(DATA_COLUMNS, 0)},
        separators=(",", ":"),
    )


def add(i: int, path: str | None = None) -> dict:
    p = partition(i)
    return {
        "add": {
            "path": path or f"date={p['date']}/country={p['country']}/part-{i:05d}-{uuid.UUID(int=i)}.c000.snappy.parquet",
            "partitionValues": p,
            "size": 1_000_000 + i,
            "modificationTime": NOW,
            "dataChange": True,
            "stats": stats(i),
        }
    }


def remove(i: int) -> dict:
    a = add(i)["add"]
    return {
        "remove": {
            "path": a["path"],
            "deletionTimestamp": NOW,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": a["partitionValues"],
            "size": a["size"],
        }
    }


def info(operation: str = "WRITE") -> dict:
    return {"commitInfo": {"timestamp": NOW, "operation": operation, "operationParameters": {}}}


MAP = pa.map_(pa.string(), pa.string())
CHECKPOINT_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", MAP),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("tags", MAP),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", MAP),
                    ("size", pa.int64()),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", MAP)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", MAP),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)


def _arrow_row(action: dict) -> dict:
    """Maps as lists of pairs, which is what pyarrow converts."""
    row = json.loads(json.dumps(action))
    for body in row.values():
        for key in ("partitionValues", "tags", "configuration"):
            if body.get(key) is not None:
                body[key] = list(body[key].items())
        if "format" in body:
            body["format"]["options"] = []
    return row


def build_table(table: Path, files: int, *, tail: int = 10, app_ids: int = 5, version: int = 100, v2: bool = False) -> None:
    """A checkpoint at `version` with `files` adds and 1 % tombstones, then `tail` commits of 10 adds and 5 removes each."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    checkpoint = log / f"{version:020d}.checkpoint.parquet"
    head = [{"protocol": V2_PROTOCOL if v2 else PROTOCOL}, {"metaData": V2_METADATA if v2 else METADATA}]
    head += [{"txn": {"appId": f"app-{i}", "version": i, "lastUpdated": NOW}} for i in range(app_ids)]
    step = 100_000
    with pq.ParquetWriter(checkpoint, CHECKPOINT_SCHEMA, compression="snappy") as writer:
        writer.write_table(pa.Table.from_pylist([_arrow_row(a) for a in head], CHECKPOINT_SCHEMA))
        for start in range(0, files, step):
            rows = [_arrow_row(add(i)) for i in range(start, min(start + step, files))]
            writer.write_table(pa.Table.from_pylist(rows, CHECKPOINT_SCHEMA))
        dead = [_arrow_row(remove(10_000_000 + i)) for i in range(files // 100)]
        if dead:
            writer.write_table(pa.Table.from_pylist(dead, CHECKPOINT_SCHEMA))
    size = len(head) + files + files // 100
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": size}))
    write_commit(table, version, [info()])
    for k in range(tail):
        adds = [add(20_000_000 + 10 * k + j) for j in range(10)]
        removes = [remove(5 * k + j) for j in range(5)]
        write_commit(table, version + 1 + k, [info(), *adds, *removes])


def build_json_table(table: Path, commits: int, adds: int = 1, *, checkpoint_interval: int | None = None) -> None:
    """No checkpoint: `commits` JSON commits of `adds` adds each after the one that creates the table."""
    (table / "_delta_log").mkdir(parents=True)
    configuration = METADATA["configuration"]
    if checkpoint_interval is not None:
        configuration = {"delta.checkpointInterval": str(checkpoint_interval)}
    metadata = {**METADATA, "configuration": configuration}
    write_commit(table, 0, [info("CREATE TABLE"), {"protocol": PROTOCOL}, {"metaData": metadata}])
    for v in range(1, commits + 1):
        write_commit(table, v, [info(), *(add(v * adds + j) for j in range(adds))])
