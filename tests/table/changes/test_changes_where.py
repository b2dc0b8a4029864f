"""Predicates on the change data feed: which rows they select, and which files they leave unopened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from airflow_delta.exceptions import DeltaFileNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.table.changes.read import read_changes
from support.actions import AT, info
from support.table import Table
from support.tables import write_commit

FEED = {"delta.enableChangeDataFeed": "true"}
PREDICATES = [
    "_change_type = 'delete'",
    "_change_type <> 'update_preimage'",
    "_change_type IS DISTINCT FROM 'update_preimage'",
    "NOT (_change_type <=> 'update_preimage')",
    "_change_type IS NULL",
    "_change_type IS NOT NULL AND id = 2",
    "_change_type IN ('update_postimage', 'insert') AND p = 'b'",
    "p = 'a' OR _change_type = 'update_preimage'",
    "_commit_version = 1",
    "_commit_version > 1 AND _change_type = 'delete'",
    "id > 100",
]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of delta-rs: files of inserts, of deletes, and of updates with both images."""
    path = tmp_path_factory.mktemp("feed") / "table"
    rows = pa.table({"id": pa.array(range(6), pa.int64()), "p": list("aabbcc"), "v": [0] * 6})
    write_deltalake(str(path), rows, partition_by=["p"], configuration=FEED)
    DeltaTable(str(path)).update({"v": "1"}, predicate="id >= 2 AND id < 5")
    DeltaTable(str(path)).delete("id = 3")
    DeltaTable(str(path)).delete("p = 'a'")
    return path


@pytest.mark.parametrize("where", PREDICATES)
def test_the_rows_are_those_of_another_engine(feed: Path, where: str) -> None:
    changes = pa.RecordBatchReader.from_stream(DeltaTable(str(feed)).load_cdf(starting_version=0)).read_all()
    columns = "id, p, v, _change_type, _commit_version"
    judged = where.replace("<=>", "IS NOT DISTINCT FROM")
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.register("changes", changes)
        expected = connection.execute(f"SELECT {columns} FROM changes WHERE {judged}").fetchall()
    found = read_changes(DeltaLog.for_table(str(feed)), starting_version=0, where=where, columns=columns.split(", ")).to_table()
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(expected)


PRUNED = {
    "p = '3'": lambda version, file: "p=3" in file,
    "id = 21": lambda version, file: version == 2 and "p=1" in file,
    "_commit_version = 2": lambda version, file: version == 2,
    "_change_type = 'delete'": lambda version, file: False,
}


@pytest.mark.parametrize(("where", "needed"), PRUNED.items(), ids=PRUNED.keys())
def test_files_that_cannot_have_selected_rows_are_not_opened(
    tmp_path: Path, where: str, needed: Callable[[int, str], bool]
) -> None:
    table = Table(tmp_path / "t")
    for version in range(4):
        ids = list(range(version * 10, version * 10 + 5))
        begin: dict[str, Any] = {"partition_by": ["p"], "configuration": FEED} if not version else {}
        table.write(pa.table({"id": ids, "p": [str(key % 10) for key in ids]}), begin=begin)
    before = read_changes(table.log(), starting_version=0, where=where).to_table()
    for version in table.versions():
        for add in table.actions(version).get("add", []):
            if not needed(version, add["path"]):
                (table.path / add["path"]).unlink()
    assert read_changes(table.log(), starting_version=0, where=where).to_table() == before
    with pytest.raises(DeltaFileNotFoundException):
        read_changes(table.log(), starting_version=0).to_table()


def test_rows_that_a_deletion_vector_marks_are_found_outside_exact_bounds(tmp_path: Path) -> None:
    """The bounds of a file may leave marked rows out, as those of COMPUTE STATS do."""
    table = Table(tmp_path / "t")
    configuration = {**FEED, "delta.enableDeletionVectors": "true"}
    table.write(pa.table({"id": [1, 2, 3]}), begin={"configuration": configuration})
    [file] = table.log().snapshot.add_files()
    stats = json.dumps({"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}})
    marked = msgspec.structs.replace(file, deletion_vector=inline_deletion_vector(BitMap64([2])), stats=stats)
    write_commit(table.path, 1, info("DELETE"), file.remove(AT), marked)
    read = read_changes(table.log(), starting_version=1, where="id = 3", columns=["id", "_change_type"]).to_table()
    assert read.to_pylist() == [{"id": 3, "_change_type": "delete"}]
