"""Parsing Spark SQL into the expression tree of :mod:`airflow_delta.log.expressions.ast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_delta.contract.queries import with_escaped_quotes
from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions.ast import And, Expression, Not, Opaque, Or
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, OF_THE_SESSION
from airflow_delta.log.expressions.name_resolution import Columns, UnsupportedError
from airflow_delta.log.expressions.refused import oversized, refused_function
from airflow_delta.log.expressions.simple import parse_simple
from airflow_delta.log.expressions.text import SqlSyntaxError, bare, split, tree_of
from airflow_delta.log.schema.types import StructType

_HINT = (
    "A predicate is a deterministic condition on the columns of a row; "
    "compute values such as today's date in the Dag, with a template"
)

_CHANGING_FUNCTIONS = NOT_DETERMINISTIC | OF_THE_SESSION

_MAX_LENGTH = 1 << 20

_MAX_OPAQUE = 100
"""Maximum number of conditions that only Spark can evaluate; each is parsed separately."""


def parse(text: str, schema: StructType, partition_columns: Sequence[str]) -> Expression:
    """Return the tree of a predicate.

    Conditions that cannot be evaluated here are kept as text (:class:`airflow_delta.log.expressions.ast.Opaque`).

    :raises PredicateException: if it does not parse, names an unknown column, or is not a condition on the columns of a row.
    """
    if not text.strip():
        raise PredicateException("The predicate is empty; omit it, or write true")
    if len(text) > _MAX_LENGTH:
        raise PredicateException(f"The predicate has {len(text)} characters; split it")
    if (problem := oversized(text)) is not None:
        raise PredicateException(f"The predicate {text[:100]!r}... {problem}; use IN for long lists")
    columns = Columns(text, schema, partition_columns)
    if (simple := parse_simple(text, columns)) is not None:
        return simple
    return parse_fully(text, columns)


def parse_fully(text: str, columns: Columns) -> Expression:
    """Return the tree of a predicate of any form; errors as for :func:`parse`."""
    try:
        return _Parser(text, columns).expression(with_escaped_quotes(text))
    except UnsupportedError as error:
        held = error.node.sql(dialect="spark")
        raise PredicateException(f"The predicate {text!r} contains {held!r}, which is not supported. {_HINT}") from error
    except SqlSyntaxError as error:
        raise PredicateException(f"The predicate {text!r} is not valid Spark SQL: {error}") from error
    except RecursionError as error:
        raise PredicateException(f"The predicate {text[:100]!r}... is nested too deeply; use IN for long lists") from error


class _Parser:
    def __init__(self, text: str, columns: Columns) -> None:
        from sqlglot import exp

        self.exp: Any = exp
        self.text = text
        self.columns = columns
        self.num_opaque = 0

    def expression(self, text: str) -> Expression:
        """Return the tree of a text; parts that cannot be evaluated here are kept as text."""
        return self.part(text, tree_of(text))

    def part(self, text: str, node: Any) -> Expression:
        """Return the tree of a text that sqlglot has already parsed."""
        if (simple := parse_simple(text, self.columns)) is not None:
            return simple
        pieces = split(text)
        if pieces is None:
            return self.opaque(bare(text), node)
        connective, parts = pieces
        nodes = self.operands(connective, node)
        inner = tuple(map(self.part, parts, nodes)) if len(nodes) == len(parts) else tuple(map(self.expression, parts))
        return Not(inner[0]) if connective == "NOT" else And(inner) if connective == "AND" else Or(inner)

    def operands(self, connective: str, node: Any) -> list[Any]:
        """Return the nodes of the operands of a connective; none if sqlglot parsed the text differently."""
        outer = node.unnest()
        if connective == "NOT":
            return [outer.this] if type(outer) is self.exp.Not else []
        return list(outer.flatten(unnest=False)) if type(outer) is (self.exp.And if connective == "AND" else self.exp.Or) else []

    def opaque(self, text: str, node: Any) -> Opaque:
        """Return a condition for Spark to evaluate.

        :raises PredicateException: if it is not a condition, depends on more than the row, or is not deterministic.
        """
        self.num_opaque += 1
        if self.num_opaque > _MAX_OPAQUE:
            raise PredicateException(
                f"The predicate {self.text[:100]!r}... has more than {_MAX_OPAQUE} conditions that only Spark evaluates; split it"
            )
        exp, condition = self.exp, node.unnest()
        if not isinstance(
            condition,
            exp.Predicate | exp.Func | exp.Case | exp.Cast | exp.Not | exp.Column | exp.Dot | exp.Bracket | exp.Connector,
        ):
            raise UnsupportedError(node)
        for part in node.walk():
            name = str(part.name if isinstance(part, exp.Anonymous) else part.sql_name() if isinstance(part, exp.Func) else "")
            changing = name.lower() in _CHANGING_FUNCTIONS or (name == "UNIX_TIMESTAMP" and not part.this)
            if changing or isinstance(
                part,
                exp.Query | exp.AggFunc | exp.Window | exp.Placeholder | exp.Parameter | exp.Star | exp.UDTF | exp.Command,
            ):
                raise UnsupportedError(node)
        if (problem := refused_function(text, session=False)) is not None:
            raise PredicateException(f"The predicate {self.text!r} {problem}. {_HINT}")
        names = [[part.name for part in column.parts] for column in node.find_all(exp.Column)]
        uses = [self.columns.resolve(parts, inside=True) for parts in names]
        return Opaque(text, tuple(dict.fromkeys(uses)), any(map(self.columns.has_own_order, names)))
