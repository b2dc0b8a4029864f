"""The expression tree of predicates: its nodes, what they name, and equivalent trees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.expressions.like import like_pattern
from airflow_delta.log.expressions.sql_text import literal_text, quote_name, quote_text
from airflow_delta.log.schema.partition_index import Column, is_named_exactly
from airflow_delta.log.schema.types import DataType

Truth = bool | None

FLIPPED = {"=": "=", "<=>": "<=>", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column, or a field of a struct.

    :param path: logical names from the top.
    :param physical_path: names in partition values and statistics.
    :param char_length: of a ``char(n)``: Spark compares it, and literals, as if filled up with spaces.
    """

    path: tuple[str, ...]
    physical_path: tuple[str, ...]
    data_type: DataType
    is_partition: bool
    char_length: int | None = None

    def __str__(self) -> str:
        return ".".join(quote_name(name) for name in self.path)


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A value of the type of the column it is compared with; ``None`` is null.

    NaN is the same as NaN, as in Spark. Since Python 3.13, fields are compared one by one, where NaN never is.
    """

    value: Any
    data_type: DataType

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same value of the same type."""
        return isinstance(other, Literal) and self._identity == other._identity

    def __hash__(self) -> int:
        """Return the hash of value and type."""
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        is_nan = isinstance(self.value, float) and math.isnan(self.value)
        return ("NaN" if is_nan else self.value, is_nan, self.data_type)

    def __str__(self) -> str:
        return literal_text(self.value, self.data_type)


@dataclass(frozen=True, slots=True)
class Constant:
    """``true``, ``false`` or null (unknown)."""

    value: Truth

    def __str__(self) -> str:
        return {True: "true", False: "false", None: "CAST(NULL AS BOOLEAN)"}[self.value]


@dataclass(frozen=True, slots=True)
class Compare:
    """``column operator literal``."""

    operator: str
    column: ColumnReference
    literal: Literal

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {self.literal}"


@dataclass(frozen=True, slots=True)
class In:
    """``column IN (literals)``; null if nothing matches and a literal is null."""

    column: ColumnReference
    literals: tuple[Literal, ...]

    def __str__(self) -> str:
        return f"{self.column} IN ({', '.join(map(str, self.literals))})"


@dataclass(frozen=True, slots=True)
class IsNull:
    """``column IS NULL``."""

    column: ColumnReference

    def __str__(self) -> str:
        return f"{self.column} IS NULL"


@dataclass(frozen=True, slots=True)
class Like:
    """``column LIKE 'pattern'``; a backslash escapes wildcards."""

    column: ColumnReference
    pattern: str

    def __str__(self) -> str:
        return f"{self.column} LIKE {quote_text(self.pattern)}"

    @property
    def prefix(self) -> str:
        """Return the prefix of all matches."""
        return like_pattern(self.pattern).prefix


@dataclass(frozen=True, slots=True)
class And:
    """A conjunction."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " AND ".join(_operand(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """A disjunction."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " OR ".join(_operand(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """A negation."""

    part: Expression

    def __str__(self) -> str:
        if isinstance(self.part, IsNull):
            return f"{self.part.column} IS NOT NULL"
        return f"NOT ({self.part})"


@dataclass(frozen=True, slots=True)
class Opaque:
    """A condition of another form. Its value for a file is unknown, so it excludes none; rows may decide it.

    :param text: Spark SQL, exactly as given.
    :param uses: columns it refers to.
    :param own_order: whether strings in one of them are not compared by their bytes: only Spark can evaluate it.
    """

    text: str
    uses: tuple[ColumnReference, ...]
    own_order: bool = False

    def __str__(self) -> str:
        return f"({self.text})"


Expression = Constant | Compare | In | IsNull | Like | And | Or | Not | Opaque


def _operand(part: Expression) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)


# -- structure ----------------------------------------------------------------------------------------------------------------


def columns(expression: Expression) -> Iterator[ColumnReference]:
    """Yield the columns that an expression refers to, with repetitions."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from columns(part)
        case Not(part):
            yield from columns(part)
        case Constant():
            return
        case Opaque(_, uses):
            yield from uses
        case _:
            yield expression.column


def opaque(expression: Expression) -> Iterator[Opaque]:
    """Yield the conditions that only Spark can evaluate."""
    match expression:
        case Opaque():
            yield expression
        case And(parts) | Or(parts):
            for part in parts:
                yield from opaque(part)
        case Not(part):
            yield from opaque(part)


def conjuncts(expression: Expression) -> list[Expression]:
    """Return the parts of nested conjunctions as one list."""
    if isinstance(expression, And):
        return [inner for part in expression.parts for inner in conjuncts(part)]
    return [expression]


def conjunction(parts: list[Expression]) -> Expression:
    """Return the conjunction of one or more expressions."""
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def named_values(expression: Expression) -> dict[Column, frozenset[Any]]:
    """Return values of which a row must have one for the expression to be true, for partition columns that it compares with some.

    :returns: values, ``None`` for null, by physical name and type; without columns whose values are not compared exactly.
    """
    match expression:
        case And(parts):
            found: dict[Column, frozenset[Any]] = {}
            for column, values in (item for part in parts for item in named_values(part).items()):
                found[column] = found[column] & values if column in found else values
            return found
        case Or(parts):
            first, *others = map(named_values, parts)
            return {
                column: values.union(*(other[column] for other in others))
                for column, values in first.items()
                if all(column in other for other in others)
            }
        case Compare("=" | "<=>", column, literal):
            return _named(column, [literal.value])
        case In(column, literals):
            return _named(column, [literal.value for literal in literals])
        case IsNull(column):
            return _named(column, [None])
    return {}


def _named(column: ColumnReference, values: list[Any]) -> dict[Column, frozenset[Any]]:
    exact = column.is_partition and column.char_length is None and is_named_exactly(column.data_type)
    return {(column.physical_path[0], column.data_type): frozenset(values)} if exact else {}


def push_down_not(expression: Expression, negate: bool = False) -> Expression:
    """Return an equivalent expression with ``NOT`` only around ``IN``, ``IS NULL``, ``LIKE`` and ``<=>``."""
    match expression:
        case Not(part):
            return push_down_not(part, not negate)
        case And(parts) | Or(parts):
            kind = And if isinstance(expression, And) != negate else Or
            return kind(tuple(push_down_not(part, negate) for part in parts))
    if not negate:
        return expression
    match expression:
        case Constant(value):
            return Constant(None if value is None else not value)
        case Compare(operator, column, literal) if operator in NEGATED:
            return Compare(NEGATED[operator], column, literal)
    return Not(expression)


def widened(expression: Expression) -> Expression:
    """Return an expression that is true wherever this one can be, without conditions that only Spark can evaluate.

    As Delta does with conditions that it cannot evaluate again (``ConflictCheckerPredicateElimination``).
    """
    return _widened(push_down_not(expression))


def _widened(expression: Expression) -> Expression:
    match expression:
        case And(parts) | Or(parts):
            return type(expression)(tuple(_widened(part) for part in parts))
        case Opaque() | Not(Opaque()):
            return Constant(True)
    return expression


# -- evaluation ---------------------------------------------------------------------------------------------------------------


# -- values that are not known exactly -----------------------------------------------------------------------------------------


# -- text ---------------------------------------------------------------------------------------------------------------------
