"""Keys with floating-point numbers, at every depth: which are equal, and in which form they are joined and numbered."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.log.schema.types import DOUBLE, ArrayType, DataType, StructField, StructType
from airflow_delta.table.arrow.rewrite.key_columns import parts_of_key, with_one_zero
from airflow_delta.table.arrow.rewrite.value_numbers import value_numbers
from airflow_delta.table.arrow.rewrite.value_texts import text_of_value
from airflow_delta.table.expressions.equality import are_equal

NESTED = pa.struct(
    [
        *(("x", pa.int32()), ("y", pa.float64()), ("l", pa.list_(pa.float32())), ("b", pa.binary())),
        *(("d", pa.decimal128(5, 2)), ("t", pa.bool_()), ("n", pa.list_(pa.struct([("z", pa.float64())])))),
    ]
)
VALUES: list[Any] = [
    *(None, {"x": None}, {"x": 1, "y": -0.0}, {"x": 1, "y": 0.0}, {"l": []}, {"l": [None]}, {"b": b""}, {"t": False}),
    *({"y": math.nan, "l": [-0.0, math.nan, None]}, {"y": -math.nan, "l": [0.0, math.nan, None]}, {"y": math.nan}),
    *(
        {"l": [1.0, 2.0, 1.0]},
        {"l": [1.0, 3.0, 1.0]},
        {"n": [None]},
        {"n": [{"z": None}]},
        {"n": [{"z": 0.0}]},
        {"n": [{"z": -0.0}]},
    ),
]


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return tuple(map(plain, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def test_equal_keys() -> None:
    keys = pa.array(VALUES * 2, NESTED).slice(len(VALUES) - 3, len(VALUES))  # a slice, with elements of other rows
    values = list(map(plain, keys.to_pylist()))
    pairs = list(product(range(len(values)), repeat=2))
    expected = [values[one] == values[other] for one, other in pairs]
    one, other = (keys.take(pa.array(side)) for side in zip(*pairs, strict=True))
    assert are_equal(one, other).to_pylist() == expected
    numbers = value_numbers(keys).to_pylist()
    assert [numbers[one] == numbers[other] for one, other in pairs] == expected
    parts = [part.to_pylist() for part in parts_of_key(keys)]
    joined = [all(part[one] == part[other] for part in parts) for one, other in pairs]
    # A null key has the parts of one of nulls, which the join tells apart; of lists, only the ends are compared.
    assert all(joined[at] for at, same in enumerate(expected) if same)
    assert sum(joined) - sum(expected) == 4


def test_one_zero() -> None:
    found = with_one_zero(pa.array(VALUES, NESTED))
    found.validate(full=True)
    assert repr(found.to_pylist()) == repr(pa.array(VALUES, NESTED).to_pylist()).replace("-0.0", "0.0")


@pytest.mark.parametrize(
    ("value", "data_type", "text"),
    [
        *((1.5e10, DOUBLE, "1.5E10"), (1e-4, DOUBLE, "1.0E-4"), (1e7, DOUBLE, "1.0E7"), (9999999.0, DOUBLE, "9999999.0")),
        *((-0.0, DOUBLE, "-0.0"), (100.0, DOUBLE, "100.0"), (-math.inf, DOUBLE, "-Infinity"), (math.nan, DOUBLE, "NaN")),
        *(([1.0, None], ArrayType(DOUBLE), "[1.0, null]"), (None, DOUBLE, None)),
        ({"a": 0.25, "b": None}, StructType((StructField("a", DOUBLE), StructField("b", DOUBLE))), "{0.25, null}"),
    ],
    ids=str,
)
def test_text_of_a_key(value: Any, data_type: DataType, text: str | None) -> None:
    kinds = {"double": pa.float64(), "array": pa.list_(pa.float64())}
    kind = kinds.get(data_type.name, pa.struct([("a", pa.float64()), ("b", pa.float64())]))
    assert text_of_value(pa.array([value], kind), data_type) == text
