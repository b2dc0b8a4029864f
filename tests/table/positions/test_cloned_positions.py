"""A Dag that goes on with a clone of its table takes neither new rows nor files again, nor leaves any out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaIllegalStateException, TransactionExpiredException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.changes.new_rows import NewRowsOptions, find_new_rows, read_new_rows
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.records import RECORD_DIRECTORY
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, find_source_files
from support.source_files import csv_rows
from support.table import Table

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
DAY = 24 * 3600 * 1000


class Rows:
    """A table whose new rows are taken."""

    def __init__(self, path: Path) -> None:
        self.path = path / "events"

    def put(self, number: int) -> None:
        write_deltalake(str(self.path), pa.table({"id": pa.array([number], pa.int64())}), mode="append")

    def stage(self, table: Table, handle: TransactionHandle, **options: Any) -> StagedWrite:
        given = NewRowsOptions(consumer="loader", **options)
        found = find_new_rows(table.view(handle), DeltaLog.for_table(str(self.path)), given)
        staged = table.stage(handle, read_new_rows(found).to_table())
        return StagedWrite.from_dict({**staged.to_dict(), "sources": [found.position.to_dict()]})


class Files:
    """A directory whose new files are loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path / "raw"
        self.path.mkdir()

    def put(self, number: int) -> None:
        (self.path / f"{number}.csv").write_text(f"id\n{number}\n")

    def stage(self, table: Table, handle: TransactionHandle, **options: Any) -> StagedWrite | None:
        pattern = SourcePattern.parse(f"{self.path}/")
        view = table.view(handle)
        found = find_source_files(view, store_for(pattern.base), pattern, CopyIntoOptions(**options))
        if found.load is None:
            return None
        rows = csv_rows(found)
        return StagedWrite.from_dict({**table.stage(handle, rows).to_dict(), "loads": [found.load.to_dict()]})


@pytest.fixture(params=[Rows, Files], ids=["new rows", "files"])
def source(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def table(source, tmp_path) -> Table:
    """A table with ids 0 and 1, taken in two runs; one more is new."""
    table = Table(tmp_path / "facts")
    for number in (0, 1):
        source.put(number)
        run(source, table)
    source.put(2)
    return table


def run(source: Any, table: Table, **options: Any) -> None:
    handle = table.begin(schema=SCHEMA)
    staged = source.stage(table, handle, **options)
    if staged is not None:
        table.publish(handle, staged)


def clone(target: Table, source: Table, key: str = "clone", **options: Any) -> Any:
    target.keys += 100
    return clone_table(target.log(), source.log(), transaction_key=key, attempt="1-test", **options)


def ids(table: Table) -> list[int]:
    """Return the ids; delta-rs's dataset reads no shallow clone."""
    return sorted(pa.concat_tables([read(table, path) for path in table.live()]).column("id").to_pylist())


def read(table: Table, path: str) -> pa.Table:
    return pq.read_table(table.path / unquote(path.removeprefix("file:")))


@pytest.fixture(params=[False, True], ids=["shallow", "deep"])
def deep(request) -> bool:
    return request.param


def test_a_clone_goes_on_where_its_source_was(source, table, tmp_path, deep):
    other = Table(tmp_path / "clone")
    clone(other, table, deep=deep)
    run(source, other)
    source.put(3)
    run(source, other)
    assert ids(other) == [0, 1, 2, 3]
    run(source, table)
    assert ids(table) == [0, 1, 2, 3]


def test_a_clone_of_an_earlier_version(source, table, tmp_path, deep):
    other = Table(tmp_path / "clone")
    clone(other, table, deep=deep, version=0)
    run(source, other)
    assert ids(other) == [0, 1, 2]


def test_a_clone_of_a_clone(source, table, tmp_path, deep):
    first, second = Table(tmp_path / "first"), Table(tmp_path / "second")
    clone(first, table, deep=deep)
    clone(second, first, deep=deep)
    run(source, second)
    assert ids(second) == [0, 1, 2]


def test_a_deep_clone_is_brought_up_to_date(source, table, tmp_path):
    other = Table(tmp_path / "backup")
    clone(other, table, deep=True)
    run(source, table)
    clone(other, table, "again", deep=True)
    before = other.versions()
    clone(other, table, "once more", deep=True)
    assert other.versions() == before
    source.put(3)
    run(source, other)
    assert ids(other) == [0, 1, 2, 3]


def test_a_table_that_is_brought_back_from_its_backup_takes_what_came_later_again(source, table, tmp_path):
    backup = Table(tmp_path / "backup")
    clone(backup, table, deep=True)
    run(source, table)
    live = table.log().update().add_files()
    table.commit(*(file.remove(1) for file in live))
    clone(table, backup, deep=True, replace=True)
    assert ids(table) == [0, 1]
    run(source, table)
    assert ids(table) == [0, 1, 2]


def test_what_a_replaced_clone_took_by_itself_is_new_to_it_again(source, tmp_path):
    plain, other = Table(tmp_path / "plain"), Table(tmp_path / "clone")
    handle = plain.begin(schema=SCHEMA)
    plain.publish(handle, plain.stage(handle, pa.table({"id": pa.array([7], pa.int64())})))
    clone(other, plain, deep=True)
    source.put(0)
    run(source, other)
    assert ids(other) == [0, 7]
    clone(other, plain, "again", deep=True, replace=True)
    assert ids(other) == [7]
    run(source, other)
    assert ids(other) == [0, 7]


def test_a_source_that_has_moved_since_a_replaced_clone_read_it(tmp_path):
    source, plain, other = Rows(tmp_path), Table(tmp_path / "plain"), Table(tmp_path / "clone")
    handle = plain.begin(schema=SCHEMA)
    plain.publish(handle, plain.stage(handle, pa.table({"id": pa.array([7], pa.int64())})))
    clone(other, plain, deep=True)
    source.put(0)
    run(source, other)
    clone(other, plain, "again", deep=True, replace=True)
    source.path = source.path.rename(tmp_path / "moved")
    run(source, other)
    assert ids(other) == [0, 7]


def test_records_that_the_source_has_lost_are_missed_in_the_clone_too(tmp_path, deep):
    source, table, other = Files(tmp_path), Table(tmp_path / "facts"), Table(tmp_path / "clone")
    source.put(0)
    run(source, table)
    shutil.rmtree(table.path / RECORD_DIRECTORY)
    clone(other, table, deep=deep)
    with pytest.raises(DeltaFileNotFoundException, match="are gone"):
        run(source, other)


def made_by_others(other: Table) -> None:
    """Leave of a clone what another engine's has."""
    lines = [line for line in other.lines(0) if "txn" not in line]
    lines[0]["commitInfo"].pop("tags")
    for file in (other.path / "_delta_log").iterdir():
        if file.is_file():
            file.unlink()
    other.put_foreign(0, *lines)


def test_a_clone_that_another_engine_made_cannot_tell(source, table, tmp_path):
    other = Table(tmp_path / "clone")
    clone(other, table)
    made_by_others(other)
    with pytest.raises(DeltaIllegalStateException, match="another engine made"):
        run(source, other)
    assert other.versions() == [0]
    run(source, other, assume_new=True)
    source.put(3)
    run(source, other)
    assert ids(other) == [0, 0, 1, 1, 2, 3]


def test_a_position_that_had_expired_before_the_clone_was_made(tmp_path):
    source, table, other = Rows(tmp_path), Table(tmp_path / "facts"), Table(tmp_path / "clone")
    source.put(0)
    write = source.path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in write.read_text().splitlines()]
    next(line["metaData"] for line in lines if "metaData" in line)["createdTime"] = 1
    write.write_text("".join(json.dumps(line) + "\n" for line in lines))
    handle = table.begin(schema=SCHEMA, configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    table.publish(handle, source.stage(table, handle))
    [position] = [txn for txn in table.log().update().set_transactions.values() if txn.app_id.startswith("airflow.newRows/")]
    table.commit(msgspec.structs.replace(position, last_updated=(position.last_updated or 0) - 9 * DAY))
    clone(other, table)
    with pytest.raises(TransactionExpiredException, match="assume_new=True"):
        run(source, other)
