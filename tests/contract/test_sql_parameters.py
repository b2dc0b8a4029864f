"""Named parameters in SQL: found where they are parameters, and written as literals that mean their value and nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from airflow_delta.contract.kinds import taken
from airflow_delta.contract.sql_parameters import SQL_PARAMETERS, literal_of, with_parameters
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.expressions.string_literals import unescaped
from support.sql_values import TEXTS


@pytest.mark.parametrize("value", TEXTS)
def test_a_text_stays_the_text(value):
    literal = literal_of(value)
    assert unescaped(literal) == value
    assert not set(literal[1:-1]) & set("'\"`:{}$();\n\r")


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("a = :x", "a = 'v'"),
        ("a IN(:x,:n)", "a IN('v',(-5))"),
        ("a -:n > 1", "a -(-5) > 1"),
        ("a::int = 1 AND b:x = 1 AND c['k']:x = :x", "a::int = 1 AND b:x = 1 AND c['k']:x = 'v'"),
        ("a = ':x' AND `:x` = \":x\" AND r':x' = b", "a = ':x' AND `:x` = \":x\" AND r':x' = b"),
        ("a = 'it''s :x' AND b = 'it\\'s :x' AND c = :x", "a = 'it''s :x' AND b = 'it\\'s :x' AND c = 'v'"),
        ("a = 1 -- :x\n AND /* :x */ b = :x", "a = 1 -- :x\n AND /* :x */ b = 'v'"),
    ],
)
def test_where_a_parameter_is(text, bound):
    assert with_parameters(text, {"x": "v", "n": -5}, whose="where") == bound


def test_a_parameter_without_a_value_is_refused():
    with pytest.raises(DeltaIllegalArgumentException, match="predicate names the parameter :day, which has no value"):
        with_parameters("day = :day", {"days": 1}, whose="predicate")


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (None, "NULL"),
        (True, "true"),
        (7, "7"),
        (-7, "(-7)"),
        (1.5, "1.5E0"),
        (1e-07, "1e-07"),
        (Decimal("1.50"), "1.50"),
        (Decimal("2E+3"), "2000.0"),
        (date(2026, 1, 2), "DATE'2026-01-02'"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "TIMESTAMP'2026-01-02 03:00:00+00:00'"),
        (datetime(2026, 1, 2, 3), "TIMESTAMP_NTZ'2026-01-02 03:00:00'"),
    ],
)
def test_literals(value, literal):
    assert literal_of(value) == literal


@pytest.mark.parametrize(
    "given", ["day", {"a b": 1}, {"1": 1}, {"x": [1]}, {"x": float("nan")}, {"x": 1 << 64}, {"x": b"1"}, {"x": "\ud800"}, {1: 1}]
)
def test_what_is_no_value(given):
    with pytest.raises(DeltaIllegalArgumentException, match="parameters must be a mapping of names to strings"):
        taken("parameters", given, SQL_PARAMETERS)
