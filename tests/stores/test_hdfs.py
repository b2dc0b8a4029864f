"""Tables on HDFS: the log store, races of commits, a whole transaction, and Spark, on Hadoop's own mini cluster."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.errors import StoreUnavailableError
from airflow_delta.log.storage.hdfs import HdfsStore
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.merge import DeltaMergeOperator
from airflow_delta.operators.pyspark import DeltaStagePySparkOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.operators.vacuum import DeltaVacuumOperator
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from stores.clusters import MiniCluster
from stores.tables import run_task
from support import readers

WRITERS = 8


@pytest.fixture(scope="module")
def hdfs(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of the name node."""
    with MiniCluster("hdfs", tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster.setting("fs.defaultFS").rstrip("/")


@pytest.fixture
def uri(hdfs: str, request: pytest.FixtureRequest) -> str:
    return f"{hdfs}/lake/a b/{request.node.name.replace('[', '-').rstrip(']')}"


@pytest.fixture
def store(uri: str) -> HdfsStore:
    return HdfsStore(uri)


def put_rows(log: DeltaLog, handle: Any, ids: list[int]) -> None:
    body = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), body)
    log.store.put(f"{handle.staging_path.removeprefix(log.uri + '/')}/rows/part-0.parquet", body.getvalue())


def append(uri: str, ids: list[int], key: str) -> int:
    log = DeltaLog.for_table(uri)
    handle = begin(log, transaction_key=key)
    put_rows(log, handle, ids)
    staged = collect_files(open_stage(log, handle, task_id="s", attempt=new_attempt()), path="rows")
    return int(publish(log, handle, [staged], attempt=new_attempt()).version)


def copied(store: HdfsStore, directory: Path) -> Path:
    for status in store.list_recursive(""):
        target = directory / status.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.read(status.path))
    return directory


# -- the store ------------------------------------------------------------------------------------------------------------------


def test_files(store: HdfsStore) -> None:
    name = "p=a b%2F ü/part 1.parquet"
    assert store.head(name) is None
    assert store.list_from("_delta_log", "") == []
    assert store.list_children("") == ([], [])
    with pytest.raises(FileNotFoundError):
        store.read(name)
    store.put_if_absent(name, b"0123456789")
    with pytest.raises(FileExistsError):
        store.put_if_absent(name, b"x")
    assert (store.read(name), store.read_range(name, 8, 100), store.read_range(name, 20, 5)) == (b"0123456789", b"89", b"")
    store.put(name, b"01")
    assert store.read(name) == b"01"
    status = store.head(name)
    assert status is not None
    assert (status.size, status.modification_time > 1_600_000_000_000) == (2, True)
    with store.scratch_file() as file:
        file.write(b"z" * (5 << 20))
        file.seek(0)
        store.put_file("_delta_log/large", file)
    assert len(store.read("_delta_log/large")) == 5 << 20
    assert store.open_input("_delta_log/large").read() == b"z" * (5 << 20)
    store.put("_delta_log/a", b"")
    assert [found.name for found in store.list_from("_delta_log", "b")] == ["large"]
    assert sorted(found.path for found in store.list_recursive("")) == sorted(["_delta_log/a", "_delta_log/large", name])
    assert [found.path for found in store.list_visible(lambda top: top.startswith("_"))] == [name]
    assert store.list_directories("") == ["_delta_log", "p=a b%2F ü"]
    store.delete([name, name, "missing"])
    assert store.head(name) is None
    assert (store.delete_tree("_delta_log"), store.delete_tree("_delta_log")) == (2, 0)


def test_put_if_absent_has_one_winner(store: HdfsStore) -> None:
    def put(name: str, writer: int) -> bool:
        try:
            store.put_if_absent(name, b"%d" % writer * 100)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(10):
            name = f"_delta_log/{number:020}.json"
            won = list(pool.map(lambda writer, name=name: put(name, writer), range(WRITERS)))
            assert won.count(True) == 1
            assert store.read(name) == b"%d" % won.index(True) * 100
    assert len(list(store.list_recursive(""))) == 10  # no temporary file is left


class LostAnswer:
    """A client whose rename is done, while its caller hears of an error."""

    def __init__(self, client: Any, error: Exception, *, done: bool) -> None:
        self._client, self._error, self._done = client, error, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        if self._done:
            self._client.rename(source, target, overwrite)
        raise self._error


@pytest.mark.parametrize("error", [OSError("connection reset"), FileExistsError("by its own repetition")], ids=["lost", "again"])
def test_a_rename_that_was_done_is_a_success_whatever_the_answer(store: HdfsStore, error: Exception) -> None:
    store._made = LostAnswer(store._client, error, done=True)
    store.put_if_absent("_delta_log/0.json", b"1")
    assert store.read("_delta_log/0.json") == b"1"


def test_a_rename_that_was_not_done_leaves_nothing(store: HdfsStore) -> None:
    from airflow_delta.log.storage.errors import AmbiguousPutError

    store._made = LostAnswer(store._client, OSError("connection reset"), done=False)
    with pytest.raises(AmbiguousPutError):
        store.put_if_absent("_delta_log/0.json", b"1")
    assert list(store.list_recursive("")) == []


def test_a_name_node_that_does_not_answer_is_a_typed_error() -> None:
    with pytest.raises(StoreUnavailableError, match=r"Reading hdfs://127\.0\.0\.1:1/t/x failed"):
        HdfsStore("hdfs://127.0.0.1:1/t", {"dfs.client.failover.max.attempts": "1"}).read("x")


# -- the log ------------------------------------------------------------------------------------------------------------------


def test_a_transaction_and_its_maintenance(uri: str, tmp_path: Path) -> None:
    assert append(uri, [0, 1], "first") == 0
    assert append(uri, [2, 3], "second") == 1
    again = begin(DeltaLog.for_table(uri), transaction_key="second")
    assert again.committed is not None
    assert again.committed.version == 1
    log = DeltaLog.for_table(uri)
    log.checkpoint()
    assert append(uri, [4], "third") == 2
    handle = begin(log, transaction_key="given up")
    put_rows(log, handle, [9])
    assert abort(log, handle).outcome == "deleted"
    log.store.put("orphan.parquet", b"x")
    vacuum(log, retention_hours=0, retention_check=False, clock=lambda: 4_000_000_000_000)
    assert log.store.head("orphan.parquet") is None
    copy = copied(HdfsStore(uri), tmp_path / "copy")
    assert sorted(row["id"] for row in readers.rows(copy)) == [0, 1, 2, 3, 4]
    assert deltalake.DeltaTable(copy).version() >= 2


def test_every_commit_of_several_writers_is_kept(uri: str, tmp_path: Path) -> None:
    append(uri, [-1], "first")
    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(lambda number: append(uri, [number], f"key-{number}"), range(12)))
    assert sorted(versions) == list(range(1, 13))
    copy = copied(HdfsStore(uri), tmp_path / "copy")
    assert sorted(row["id"] for row in readers.rows(copy)) == list(range(-1, 12))


# -- processes -----------------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_at_once(uri: str) -> None:
    """In a process of its own: this one has threads of others, which fork does not survive either."""
    append(uri, [1], "first")
    code = f"""
import os
from airflow_delta.exceptions import ForkedProcessException
from airflow_delta.log import DeltaLog
print(DeltaLog.for_table({uri!r}).update().version, flush=True)
if os.fork() == 0:
    try:
        DeltaLog.for_table({uri!r}).update()
    except ForkedProcessException as error:
        print("refused:", error, flush=True)
    os._exit(0)
os.wait()
"""
    done = run(code)
    assert done.stdout.splitlines()[0] == "0", done.stderr
    assert done.stdout.splitlines()[1].startswith("refused:")


def test_without_the_package(uri: str) -> None:
    code = f"""
import sys
sys.modules["hdfs_native"] = None
from airflow_delta.log import DeltaLog
DeltaLog.for_table({uri!r}).update()
"""
    assert "airflow-provider-delta[hdfs]" in run(code).stderr


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "provider")}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=120)


# -- the connection, and Spark ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(hdfs: str, monkeypatch: pytest.MonkeyPatch, outside_of_the_task_runner: object) -> str:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    connection = {"conn_type": "delta", "host": f"{hdfs}/warehouse", "login": "etl"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return hdfs


def test_the_connection(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good, text = DeltaHook("lake").test_connection()
    assert good, text
    assert "refuses to overwrite" in text
    monkeypatch.setenv("HADOOP_USER_NAME", "another")
    with pytest.raises(DeltaIllegalArgumentException, match=r"'etl'.*'another'"):
        DeltaHook("lake").get_log("t").update()


def test_spark_reads_and_writes(lake: str, spark: Any, tmp_path: Path) -> None:
    handle = run_task(DeltaStartTransactionOperator(task_id="start", table="t", delta_conn_id="lake", partition_by=["p"]))
    rows = "SELECT id, concat('a b ', id % 2) AS p FROM range(20)"
    stage = DeltaStagePySparkOperator(task_id="stage", transaction=handle, python_callable=lambda spark: spark.sql(rows))
    staged = run_task(stage)
    committed = run_task(DeltaCommitOperator(task_id="commit", transaction=handle, staged=staged), stage="success")
    assert (committed["version"], committed["numRecords"]) == (0, 20)
    alone = {"table": "t", "delta_conn_id": "lake"}
    assert run_task(DeltaDeleteOperator(task_id="delete", predicate="id < 5", **alone))["version"] == 1
    source = "SELECT id, 'a b 0' AS p FROM range(19, 22)"
    merge = DeltaMergeOperator(task_id="merge", source=source, condition="target.id = source.id", **alone)
    assert run_task(merge)["version"] == 2
    vacuumed = run_task(DeltaVacuumOperator(task_id="vacuum", retention_hours="0", retention_check=False, **alone))
    assert vacuumed["numFiles"] > 0
    expected = {number: f"a b {number % 2}" for number in range(5, 19)} | dict.fromkeys(range(19, 22), "a b 0")
    copy = copied(HdfsStore(f"{lake}/warehouse/t", {"hadoop_user_name": "etl"}), tmp_path / "copy")
    assert {row["id"]: row["p"] for row in readers.rows(copy)} == expected
