"""A place is one, however it is spelled: no row is loaded twice, nor from the files of a table, because of a link or a dot."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import ConcurrentTransactionException, DeltaIllegalArgumentException, DeltaIllegalStateException
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.changes.new_rows import NewRowsOptions, find_new_rows
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.positions.files.load import pinned_load
from airflow_delta.table.positions.files.pattern import SourcePattern
from airflow_delta.table.positions.files.places import default_consumer
from airflow_delta.table.positions.files.records import Loaded, LoadedFile, new_record
from airflow_delta.table.positions.files.unloaded import CopyIntoOptions, SourceFiles, find_source_files
from support.table import Table, put_rows

SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})


class Lake:
    """A directory ``x/raw`` with files of one row each, links to it, and a table that loads them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = path / "x" / "raw"
        self.raw.mkdir(parents=True)
        (path / "link").symlink_to(path / "x")
        (path / "x" / "alias").symlink_to("raw")
        self.table = Table(path / "facts")
        self.ids: list[int] = []

    def put(self, directory: Path | None = None) -> None:
        """Put one more file."""
        self.ids.append(len(self.ids))
        (directory or self.raw).mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": self.ids[-1:]}), (directory or self.raw) / f"{self.ids[-1]}.parquet")

    def find(self, source: str, **options: Any) -> tuple[Any, SourceFiles]:
        pattern = SourcePattern.parse(source if source.startswith("/") else f"{self.path}/{source}")
        handle = self.table.begin(schema=SCHEMA)
        return handle, find_source_files(self.table.view(handle), store_for(pattern.base), pattern, CopyIntoOptions(**options))

    def stage(self, source: str, **options: Any) -> tuple[Any, StagedWrite | None]:
        handle, found = self.find(source, **options)
        if found.load is None:
            return handle, None
        found.check()
        rows = pa.concat_tables([pq.read_table(f"{found.store.root}/{file.path}") for file in found.files])
        return handle, dataclasses.replace(self.table.stage(handle, rows), loads=(found.load,))

    def run(self, source: str, **options: Any) -> None:
        handle, staged = self.stage(source, **options)
        if staged is not None:
            self.table.publish(handle, staged)

    def load_as_before(self, directory: str) -> None:
        """Load all files as releases did that recorded a directory as the author spelled it."""
        handle = self.table.begin(schema=SCHEMA)
        where = f"file://{self.path}/{directory}"
        files = []
        for path in sorted(self.raw.iterdir()):
            status = path.stat()
            files.append(
                LoadedFile(path=f"{where}/{path.name}", size=status.st_size, modification_time=status.st_mtime_ns // 1_000_000)
            )
        record = new_record(Loaded(), default_consumer(where), files, unshared=True)
        pinned = pinned_load(self.table.view(handle), record, where)
        assert pinned is not None
        staged = self.table.stage(handle, pq.read_table(self.raw))
        self.table.publish(handle, dataclasses.replace(staged, loads=(pinned[0],)))

    def check(self) -> None:
        """Check that the table has each file's row once."""
        assert sorted(row[0] for row in self.table.rows()) == self.ids


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


SPELLINGS = [
    "x/raw/",
    "x/./raw/",
    "x/raw/../raw/",
    "link/raw/",
    "link/./../x/raw/",
    "x/alias/",
    "x/alias/*",
    "x/raw/*",
    "link/raw",
]


class TestTheSource:
    def test_every_spelling_is_one_directory(self, lake):
        for spelling in [*SPELLINGS, *reversed(SPELLINGS)]:
            lake.put()
            lake.run(spelling)
            lake.check()
        assert len({app for app in lake.table.log().update().transactions if app.startswith("airflow.copyInto/")}) == 2

    @pytest.mark.parametrize("before", ["x/./raw", "link/raw", "x/raw/../raw", "x/raw"])
    @pytest.mark.parametrize("spelling", ["x/raw/", "link/raw/", "x/alias/*.parquet"])
    def test_files_that_were_recorded_under_another_spelling(self, lake, before, spelling):
        lake.put()
        lake.load_as_before(before)
        lake.run(spelling)
        lake.check()
        lake.put()
        lake.run(spelling)
        lake.run("x/raw/")
        lake.check()

    def test_one_that_has_changed_since(self, lake):
        lake.put()
        lake.load_as_before("link/raw")
        pq.write_table(pa.table({"id": [7, 8, 9]}), lake.raw / "0.parquet")
        with pytest.raises(DeltaIllegalStateException, match="have changed since"):
            lake.run("x/raw/")

    def test_a_named_consumer(self, lake):
        lake.put()
        lake.run("link/raw/", consumer="me")
        lake.put()
        lake.run("x/./raw/", consumer="me")
        lake.check()

    def test_a_link_that_leads_to_a_copy_later(self, lake):
        """As with snapshots of a directory: what has the name and the content of a loaded file is loaded."""
        lake.put()
        lake.run("link/raw/")
        os.rename(lake.path / "x", lake.path / "y")
        lake.put(lake.path / "y" / "raw")
        (lake.path / "link").unlink()
        (lake.path / "link").symlink_to(lake.path / "y")
        lake.run("link/raw/")
        lake.check()

    @pytest.mark.parametrize("target", ["raw", "raw/0.parquet", "../x/raw"])
    def test_a_link_that_may_be_a_file(self, lake, target):
        lake.put()
        (lake.path / "x" / "one").symlink_to(target)
        with pytest.raises(DeltaIllegalArgumentException, match="is a symbolic link"):
            lake.run("x/one")

    def test_two_at_once(self, lake):
        lake.put()
        one, other = lake.stage("x/raw/"), lake.stage("link/raw/")
        lake.table.publish(*one)
        with pytest.raises(ConcurrentTransactionException):
            lake.table.publish(*other)
        lake.check()


class TestTables:
    def test_staged_files_of_the_table_itself(self, lake):
        lake.put()
        lake.run("x/raw/")
        handle = lake.table.begin(schema=SCHEMA)
        put_rows(handle, [99])
        (lake.path / "mine").symlink_to(lake.table.path)
        (lake.path / "inner").symlink_to(Path(handle.staging_path) / "rows")
        for source in ("mine/staged/*/rows/*.parquet", "facts/staged/*/*/*", "inner/", "inner/*"):
            with pytest.raises(DeltaIllegalArgumentException, match=r"Delta table|directory of table"):
                lake.run(source)
        lake.check()

    @pytest.mark.parametrize(
        "source", ["other/p=1/*.parquet", "other/p=1/", "other/p=1", "other/p=1/{file}", "to/*", "other/p=1/deep/*"]
    )
    def test_a_part_of_another_table(self, lake, source):
        other = Table(lake.path / "other")
        other.write(pa.table({"id": [1], "p": [1]}), begin={"partition_by": ["p"]})
        file = next((lake.path / "other").rglob("*.parquet"))
        inside = lake.path / "other" / "p=1"
        (inside / "deep").mkdir(parents=True)
        os.rename(file, inside / file.name)
        os.link(inside / file.name, inside / "deep" / file.name)
        (lake.path / "to").symlink_to(inside)
        with pytest.raises(DeltaIllegalArgumentException, match="in the directory of a Delta table"):
            lake.run(source.format(file=file.name))

    def test_a_part_of_a_table_is_not_converted(self, lake):
        Table(lake.path / "other").write(pa.table({"id": [1]}))
        inside = lake.path / "other" / "p=1"
        inside.mkdir()
        pq.write_table(pa.table({"id": [1]}), inside / "a.parquet")
        (lake.path / "to").symlink_to(inside)
        for place in (inside, lake.path / "to", lake.path / "x" / ".." / "other" / "p=1"):
            with pytest.raises(DeltaIllegalStateException, match="inside the Delta table"):
                convert_to_delta(DeltaLog.for_table(str(place)), transaction_key="k", attempt="1-test")

    @pytest.mark.parametrize("deep", [False, True])
    def test_a_table_is_not_a_clone_of_itself(self, lake, deep):
        lake.table.create()
        (lake.path / "mine").symlink_to(lake.table.path)
        for source in (lake.path / "mine", f"{lake.path}/x/../facts", lake.path / "link" / ".." / "facts"):
            with pytest.raises(DeltaIllegalArgumentException, match="clone of itself"):
                clone_table(
                    lake.table.log(), DeltaLog.for_table(str(source)), replace=True, deep=deep, transaction_key="k", attempt="1-t"
                )
        assert lake.table.versions() == [0]

    def test_a_table_has_no_new_rows_of_itself(self, lake):
        lake.table.create()
        (lake.path / "mine").symlink_to(lake.table.path)
        view = lake.table.view(lake.table.begin())
        with pytest.raises(DeltaIllegalArgumentException, match="is the table of the transaction"):
            find_new_rows(view, DeltaLog.for_table(str(lake.path / "mine")), NewRowsOptions(consumer="me"))

    def test_finished_files_by_a_link_to_the_staging_path(self, lake):
        lake.table.create()
        (lake.path / "mine").symlink_to(lake.path)
        handle = lake.table.begin()
        put_rows(handle, pa.table({"value": pa.array([5], pa.int32())}))
        through = handle.staging_path.replace(str(lake.path), f"{lake.path}/mine/./x/..")
        lake.table.publish(handle, lake.table.stage_files(handle, path=f"{through}/rows"))
        assert lake.table.rows() == [(5,)]
