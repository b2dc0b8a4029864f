"""VACUUM and RESTORE of a table on S3, against a real server."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.exceptions import DeltaFileNotFoundException, NonEmptyLocationException
from airflow_delta.log import DeltaLog
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin

pytestmark = pytest.mark.s3


def test_vacuum_and_restore(s3_table, s3_options, s3_client):
    storage = {**s3_options, "conditional_put": "etag"}
    for values in ([1], [2]):
        data = pa.table({"id": values, "p": ["a b%"]})
        write_deltalake(s3_table, data, mode="append", partition_by=["p"], storage_options=storage)
    DeltaTable(s3_table, storage_options=storage).delete("id = 1")
    log = DeltaLog.for_table(s3_table, s3_options)
    handle = begin(log, transaction_key="live")
    live = f"staged/{handle.transaction_id}/rows/part-0.parquet"
    for key in ("orphan 1%.parquet", "_hidden/x", "_change_data/x.parquet", live):
        log.store.put(key, b"12345")

    def latest() -> int:  # the store's clock is behind ours by what it cuts off
        return max(status.modification_time for status in log.store.list_recursive("")) + HOUR

    options = {"retention_hours": 0, "retention_check": False, "clock": latest}
    found = vacuum(log, **options, dry_run=True)
    assert found.num_live_transactions == 1
    assert {path for path in found.paths if not path.startswith("p=")} == {"orphan 1%.parquet", "_change_data/x.parquet"}
    assert found.num_files == 3
    restored = restore(log, version=0, transaction_key="restore", attempt="1-0")
    assert restored.num_files == restored.num_removed_files == 1
    done = vacuum(log, **options)
    assert done.num_files == 3
    left = {status.path for status in log.store.list_recursive("")}
    assert not left & set(done.paths)
    assert {live, "_hidden/x"} <= left
    table = DeltaTable(s3_table, storage_options=storage).to_pyarrow_table()
    assert table.column("id").to_pylist() == [1]
    named = ["nested/x.parquet", "nested/_delta_log/0.json", "_hidden/x", live, "d/gone.parquet"]
    for key in (*named[:2], named[-1]):
        log.store.put(key, b"12345")
    removes = [{"remove": {"path": key, "deletionTimestamp": 1, "dataChange": True}} for key in named]
    version = log.update().version + 1
    log.store.put(f"_delta_log/{version:020}.json", "\n".join(map(json.dumps, removes)).encode())
    assert vacuum(log, **options, lite=True).paths == ("d/gone.parquet",)
    assert {*named[:-1]} <= {status.path for status in log.store.list_recursive("")}
    with pytest.raises(DeltaFileNotFoundException):
        restore(log, version=2, transaction_key="restore 2", attempt="1-0")


def test_a_table_is_created_where_no_other_files_are(s3_table, s3_options):
    log = DeltaLog.for_table(s3_table, s3_options)
    for key in ("_SUCCESS", ".x/y", *(f"_hidden/{n}" for n in range(3))):
        log.store.put(key, b"x")
    for n in range(3):
        staged = begin(log, transaction_key=str(n)).transaction_id
        log.store.put(f"staged/{staged}/rows/part-0.parquet", b"PAR1")
    for key in ("a.json", "staged/raw.json", "staged/raw/x.json", "stagedX/x.json", "z/x.parquet", "~/x", "_p=1/x.parquet"):
        log.store.put(key, b"PAR1")
        with pytest.raises(NonEmptyLocationException, match="holds other files"):
            begin(log, transaction_key="new")
        log.store.delete([key])
    assert begin(log, transaction_key="new").read_version == -1


def test_markers_of_directories_are_no_files(s3_table, s3_options, s3_client):
    """The S3 console and Hadoop create an empty object for a directory, with a key that ends in a slash."""
    _, _, bucket, root = s3_table.split("/", 3)

    def mark(*directories: str) -> None:
        for directory in directories:
            s3_client.put_object(Bucket=bucket, Key=f"{root}/{directory}", Body=b"")

    mark("", "empty/", "old_$folder$", "staged/", "staged_$folder$")
    log = DeltaLog.for_table(s3_table, s3_options)
    handle = begin(log, transaction_key="new", partition_by=["p"])
    job = f"staged/{handle.transaction_id}/job"
    mark(f"staged/{handle.transaction_id}/", f"{job}/", f"{job}/p=1/", f"{job}/p=2/", f"{job}/p=1_$folder$", "_delta_log/")
    log.store.put(f"{job}/_SUCCESS", b"")
    buffer = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}), buffer)
    log.store.put(f"{job}/p=1/part-0.parquet", buffer.getvalue())
    assert [status.name for status in log.store.list_recursive(job)] == ["_SUCCESS", "part-0.parquet"]
    assert log.store.list_children("staged") == ([], [handle.transaction_id])
    staged = collect_files(open_stage(log, handle, task_id="job", attempt="1-a"), path="job")
    assert publish(log, handle, [staged], attempt="1-a").version == 0
    assert vacuum(log, retention_hours=0, retention_check=False, dry_run=True).paths == (f"{job}/_SUCCESS",)
    log.store.put("empty.json", b"")  # has nothing in it, and is a file
    assert "empty.json" in {status.path for status in log.store.list_recursive("")}
