"""Work grows with the number of columns, not with its square: eight times as many columns take about eight times as long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import AddColumns, Column
from airflow_delta.contract.drift import differences
from airflow_delta.contract.schema import written_schema
from airflow_delta.log.features.schema_merge import merge_schema, write_casts
from airflow_delta.log.features.type_widening import stored_otherwise
from airflow_delta.log.schema.types import StructType, parse_schema
from airflow_delta.table.effects.diff import published_diff
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from support.table import Table
from support.tables import create_table

FEW, MANY = 250, 2000
QUADRATIC = (MANY / FEW) ** 2


def names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def schema(count: int, *, reverse: bool = False) -> dict[str, Any]:
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names(count)]
    return {"type": "struct", "fields": fields[::-1] if reverse else fields}


def parsed(count: int, *, reverse: bool = False) -> StructType:
    return parse_schema(json.dumps(schema(count, reverse=reverse)))


def table_of(path: Path, count: int) -> Table:
    """A table of two versions with a column for each name."""
    import deltalake

    table = Table(path / f"table-{count}")
    rows = pa.table({name: pa.array([1, None], pa.int64()) for name in names(count)})
    deltalake.write_deltalake(table.uri, rows)
    deltalake.write_deltalake(table.uri, rows.slice(1), mode="append")
    return table


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of the best of three runs."""
    taken = []
    for _ in range(3):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def check(work: Callable[[int], Callable[[], Any]]) -> None:
    few, many = seconds(work(FEW)), seconds(work(MANY))
    assert many < max(few, 0.001) * QUADRATIC * 0.6, f"{MANY} columns take {many:.3f} s, {FEW} take {few:.3f} s"


SCHEMAS = {
    "a DataFrame's schema": lambda data, table, *_: written_schema(data, table, merge=True, table_name="t", version=1),
    "a contract": lambda data, table, *_: list(differences(data, table)),
    "a merge": lambda _data, _table, one, other: merge_schema(other, one, merge=True),
    "types in files": lambda _data, _table, one, other: list(stored_otherwise(other, one, widening=False)),
    "casts": lambda _data, _table, one, other: write_casts(other, one),
    "a selection": lambda _data, _table, one, other: one.select(other.names),
}


@pytest.mark.parametrize("work", SCHEMAS.values(), ids=SCHEMAS)
def test_schemas(work: Callable[..., Any]) -> None:
    check(lambda n: lambda: work(schema(n), schema(n, reverse=True), parsed(n), parsed(n, reverse=True)))


def test_reading(tmp_path: Path) -> None:
    tables = {n: table_of(tmp_path, n) for n in (FEW, MANY)}
    check(lambda n: lambda: sum(batch.num_rows for batch in read_table(tables[n].log(), limit=10)))
    check(lambda n: lambda: published_diff(tables[n].log(), keys=["c0"]))


def test_adding_columns(tmp_path: Path) -> None:
    made = {}
    for count in (FEW, MANY):
        table = made[count] = Table(tmp_path / str(count))
        create_table(table.path, schema_string=json.dumps(schema(1)))

    def add(count: int) -> Callable[[], Any]:
        view = made[count].view(made[count].begin())
        return lambda: plan_alter(view, [AddColumns([Column(f"new{number}", "INT") for number in range(count)])])

    check(add)
