"""What is taken for an expression without a parser is one to a parser, too, and calls nothing."""

from __future__ import annotations

import random

import pytest
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from airflow_delta.log.expressions import nodes
from airflow_delta.log.expressions.plain import is_plain
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of

PARTS = [
    *("a", "b_1", "a.b", "x.y.z", "`a`", "1", "1.5", "0x1", "1L", "1e3", ".5", "'text'", "'it''s'", r"'it\'s'", '"t"', "''"),
    *("+", "-", "*", "/", "%", "--", "/*", "*/", "(", ")", ",", ".", ";", "||", "=", "::", "[", "]", ":", "?", "@", "$", "${x}"),
    *("null", "TRUE", "current_date", "CURRENT_TIMESTAMP", "user", "date", "interval", "day", "select", "from", "case", "when"),
    *("not", "and", "is", "in", "rand()", "f(a)", "exists", "table", "array", "map", "struct", "if", "left", "ü", "\n", "\u00a0"),
]
ALLOWED = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Column, exp.Identifier, exp.Literal, exp.Dot)


@pytest.mark.parametrize(
    "text",
    ["value + 1", "'done'", "source.name", "  a*b - 3 / c.d % 2.50\n", "''", "_x", "price*1.19", "a - 1"],
)
def test_plain(text: str) -> None:
    assert is_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NULL",
        "current_date",
        "rand()",
        "a -- b",
        "a /* b */",
        "a--1",
        "a b",
        "'a' 'b'",
        r"'\''",
        "a +",
        "(a)",
        "a;",
        "DATE",
    ],
)
def test_for_the_parser(text: str) -> None:
    assert not is_plain(text)


@pytest.mark.parametrize("seed", range(20))
def test_the_parser_agrees(seed: int) -> None:
    draw = random.Random(seed)
    found = 0
    for _ in range(3_000):
        text = draw.choice(["", " "]).join(
            draw.choice(PARTS[:21] if draw.random() < 0.7 else PARTS) for _ in range(draw.randint(1, 5))
        )
        if not is_plain(text):
            continue
        found += 1
        tree = tree_of(text)
        assert all(isinstance(node, ALLOWED) for node in tree.walk()), text
        assert not nodes.has_subquery(tree), text
        assert not nodes.calls_unknown(tree), text
    assert found > 100


@pytest.mark.parametrize("form", ["{}", "{} + 1", "a * {}", "{}.b", "a.{}"])
def test_no_word_with_a_meaning_is_taken_for_a_column(form: str) -> None:
    dialect = Dialect.get_or_raise("spark")
    words = {word for word in dialect.tokenizer_class.KEYWORDS if word.isidentifier()}
    words |= {token.name for token in dialect.parser_class.NO_PAREN_FUNCTIONS} | set(
        dialect.parser_class.NO_PAREN_FUNCTION_PARSERS
    )
    texts = [form.format(word) for word in sorted(words)]
    plain = [text for text in texts if is_plain(text)]
    assert len(plain) > 20
    for text in plain:
        try:
            tree = tree_of(text)
        except SqlSyntaxError:
            pytest.fail(f"{text!r} does not parse")
        assert all(isinstance(node, ALLOWED) for node in tree.walk()), text
