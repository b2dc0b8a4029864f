"""Questions about the trees that :func:`airflow_delta.log.expressions.text.tree_of` hands out.

Nobody outside of this package knows the parser that makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC


def has_subquery(tree: Any) -> bool:
    """Return whether a query is part of an expression."""
    return tree.find(exp.Query) is not None


def needs_other_rows(tree: Any) -> bool:
    """Return whether an expression depends on more than one row: it has a subquery, an aggregate or a window."""
    return tree.find(exp.Query, exp.AggFunc, exp.Window) is not None


def is_statement(tree: Any) -> bool:
    """Return whether a text is a query or a command, rather than an expression."""
    return isinstance(tree, exp.Query | exp.Command | exp.DDL | exp.DML)


def may_be_condition(tree: Any) -> bool:
    """Return whether an expression may be a condition, as far as its form shows."""
    return not is_statement(tree) and not isinstance(tree, exp.Alias | exp.Tuple | exp.Star)


def calls_unknown(tree: Any) -> bool:
    """Return whether an expression calls a function that Spark's dialect does not have."""
    return tree.find(exp.Anonymous) is not None


def changing_function(tree: Any) -> str | None:
    """Return a function, in lower case, whose value differs with every evaluation; ``None`` if an expression calls none."""
    calls = (str(f.name if isinstance(f, exp.Anonymous) else f.sql_name()).lower() for f in tree.find_all(exp.Func))
    return next((name for name in calls if name in NOT_DETERMINISTIC), None)


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column that an expression names.

    :param parts: its names, with an alias before them and the fields of structs after them.
    :param start: position of the first one in the text; ``None`` if the parser has made it up.
    """

    parts: tuple[str, ...]
    start: int | None


def column_of(node: Any) -> ColumnName | None:
    """Return the column that a node is; ``None`` for any other expression."""
    if not isinstance(node, exp.Column):
        return None
    return ColumnName(tuple(part.name for part in node.parts), node.parts[0].meta.get("start"))


def named_columns(tree: Any) -> Iterator[ColumnName]:
    """Yield the columns that an expression names."""
    yield from filter(None, map(column_of, tree.find_all(exp.Column)))


@dataclass(frozen=True, slots=True)
class Equality:
    """An expression that compares two columns by ``=`` or, if null-safe, ``<=>``."""

    left: ColumnName
    right: ColumnName
    null_safe: bool


def equality_of(tree: Any) -> Equality | None:
    """Return the equality of two columns that an expression is; ``None`` for any other."""
    node = unwrapped(tree)
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    left, right = column_of(unwrapped(node.this)), column_of(unwrapped(node.expression))
    return None if left is None or right is None else Equality(left, right, isinstance(node, exp.NullSafeEQ))


def compared_texts(tree: Any) -> Iterator[tuple[str, tuple[Any, ...], bool]]:
    """Yield the texts in quotes that an expression compares: each with what it is compared with, and whether by ``IN``."""
    for literal in tree.find_all(exp.Literal):
        if not literal.is_string:
            continue
        node: Any = literal
        while isinstance(node.parent, exp.Paren):
            node = node.parent
        comparison = node.parent
        if isinstance(comparison, exp.In):
            yield literal.this, (unwrapped(comparison.this),), True
        if isinstance(comparison, exp.Binary | exp.Between):
            yield literal.this, tuple(map(unwrapped, comparison.iter_expressions())), False


def unwrapped(node: Any) -> Any:
    """Return an expression without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node
