"""OPTIMIZE with ZORDER BY and of clustered tables in the worker: which rows share a file, and what stays as it was."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_delta.log.actions.moved_rows import read_moved_rows
from airflow_delta.log.statistics.row_counts import num_records
from airflow_delta.table.arrow.rewrite import optimize, ordered_bin
from airflow_delta.table.arrow.rewrite.curve import SortedValues
from airflow_delta.table.arrow.rewrite.run import run_in_worker
from airflow_delta.table.operations.optimize.plan import plan_optimize, select_for_optimize
from airflow_delta.table.operations.optimize.run import run_rewrite
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.stage.plan_create import plan_create
from support.actions import column
from support.feature_tables import create
from support.random_rows import row_ids
from support.table import WorkerTable

IDENTITY = {"task_id": "optimize", "map_index": -1, "attempt": "1-a"}
VECTORS = {"delta.enableDeletionVectors": "true"}
TRACKED = {**VECTORS, "delta.enableRowTracking": "true"}


@pytest.fixture
def table(tmp_path: Any) -> WorkerTable:
    return WorkerTable(tmp_path / "table")


def files(table: WorkerTable) -> list[Any]:
    return sorted(table.log().update().add_files(), key=lambda file: file.path)


def grid(count: int, first: int = 0) -> pa.Table:
    """Return rows of a plane, in no order of either column."""
    ids = list(range(first, first + count))
    return pa.table({"id": pa.array(ids), "x": [(i * 7919) % 991 for i in ids], "y": [(i * 104729) % 997 for i in ids]})


def size_for(table: WorkerTable, count: int) -> int:
    return sum(file.size for file in files(table)) // count


def test_few_files_have_the_rows_of_a_range(table: WorkerTable) -> None:
    create(table, *(column(name, "long") for name in ("id", "x", "y")), **TRACKED)
    for first in (0, 3000):
        table.write(grid(3000, first))
    table.run(plan_delete, predicate="id % 10 = 3")
    before, ids = table.rows(), row_ids(table, "id")
    table.run(plan_optimize, z_order_by=["x", "y"], max_file_size=size_for(table, 8))
    assert (table.rows(), row_ids(table, "id")) == (before, ids)
    found = files(table)
    counts = [num_records(file.stats) for file in found]
    assert len(counts) == 8
    assert max(counts) - min(counts) < 30
    assert not any(file.tags for file in found), "where rows went is recorded of single files only"
    stats = [json.loads(file.stats) for file in found]
    for name, value in (("x", 50), ("y", 100)):
        hit = [one for one in stats if one["minValues"][name] <= value <= one["maxValues"][name]]
        assert len(hit) <= 4, f"half of the files have no rows where {name} = {value}"


def test_as_many_files_as_are_asked_for(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are open at a time; rows that are alike are spread; only the file with NaN lacks statistics."""
    monkeypatch.setattr(optimize, "OPEN_FILES", 3)
    create(table, column("id", "long"), column("same", "integer"), column("d", "double"))
    rows = pa.table(
        {
            "id": range(1000),
            "same": pa.array([1] * 1000, pa.int32()),
            "d": [math.nan if i < 50 else float(i) for i in range(1000)],
        }
    )
    table.write(rows)
    table.run(plan_optimize, z_order_by=["same"], max_file_size=size_for(table, 7))
    assert len(files(table)) == 7
    assert max(num_records(file.stats) for file in files(table)) < 250
    table.run(plan_optimize, z_order_by=["id"], max_file_size=size_for(table, 7))
    assert [row[0] for row in sorted(table.rows())] == list(range(1000))
    with_nan = [file for file in files(table) if "d" not in json.loads(file.stats)["minValues"]]
    assert len(files(table)) == 7
    assert len(with_nan) == 1, "only the first file"


def test_a_sample_of_many_rows(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_bin, "SAMPLE_ROWS", 2000)
    create(table, *(column(name, "long") for name in ("id", "x", "y")))
    table.write(grid(40_000))
    table.run(plan_optimize, z_order_by="y", max_file_size=size_for(table, 4))
    counts = [num_records(file.stats) for file in files(table)]
    assert len(counts) == 4
    assert max(counts) < 11_500
    stats = sorted((json.loads(file.stats)["minValues"]["y"], json.loads(file.stats)["maxValues"]["y"]) for file in files(table))
    assert all(high <= low + 2 for (_, high), (low, _) in pairwise(stats))
    assert len(table.rows()) == 40_000


def test_a_clustered_table(table: WorkerTable) -> None:
    table.run(
        plan_create,
        schema="id BIGINT, s STRUCT<t: STRING, k: BIGINT>, d DOUBLE",
        cluster_by=["s.k", "s.t", "d"],
    )

    def compact() -> Any:
        select = partial(select_for_optimize, max_file_size=max(1, size_for(table, 3)))
        return run_rewrite(table.log(), select, partial(run_in_worker, table.log()), identity=IDENTITY)

    assert compact().version is None, "an empty table"
    for first in (0, 500):
        ids = range(first, first + 500)
        structs = [None if i % 7 == 0 else {"t": None if i % 5 == 0 else f"é{i % 19}", "k": i % 100} for i in ids]
        rows = {
            "id": ids,
            "s": pa.array(structs, pa.struct([("t", pa.string()), ("k", pa.int64())])),
            "d": [i / 3 for i in ids],
        }
        table.write(pa.table(rows))
    before = table.rows()
    result = compact()
    assert (result.num_bins, result.metrics["numAddedFiles"]) == (1, 3)
    assert table.rows() == before
    assert {file.clustering_provider for file in files(table)} == {"liquid"}
    assert len({file.tags["ZCUBE_ID"] for file in files(table)}) == 1
    assert {file.tags["ZCUBE_ZORDER_BY"] for file in files(table)} == {'["s.k","s.t","d"]'}
    assert compact().version is None
    table.write(pa.table(rows).slice(0, 10))
    assert compact().metrics["numRemovedFiles"] == 4, "the cube is small, and taken along"


def test_one_file_keeps_the_order_and_says_where_rows_went(table: WorkerTable) -> None:
    create(table, column("id", "long"), **VECTORS)
    for first in (0, 100):
        table.write(pa.table({"id": range(first + 99, first - 1, -1)}))
    table.run(plan_delete, predicate="id % 10 = 3")
    table.run(plan_optimize, z_order_by=["id"])
    [file] = files(table)
    record = read_moved_rows(table.log().store, file)
    assert record is not None
    assert sum(source.num_records - len(source.deleted) for source in record.sources) == 180
    stored = pq.ParquetFile(table.path / file.path).read().column("id").to_pylist()
    parts = [[i for i in range(first + 99, first - 1, -1) if i % 10 != 3] for first in (0, 100)]
    assert stored in (parts[0] + parts[1], parts[1] + parts[0])


def test_files_without_rows(table: WorkerTable) -> None:
    create(table, column("id", "long"), **VECTORS)
    for first in (0, 100):
        table.write(pa.table({"id": range(first, first + 100)}))
    table.run(plan_delete, predicate="id < 200 AND id >= 0 AND id % 1 = 0")
    if files(table):
        table.run(plan_optimize, z_order_by=["id"], max_file_size=size_for(table, 3))
    assert table.rows() == []


def test_values_are_found_among_boundaries() -> None:
    longs = SortedValues([0, 10, 20], pa.int64())
    assert longs.reached(pa.array([-5, 0, 9, 10, 11, 25, 99, None])).to_pylist() == [0, 1, 1, 2, 2, 3, 3, 0]
    texts = SortedValues(["a\\", 'm"', "y"], pa.string())
    assert texts.reached(pa.array(["", "it's", 'm"', "z", None])).to_pylist() == [0, 1, 2, 3, 0]
    doubles = SortedValues([0.0, 1.5], pa.float64())
    assert doubles.reached(pa.array([-math.inf, -0.0, math.inf, math.nan, None])).to_pylist() == [0, 1, 2, 2, 0]
    assert SortedValues([], pa.float64()).reached(pa.array([1.0, math.nan])).to_pylist() == [0, 0]
    assert pc.max(SortedValues(list(range(1023)), pa.int64()).reached(pa.array(range(2000)))).as_py() == 1023
