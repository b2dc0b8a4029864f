"""Simple predicates are parsed without sqlglot: into the trees that the parser for all others makes, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.ast import Expression
from airflow_delta.log.expressions.parser import parse, parse_fully
from airflow_delta.log.expressions.resolve import Columns
from airflow_delta.log.expressions.simple import _RESERVED, parse_simple
from airflow_delta.log.schema.types import StructType, parse_schema

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
}


def schema_of(types: dict[str, str]) -> StructType:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    fields.append({"name": "nested", "type": inner, "nullable": True, "metadata": {}})
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


SCHEMA = schema_of(TYPES)


def trees(text: str, schema: StructType = SCHEMA) -> tuple[Expression | None, Expression | None]:
    """Return the tree of either parser; ``None`` where it refuses the text."""
    columns = Columns(text, schema, ["date"])
    try:
        full = parse_fully(text, columns)
    except PredicateException:
        full = None
    return parse_simple(text, columns), full


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
]

NOT_SIMPLE = [
    "id",
    "done",
    "5 = id",
    "1 = 1",
    "null",
    "id = id",
    "id == 5",
    "id = 1e3",
    "id = 5l",
    "id = - 5",
    "id = --5",
    "id = 1 -- and so on",
    "id = /* one */ 1",
    "name = 'it''s'",
    "name = 'a' 'b'",
    r"name = 'a\nb'",
    'name = "a"',
    "name LIKE 'a%'",
    "date = current_date",
    "current_date = '2024-01-01'",
    "year(date) = 2024",
    "id = 1 + 1",
    "id IN (SELECT 1)",
    "id = X'05'",
    "date = DATE'2024-01-01'",
    "date = r'2024-01-01'",
    "date = 'yesterday'",
    "id = 'five'",
    "id = 1.",
    "id = .5",
    "id = 1 AND",
    "(id = 1",
    "id = 1)",
    "id IN ()",
    "NOT id = 1",
    "nested = 1",
    "nosuch = 1",
    "nested.y = 1",
    "name = 5",
    "id = 1; id = 2",
    "",
    "id IS TRUE",
    "done IS TRUE",
    "id = 99999999999999999999999999999999999999999999" + "9" * 400,
    "id is distinct from 5",
    "id = 1 COLLATE x",
    "äid = 1",
    "id = \uff15",
]


@pytest.mark.parametrize("text", SIMPLE)
def test_the_tree_is_that_of_the_other_parser(text: str) -> None:
    simple, full = trees(text)
    assert simple is not None
    assert simple == full
    again, fully = trees(str(simple))
    assert again == fully or text.startswith("raw"), "what a predicate is written down as; X'00' is for the other parser"


@pytest.mark.parametrize("text", NOT_SIMPLE)
def test_what_is_not_simple_is_left_to_the_other_parser(text: str) -> None:
    assert parse_simple(text, Columns(text, SCHEMA, ["date"])) is None


def words_of_sqlglot() -> list[str]:
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    words = {word.lower() for word in Spark.Tokenizer.KEYWORDS if word.replace("_", "").isalnum()}
    words |= {name.lower() for name in exp.FUNCTION_BY_NAME}
    words |= {str(name).lower() for name in Spark.Parser.NO_PAREN_FUNCTION_PARSERS}
    return sorted(words | {kind.name.lower() for kind in Spark.Parser.NO_PAREN_FUNCTIONS})


@pytest.mark.filterwarnings("ignore")
def test_a_column_with_the_name_of_a_keyword_is_one_to_both_parsers_or_to_the_other_alone() -> None:
    found = 0
    for word in words_of_sqlglot():
        schema = schema_of({word: "long", "id": "long"})
        for form in ("{0} = 1", "id = 1 AND {0} IN (1)", "{0} IS NULL OR id = 2", "NOT ({0} BETWEEN 1 AND 2)", "nested.{0} = 1"):
            simple, full = trees(form.format(word), schema)
            assert simple is None or simple == full, form.format(word)
            found += simple is not None
    assert found > 1000, "most of them are no more than names"


LITERALS = {
    "id": ["5", "-3", "7L", "'12'", "NULL"],
    "price": ["1.5", "2", "3.25BD", "NULL"],
    "name": ["'x'", "''", "'ä b'", "NULL"],
    "date": ["'2024-01-05'", "DATE '2024-01-05'", "'2024'", "NULL"],
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
def test_any_combination_has_the_tree_of_the_other_parser(text: str) -> None:
    simple, full = trees(text)
    assert simple is not None
    assert simple == full


def test_errors_are_those_of_the_other_parser() -> None:
    with pytest.raises(PredicateException, match="names the column 'nosuch'"):
        parse("nosuch = 1", SCHEMA, [])
    with pytest.raises(PredicateException, match="'yesterday' is not a date"):
        parse("date = 'yesterday'", SCHEMA, [])


def test_reserved_names_are_only_columns_in_quotes() -> None:
    for word in sorted(_RESERVED):
        schema = schema_of({word: "long"})
        bare, quoted = f"{word} = 1", f"`{word}` = 1"
        assert parse_simple(bare, Columns(bare, schema, [])) is None
        assert parse_simple(quoted, Columns(quoted, schema, [])) == trees(quoted, schema)[1] is not None


def test_sqlglot_is_loaded_for_the_others_only() -> None:
    program = (
        "import sys; from airflow_delta.log.expressions.parser import parse; from airflow_delta.log.schema.types import *;"
        "schema = StructType((StructField('date', PrimitiveType('date'), True, {}),));"
        "parse(\"date = '2024-01-05'\", schema, ['date']); assert 'sqlglot' not in sys.modules;"
        "parse('year(date) = 2024', schema, ['date']); assert 'sqlglot' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
