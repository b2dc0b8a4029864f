"""Splitting the text of a predicate into its operands, to keep those that only Spark can evaluate exactly as written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta.log.expressions.syntax_problem import syntax_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_OPENING = {"L_PAREN", "L_BRACKET", "CASE"}
_CLOSING = {"R_PAREN", "R_BRACKET", "END"}


class SqlSyntaxError(Exception):
    """A text is not Spark SQL; it says what is wrong, and where."""


def tokens_of(text: str) -> list[Any]:
    """Return the tokens of a text: each has ``text``, ``token_type``, and the positions ``start`` and ``end``.

    :raises SqlSyntaxError: if a quote or a comment is not closed, or a character cannot be read.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return list(sqlglot.tokenize(text, dialect="spark"))
    except SqlglotError as error:
        raise SqlSyntaxError(syntax_problem(error)) from error


def tree_of(text: str) -> Any:
    """Return the tree of an expression, for the questions of :mod:`airflow_delta.log.expressions.nodes`.

    :raises SqlSyntaxError: if it does not parse.
    :raises RecursionError: if it is nested too deeply.
    """
    import sqlglot

    try:
        statements = sqlglot.parse(text, dialect="spark")
    except RecursionError:
        raise
    except Exception as error:  # some texts make sqlglot fail in other ways than its own
        raise SqlSyntaxError(syntax_problem(error)) from error
    if len(statements) != 1 or statements[0] is None:
        raise SqlSyntaxError("it is not a single expression")
    return statements[0]


def bare(text: str) -> str:
    """Return the text without outer parentheses and without comments before and after it."""
    tokens = _without_parentheses(tokens_of(text))
    return text[tokens[0].start : tokens[-1].end + 1]


def split(text: str) -> tuple[str, list[str]] | None:
    """Return the outermost connective of a condition (``OR``, ``AND`` or ``NOT``) and its operands; ``None`` if it has none."""
    tokens = _without_parentheses(tokens_of(text))
    for word in ("OR", "AND"):
        parts = list(_operands(tokens, word))
        if len(parts) > 1:
            return word, [text[part[0].start : part[-1].end + 1] for part in parts if part]
    if len(tokens) > 1 and tokens[0].token_type.name == "NOT" and len(_without_parentheses(tokens[1:])) < len(tokens) - 1:
        return "NOT", [text[tokens[1].start : tokens[-1].end + 1]]
    return None


def _without_parentheses(tokens: Sequence[Any]) -> Sequence[Any]:
    while len(tokens) > 2 and tokens[0].token_type.name == "L_PAREN" and _closing(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def _closing(tokens: Sequence[Any]) -> int:
    """Return the position of the token that closes the bracket opened by the first one."""
    for position, depth in enumerate(_depths(tokens)):
        if position and depth == 0 and tokens[position].token_type.name in _CLOSING:
            return position
    return -1


def _depths(tokens: Sequence[Any]) -> Iterator[int]:
    """Yield the bracket depth of each token; brackets themselves have the depth of what surrounds them."""
    depth = 0
    for token in tokens:
        if token.token_type.name in _CLOSING:
            depth -= 1
        yield depth
        if token.token_type.name in _OPENING:
            depth += 1


def _operands(tokens: Sequence[Any], word: str) -> Iterator[Sequence[Any]]:
    start, between = 0, 0
    for position, (token, depth) in enumerate(zip(tokens, _depths(tokens), strict=True)):
        if depth:
            continue
        kind = token.token_type.name
        if kind == "BETWEEN":
            between += 1
        elif kind == "AND" and between:
            between -= 1  # BETWEEN low AND high
        elif kind == word:
            yield tokens[start:position]
            start = position + 1
    yield tokens[start:]
