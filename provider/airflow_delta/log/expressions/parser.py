"""Parsing Spark SQL into the expression tree of :mod:`airflow_delta.log.expressions.ast`."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import PredicateException
from airflow_delta.log.expressions import literals
from airflow_delta.log.expressions.ast import (
    FLIPPED,
    And,
    Column,
    Compare,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Opaque,
    Or,
)
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, OF_THE_SESSION, oversized, refused_function
from airflow_delta.log.expressions.resolve import Columns, UnsupportedError
from airflow_delta.log.expressions.simple import parse_simple
from airflow_delta.log.expressions.syntax import syntax_problem
from airflow_delta.log.expressions.text import bare, escape_doubled_quotes, split, tree_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_delta.log.schema.types import StructType

_HINT = (
    "A predicate is a deterministic condition on the columns of a row; "
    "compute values such as today's date in the Dag, with a template"
)
_CHANGING_FUNCTIONS = NOT_DETERMINISTIC | OF_THE_SESSION
_MAX_LENGTH = 1 << 20
_MAX_PATTERN = 1 << 12
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
    from sqlglot.errors import SqlglotError

    try:
        return _Parser(text, columns).expression(escape_doubled_quotes(text))
    except UnsupportedError as error:
        held = error.node.sql(dialect="spark")
        raise PredicateException(f"The predicate {text!r} contains {held!r}, which is not supported. {_HINT}") from error
    except SqlglotError as error:
        raise PredicateException(f"The predicate {text!r} is not valid Spark SQL: {syntax_problem(error)}") from error
    except RecursionError as error:
        raise PredicateException(f"The predicate {text[:100]!r}... is nested too deeply; use IN for long lists") from error


class _Parser:
    def __init__(self, text: str, columns: Columns) -> None:
        from sqlglot import exp

        self.exp: Any = exp
        self.text = text
        self.columns = columns
        self.num_opaque = 0
        self.operators: dict[type, str] = {
            exp.EQ: "=",
            exp.NEQ: "<>",
            exp.LT: "<",
            exp.LTE: "<=",
            exp.GT: ">",
            exp.GTE: ">=",
            exp.NullSafeEQ: "<=>",
        }

    def expression(self, text: str) -> Expression:
        """Return the tree of a text; parts that cannot be evaluated here are kept as text."""
        return self.part(text, tree_of(text))

    def part(self, text: str, node: Any) -> Expression:
        """Return the tree of a text that sqlglot has already parsed."""
        try:
            return self.condition(node)
        except UnsupportedError:
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
        exp, condition = self.exp, self.unwrap(node)
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
        uses = [self.columns.resolve([part.name for part in column.parts], inside=True) for column in node.find_all(exp.Column)]
        return Opaque(text, tuple(dict.fromkeys(uses)))

    def condition(self, node: Any) -> Expression:  # noqa: C901 - one branch for each kind of node
        exp = self.exp
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            kind = And if isinstance(node, exp.And) else Or
            return kind(tuple(self.condition(part) for part in node.flatten()))
        if isinstance(node, exp.Not):
            return Not(self.condition(node.this))
        if isinstance(node, exp.Boolean):
            return Constant(bool(node.this))
        if isinstance(node, exp.Null):
            return Constant(None)
        if self.is_column(node):
            column = self.column(node)
            if column.data_type.name != "boolean":
                raise PredicateException(
                    f"The predicate {self.text!r} uses {column} ({column.data_type}) as a condition; compare it with a value"
                )
            return Compare("=", column, Literal(True, column.data_type))
        if type(node) in self.operators:
            return self.comparison(self.operators[type(node)], node)
        if isinstance(node, exp.Between):
            if node.args.get("symmetric"):
                raise UnsupportedError(node)
            column = self.column(node.this)
            low, high = self.literal(column, node.args["low"]), self.literal(column, node.args["high"])
            return And((Compare(">=", column, low), Compare("<=", column, high)))
        if isinstance(node, exp.In):
            if not node.expressions or node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
                raise UnsupportedError(node)
            column = self.column(node.this)
            return In(column, tuple(self.literal(column, item) for item in node.expressions))
        if isinstance(node, exp.Is):
            return self.is_condition(node)
        if isinstance(node, exp.Like) and not node.args.get("negate"):
            column, pattern = self.column(node.this), self.constant(node.expression)
            if column.data_type.name != "string" or pattern.kind != "string":
                raise UnsupportedError(node)
            if len(pattern.value) > _MAX_PATTERN:
                raise UnsupportedError(node)
            return Like(column, pattern.value)
        raise UnsupportedError(node)

    def comparison(self, operator: str, node: Any) -> Expression:
        left, right = self.unwrap(node.this), self.unwrap(node.expression)
        if self.is_column(left) and not self.is_column(right):
            column = self.column(left)
            return Compare(operator, column, self.literal(column, right))
        if self.is_column(right) and not self.is_column(left):
            column = self.column(right)
            return Compare(FLIPPED[operator], column, self.literal(column, left))
        if self.is_column(left):
            raise UnsupportedError(node)
        first, second = self.constant(left), self.constant(right)
        if first.kind == second.kind and first.kind in ("integer", "string", "boolean") and operator in ("=", "<>", "<=>"):
            return Constant((first.value == second.value) != (operator == "<>"))
        raise UnsupportedError(node)

    def is_condition(self, node: Any) -> Expression:
        exp, right = self.exp, node.expression
        column = self.column(node.this)
        if isinstance(right, exp.Null):
            return IsNull(column)
        if isinstance(right, exp.Boolean) and column.data_type.name == "boolean":
            return Compare("<=>", column, Literal(bool(right.this), column.data_type))
        raise UnsupportedError(node)

    def unwrap(self, node: Any) -> Any:
        while isinstance(node, self.exp.Paren):
            node = node.this
        return node

    def is_column(self, node: Any) -> bool:
        exp = self.exp
        return isinstance(node, exp.Column) or (
            isinstance(node, exp.Dot) and all(isinstance(part, exp.Identifier) for part in node.parts)
        )

    def column(self, node: Any) -> Column:
        node = self.unwrap(node)
        if not self.is_column(node):
            raise UnsupportedError(node)
        return self.columns.resolve([part.name for part in node.parts])

    def literal(self, column: Column, node: Any) -> Literal:
        constant = self.constant(node)
        try:
            return Literal(literals.coerce(constant, column.data_type), column.data_type)
        except literals.NotComparableError as error:
            raise UnsupportedError(node) from error
        except (ValueError, OverflowError) as error:
            raise PredicateException(
                f"The predicate {self.text!r} compares column {column} ({column.data_type}) with "
                f"{node.sql(dialect='spark')}: {error}"
            ) from error

    def constant(self, node: Any) -> literals.Constant:
        exp, node = self.exp, self.unwrap(node)
        if isinstance(node, exp.Null):
            return literals.Constant(None, "null")
        if isinstance(node, exp.Boolean):
            return literals.Constant(bool(node.this), "boolean")
        if isinstance(node, exp.RawString):
            return literals.Constant(node.this, "string")
        if isinstance(node, exp.HexString):
            return self.hexadecimal(node)
        if isinstance(node, exp.Neg):
            inner = self.constant(node.this)
            if inner.kind not in ("integer", "decimal", "double"):
                raise UnsupportedError(node)
            return literals.Constant(-inner.value, inner.kind)
        if isinstance(node, exp.Literal):
            return literals.Constant(node.this, "string") if node.is_string else self.number(node)
        if isinstance(node, exp.Cast):
            return self.cast(node)
        if isinstance(node, exp.Concat):
            parts = [self.constant(part) for part in node.expressions]
            if all(part.kind == "string" for part in parts):
                return literals.Constant("".join(part.value for part in parts), "string")
        raise UnsupportedError(node)

    def hexadecimal(self, node: Any) -> literals.Constant:
        if "0x" in self.text.lower():
            raise UnsupportedError(node)  # 0x10 is not a binary literal in Spark
        try:
            digits = str(node.this)
            return literals.Constant(bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits), "binary")
        except ValueError as error:
            raise UnsupportedError(node) from error

    def number(self, node: Any) -> literals.Constant:
        text = str(node.this)
        if len(text) > literals.MAX_DIGITS:
            raise UnsupportedError(node)
        try:
            if "e" in text.lower():
                return literals.Constant(float(text), "double")
            return literals.Constant(decimal.Decimal(text), "decimal") if "." in text else literals.Constant(int(text), "integer")
        except (ValueError, ArithmeticError) as error:
            raise UnsupportedError(node) from error

    def cast(self, node: Any) -> literals.Constant:
        kinds = self.exp.DataType.Type
        targets = {
            kinds.DATE: "date",
            kinds.TIMESTAMPTZ: "timestamp",
            kinds.TIMESTAMPLTZ: "timestamp",
            kinds.TIMESTAMP: "timestamp",
            kinds.TIMESTAMPNTZ: "timestamp_ntz",
            kinds.BIGINT: "integer",
            kinds.INT: "integer",
            kinds.SMALLINT: "integer",
            kinds.TINYINT: "integer",
            kinds.DECIMAL: "decimal",
            kinds.DOUBLE: "double",
            kinds.FLOAT: "float",
            kinds.BOOLEAN: "boolean",
            kinds.TEXT: "string",
        }
        target = targets.get(node.to.this)
        inner = self.unwrap(node.this)
        if target is None or node.args.get("format") or self.is_column(inner):
            raise UnsupportedError(node)
        constant = self.constant(inner)
        try:
            return literals.cast(constant, target)
        except literals.NotComparableError as error:
            raise UnsupportedError(node) from error
        except (ValueError, OverflowError) as error:
            raise PredicateException(f"The predicate {self.text!r} contains {node.sql(dialect='spark')!r}: {error}") from error
