"""The same statements on the same tables, carried out on Spark and by the worker: the same tables."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.exceptions import DeltaError
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from support import readers
from support.random_rows import frame_of, random_rows, row_ids, statistics
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


SETS: tuple[dict[str, str], ...] = (
    *({"p": "concat(p, '?')"}, {"p": "NULL", "q": "date_add(q, 1)"}, {"dec": "dec * 0.5"}, {"d": "d / 3", "f": "f + 1"}),
    *({"s.x": "CAST(id AS INT)", "b": "X'00'"}, {"s": "NULL"}, {"t": "TIMESTAMP'2024-03-01 00:00:00 UTC'"}, {"li": "NULL"}),
    *({"id": "id + 1000"}, {"f": "0.5", "s.y": "upper(p)"}, {"dec": "CASE WHEN id > 20 THEN 1 ELSE dec END"}),
)


MATCHES = (
    *("target.id = source.id", "target.id = source.id AND target.p = source.p"),
    "target.p <=> source.p AND source.id = target.id",
    *("target.id = source.id AND target.f = source.f", "target.d <=> source.d AND target.f <=> source.f AND source.p = target.p"),
    *(
        "target.id < source.id AND target.id > source.id - 2",
        "target.id BETWEEN source.id AND source.id + 1 AND source.p = 'x:y'",
    ),
    *("target.id = source.id AND source.d > 0", "target.dec = source.dec AND target.id = source.id AND target.id < 300"),
)
CLAUSES: tuple[list[dict[str, Any]], ...] = (
    [when_matched_update(), when_not_matched_insert()],
    [when_matched_delete("source.f > 1"), when_matched_update({"d": "target.d + source.d", "p": "source.p"})],
    [when_matched_update({"s.y": "concat(source.p, 'x')", "q": "source.q"}, "target.d IS NOT NULL")],
    [when_not_matched_insert({"id": "id", "p": "upper(p)", "dec": "dec + 1"}, "source.id > 100")],
    [when_matched_delete(), when_not_matched_insert(None, "p IS NOT NULL"), when_not_matched_insert({"id": "id * 2"})],
    [when_matched_update(), when_not_matched_by_source_delete("target.d > 1")],
    [when_not_matched_insert(), when_not_matched_by_source_update({"f": "f * 2", "id": "id + 5000"}, "id < 50")],
)


def random_merge(draw: random.Random) -> dict[str, Any]:
    rows = random_rows(draw)
    ids = draw.sample(range(400), rows.num_rows)
    rows = rows.set_column(0, "id", pa.array(ids))
    return {"condition": draw.choice(MATCHES), "clauses": draw.choice(CLAUSES), "source": rows}


def random_condition(draw: random.Random) -> str:
    leaf = draw.choice(LEAVES)
    if draw.random() < 0.3:
        leaf = f"NOT ({leaf})"
    return leaf if draw.random() < 0.5 else f"({leaf}) {draw.choice(['AND', 'OR'])} ({random_condition(draw)})"


def random_operation(draw: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    if draw.random() < 0.4:
        return plan_merge, random_merge(draw)
    if draw.random() < 0.4:
        return plan_update, {"predicate": random_condition(draw), "set": draw.choice(SETS)}
    if draw.random() < 0.6:
        return plan_delete, {"predicate": random_condition(draw)}
    return draw.choice([(plan_optimize, {}), (plan_reorg, {})])


NUMBERS = [None, math.nan, -math.nan, 0.0, -0.0, 1.5, -1.5, math.inf]
CONDITIONS = (
    *("target.d = source.d", "target.f = source.f", "source.d <=> target.d", "target.f <=> source.f AND target.d = source.d"),
    *("target.f = source.d", "target.d > source.d", "source.id = 3", "true", "false", "1 = 0 OR target.id = source.id + 1"),
    "abs(target.id - source.id) = 1 AND target.d IS NOT NULL",
)


@pytest.mark.parametrize("partition_by", [(), pytest.param(("d",), marks=pytest.mark.slow)], ids=["data", "partition"])
def test_floating_point_keys_and_conditions_without_equal_columns(
    spark: Any, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """A NaN equals a NaN, and zeros are equal; what is not a key is compared with every row."""
    count = len(NUMBERS)
    ids, doubles = pa.array(range(count)), pa.array(NUMBERS)
    rows = pa.table({"id": ids, "d": doubles, "f": pa.array(reversed(NUMBERS), pa.float32())})
    first = WorkerTable(tmp_path / "first")
    first.write(rows.slice(0, 4), begin={"partition_by": partition_by})
    first.write(rows.slice(4))
    kinds: tuple[list[dict[str, Any]], ...] = (
        [when_matched_delete(), when_not_matched_by_source_update({"id": "id + 1"}, "id < 5")],
        [when_matched_update({"id": "target.id + 1000"}), when_not_matched_insert()],
        [when_not_matched_insert({"id": "source.id"})],
    )
    many = rows.set_column(0, "id", pa.array([at + 100 for at in range(count)]))
    for number, condition in enumerate(CONDITIONS):
        tables = [WorkerTable(tmp_path / f"worker-{number}"), Table(tmp_path / f"spark-{number}", spark)]
        for table in tables:
            table.copy_from(first)
        source = rows.slice(3, 1) if number % 2 else many
        arguments = {"condition": condition, "clauses": kinds[number % 3], "source": source}
        outcomes = [outcome(table, plan_merge, arguments) for table in tables]
        assert outcomes[0] == outcomes[1], condition
        here, there = (comparable(read_table(table.log()).to_table()) for table in tables)
        assert here == there, condition


def comparable(rows: pa.Table) -> list[str]:
    return readers._comparable(rows.to_pylist())


def outcome(table: Table, plan: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return what an operation says it has done, or its error."""
    if table.spark is not None and "source" in arguments:
        arguments = {**arguments, "source": frame_of(table.spark, arguments["source"])}
    try:
        result = table.run(plan, **arguments)
    except DeltaError as error:
        return type(error).__name__
    metrics = table.info(result.version)["operationMetrics"]
    others = ("File", "Bytes", "Vector", "TimeMs", "Copied", "Output")  # Spark makes more files of a partition
    return {name: number for name, number in metrics.items() if not any(word in name for word in others)}


def changes(table: Table) -> list[str]:
    return comparable(read_changes(table.log(), starting_version=1).to_table().drop_columns(["_commit_timestamp"]))


@pytest.mark.parametrize("seed", slow_except(range(24), *range(5)))
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
    first = read_table(tables[0].log()).to_table().num_rows
    for _ in range(3):
        plan, arguments = random_operation(draw)
        shown = {name: value for name, value in arguments.items() if name != "source"}
        told = f"{plan.__name__} {shown} of {configuration}"
        worker = outcome(tables[0], plan, arguments)
        if worker == "DeltaUnsupportedOperationException":  # such as letters that other libraries fold in their own way
            continue
        assert worker == outcome(tables[1], plan, arguments), told
        snapshots = [table.log().update() for table in tables]
        here, there = (comparable(read_table(table.log()).to_table()) for table in tables)
        assert here == there, told
        if not any(file.deletion_vector for snapshot in snapshots for file in snapshot.add_files()):  # else of other files
            assert statistics(snapshots[0]) == statistics(snapshots[1]), told
        if configuration["delta.enableChangeDataFeed"] == "true":
            assert changes(tables[0]) == changes(tables[1]), told
        if configuration["delta.enableRowTracking"] == "true":
            assert len(row_ids(tables[0], "id")) == len(here), told
            kept = [{row: found for row, found in row_ids(table, "id").items() if row < first} for table in tables]
            assert kept[0] == kept[1], told  # others are new, and get theirs in the order of files
    assert len(tables[1].read(tables[0].begin())) == read_table(tables[0].log()).to_table().num_rows
