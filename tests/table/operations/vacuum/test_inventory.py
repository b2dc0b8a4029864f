"""VACUUM of the files that an inventory lists; beside Delta Spark: tests/delta_spark/test_vacuum_command.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.exceptions import DeltaAnalysisException, DeltaIllegalArgumentException
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.read.read_table import read_table
from support.table import Table

NOTHING: dict[str, Any] = {"retention_hours": 0, "retention_check": False, "clock": lambda: int(time.time() * 1000 + HOUR)}
SCHEMA = pa.schema([("path", pa.string()), ("length", pa.int64()), ("isDir", pa.bool_()), ("modificationTime", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three files, two of them removed, and two that nobody knows."""
    path = tmp_path / "table"
    for value in range(3):
        write_deltalake(path, pa.table({"id": pa.array([value], pa.int64())}), mode="append")
    DeltaTable(path).delete("id < 2")
    for name in ("orphan.parquet", "a b%20ü.parquet"):
        (path / name).write_bytes(b"12345")
    return Table(path)


def files(table: Table) -> set[str]:
    return {str(p.relative_to(table.path)) for p in table.path.rglob("*") if p.is_file() and "_delta_log" not in p.parts}


def listed(table: Table, *names: str, scheme: str = "file:", time_of: int = 1, is_dir: bool = False) -> pa.Table:
    rows = [{"path": f"{scheme}{table.path}/{name}", "length": 5, "isDir": is_dir, "modificationTime": time_of} for name in names]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize("scheme", ["file:", "file://", ""])
def test_only_what_is_listed(table: Table, scheme: str) -> None:
    """Live files stay although they are listed; orphans that are not listed stay, too."""
    before = files(table)
    live = {file.path for file in table.log().update().add_files()}
    removed = before - live - {"orphan.parquet", "a b%20ü.parquet"}
    inventory = listed(table, *live, *removed, "a b%20ü.parquet", "gone.parquet", scheme=scheme)
    assert vacuum(table.log(), inventory=inventory, dry_run=True, **NOTHING).num_files == 3
    result = vacuum(table.log(), inventory=inventory, **NOTHING)
    assert (result.mode, set(result.paths)) == ("INVENTORY", removed | {"a b%20ü.parquet"})
    assert files(table) == live | {"orphan.parquet"}
    assert table.rows() == [(2,)]


def test_a_file_that_is_newer_than_its_row(table: Table) -> None:
    """The retention counts from the file's own time where that can be seen."""
    result = vacuum(table.log(), inventory=listed(table, "orphan.parquet"), retention_hours=1, retention_check=False)
    assert result.num_files == 0


def test_what_is_left_alone(table: Table, tmp_path: Path) -> None:
    """Directories, hidden names, the log, and what lies elsewhere."""
    other = tmp_path / "other.parquet"
    other.write_bytes(b"1")
    (table.path / "_hidden").mkdir()
    (table.path / "_hidden" / "x").write_bytes(b"1")
    (table.path / "empty").mkdir()
    given = pa.concat_tables(
        [
            listed(table, "_hidden/x", "_delta_log/00000000000000000000.json", "../other.parquet", "empty"),
            listed(table, "empty", is_dir=True),
        ]
    )
    before = files(table)
    assert vacuum(table.log(), inventory=given, **NOTHING).paths == ()
    assert files(table) == before
    assert other.exists()
    assert (table.path / "empty").is_dir()


def test_an_inventory_in_a_table(table: Table, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "inventory", listed(table, "orphan.parquet"))
    rows = read_table(Table(tmp_path / "inventory").log())
    assert vacuum(table.log(), inventory=rows, **NOTHING).paths == ("orphan.parquet",)


def test_lite_does_not_go_on_from_it(table: Table) -> None:
    """What an inventory has missed is looked for again."""
    vacuum(table.log(), inventory=listed(table, "orphan.parquet"), **NOTHING)
    assert vacuum(table.log(), lite=True, **NOTHING).num_files == 2


@pytest.mark.parametrize(
    "inventory",
    [
        pa.table({"path": ["/x"]}),
        pa.table({"path": ["/x"], "length": [1], "isDir": [False], "modificationTime": ["1"]}),
        pa.table({"path": ["/x"], "length": [1], "isDir": [False], "modificationTime": [1], "more": [1]}),
    ],
)
def test_other_columns(table: Table, inventory: pa.Table) -> None:
    with pytest.raises(DeltaAnalysisException, match="DELTA_INVALID_INVENTORY_SCHEMA"):
        vacuum(table.log(), inventory=inventory, **NOTHING)


@pytest.mark.parametrize("row", [(None, 1, False, 1), ("/x", 1, None, 1), ("relative.parquet", 1, False, 1)])
def test_rows_that_say_too_little(table: Table, row: tuple[Any, ...]) -> None:
    given = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], schema=SCHEMA)
    with pytest.raises(DeltaAnalysisException, match="a value in each column"):
        vacuum(table.log(), inventory=given, **NOTHING)


def test_not_with_lite(table: Table) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="lite or an inventory"):
        vacuum(table.log(), inventory=listed(table), lite=True, **NOTHING)
