"""Previews on object stores: read where they are, with the absolute paths of the store, by engines that share no code with us."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaIllegalArgumentException, StagedFileException
from airflow_delta.log import DeltaLog
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.table_preview import preview_table
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from stores.servers import Versitygw
from stores.tables import rows_on_store, rows_through_duckdb

ROWS = [(0, "a b"), (1, "c%"), (2, "a b"), (3, "é")]


class Open:
    """An open transaction on a table of a store: two rows that delta-rs has written, and two that are staged."""

    def __init__(self, store: Any) -> None:
        self.options = {**store.options, "allow_http": "true"}
        container = store.container()
        self.uri, self.spark_uri = f"{store.root(container)}/lake/some orders", f"{store.spark_root(container)}/lake/some orders"
        write_deltalake(self.uri, _table(ROWS[:2]), partition_by=["p"], storage_options=self.options)
        self.log = DeltaLog.for_table(self.uri, storage_options=store.options)
        self.handle: TransactionHandle = begin(self.log, transaction_key="preview")
        directory = self.handle.staging_path.removeprefix(f"{self.log.uri}/")
        self.files = []
        for row in ROWS[2:]:
            body = io.BytesIO()
            pq.write_table(_table([row]).drop_columns(["p"]), body)
            self.files.append(f"{directory}/rows/p={row[1]}/part-0.parquet")
            self.log.store.put(self.files[-1], body.getvalue())
        stage = open_stage(self.log, self.handle, task_id="rows", attempt=new_attempt())
        self.staged: StagedWrite = collect_files(stage, path="rows")

    def rows_by_delta_rs(self, uri: str) -> list[tuple[Any, ...]]:
        table = DeltaTable(uri, storage_options=self.options)
        return sorted(
            tuple(row.values())
            for row in pa.table(QueryBuilder().register("t", table).execute("SELECT id, p FROM t").read_all()).to_pylist()
        )


def _table(rows: list[tuple[int, str]]) -> pa.Table:
    return pa.table({"id": pa.array([row[0] for row in rows], pa.int64()), "p": [row[1] for row in rows]})


@pytest.fixture
def opened(store: Any) -> Open:
    return Open(store)


def test_it_is_read_where_it_is(opened, store):
    table = preview_table(opened.log, opened.handle, [opened.staged])
    changes = preview_changes(opened.log, opened.handle, [opened.staged])
    assert table.path.startswith(f"{opened.uri}/staged/")
    assert opened.rows_by_delta_rs(table.path) == ROWS
    assert [row[:2] for row in rows_on_store(changes.path, opened.options)] == ROWS[2:]
    if isinstance(store, Versitygw):  # DuckDB's extension for Azure is not on PyPI, and it has none for GCS
        assert [row[:2] for row in rows_through_duckdb(changes.path, opened.options)] == ROWS[2:]
        with pytest.raises(Exception, match="404"):  # it puts the table's location before an absolute one, local paths excepted
            rows_through_duckdb(table.path, opened.options)
    publish(opened.log, opened.handle, [opened.staged], attempt=new_attempt())
    assert opened.rows_by_delta_rs(opened.uri) == ROWS


def test_a_writer_is_refused(opened):
    table = preview_table(opened.log, opened.handle, [opened.staged])
    with pytest.raises(Exception, match="airflowPreview"):
        write_deltalake(table.path, _table(ROWS[:1]), mode="append", storage_options=opened.options)
    with pytest.raises(Exception, match="airflowPreview"):
        DeltaTable(table.path, storage_options=opened.options).delete()
    with pytest.raises(DeltaIllegalArgumentException, match="the preview of a transaction, which cannot be written to"):
        begin(DeltaLog.for_table(table.path, storage_options=opened.options), transaction_key="writes")
    assert opened.rows_by_delta_rs(table.path) == ROWS


def test_staged_files_that_are_gone_are_named(opened):
    table = preview_table(opened.log, opened.handle, [opened.staged])
    opened.log.store.delete([opened.files[0]])
    with pytest.raises(StagedFileException, match=r"part-0\.parquet"):
        preview_table(opened.log, opened.handle, [opened.staged])
    with pytest.raises(Exception, match=r"part-0\.parquet"):
        opened.rows_by_delta_rs(table.path)
    abort(opened.log, opened.handle)
    assert not list(opened.log.store.list_recursive(f"staged/{opened.handle.transaction_id}/_preview"))


def test_its_paths_begin_with_the_uri_of_its_readers(opened):
    """Spark has another scheme for the same store."""
    table = preview_table(opened.log, opened.handle, [opened.staged], table_uri=opened.spark_uri)
    assert table.path.startswith(f"{opened.spark_uri}/staged/")
    commit = opened.log.store.read(f"{table.path.removeprefix(opened.spark_uri)[1:]}/_delta_log/{table.version:020}.json")
    assert f'"path":"{opened.spark_uri.replace(" ", "%20")}/staged/'.encode() in commit
