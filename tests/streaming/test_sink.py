"""A streaming query into a table: every micro-batch once, whatever happens to the driver."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    TransactionExpiredException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.streaming import DeltaBatchSink
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.positions.batches import committed_batches
from support.table import Table

pytestmark = pytest.mark.spark

DRIVER = """
import os, signal, sys
from pyspark.sql import SparkSession
from airflow_delta.table import run
from airflow_delta.streaming import DeltaBatchSink

table, source, checkpoint, when, at = *sys.argv[1:5], int(sys.argv[5])
publish = run.publish

def killed(log, handle, *args, **kwargs):
    if when == "before" and handle.txn_version == at:
        os.kill(os.getpid(), signal.SIGKILL)
    result = publish(log, handle, *args, **kwargs)
    if when == "after" and handle.txn_version == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

run.publish = killed
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.memory", "512m").getOrCreate()
)
df = spark.readStream.schema("id LONG, p STRING").option("maxFilesPerTrigger", 1).parquet(source)
query = (
    df.writeStream.foreachBatch(DeltaBatchSink(table, partition_by=["p"])).trigger(availableNow=True)
    .option("checkpointLocation", checkpoint).start()
)
query.awaitTermination()
print("QUERY " + str(query.id))
spark.stop()
"""


def put(source: Path, name: str, ids: list[int]) -> None:
    source.mkdir(exist_ok=True)
    path = source / f"{name}.parquet"
    # Spark takes files by their time, in milliseconds: two of the same one come in any order.
    at = time.time() - 1000 + len(list(source.iterdir()))
    pq.write_table(pa.table({"id": ids, "p": [f"p{i % 2}" for i in ids]}), path)
    os.utime(path, (at, at))


def drive(tmp_path: Path, when: str = "never", at: int = -1) -> subprocess.CompletedProcess[str]:
    roots = [Path(__file__).parents[2] / "provider"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, roots)), "SPARK_LOCAL_IP": "127.0.0.1"}
    paths = [str(tmp_path / name) for name in ("table", "source", "checkpoint")]
    command = [sys.executable, "-c", DRIVER, *paths, when, str(at)]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path):
    for number in range(4):
        put(tmp_path / "source", f"{number}", list(range(number * 10, number * 10 + 10)))
    # After the commit and before the stream knows of it; then with files that are staged and not committed.
    assert drive(tmp_path, "after", 1).returncode == -signal.SIGKILL
    table = Table(tmp_path / "table")
    assert len(table.versions()) == 2
    assert drive(tmp_path, "before", 2).returncode == -signal.SIGKILL
    assert len(table.versions()) == 2
    done = drive(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(row[0] for row in table.rows()) == list(range(40))
    [line] = [line for line in done.stdout.splitlines() if line.startswith("QUERY ")]
    batches = committed_batches(table.log(), line.removeprefix("QUERY "))
    assert [(batch.txn_version, batch.version, batch.num_records) for batch in batches] == [(n, n, 10) for n in range(4)]


def run(spark: Any, sink: DeltaBatchSink, df: Any, checkpoint: Path, mode: str = "append") -> Any:
    writer = df.writeStream.foreachBatch(sink).outputMode(mode).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    return query


def test_files_that_arrive_in_steps(spark: Any, table: Table, tmp_path: Path):
    source = tmp_path / "source"
    df = spark.readStream.schema("id LONG, p STRING").option("maxFilesPerTrigger", 1)
    sink = DeltaBatchSink(table.uri, partition_by=["p"], user_metadata="note", tags={"airflow.dagId": "d"})
    put(source, "a", [1, 2, 3])
    query = run(spark, sink, df.parquet(str(source)), tmp_path / "checkpoint")
    assert [result.version for result in sink.results.values()] == [0]
    run(spark, sink, df.parquet(str(source)), tmp_path / "checkpoint")
    assert len(table.versions()) == 1
    put(source, "b", [4])
    put(source, "c", [5, 6])
    run(spark, sink, df.parquet(str(source)), tmp_path / "checkpoint")
    assert table.rows() == [(n, f"p{n % 2}") for n in range(1, 7)]
    assert [result.txn_version for result in sink.results.values()] == [0, 1, 2]
    commit = table.actions(2)
    assert commit["txn"][0]["appId"] == str(query.id)
    assert commit["txn"][0]["version"] == 2
    info = commit["commitInfo"][0]
    assert info["operation"] == "STREAMING UPDATE"
    assert info["operationParameters"] == {"outputMode": "Append", "queryId": str(query.id), "epochId": "2"}
    sizes = sum(add["size"] for add in commit["add"])
    assert info["operationMetrics"] == {
        "numRemovedFiles": "0",
        "numOutputRows": "2",
        "numOutputBytes": str(sizes),
        "numAddedFiles": "2",
    }
    assert info["isBlindAppend"]
    assert (info["userMetadata"], info["tags"]["airflow.dagId"]) == ("note", "d")


def test_a_batch_that_the_table_cannot_remember(spark: Any, table: Table, tmp_path: Path):
    """The query was killed after its commit, and stood still until key and commit had expired."""
    table.write("SELECT 0L AS id, 'p' AS p", begin={"configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}})
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    put(source, "a", [1, 2])
    df = spark.readStream.schema("id LONG, p STRING").parquet(str(source))
    run(spark, DeltaBatchSink(table.uri), df, checkpoint)
    rows = table.rows()
    assert len(rows) == 3

    for name in ("0", ".0.crc"):  # Spark runs the batch again
        (checkpoint / "commits" / name).unlink()
    log = Path(table.path) / "_delta_log"
    path = log / f"{1:020}.json"
    path.write_text(re.sub(r'("lastUpdated":)[0-9]+', r"\g<1>1000", path.read_text()))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    table.log().checkpoint()
    for version in range(2):
        (log / f"{version:020}.json").unlink()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(checkpoint / "offsets" / "0", (two_days_ago, two_days_ago))
    with pytest.raises(Exception, match="DELTA_TRANSACTION_EXPIRED"):
        run(spark, sink := DeltaBatchSink(table.uri), df, checkpoint)
    assert isinstance(sink.failure, TransactionExpiredException)
    assert "assume_new_batch=0" in str(sink.failure)
    assert table.rows() == rows

    run(spark, DeltaBatchSink(table.uri, assume_new_batch=0), df, checkpoint)  # somebody has looked, and knows better
    assert len(table.rows()) == 5
    put(source, "b", [3])
    run(spark, DeltaBatchSink(table.uri), df, checkpoint)
    assert len(table.rows()) == 6


@pytest.mark.parametrize("updated", [False, True], ids=["made since", "brought up to date since"])
def test_a_clone_that_may_have_the_batch(spark: Any, table: Table, tmp_path: Path, updated: bool):
    """The query was killed after its commit, and goes on in a clone that has the rows of its last batch."""
    source, checkpoint, other = tmp_path / "source", tmp_path / "checkpoint", Table(tmp_path / "clone", spark)
    source.mkdir()
    df = spark.readStream.schema("id LONG, p STRING").parquet(str(source))
    for batch in range(1 + updated):
        put(source, f"{batch}", [1, 2])
        run(spark, DeltaBatchSink(table.uri), df, checkpoint)
        clone_table(other.log(), table.log(), transaction_key=f"clone {batch}", attempt="1-test", deep=True)
    rows = other.rows()
    assert len(rows) == 2 * (1 + updated)
    for name in (f"{batch}", f".{batch}.crc"):  # Spark runs the batch again
        (checkpoint / "commits" / name).unlink()
    with pytest.raises(Exception, match="a clone of another table, which may have had it"):
        run(spark, sink := DeltaBatchSink(other.uri), df, checkpoint)
    assert isinstance(sink.failure, DeltaIllegalStateException)
    assert f"assume_new_batch={batch}" in str(sink.failure)
    assert other.rows() == rows

    run(spark, DeltaBatchSink(other.uri, assume_new_batch=batch), df, checkpoint)
    assert len(other.rows()) == len(rows) + 2
    put(source, "more", [3])
    run(spark, DeltaBatchSink(other.uri), df, checkpoint)
    assert len(other.rows()) == len(rows) + 3


def test_the_whole_result_of_an_aggregation(spark: Any, table: Table, tmp_path: Path):
    source = tmp_path / "source"
    put(source, "a", [1, 2, 3])
    put(source, "b", [4, 5, 6, 7])
    stream = spark.readStream.schema("id LONG, p STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    sink = DeltaBatchSink(table.uri, mode="complete")
    run(spark, sink, stream.groupBy("p").count(), tmp_path / "checkpoint", "complete")
    assert table.rows() == [("p0", 3), ("p1", 4)]
    info = table.info(1)
    assert info["operationParameters"]["outputMode"] == "Complete"
    removed = len(table.actions(1)["remove"])
    assert info["operationMetrics"]["numRemovedFiles"] == str(removed) == str(len(table.actions(0)["add"]))


def test_batches_by_hand(spark: Any, table: Table):
    sink = DeltaBatchSink(table.uri, query_id="query", merge_schema=True)
    sink(spark.sql("SELECT 1L AS id"), 0)
    sink(spark.sql("SELECT 1L AS id"), 0)
    sink(spark.sql("SELECT 2L AS id, 'x' AS s"), 1)
    sink(spark.sql("SELECT 3L AS id, 'x' AS s LIMIT 0"), 2)
    assert [result.version for result in sink.results.values()] == [0, 1, 2]
    assert [len(table.actions(version).get("add", [])) for version in range(3)] == [1, 1, 0]
    assert table.rows() == [(1, None), (2, "x")]
    assert table.actions(0)["metaData"][0]["configuration"] == {}, "a query finds its last batch however long it stood still"
    sink(spark.sql("SELECT 1L AS id"), 1)
    assert sink.results[1].committed_before
    assert len(table.versions()) == 3
    with pytest.raises(DeltaAnalysisException, match="DELTA_NULL_SCHEMA_IN_STREAMING_WRITE"):
        sink(spark.sql("SELECT 1L AS id, array(NULL) AS n"), 3)
    assert isinstance(sink.failure, DeltaAnalysisException)
    assert not committed_batches(table.log(), "other")
    assert not committed_batches(table.log(), "query", since=3)


def test_two_drivers_of_one_query(spark: Any, table: Table, monkeypatch: pytest.MonkeyPatch):
    """The slower one finds the batch committed while it writes, and adds nothing."""
    first, second = (DeltaBatchSink(table.uri, query_id="query") for _ in range(2))
    first(spark.sql("SELECT 1L AS id"), 0)
    stage = DeltaBatchSink._stage

    def slow(self: DeltaBatchSink, *args: Any) -> Any:
        staged = stage(self, *args)
        if self is second:
            first(spark.sql("SELECT 2L AS id"), 1)
        return staged

    monkeypatch.setattr(DeltaBatchSink, "_stage", slow)
    try:
        second(spark.sql("SELECT 2L AS id"), 1)
    except ConcurrentTransactionException:
        pass
    else:
        assert second.results[1].committed_before
    assert table.rows() == [(1,), (2,)]


def test_a_sink_remembers_the_last_batches_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("airflow_delta.streaming.sink._MAX_RESULTS", 2)
    sink = DeltaBatchSink(str(tmp_path))
    monkeypatch.setattr(sink, "commit", lambda df, batch_id: batch_id)
    for batch in (0, 1, 1, 2, 3):
        sink(None, batch)
    assert list(sink.results) == [2, 3]


def test_a_query_without_an_id(spark: Any, table: Table):
    with pytest.raises(DeltaIllegalArgumentException, match="query_id"):
        DeltaBatchSink(table.uri)(spark.sql("SELECT 1L AS id"), 0)


@pytest.mark.parametrize("arguments", [{"mode": "update"}, {"overwrite_schema": True}, {"hook": object(), "storage_options": {}}])
def test_arguments_that_contradict_each_other(arguments: dict[str, Any]):
    with pytest.raises(DeltaIllegalArgumentException):
        DeltaBatchSink("/tmp/table", **arguments)


def test_a_sink_can_be_sent_to_a_server(tmp_path: Path):
    import pickle

    sink = pickle.loads(pickle.dumps(DeltaBatchSink(str(tmp_path), storage_options={"durable": "false"}, query_id="q")))
    assert (sink.table, sink.query_id) == (str(tmp_path), "q")
    assert json.dumps(sink._storage_options)
    assert DeltaLog.for_table(sink.table).update().version == -1
