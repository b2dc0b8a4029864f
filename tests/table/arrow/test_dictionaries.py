"""Columns whose values do not repeat are written without dictionaries, which would take longer and more bytes."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support import readers
from support.table import Table

ROWS = 100_000


def rows(count: int = ROWS) -> pa.Table:
    """Values that repeat and values that do not, of each kind of column."""
    numbers = range(count)
    scattered = [number * 2_654_435_761 % 2**32 for number in numbers]
    known = [number % 10 == 0 for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [f"payload of row {number}" for number in numbers],
            "dotted.name": pa.array(scattered, pa.int64()),
            "at": pa.array(scattered, pa.timestamp("us", "UTC")),
            "price": pa.array(scattered, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
            "sparse": pa.array([number if some else None for number, some in zip(numbers, known, strict=True)], pa.int64()),
            "wide": [f"{number:0100}" for number in numbers],  # Parquet itself gives its dictionary up soon
            "kind": [f"kind {number % 7}" for number in scattered],
            "sorted": pa.array([number // 3 for number in numbers], pa.int64()),
            "twice": pa.array([number % 60_000 for number in numbers], pa.int64()),
            "often": pa.array([number % 30_000 for number in scattered], pa.int64()),
            "void": pa.nulls(count, pa.int64()),
            "few": pa.array([number if number < 5 else None for number in numbers], pa.int64()),
            "inside": pa.array([{"x": number} for number in numbers], pa.struct([("x", pa.int64())])),
        }
    )


UNIQUE = {"id", "text", "dotted.name", "at", "price", "sparse"}


def footers(table: Table) -> list[pq.FileMetaData]:
    return [pq.ParquetFile(Path(table.path) / file).metadata for file in readers.files(table.path)]


def with_dictionary(footer: pq.FileMetaData) -> set[str]:
    chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups) for at in range(footer.num_columns)]
    return {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}


def test_values_that_do_not_repeat_have_no_dictionary(tmp_path: Path) -> None:
    table, given = Table(tmp_path / "t"), rows()
    table.write(given)
    [footer] = footers(table)
    every = {footer.schema.column(at).path for at in range(footer.num_columns)}
    assert with_dictionary(footer) == every - UNIQUE
    found = readers.rows(table.path)
    assert sorted(found, key=lambda row: row["id"]) == given.to_pylist()
    body = io.BytesIO()
    pq.write_table(given, body, compression="snappy", row_group_size=131_072, store_schema=False, store_decimal_as_integer=True)
    size = sum(path.stat().st_size for path in Path(table.path).rglob("*.parquet"))
    assert size < len(body.getvalue()), "the file is not larger than with dictionaries for all columns"


@pytest.mark.parametrize(("count", "expected"), [(10_000, True), (16, False), (17, True)])
def test_few_rows_are_not_looked_at(tmp_path: Path, count: int, expected: bool) -> None:
    table = Table(tmp_path / "t")
    table.write(rows(count).select(["id"]))
    [footer] = footers(table)
    assert with_dictionary(footer) == ({"id"} if expected else set())


def test_each_partition_by_its_own_rows(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    values = pa.table({"id": [*range(50_000), *[7] * 50_000], "part": ["a"] * 50_000 + ["b"] * 50_000})
    table.write(values, begin={"partition_by": ["part"]})
    assert sorted(with_dictionary(footer) for footer in footers(table)) == [set(), {"id"}]
