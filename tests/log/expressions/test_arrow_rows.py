"""Predicates over Arrow columns: exact where they say so, never less than what is true, and the same rows as on Spark."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.log.expressions import ast, evaluation
from airflow_delta.log.expressions.arrow_rows import comparable, is_compared_exactly, may_select, row_columns
from airflow_delta.log.expressions.predicate import Predicate
from airflow_delta.log.schema.types import StructField, StructType, arrow_type, parse_type

TYPES = {"l": "long", "i": "integer", "s": "string", "d": "date", "m": "decimal(9,2)", "b": "boolean", "f": "double"}
SCHEMA = StructType(tuple(StructField(name, parse_type(kind)) for name, kind in TYPES.items()))
VALUES: dict[str, list[Any]] = {
    "l": [None, -(2**40), -1, 0, 1, 2**40],
    "i": [None, -1, 0, 1],
    "s": [None, "", " ", "a", "a ", "A", "é", "\ud7ff", "\U0001f600"],
    "d": [None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "m": [None, Decimal("-1.50"), Decimal("0.00"), Decimal("1.50")],
    "b": [None, True, False],
    "f": [None, -0.0, 0.0, 1.5, math.nan, math.inf],
}
TEXTS = [
    "l = 1", "l <> 1", "NOT (l = 1)", "l <=> NULL", "NOT (l <=> 1)", "l IN (0, NULL)", "l NOT IN (0, 1)", "l NOT IN (0, NULL)",
    "l > 0 AND s = 'a'", "l > 0 OR s IS NULL", "NOT (l > 0 OR s = 'a')", "NOT (l > 0 AND s = 'a')", "s < 'a'", "s >= 'a '",
    "s = 'a'", "s <> ''", "s IN ('a', 'é')", "d < DATE'1970-01-01'", "d IN (DATE'2024-02-29')", "m > 1.49", "m = 1.5",
    "m IN (1.50, -1.50)", "m NOT IN (1.50)", "b", "NOT b", "b = true", "b IS NOT NULL AND NOT (b <=> false)",
    "i <= 0 AND i IS NOT NULL", "true", "false", "l IS NULL", "NOT (l IS NULL)", "l = CAST(NULL AS BIGINT)",
]  # fmt: skip


def table(seed: int, rows: int = 40) -> dict[str, list[Any]]:
    draw = random.Random(seed)
    return {name: [draw.choice(values) for _ in range(rows)] for name, values in VALUES.items()}


def selected(expression: ast.Expression, columns: dict[str, list[Any]]) -> list[bool]:
    arrays = {name: pa.array(values, arrow_type(parse_type(TYPES[name]))) for name, values in columns.items()}
    length = len(next(iter(columns.values())))
    mask = may_select(expression, lambda column: comparable(arrays[column.path[0]], column.data_type), length)
    assert mask.null_count == 0
    return list(mask.to_pylist())


def evaluated(expression: ast.Expression, columns: dict[str, list[Any]]) -> list[bool]:
    holds = evaluation.compile_expression(expression)
    length = len(next(iter(columns.values())))
    return [holds({(name,): values[at] for name, values in columns.items()}) is True for at in range(length)]


@pytest.mark.parametrize("text", TEXTS)
def test_exact_parts(text: str) -> None:
    expression = Predicate.parse(text, SCHEMA).expression
    assert all(is_compared_exactly(column.data_type) for column in ast.columns(expression))
    for seed in range(5):
        columns = table(seed)
        assert selected(expression, columns) == evaluated(expression, columns)


@pytest.mark.parametrize("text", ["f = 0.0D", "f > 1", "s LIKE 'a%'", "NOT (s LIKE 'a%')", "abs(l) = 1", "l > 0 AND f > 1"])
def test_other_parts_may_be_true_for_any_row(text: str) -> None:
    expression = Predicate.parse(text, SCHEMA).expression
    columns = table(1)
    kept = selected(expression, columns)
    assert all(kept) or text.startswith("l > 0")
    assert all(keeps or not holds for keeps, holds in zip(kept, evaluated(expression, columns), strict=True))


def _random(draw: random.Random, depth: int) -> ast.Expression:
    kind = draw.randrange(8 if depth else 5)
    if kind >= 5:
        parts = tuple(_random(draw, depth - 1) for _ in range(draw.randint(1, 3)))
        return [ast.And(parts), ast.Or(parts), ast.Not(parts[0])][kind - 5]
    name = draw.choice(list(TYPES))
    column = ast.ColumnReference((name,), (name,), parse_type(TYPES[name]), False)
    literals = [ast.Literal(draw.choice(VALUES[name]), column.data_type) for _ in range(draw.randint(1, 3))]
    if kind == 0:
        return ast.IsNull(column)
    if kind == 1:
        return ast.In(column, tuple(literals))
    return ast.Compare(draw.choice(list(ast.FLIPPED)), column, literals[0])


@pytest.mark.parametrize("seed", range(100))
def test_random_expressions(seed: int) -> None:
    draw = random.Random(seed)
    columns = table(seed, 60)
    for _ in range(20):
        expression = _random(draw, 3)
        kept, holds = selected(expression, columns), evaluated(expression, columns)
        if any(column.path == ("f",) for column in row_columns(expression)):
            assert all(keeps or not held for keeps, held in zip(kept, holds, strict=True)), str(expression)
        else:
            assert kept == holds, str(expression)


@pytest.mark.parametrize(
    ("values", "kind", "known"),
    [
        (pa.array([1], pa.int32()), "long", True),  # widened since
        (pa.array([1], pa.uint32()), "long", False),
        (pa.array([1.0]), "long", False),
        (pa.array([b"a"]), "string", False),
        (pa.array(["a"], pa.large_string()), "string", True),
        (pa.array(["a"]).dictionary_encode(), "string", True),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), "decimal(9,2)", False),
        (pa.array([Decimal("1.50")], pa.decimal128(12, 2)), "decimal(9,2)", False),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), "decimal(9,2)", True),
        (pa.array([0], pa.timestamp("us")), "date", False),
        (pa.array([0.0]), "double", False),
    ],
)
def test_values_of_files(values: pa.Array, kind: str, known: bool) -> None:
    assert (comparable(values, parse_type(kind)) is not None) == known


@pytest.mark.slow
@pytest.mark.spark
def test_spark_selects_the_same_rows(tmp_path: Path, spark: Any) -> None:
    columns = table(7, 200)
    arrays = {name: pa.array(values, arrow_type(parse_type(TYPES[name]))) for name, values in columns.items()}
    pq.write_table(pa.table({"at": pa.array(range(200)), **arrays}), tmp_path / "rows.parquet")
    rows = spark.read.parquet(str(tmp_path / "rows.parquet"))
    for text in TEXTS:
        expression = Predicate.parse(text, SCHEMA).expression
        found = {row[0] for row in rows.where(str(expression)).select("at").collect()}
        kept = selected(expression, columns)
        assert found == {at for at in range(200) if kept[at]}, text
