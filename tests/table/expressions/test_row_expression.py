"""Expressions over record batches without Spark: what is refused, and where; their columns; the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.log.schema.types import INTEGER, parse_type
from airflow_delta.table.expressions.functions import FUNCTIONS, OPERATORS
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import columns_of, row_expression
from support.spark_expressions import awkward_rows, schema

PAGE = Path(__file__).parents[3] / "docs/operations/without-spark-expressions.md"

REFUSED = [
    ("rand()", "rand() is a function that only Spark evaluates"),
    ("uuid()", "uuid()"),
    ("current_date()", "current_date()"),
    ("current_timestamp", "'current_timestamp'"),
    ("hash(i)", "hash()"),
    ("power(d, 2)", "power()"),
    ("own_function(i)", "own_function()"),
    ("s RLIKE 'a'", "RLIKE"),
    ("regexp_replace(s, 'a', 'b')", "regexp_replace()"),
    ("s LIKE q", "LIKE takes a literal pattern"),
    (r"s LIKE r'a\b'", "escapes other characters"),
    ("CAST(d AS STRING)", "a double is not cast to string"),
    ("CAST(d AS DECIMAL(10,2))", "a floating-point number is not cast to decimal(10,2)"),
    ("CAST(y AS STRING)", "a binary is not cast to string"),
    ("CAST(u AS BIGINT)", "a timestamp is not cast to bigint"),
    ("CAST(s AS ARRAY<INT>)", "nothing is cast to"),
    ("round(d, 1)", "a double is not rounded"),
    ("t - r", "- of dates"),
    ("t + INTERVAL 1 DAY", "INTERVAL"),
    ("INTERVAL '1' DAY", "INTERVAL"),
    ("u - v", "- of a timestamp"),
    ("s + 1", "+ of a string"),
    ("ar[0]", "[0]"),
    ("ar < ar", "the order of values of type array<int>"),
    ("st >= st", "the order of values of type struct"),
    ("st IN (st)", "are not compared"),
    ("ar = (1, 2)", "is not read here"),
    ("named_struct('x', 1) = named_struct('x', 1L)", "are not brought to one type"),
    ("g = 1.5", "no common type without rounding"),
    ("i IN ('a')", "int and string are not brought to one type"),
    ("CASE WHEN o THEN i ELSE s END", "int and string"),
    ("i IN (SELECT 1)", "SELECT"),
    ("(SELECT 1)", "SELECT"),
    ("count(i)", "count()"),
    ("sum(i) OVER ()", "OVER"),
    ("transform(ar, x -> x + 1)", "->"),
    ("i > 0 AND 1 / 0 > 0", "a constant part of it has no value here: a division by zero"),
    ("i = 'abc'", "a constant part"),
    ("(i, j) = (1, 2)", "is not read here"),
    ("substring(s, l)", "an operand of type bigint"),
    ("substring(s)", "substring with 1 operands"),
    ("1Y + ${x}", "Spark replaces ${"),
    ("upper(i)", "an operand of type int"),
    ("i COLLATE UTF8_LCASE", "COLLATE"),
    ("- " * 200 + "i", "nested too deeply"),
    ("DATE '12024-01-01'", "is not read here"),
]


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_what_only_spark_evaluates_is_refused_by_name(text: str, why: str):
    with pytest.raises(NotDecided) as caught:
        row_expression(text, columns_of(schema()))
    assert why in str(caught.value)


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(
    ("text", "message"),
    [("i +", "not valid Spark SQL"), ("", "is empty"), ("unknown + 1", "'unknown', which does not exist"), ("(i", "not valid")],
)
def test_what_is_not_an_expression_is_an_error(text: str, message: str):
    with pytest.raises(DeltaAnalysisException, match=re.escape(message)):
        row_expression(text, columns_of(schema()))


@pytest.mark.parametrize(
    ("column", "metadata"),
    [
        ("string", {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}),
        ("string", {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}),
    ],
)
def test_columns_that_are_compared_in_another_way_are_refused(column: str, metadata: dict[str, object]):
    table = parse_type({"type": "struct", "fields": [{"name": "c", "type": column, "metadata": metadata}]})
    with pytest.raises(NotDecided, match="in its own way"):
        row_expression("c = 'a'", columns_of(table))


ONE_ROW = pa.record_batch(
    {
        "i": pa.array([2**31 - 1], pa.int32()),
        "j": pa.array([0], pa.int32()),
        "d": pa.array([2.0**63]),
        "s": ["x"],
        "n": ["\u01c5"],
        "e": pa.array([None], pa.decimal128(38, 18)),
    }
)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("i + 1", DeltaAnalysisException, "ARITHMETIC_OVERFLOW"),
        ("i / j", DeltaAnalysisException, "DIVIDE_BY_ZERO"),
        ("i % j", DeltaAnalysisException, "REMAINDER_BY_ZERO"),
        ("CAST(s AS INT)", DeltaAnalysisException, "CAST_INVALID_INPUT"),
        ("CAST(i AS TINYINT)", DeltaAnalysisException, "CAST_OVERFLOW"),
        ("CAST(i AS DECIMAL(5,2))", DeltaAnalysisException, "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("upper(n)", DeltaUnsupportedOperationException, "version of Unicode"),
        ("CAST(d AS BIGINT)", DeltaUnsupportedOperationException, "9223372036854775808"),
        ("rpad(s, 10000000)", DeltaUnsupportedOperationException, "10000000 characters"),
    ],
)
def test_a_row_without_a_value_is_an_error_that_names_the_expression(text: str, error: type[Exception], message: str):
    expression = row_expression(text, columns_of(schema()))
    with pytest.raises(error, match=re.escape(f"The expression {text!r}") + ".*" + message):
        expression.values(ONE_ROW)


def test_an_expression_knows_its_columns_and_its_type():
    expression = row_expression("I + ST.x", columns_of(schema()))
    assert expression.columns == ("i", "st")
    assert expression.data_type == INTEGER
    assert not expression.is_constant
    assert row_expression("1 + 2", columns_of(schema())).is_constant
    found = row_expression("i > 0 OR NULL", columns_of(schema())).true(awkward_rows().to_batches()[0].slice(0, 4))
    assert found.to_pylist() == [False, False, True, False]
    with pytest.raises(DeltaAnalysisException, match="not a condition"):
        expression.true(awkward_rows().to_batches()[0])


def test_no_rows_have_no_values():
    batch = awkward_rows().to_batches()[0].slice(0, 0)
    for text in ("i + 1", "upper(s)", "1", "CASE WHEN o THEN 1 / i END", "i IN (1, j)", "c * c", "year(t)"):
        assert len(row_expression(text, columns_of(schema())).values(batch)) == 0


def test_the_page_lists_what_is_decided():
    page = PAGE.read_text()
    listed = {
        name for line in re.findall(r"^\| [^|]+ \| (.*) \|$", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", line)
    }
    functions = {name for name in listed if re.fullmatch(r"\w+", name) and name.islower()}
    assert functions - {"div"} == set(FUNCTIONS) | {"struct"}
    marks = {name for name in OPERATORS if not name.replace(" ", "").isalpha()}
    assert marks <= {name.replace("\\", "") for name in listed}
