"""Conditions that are compared here are parsed without sqlglot, by Spark's lexical rules; all others are left to Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.ast import Expression, Literal
from airflow_delta.log.expressions.name_resolution import Columns
from airflow_delta.log.expressions.parser import parse, parse_fully
from airflow_delta.log.expressions.simple import _RESERVED, parse_simple
from airflow_delta.log.schema.types import DOUBLE, PrimitiveType, StructType, parse_schema

TYPES = {
    "id": "long",
    "small": "byte",
    "ratio": "double",
    "share": "float",
    "price": "decimal(10,2)",
    "name": "string",
    "date": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "done": "boolean",
    "raw": "binary",
    "we`ird na.me": "string",
    "äid": "long",
}


def schema_of(types: dict[str, str]) -> StructType:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    fields.append({"name": "nested", "type": inner, "nullable": True, "metadata": {}})
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


SCHEMA = schema_of(TYPES)


def tree(text: str, schema: StructType = SCHEMA) -> Expression | None:
    return parse_simple(text, Columns(text, schema, ["date"]))


SIMPLE = [
    "date = '2024-01-05'",
    "DATE = DATE '2024-01-05'",
    "`date` >= DATE '2024-01-05' AND date<'2024-02'",
    "date BETWEEN '2024-01-01' AND '2024-01-31' AND id IN (1, -2, 3L)",
    "date NOT BETWEEN DATE '2024-01-01' AND DATE '2024-01-31'",
    "id = 1 OR id = 2 AND name = 'a'",
    "(id = 1 OR id = 2) AND (name = 'a' AND (small <> 3 OR NOT (ratio > 1.5D)))",
    "((id = 1))",
    "NOT (id = 1 AND name = 'b')",
    "NOT (NOT (id = 1))",
    "name IS NULL OR name IS NOT NULL",
    "name NOT IN ('a', 'b', NULL)",
    "id <=> NULL",
    "id != 5",
    "nested.x > 7",
    "`we``ird na.me` = 'x'",
    "name = ''",
    "name = 'Zoë ✓ -- no comment /* nor this */'",
    "price > 1.50 AND price <= 20BD AND price <> 3",
    "ratio = -1.25 AND share < 2.5D AND ratio < 3",
    "at >= TIMESTAMP '2024-01-01 00:00:00.000000 UTC' AND local < TIMESTAMP_NTZ '2024-01-01 00:00:00'",
    "at < '2024-01-01'",
    "done = true AND done <> FALSE",
    "true",
    "id=1\nAND\tname='x'",
    "raw = 'abc'",
    "id = '5'",
    "id = 0005",
    "done",
    "5 = id",
    "1 = 1",
    "null",
    "id == 5",
    "id = 5l",
    "id = - 5",
    "id = 1 -- and so on",
    "id = /* one */ 1",
    "name = 'it''s'",
    "name = 'a' 'b'",
    'name = "a"',
    "name LIKE 'a%'",
    "date = DATE'2024-01-01'",
    "date = r'2024-01-01'",
    "id = 1.",
    "id = .5",
    "NOT id = 1",
    "done IS TRUE",
    "id is distinct from 5",
    r"name = 'a\nb\u00e9\101\%'",
    "id = 9223372036854775808",
    "id NOT IN (-9223372036854775809, 5Y, 5S)",
    "price = CAST('1.255' AS DECIMAL(10,2)) OR price = 1.25 :: DECIMAL(4,1)",
    "ratio = double('NaN') AND share = 0.1F AND ratio < -1.5e10",
    "äid IS NULL",
]

NOT_SIMPLE = [
    "id = id",
    "id = 1e3",
    "id = --5",
    "date = current_date",
    "current_date = '2024-01-01'",
    "year(date) = 2024",
    "id = 1 + 1",
    "id IN (SELECT 1)",
    "id = X'05'",
    "id = 1 AND",
    "(id = 1",
    "id = 1)",
    "id IN ()",
    "nested = 1",
    "nosuch = 1",
    "nested.y = 1",
    "name = 5",
    "id = 1; id = 2",
    "",
    "id IS TRUE",
    "id = 99999999999999999999999999999999999999999999" + "9" * 400,
    "id = 1 COLLATE x",
    "öid = 1",
    "id = CAST(300 AS TINYINT)",
    "id = 300Y",
    "id = TRY_CAST('x' AS INT)",
    "name = CAST('abc' AS CHAR(2))",
    "name = CAST('abc' AS VARCHAR(2))",
    "name = CAST('a' AS STRING COLLATE UTF8_LCASE)",
    r"name LIKE 'a\\q'",
    r"name = '\uD800'",
    "id IN ('01', 2)",
    "date IN ('2024-1-1')",
    "price = 0.1234567890123456789012345678901234567",
    "price = '1.2500000000000000000001'",
    "share = 16777217",
    "id = 1e1",
    "id = INTERVAL 1 DAY",
    "id = \uff15",
]


@pytest.mark.parametrize("text", SIMPLE)
def test_what_a_predicate_is_written_down_as_has_its_tree(text: str) -> None:
    simple = tree(text)
    assert simple is not None
    assert parse_fully(text, Columns(text, SCHEMA, ["date"])) == simple
    assert tree(str(simple)) == simple


@pytest.mark.parametrize("text", NOT_SIMPLE)
def test_what_is_not_simple_is_left_to_the_other_parser(text: str) -> None:
    assert tree(text) is None


LITERALS = {
    "id": ["5", "-3", "7L", "'12'", "NULL"],
    "price": ["1.5", "2", "3.25BD", "NULL"],
    "name": ["'x'", "''", "'ä b'", "NULL"],
    "date": ["'2024-01-05'", "DATE '2024-01-05'", "NULL"],
    "at": ["'2024-01-05 10:00:00'", "TIMESTAMP '2024-01-05 10:00:00+02:00'", "DATE '2024-01-05'"],
}


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(LITERALS)))
    literal = st.sampled_from(LITERALS[name])
    column = draw(st.sampled_from([name, f"`{name}`", name.upper()]))
    match draw(st.integers(0, 3)):
        case 0:
            return f"{column} {draw(st.sampled_from(['=', '<>', '!=', '<', '<=', '>', '>=', '<=>']))} {draw(literal)}"
        case 1:
            listed = ", ".join(draw(st.lists(literal, min_size=1, max_size=3)))
            return f"{column}{draw(st.sampled_from(['', ' NOT']))} IN ({listed})"
        case 2:
            return f"{column}{draw(st.sampled_from(['', ' NOT']))} BETWEEN {draw(literal)} AND {draw(literal)}"
    return f"{column} IS{draw(st.sampled_from(['', ' NOT']))} NULL"


PREDICATES = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" AND ".join),
        st.lists(inner, min_size=2, max_size=3).map(" OR ".join),
        inner.map("({})".format),
        inner.map("NOT ({})".format),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(PREDICATES)
def test_any_combination_is_written_down_as_the_same(text: str) -> None:
    simple = tree(text)
    assert simple is not None
    assert tree(str(simple)) == simple


def test_errors_name_the_value() -> None:
    with pytest.raises(PredicateException, match="names the column 'nosuch'"):
        parse("nosuch = 1", SCHEMA, [])
    with pytest.raises(PredicateException, match="'yesterday' is not a date"):
        parse("date = 'yesterday'", SCHEMA, [])


def test_reserved_names_are_only_columns_in_quotes() -> None:
    for word in sorted(_RESERVED):
        schema = schema_of({word: "long"})
        assert tree(f"{word} = 1", schema) is None
        assert tree(f"`{word}` = 1", schema) is not None


def test_sqlglot_is_loaded_for_the_others_only() -> None:
    program = (
        "import sys; from airflow_delta.log.expressions.predicate import parse; from airflow_delta.log.schema.types import *;"
        "schema = StructType((StructField('date', PrimitiveType('date'), True, {}),));"
        "parse(\"date = '2024-01-05'\", schema, ['date']); assert 'sqlglot' not in sys.modules;"
        "parse('year(date) = 2024', schema, ['date']); assert 'sqlglot' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_nan_is_itself() -> None:
    one, other = (Literal(float("nan"), DOUBLE) for _ in range(2))
    assert one == other
    assert len({one, other, Literal(1.0, DOUBLE)}) == 2
    assert one != Literal(float("nan"), PrimitiveType("float"))
