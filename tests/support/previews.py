"""Readers of previews by path, as a check in a Dag has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from airflow_delta.log import DeltaLog
from airflow_delta.table.read.read_table import read_table
from support import readers


def delta_rs(path: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


ENGINES: dict[str, Callable[[str], pa.Table]] = {
    "delta-rs": delta_rs,
    "Polars": lambda path: readers.READERS["Polars"](path, None),
    "this provider": lambda path: read_table(DeltaLog.for_table(path)).to_table(),
    **({"DuckDB": lambda path: readers.READERS["DuckDB"](path, None)} if readers.HAS_DUCKDB else {}),
}


def rows(path: str) -> list[tuple[Any, ...]]:
    """Return the rows, after all engines have agreed on them."""
    found = {name: sorted((_row(row) for row in read(path).to_pylist()), key=repr) for name, read in ENGINES.items()}
    first = next(iter(found.values()))
    assert all(other == first for other in found.values()), found
    return first


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(_value, row.values()))


def _value(value: Any) -> Any:
    """Return maps as pairs: Polars has lists of structs for them."""
    if isinstance(value, list):
        return [tuple(each.values()) if isinstance(each, dict) and list(each) == ["key", "value"] else each for each in value]
    return value
