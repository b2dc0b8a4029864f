"""Checkpoints of all kinds between Delta Spark and us: each reads, and goes on from, what the other one wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.actions import encode_actions
from airflow_delta.log.actions.decode import decode_commits
from airflow_delta.log.actions.reconciliation import TailFiles
from airflow_delta.log.checkpoint.last_checkpoint import canonical_checksum, read_last_checkpoint
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.cleanup import clean_up_expired_logs
from airflow_delta.log.segment.segment import load_segment

Create = Callable[[Path, dict[str, str]], None]

FORMAT = "spark.databricks.delta.checkpointV2.topLevelFileFormat"
PART_SIZE = "spark.databricks.delta.checkpoint.partSize"
MAPPED = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    "delta.enableRowTracking": "true",
}
PREDICATES = [
    "part = 'p1'",
    "part IS NULL",
    "id > 33",
    "at >= '2024-01-03'",
    "day = '2024-01-02' AND id < 25",
    "price > 1.55",
    "nested.a = 1",
]

# (name, table properties, Delta's settings for its checkpoint, arguments of ours)
KINDS = [
    ("classic", {}, {}, {}),
    ("multi-part", {}, {PART_SIZE: "5"}, {"part_size": 5}),
    ("no statistics as structs", {"delta.checkpoint.writeStatsAsStruct": "false"}, {}, {}),
    ("no statistics as JSON", {"delta.checkpoint.writeStatsAsJson": "false"}, {}, {}),
    ("classic, mapped columns", MAPPED, {}, {}),
    ("V2, JSON", {"delta.checkpointPolicy": "v2"}, {FORMAT: "json"}, {}),
    ("V2, Parquet", {"delta.checkpointPolicy": "v2"}, {FORMAT: "parquet"}, {"parquet_manifest": True}),
    ("V2, JSON, many sidecars", {"delta.checkpointPolicy": "v2"}, {FORMAT: "json", PART_SIZE: "5"}, {"part_size": 5}),
    (
        "V2, Parquet, many sidecars, mapped columns",
        {"delta.checkpointPolicy": "v2", **MAPPED},
        {FORMAT: "parquet", PART_SIZE: "5"},
        {"part_size": 5, "parquet_manifest": True},
    ),
]


@contextmanager
def settings(delta: SparkSession, values: dict[str, str]) -> Iterator[None]:
    for key, value in values.items():
        delta.conf.set(key, value)
    try:
        yield
    finally:
        for key in values:
            delta.conf.unset(key)


@pytest.fixture(scope="module")
def create(delta: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Create:
    """Put a table at a path; those of the same properties are made once and copied."""
    made: dict[str, Path] = {}

    def copy(path: Path, properties: dict[str, str]) -> None:
        key = str(properties)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tables") / "t"
            build(delta, made[key], properties)
        shutil.copytree(made[key], path)

    return copy


def build(delta: SparkSession, path: Path, properties: dict[str, str]) -> None:
    """Five versions with partitions, nulls, nested columns, a delete and an application's transaction."""
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in {"delta.checkpointInterval": "1000", **properties}.items())
    columns = "id BIGINT, part STRING, day DATE, at TIMESTAMP, price DECIMAL(10,2), nested STRUCT<a: INT, b: STRING>"
    delta.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta PARTITIONED BY (part) TBLPROPERTIES ({listed})")
    for n in range(1, 5):
        rows = delta.range(10).selectExpr(
            f"id + {n * 10} AS id",
            "if(id = 9, null, concat('p', id % 3)) AS part",
            f"date'2024-01-0{n}' AS day",
            f"timestamp'2024-01-0{n} 01:02:03' AS at",
            f"cast(1.5 + {n} / 100 AS DECIMAL(10,2)) AS price",
            "named_struct('a', cast(id % 2 AS INT), 'b', 'x') AS nested",
        )
        writer = rows.write.format("delta").option("txnAppId", "judge").option("txnVersion", str(n))
        writer.mode("append").save(str(path))
    delta.sql(f"DELETE FROM delta.`{path}` WHERE id IN (12, 21)")


def rows_of(delta: SparkSession, path: Path, condition: str = "true") -> list[str]:
    return sorted(map(str, delta.read.format("delta").load(str(path)).where(condition).collect()))


def checkpoint_by_delta(delta: SparkSession, path: Path) -> None:
    log = delta._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    log.forTable(delta._jsparkSession, str(path)).checkpoint()


def only_checkpoint(delta: SparkSession, path: Path, version: int) -> None:
    """Delete all commits below a checkpoint, and the checksums."""
    for file in (path / "_delta_log").iterdir():
        if file.name.endswith(".crc") or (file.suffix == ".json" and file.stem.isdigit() and int(file.stem) < version):
            file.unlink()
    for file in path.rglob(".*.crc"):
        file.unlink()
    delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def state(snapshot: Snapshot) -> tuple:
    return (
        sorted(map(str, snapshot.files().to_pylist())),
        sorted(map(str, snapshot.tombstones().to_pylist())),
        dict(snapshot.set_transactions),
        snapshot.domain_metadata,
        snapshot.protocol,
        snapshot.metadata,
    )


@pytest.mark.parametrize(("properties", "conf"), [k[1:3] for k in KINDS], ids=[k[0] for k in KINDS])
def test_we_read_what_delta_wrote(
    delta: SparkSession, create: Create, tmp_path: Path, properties: dict[str, str], conf: dict[str, str]
) -> None:
    path = tmp_path / "t"
    create(path, properties)
    log = DeltaLog.for_table(str(path))
    commits = log.snapshot
    assert commits.segment.checkpoint is None
    expected = state(commits)
    matches = {predicate: commits.files(predicate).num_rows for predicate in PREDICATES}
    with settings(delta, conf):
        checkpoint_by_delta(delta, path)
    hint = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())
    assert hint["checksum"] == canonical_checksum(hint)
    assert read_last_checkpoint(log.store) is not None
    only_checkpoint(delta, path, 5)
    found = DeltaLog.for_table(str(path)).snapshot
    assert found.segment.checkpoint is not None
    assert found.segment.checkpoint.version == 5
    assert state(found) == expected
    assert {predicate: found.files(predicate).num_rows for predicate in PREDICATES} == matches


@pytest.mark.parametrize(("properties", "arguments"), [(k[1], k[3]) for k in KINDS], ids=[k[0] for k in KINDS])
@pytest.mark.parametrize("source", ["commits", "Delta's checkpoint"])
def test_delta_reads_what_we_wrote(
    delta: SparkSession, create: Create, tmp_path: Path, properties: dict[str, str], arguments: dict, source: str
) -> None:
    path = tmp_path / "t"
    create(path, properties)
    expected = {condition: rows_of(delta, path, condition) for condition in ("true", *PREDICATES)}
    if source == "Delta's checkpoint":
        checkpoint_by_delta(delta, path)
    base = DeltaLog.for_table(str(path)).snapshot
    assert (base.segment.checkpoint is None) == (source == "commits")
    before = {file for file in (path / "_delta_log").iterdir() if "checkpoint" in file.name[20:]}
    write_checkpoint(base, **arguments)
    for file in before:  # V2 manifests have names of their own: leave only the new one
        if source != "commits" and properties.get("delta.checkpointPolicy") == "v2":
            file.unlink()
    hint = (path / "_delta_log" / "_last_checkpoint").read_text()
    delta._jvm.org.apache.spark.sql.delta.LastCheckpointInfo.deserializeFromJson(hint, True)
    only_checkpoint(delta, path, 5)
    assert {condition: rows_of(delta, path, condition) for condition in ("true", *PREDICATES)} == expected
    # Delta goes on from it, and we from that.
    delta.sql(f"DELETE FROM delta.`{path}` WHERE id = 30")
    delta.sql(f"OPTIMIZE delta.`{path}`")
    checkpoint_by_delta(delta, path)
    assert rows_of(delta, path) == [row for row in expected["true"] if "id=30," not in row]
    fresh = DeltaLog.for_table(str(path))
    without = load_segment(fresh.store, exclude=frozenset({fresh.snapshot.version}))
    assert without is not None
    assert state(fresh.snapshot) == state(Snapshot(fresh, without))


def test_delta_reads_the_classic_twin(delta: SparkSession, create: Create, tmp_path: Path) -> None:
    """The compatibility checkpoint that log cleanup leaves beside a V2 checkpoint."""
    path = tmp_path / "t"
    create(path, {"delta.checkpointPolicy": "v2"})
    expected = rows_of(delta, path)
    log = DeltaLog.for_table(str(path))
    write_checkpoint(log.snapshot, part_size=5)
    assert clean_up_expired_logs(DeltaLog.for_table(str(path)).snapshot, now=4_000_000_000_000)
    twin = path / "_delta_log" / f"{5:020d}.checkpoint.parquet"
    assert twin.exists()
    (manifest,) = (path / "_delta_log").glob("*.checkpoint.*-*")
    manifest.unlink()
    (path / "_delta_log" / "_last_checkpoint").unlink()
    only_checkpoint(delta, path, 5)
    assert rows_of(delta, path) == expected


def test_delta_reads_our_checkpoint_over_a_compaction(delta: SparkSession, create: Create, tmp_path: Path) -> None:
    """A log compaction file as Delta's own reader takes it: both of us list the same files."""
    path = tmp_path / "t"
    create(path, {})
    expected = rows_of(delta, path)
    log = DeltaLog.for_table(str(path))
    files = state(log.snapshot)
    tail = TailFiles.of(decode_commits(log.read_commit_range(range(1, 5)), table=log.uri))
    compacted = path / "_delta_log" / f"{1:020d}.{4:020d}.compacted.json"
    txn = list(log.snapshot.set_transactions.values())
    compacted.write_bytes(encode_actions([*tail.removes.values(), *tail.adds.values(), *txn]))
    delta._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert rows_of(delta, path) == expected
    fresh = DeltaLog.for_table(str(path)).snapshot
    assert len(fresh.segment.compactions) == 1
    assert state(fresh) == files
