"""The judges judge: readers that disagree, fail or are wrongly listed as unable are found out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support import readers, tables


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written(tmp_path / "a table%ü", "ü %")


def written(table: Path, part: str) -> Path:
    for value in (1, 2):
        write_deltalake(str(table), pa.table({"id": [value], "part": [part]}), mode="append", partition_by=["part"])
    return table


def test_all_of_them_agree(table: Path) -> None:
    assert [row["id"] for row in sorted(readers.rows(table), key=repr)] == [1, 2]
    assert [row["id"] for row in readers.rows(table, version=0)] == [1]
    assert len(readers.files(table)) == 2


def test_threads_do_not_get_the_rows_of_one_another(table: Path) -> None:
    def ids(version: int) -> list[int]:
        return sorted(readers.READERS["DuckDB"](str(table), version).column("id").to_pylist())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ids, [0, 1] * 50)) == [[1], [1, 2]] * 50


@pytest.mark.parametrize("name", readers.READERS)
def test_one_that_differs_or_fails_is_an_error(table: Path, plain_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == readers.PATHS:
        table = written(plain_path / "table", "u")
    monkeypatch.setitem(readers.READERS, name, lambda *_: pa.table({"id": [1, 3], "part": ["ü %"] * 2}))
    with pytest.raises(AssertionError, match=r"differ on version"):
        readers.rows(table)
    monkeypatch.undo()
    monkeypatch.setitem(readers.CANNOT_READ, name, {"appendOnly": "it is said"})
    with pytest.raises(AssertionError, match=f"{name} reads tables with appendOnly"):
        readers.rows(table)


def test_one_that_cannot_read_is_an_error_unless_it_is_listed(table: Path) -> None:
    features = {"reader_features": ["fromTheFuture"], "writer_features": ["fromTheFuture"]}
    tables.write_commit(table, 2, tables.protocol(3, 7, **features))
    with pytest.raises(AssertionError, match="delta-rs cannot read"):
        readers.rows(table)
