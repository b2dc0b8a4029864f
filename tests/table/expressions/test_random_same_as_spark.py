"""Random well-typed expressions have Spark's value, type and errors, or are refused."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import columns_of, row_expression
from support.random_expressions import ExpressionDraw
from support.spark_expressions import awkward_rows, differences, schema, spark_view

pytestmark = pytest.mark.spark

LEAVES = {
    "whole": ["i", "j", "l", "b", "h", "st.x", "size(ar)", "0", "1", "-3", "7L", "2Y", "100S"],
    "floating": ["d", "f", "1.5D", "-0.0D", "2.5F", "double('NaN')"],
    "decimal": ["c", "e", "g", "1.5", "-0.25", "10.00BD"],
    "string": ["s", "q", "n", "st.z", "'a'", "''", "' 12 '", "'é😀'"],
    "truth": ["o", "p", "true", "NULL"],
    "date": ["t", "r", "DATE '2024-02-29'"],
    "moment": ["u", "TIMESTAMP '2024-02-29 10:11:12.5'"],
    "small": ["1", "2", "-1", "5", "j", "0"],
}


def decided(seed: int, count: int) -> list[str]:
    draw, resolve, found = ExpressionDraw(random.Random(seed), LEAVES), columns_of(schema()), list[str]()
    while len(found) < count:
        text = draw.expression("any", draw.draw.choice([2, 3, 3, 4]))
        try:
            if row_expression(text, resolve).columns:
                found.append(text)
        except NotDecided:
            continue
    return found


@pytest.fixture(scope="module")
def view(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_view(spark, awkward_rows(), tmp_path_factory.mktemp("rows")) as name:
        yield name


SEED = int(os.environ.get("EXPRESSIONS_SEED", "312"))
COUNT = int(os.environ.get("EXPRESSIONS_COUNT", "120"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_value_type_and_errors_are_those_of_spark(spark: Any, view: str, seed: int):
    problems = differences(spark, view, awkward_rows(), decided(seed, COUNT))
    assert not problems, "\n".join(problems)
