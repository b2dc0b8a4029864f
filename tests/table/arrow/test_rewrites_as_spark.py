"""The same statements on the same tables, carried out on Spark and by the worker: the same tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaError
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.random_rows import random_rows, row_ids, statistics
from support.slow import slow_except
from support.table import Table, WorkerTable

pytestmark = pytest.mark.spark

MODES = ("none", "name", "id")
PARTITIONS: tuple[tuple[str, ...], ...] = ((), ("p",), ("q", "p"), ("t",), ("dec",), ("f",))
LEAVES = (
    *("id < 9", "id >= 40", "id IN (1, 3, 64, 5)", "id BETWEEN 10 AND 30", "id IS NULL", "p = 'a b'", "p LIKE '%:y'", "p <> ''"),
    *("q = DATE'2024-02-29'", "q IS NOT NULL", "f > 1", "f < 2.5", "d > 1", "d = double('NaN')", "dec > 1", "dec = 1.25"),
    *(
        "t = TIMESTAMP'2024-01-01 00:00:00 UTC'",
        "n <= TIMESTAMP_NTZ'2024-01-01 01:00:00'",
        "s.x = 1",
        "s.y <=> NULL",
        "b = X'FF'",
    ),
)


def random_condition(draw: random.Random) -> str:
    leaf = draw.choice(LEAVES)
    if draw.random() < 0.3:
        leaf = f"NOT ({leaf})"
    return leaf if draw.random() < 0.5 else f"({leaf}) {draw.choice(['AND', 'OR'])} ({random_condition(draw)})"


def random_operation(draw: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    if draw.random() < 0.7:
        return plan_delete, {"predicate": random_condition(draw)}
    return draw.choice([(plan_optimize, {}), (plan_reorg, {})])


def comparable(rows: pa.Table) -> list[str]:
    return readers._comparable(rows.to_pylist())


def outcome(table: Table, plan: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return what an operation says it has done, or its error."""
    try:
        result = table.run(plan, **arguments)
    except DeltaError as error:
        return type(error).__name__
    metrics = table.info(result.version)["operationMetrics"]
    return {name: metrics.get(name) for name in ("numDeletedRows", "numUpdatedRows")}  # Spark makes more files of a partition


def changes(table: Table) -> list[str]:
    return comparable(read_changes(table.log(), starting_version=1).to_table().drop_columns(["_commit_timestamp"]))


@pytest.mark.parametrize("seed", slow_except(range(24), *range(6)))
def test_statements_leave_the_same_table(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    configuration = {
        "delta.columnMapping.mode": MODES[seed % 3],
        "delta.enableDeletionVectors": draw.choice(["true", "false"]),
        "delta.enableRowTracking": draw.choice(["true", "false"]),
        "delta.enableChangeDataFeed": draw.choice(["true", "false"]),
        "delta.feature.timestampNtz": "supported",
    }
    begin = {"partition_by": draw.choice(PARTITIONS), "configuration": configuration}
    tables = [WorkerTable(tmp_path / "worker"), Table(tmp_path / "spark", spark)]
    tables[0].write(random_rows(draw).slice(0, 0), begin=begin)
    for number in range(draw.randint(1, 4)):
        rows = random_rows(draw)
        rows = rows.set_column(0, "id", pa.array([100 * number + at for at in range(rows.num_rows)]))
        tables[0].write(rows)
    tables[1].copy_from(tables[0])
    for _ in range(3):
        plan, arguments = random_operation(draw)
        told = f"{plan.__name__} {arguments} of {configuration}"
        worker, on_spark = (outcome(table, plan, arguments) for table in tables)
        assert worker == on_spark, told
        snapshots = [table.log().update() for table in tables]
        here, there = (comparable(read_table(table.log()).to_table()) for table in tables)
        assert here == there, told
        assert statistics(snapshots[0]) == statistics(snapshots[1]), told
        if configuration["delta.enableChangeDataFeed"] == "true":
            assert changes(tables[0]) == changes(tables[1]), told
        if configuration["delta.enableRowTracking"] == "true":
            assert row_ids(tables[0], "id") == row_ids(tables[1], "id"), told
    assert len(tables[1].read(tables[0].begin())) == len(here)
