"""Rows of a batch go to their partitions, whatever their order, and files of partitions are written side by side."""

from __future__ import annotations

import gc
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.log.schema.types import StructType, parse_schema
from airflow_delta.log.statistics.nan_note import read_nan_note
from airflow_delta.log.storage.factory import store_for
from airflow_delta.table.arrow import files

FIELDS = [("id", "long"), ("a", "integer"), ("b", "string")]


def schema() -> StructType:
    fields = ",".join(f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}' for name, kind in FIELDS)
    return parse_schema(f'{{"type":"struct","fields":[{fields}]}}')


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    kinds = [pa.int64(), pa.int32(), pa.string()]
    return pa.record_batch({name: pa.array([row[at] for row in rows], kinds[at]) for at, (name, _) in enumerate(FIELDS)})


def shaped(draw: random.Random, order: str) -> list[tuple[Any, ...]]:
    rows = [(n, draw.choice([1, 2, None]), draw.choice(["x", "y", "ü", None])) for n in range(draw.randint(0, 200))]
    if order == "sorted":
        rows.sort(key=lambda row: (str(row[1]), str(row[2])))
    return [(row[0], 7, "x") for row in rows] if order == "one" else rows


@pytest.mark.parametrize("order", ["sorted", "any", "one"])
@pytest.mark.parametrize("columns", [["a"], ["b", "a"]])
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_row_goes_to_its_partition(order: str, columns: list[str], sliced: bool, seed: int) -> None:
    rows = shaped(random.Random(seed), order)
    batch = batch_of([(None,) * 3, *rows, (None,) * 3]).slice(1, len(rows))
    partitions = [field for name in columns if (field := schema().find(name)) is not None]
    found: dict[tuple[Any, ...], list[int]] = {}
    for texts, part in files._groups(batch, partitions, batch, sliced=sliced):
        assert tuple(texts) not in found
        part.validate(full=True)
        found[tuple(texts)] = part.column("id").to_pylist()
    at = {name: number for number, (name, _) in enumerate(FIELDS)}
    expected = defaultdict(list)
    for row in rows:
        expected[tuple(None if (v := row[at[name]]) is None else str(v) for name in columns)].append(row[0])
    assert {key: sorted(ids) for key, ids in found.items()} == {key: sorted(ids) for key, ids in expected.items()}


def test_a_few_rows_of_a_batch_do_not_keep_its_memory() -> None:
    batch = batch_of([(n, 1 if n < 10 else 2, "x" * 100) for n in range(10_000)])
    [(_, few), (_, most)] = files._groups(batch, [schema().fields[1]], batch)
    assert (few.num_rows, most.num_rows) == (10, 9_990)
    assert few.get_total_buffer_size() < 5_000
    assert most.get_total_buffer_size() == batch.get_total_buffer_size(), "not copied"


def writer(table: Path) -> files.RowWriter:
    return files.RowWriter(
        store_for(str(table)), "staged/x", schema(), ["a"], mapped=False, compression="snappy", most_rows=None
    )  # fmt: skip


def test_partitions_that_are_written_side_by_side(tmp_path: Path) -> None:
    """More of them than files that may be open, of which some are when the rest is written."""
    rows = writer(tmp_path / "table")
    for start in range(0, 2_000, 500):
        rows.write(batch_of([(n, n % 100, "x") for n in range(start, start + 500)]))
        for partition in list(rows._open.values())[: 30 if start else 70]:
            rows._flush(partition)
    rows.close()
    found = list((tmp_path / "table").rglob("*.parquet"))
    tables = {file: pq.ParquetFile(file).read() for file in found}
    assert (rows.num_files, rows.num_rows) == (len(found), 2_000)
    assert rows.num_bytes == sum(file.stat().st_size for file in found)
    assert len({file.name.split("-")[1] for file in found}) == len(found)
    assert sorted(n for table in tables.values() for n in table["id"].to_pylist()) == list(range(2_000))
    assert all({n % 100 for n in table["id"].to_pylist()} == {int(file.parent.name[2:])} for file, table in tables.items())


def test_files_that_are_given_up_say_nothing(tmp_path: Path) -> None:
    """A writer of Parquet that is not closed ends its file when it is collected, and cannot: a warning, which fails tests."""
    rows = writer(tmp_path / "table")
    rows.write(batch_of([(n, n % 3, "x") for n in range(100)]))
    for partition in rows._open.values():
        rows._flush(partition)
    rows.discard()
    del partition, rows
    gc.collect()
    assert not list(tmp_path.rglob("*.parquet"))


def test_one_that_cannot_be_written_fails_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = writer(tmp_path / "table")
    rows.write(batch_of([(n, n % 10, "x") for n in range(100)]))
    (tmp_path / "table" / "staged" / "x").mkdir(parents=True)
    (tmp_path / "table" / "staged" / "x" / "a=3").write_text("in the way")
    with pytest.raises(OSError, match="a=3"):
        rows.close()
    rows.discard()


def test_small_files_note_nan_and_keep_to_the_rows_of_a_file(tmp_path: Path) -> None:
    """Those made in memory, as those that are written piece by piece."""
    names = (("a", "integer"), ("x", "double"))
    each = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in names]
    struct = parse_schema(json.dumps({"type": "struct", "fields": each}))
    rows = files.RowWriter(
        store_for(str(tmp_path)), "staged/x", struct, ["a"], mapped=False, compression="snappy", most_rows=4
    )  # fmt: skip
    numbers = [float("nan") if n == 0 else None if n == 1 else float(n) for n in range(30)]
    columns = [pa.array([n // 10 for n in range(30)], pa.int32()), pa.array(numbers)]
    rows.write(pa.RecordBatch.from_arrays(columns, names=["a", "x"]))
    rows.close()
    assert sorted((file.path[:3], file.num_rows) for file in rows.files) == [(f"a={a}", n) for a in range(3) for n in (2, 4, 4)]
    begins = min(file.path for file in rows.files if file.path.startswith("a=0/"))  # threads number the files
    for file in rows.files:
        footer = pq.read_metadata(tmp_path / "staged" / "x" / file.path)
        note, statistics = read_nan_note(footer, file.path), footer.row_group(0).column(0).statistics
        assert note is not None
        first = file.path == begins
        assert (note.nulls, statistics is None) == (({"x": 1}, True) if first else ({}, False))
        assert (footer.num_rows, file.size) == (file.num_rows, (tmp_path / "staged" / "x" / file.path).stat().st_size)


def test_rows_go_on_in_the_file_that_was_begun(tmp_path: Path) -> None:
    rows = writer(tmp_path)
    for start in (0, 100):
        rows.write(batch_of([(n, 1, "x") for n in range(start, start + 100)]))
        if not start:
            rows._flush(*rows._open.values())
    rows.write(batch_of([]))
    rows.close()
    assert [file.num_rows for file in rows.files] == [200]
