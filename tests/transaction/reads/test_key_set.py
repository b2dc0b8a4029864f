"""The key values of a MERGE against bounds and rows, compared with a plain evaluation of the condition."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.log.expressions import ast, evaluation
from airflow_delta.log.expressions.arrow_rows import comparable
from airflow_delta.log.schema.types import DataType, arrow_type, parse_type
from airflow_delta.transaction.reads.key_set import KeySet
from airflow_delta.transaction.reads.row_condition import RowCondition
from support.actions import add

VALUES: dict[str, list[Any]] = {
    "long": [-5, 0, 3, 2**40],
    "integer": [-5, 0, 3, 7],
    "string": ["", "a", "a ", "é", "\U0001f600"],
    "date": [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)],
    "decimal(9,2)": [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("1.51")],
    "decimal(38,10)": [Decimal("1.5"), Decimal("9" * 28 + ".9999999999")],
}


def column(name: str, data_type: DataType, *, partition: bool = False) -> ast.ColumnReference:
    return ast.ColumnReference((name,), (name,), data_type, partition)


def key_set(types: Sequence[str], rows: Sequence[Sequence[Any]], safe: Sequence[bool], *, listed: bool = True) -> KeySet:
    columns = tuple(column(f"c{i}", parse_type(kind)) for i, kind in enumerate(types))
    present = [[row[i] for row in rows if row[i] is not None] for i in range(len(types))]
    return KeySet(
        columns=columns,
        null_safe=tuple(safe),
        low=tuple(min(values) if values else None for values in present),
        high=tuple(max(values) if values else None for values in present),
        nulls=tuple(any(row[i] is None for row in rows) for i in range(len(types))),
        rows=frozenset(map(tuple, rows)) if listed else None,
    )


def matches(row: Sequence[Any], rows: Sequence[Sequence[Any]], safe: Sequence[bool]) -> bool:
    """The condition of the MERGE, as SQL has it."""
    return any(
        all(
            one == other if one is not None and other is not None else null_safe and one is other
            for one, other, null_safe in zip(row, source, safe, strict=True)
        )
        for source in rows
    )


def selected(keys: KeySet, table: Sequence[Sequence[Any]]) -> list[bool]:
    arrays = {
        known: comparable(pa.array([row[i] for row in table], arrow_type(known.data_type)), known.data_type)
        for i, known in enumerate(keys.columns)
    }
    condition = RowCondition(None, keys)
    return list(condition.may_select(lambda known: arrays[known], len(table)).to_pylist())


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_those_that_match(seed: int) -> None:
    draw = random.Random(seed)
    types = draw.choices(list(VALUES), k=draw.randint(1, 3))
    pools = [[*VALUES[kind], None] for kind in types]
    source = [[draw.choice(pool) for pool in pools] for _ in range(draw.randint(0, 4))]
    safe = [draw.random() < 0.5 for _ in types]
    table = [list(row) for row in itertools.islice(itertools.product(*pools), 200)]
    expected = [matches(row, source, safe) for row in table]
    assert selected(key_set(types, source, safe), table) == expected
    # Bounds keep at least these.
    wide = key_set(types, source, safe, listed=False)
    kept = [evaluation.compile_expression(wide.expression)({(f"c{i}",): value for i, value in enumerate(row)}) for row in table]
    assert all(found is True for found, match in zip(kept, expected, strict=True) if match)


def test_statistics_rule_out_files_without_keys() -> None:
    keys = key_set(["long"], [[5], [7]], [False])
    files = [
        add("a", stats=stats)
        for stats in (
            '{"numRecords":2,"minValues":{"c0":8},"maxValues":{"c0":9},"nullCount":{"c0":0}}',
            '{"numRecords":2,"minValues":{"c0":6},"maxValues":{"c0":9},"nullCount":{"c0":0}}',
            None,
        )
    ]
    assert RowCondition(None, keys).may_hold(files) == [False, True, True]
    assert RowCondition(None, key_set(["long"], [[5], [7]], [False])).may_hold(files[:1]) == [False]


def test_nulls_match_only_where_null_equals_null() -> None:
    only_nulls = '{"numRecords":2,"minValues":{},"maxValues":{},"nullCount":{"c0":2}}'
    assert RowCondition(None, key_set(["long"], [[None], [7]], [True])).may_hold([add("a", stats=only_nulls)]) == [True]
    assert RowCondition(None, key_set(["long"], [[None], [7]], [False])).may_hold([add("a", stats=only_nulls)]) == [False]
    assert RowCondition(None, key_set(["long"], [[7]], [True])).may_hold([add("a", stats=only_nulls)]) == [False]


def test_an_empty_source_matches_nothing() -> None:
    keys = key_set(["long"], [], [True])
    assert RowCondition(None, keys).may_hold([add("a", stats=None)]) == [False]
    assert selected(keys, [[1], [None]]) == [False, False]


def test_values_that_python_cannot_represent() -> None:
    """Spark has dates after the year 9999 and text that is not UTF-8."""
    keys = key_set(["date", "string"], [[dt.date(2024, 2, 29), "a"], [dt.date(2024, 3, 1), "b"]], [False, True])
    text = pa.array([b"a", b"\xff\xfe", b"a", b"b"]).view(pa.string())
    values = [pa.array([19782, 19782, 5_000_000, 19782], pa.int32()).cast(pa.date32()), text]
    arrays = dict(zip(keys.columns, values, strict=True))
    assert RowCondition(None, keys).may_select(lambda known: arrays[known], 4).to_pylist() == [True, False, False, False]
