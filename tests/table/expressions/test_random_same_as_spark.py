"""Random well-typed expressions have Spark's value, type and errors, or are refused."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import columns_of, row_expression
from support.spark_expressions import awkward_rows, differences, schema, spark_view

pytestmark = pytest.mark.spark

LEAVES = {
    "whole": ["i", "j", "l", "b", "h", "st.x", "0", "1", "-3", "7L", "2Y", "100S"],
    "floating": ["d", "f", "1.5D", "-0.0D", "2.5F", "double('NaN')"],
    "decimal": ["c", "e", "g", "1.5", "-0.25", "10.00BD"],
    "string": ["s", "q", "n", "st.z", "'a'", "''", "' 12 '", "'é😀'"],
    "truth": ["o", "p", "true", "NULL"],
    "date": ["t", "r", "DATE '2024-02-29'"],
    "moment": ["u", "TIMESTAMP '2024-02-29 10:11:12.5'"],
}
NUMBERS = ("whole", "floating", "decimal")
FORMS = {
    "whole": [
        "({whole} + {whole})", "({whole} - {whole})", "({whole} * {whole})", "({whole} % {whole})", "({whole} div {whole})",
        "- {whole}", "abs({whole})", "pmod({whole}, {whole})", "CAST({number} AS INT)", "CAST({number} AS BIGINT)",
        "TRY_CAST({number} AS SMALLINT)", "length({string})", "instr({string}, {string})", "year({date})", "dayofweek({date})",
        "datediff({date}, {date})", "floor({floating})", "TRY_CAST({string} AS INT)", "({whole} & {whole})", "size(ar)",
        "hour({moment})", "CAST({truth} AS INT)", "nullif({whole}, 0)", "{any:whole}",
    ],
    "floating": [
        "({floating} + {number})", "({number} * {floating})", "({floating} - {floating})", "({floating} / {number})",
        "({whole} / {whole})", "({floating} % {floating})", "- {floating}", "abs({floating})", "CAST({number} AS DOUBLE)",
        "sqrt({number})", "sign({number})", "nanvl({floating}, {floating})", "CAST({floating} AS FLOAT)", "{any:floating}",
    ],
    "decimal": [
        "({decimal} + {decimal})", "({decimal} - {whole})", "({decimal} * {decimal})", "({whole} * {decimal})",
        "({decimal} / {decimal})", "({decimal} / {whole})", "({decimal} % {decimal})", "- {decimal}", "abs({decimal})",
        "CAST({whole} AS DECIMAL(20,3))", "CAST({decimal} AS DECIMAL(12,1))", "round({decimal}, 1)", "ceil({decimal})",
        "bround({decimal})", "CAST({decimal} AS DECIMAL(38,6))", "{any:decimal}",
    ],
    "string": [
        "({string} || {string})", "concat({string}, {whole}, {string})", "upper({string})", "lower({string})", "trim({string})",
        "substring({string}, {whole}, {whole})", "substring({string}, 2)", "left({string}, 2)", "right({string}, {small})",
        "replace({string}, {string}, {string})", "lpad({string}, {small}, {string})", "rpad({string}, {small})",
        "reverse({string})", "CAST({whole} AS STRING)", "CAST({decimal} AS STRING)", "CAST({date} AS STRING)",
        "CAST({moment} AS STRING)", "CAST({truth} AS STRING)", "md5({string})", "{any:string}",
    ],
    "truth": [
        "({number} = {number})", "({number} < {number})", "({number} >= {number})", "({number} <=> {number})",
        "({string} = {string})", "({string} <= {string})", "({date} < {date})", "({moment} >= {date})", "({truth} AND {truth})",
        "({truth} OR {truth})", "(NOT {truth})", "({any} IS NULL)", "({any} IS NOT NULL)", "({truth} IS TRUE)",
        "({whole} IN ({whole}, {whole}, 3))", "({number} IN ({number}, 1))", "({string} IN ({string}, 'a', NULL))",
        "({number} BETWEEN {number} AND {number})", "({string} LIKE '%a_')", "({string} NOT LIKE '_b%')", "isnan({floating})",
        "startswith({string}, {string})", "({number} IS DISTINCT FROM {number})", "({string} = {whole})", "{any:truth}",
        "CAST({string} AS BOOLEAN)", "({decimal} <> {string})", "({date} = {string})",
    ],
    "date": [
        "({date} + {small})", "date_sub({date}, {small})", "add_months({date}, {small})", "last_day({date})", "to_date({moment})",
        "trunc({date}, 'month')", "TRY_CAST({string} AS DATE)", "{any:date}",
    ],
    "moment": ["date_trunc('hour', {moment})", "CAST({date} AS TIMESTAMP)", "date_trunc('week', {moment})", "{any:moment}"],
}  # fmt: skip
BRANCHES = [
    "if({truth}, {x}, {x})", "coalesce({x}, {x})", "CASE WHEN {truth} THEN {x} WHEN {truth} THEN {x} ELSE {x} END",
    "CASE WHEN {truth} THEN {x} END", "nvl({x}, {x})", "greatest({x}, {x})", "least({x}, {x}, {x})", "nullif({x}, {x})",
    "nvl2({any}, {x}, {x})", "CASE {whole} WHEN {whole} THEN {x} ELSE {x} END",
]  # fmt: skip


class Draw:
    """Draws expressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, kind: str, depth: int) -> str:
        draw = self.random
        if kind == "small":
            return draw.choice(["1", "2", "-1", "5", "j", "0"])
        kind = draw.choice(NUMBERS) if kind == "number" else draw.choice(list(LEAVES)) if kind == "any" else kind
        if depth == 0 or draw.random() < 0.15:
            return draw.choice(LEAVES[kind])
        form = draw.choice(FORMS[kind])
        if form.startswith("{any:"):
            form = draw.choice(BRANCHES).replace("{x}", "{" + kind + "}")
        while "{" in form:
            head, _, rest = form.partition("{")
            wanted, _, tail = rest.partition("}")
            form = head + self.expression(wanted, depth - 1) + tail
        return form


def decided(seed: int, count: int) -> list[str]:
    draw, resolve, found = Draw(seed), columns_of(schema()), list[str]()
    while len(found) < count:
        text = draw.expression(draw.random.choice(list(LEAVES)), draw.random.choice([2, 3, 3, 4]))
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
