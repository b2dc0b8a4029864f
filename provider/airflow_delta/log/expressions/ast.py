"""The expression tree of predicates: its nodes, its value for a row under SQL's three-valued logic, and its SQL text.

Floating-point numbers compare as in Spark: NaN equals itself and is greater than all other numbers.

LIKE in linear time: ``%`` matches any text, ``_`` one character, and a backslash escapes.

A regular expression would backtrack between the wildcards, on text that comes from the table.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from airflow_delta.log.schema.partition_index import Column, is_named_exactly
from airflow_delta.log.schema.partition_values import Instants
from airflow_delta.log.schema.types import FLOATING, INTEGRAL, DataType

Segment = tuple[str | None, ...]
"""Consecutive characters; ``None`` matches any character."""


class LikePattern:
    """A pattern, split at ``%``.

    :ivar prefix: prefix of all matches.
    """

    def __init__(self, pattern: str) -> None:
        segments: list[list[str | None]] = [[]]
        at = 0
        while at < len(pattern):
            letter = pattern[at]
            if letter == "\\" and at + 1 < len(pattern):
                at += 1
                segments[-1].append(pattern[at])
            elif letter == "%":
                segments.append([])
            else:
                segments[-1].append(None if letter == "_" else letter)
            at += 1
        first, *middle, last = [tuple(s) for s in segments] if len(segments) > 1 else [tuple(segments[0]), ()]
        self._exact = len(segments) == 1
        self._first, self._last = first, last
        self._middle = [_Search(segment) for segment in middle if segment]
        self._least = len(first) + len(last) + sum(search.length for search in self._middle)
        known = next((i for i, letter in enumerate(first) if letter is None), len(first))
        self.prefix = "".join(letter for letter in first[:known] if letter is not None)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches the pattern."""
        if len(text) < self._least or (self._exact and len(text) != self._least):
            return False
        end = len(text) - len(self._last)
        if not _equal(self._first, text, 0) or not _equal(self._last, text, end):
            return False
        at: int | None = len(self._first)
        for search in self._middle:  # the earliest match leaves most room for the others
            at = search.end(text, at or 0, end)
            if at is None:
                return False
        return True


class _Search:
    """Finds a segment anywhere in a text."""

    def __init__(self, segment: Segment) -> None:
        self.length = len(segment)
        self._text = None if None in segment else "".join(letter or "" for letter in segment)
        self._masks: dict[str, int] = {}
        self._any = 0
        if self._text is None:
            for position, letter in enumerate(segment):
                if letter is None:
                    self._any |= 1 << position
                else:
                    self._masks[letter] = self._masks.get(letter, 0) | 1 << position

    def end(self, text: str, start: int, stop: int) -> int | None:
        """Return where its first occurrence between two positions ends."""
        if self._text is not None:
            found = text.find(self._text, start, stop)
            return None if found < 0 else found + self.length
        state, done = 0, 1 << (self.length - 1)  # one bit for each prefix of the segment that ends here
        for at in range(start, stop):
            state = (state << 1 | 1) & (self._masks.get(text[at], 0) | self._any)
            if state & done:
                return at + 1
        return None


def _equal(segment: Segment, text: str, at: int) -> bool:
    return all(letter is None or letter == text[at + i] for i, letter in enumerate(segment))


@lru_cache(maxsize=256)
def like_pattern(pattern: str) -> LikePattern:
    """Return the compiled form of a pattern, cached."""
    return LikePattern(pattern)


Row = Mapping[tuple[str, ...], Any]
"""Values by physical path; a missing path is null."""

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
    """A condition that only Spark can evaluate. Here its value is unknown, so it excludes nothing.

    :param text: Spark SQL, exactly as given.
    :param uses: columns it refers to.
    """

    text: str
    uses: tuple[ColumnReference, ...]

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


def compile_expression(expression: Expression) -> Callable[[Row], Truth]:
    """Return a function that gives the value of the expression for a row."""
    match expression:
        case Constant(value):
            return lambda _row: value
        case Opaque():
            return lambda _row: None
        case And(parts):
            return _all([compile_expression(part) for part in parts])
        case Or(parts):
            return _any([compile_expression(part) for part in parts])
        case Not(part):
            inner = compile_expression(part)
            return lambda row: None if (value := inner(row)) is None else not value
        case IsNull(column):
            path = column.physical_path
            return lambda row: row.get(path) is None
        case Like(column, pattern):
            matches, path = like_pattern(pattern).matches, column.physical_path
            return lambda row: None if (value := row.get(path)) is None else matches(value)
        case In(column, literals):
            return _in(column, literals)
        case Compare(operator, column, literal):
            return _compare(operator, column, literal)


def _all(parts: list[Callable[[Row], Truth]]) -> Callable[[Row], Truth]:
    def evaluate(row: Row) -> Truth:
        result: Truth = True
        for part in parts:
            value = part(row)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any(parts: list[Callable[[Row], Truth]]) -> Callable[[Row], Truth]:
    def evaluate(row: Row) -> Truth:
        result: Truth = False
        for part in parts:
            value = part(row)
            if value:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _key(column: ColumnReference, literals: tuple[Literal, ...]) -> Callable[[Any], Any]:
    """Return a function that maps values to keys which Python compares as Spark compares the values.

    :param literals: what the column is compared with.
    """
    if column.char_length is not None:
        length = max([column.char_length, *(len(literal.value) for literal in literals if literal.value is not None)])
        return lambda value: value.ljust(length)
    if column.data_type.name in FLOATING:
        return lambda value: (1, 0.0) if math.isnan(value) else (0, value)
    return lambda value: value


def _in(column: ColumnReference, literals: tuple[Literal, ...]) -> Callable[[Row], Truth]:
    key, path = _key(column, literals), column.physical_path
    wanted = {key(literal.value) for literal in literals if literal.value is not None}
    missed: Truth = None if any(literal.value is None for literal in literals) else False

    def evaluate(row: Row) -> Truth:
        value = row.get(path)
        if value is None:
            return None
        return True if key(value) in wanted else missed

    return evaluate


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


def _compare(operator: str, column: ColumnReference, literal: Literal) -> Callable[[Row], Truth]:
    key, path = _key(column, (literal,)), column.physical_path
    if literal.value is None:
        return (lambda row: row.get(path) is None) if operator == "<=>" else (lambda _row: None)
    right = key(literal.value)
    if operator == "<=>":
        return lambda row: (value := row.get(path)) is not None and bool(key(value) == right)
    holds = _OPERATORS[operator]
    return lambda row: None if (value := row.get(path)) is None else holds(key(value), right)


# -- values that are not known exactly -----------------------------------------------------------------------------------------


def holds(expression: Expression, row: Row, *, surely: bool) -> bool:
    """Return whether an expression may be true for a row, or must be, where values may be :class:`Instants`.

    :param expression: from :func:`push_down_not`, without :class:`Opaque`.
    :param surely: whether it is true for every possible value, rather than for some.
    """
    match expression:
        case And(parts):
            return all(holds(part, row, surely=surely) for part in parts)
        case Or(parts):
            return any(holds(part, row, surely=surely) for part in parts)
        case Constant(value):
            return value is True
    instants = row.get(next(columns(expression)).physical_path)
    if not isinstance(instants, Instants):
        return compile_expression(expression)(row) is True
    low, high = instants
    match expression:
        case Not(IsNull()):
            return True
        case Compare(operator, _, literal):
            return _instants_hold(operator, instants, literal.value, surely=surely)
        case In(_, literals):
            return not surely and any(low <= literal.value <= high for literal in literals if literal.value is not None)
        case Not(Compare("<=>", _, literal)):
            return literal.value is None or not surely or not low <= literal.value <= high
        case Not(In(_, literals)):
            wanted = [literal.value for literal in literals]
            return None not in wanted and not (surely and any(low <= value <= high for value in wanted))
    return not surely and not isinstance(expression, IsNull)


def _instants_hold(operator: str, instants: Instants, value: Any, *, surely: bool) -> bool:
    if value is None:
        return False
    low, high = instants
    if operator in ("=", "<=>"):
        return not surely and low <= value <= high
    if operator == "<>":
        return not surely or not low <= value <= high
    # The end of the range that satisfies it first, or last.
    first = operator in ("<", "<=")
    return _OPERATORS[operator](low if first != surely else high, value)


# -- text ---------------------------------------------------------------------------------------------------------------------


def quote_name(name: str) -> str:
    """Return a name in backticks, so that Spark SQL accepts any name."""
    return "`" + name.replace("`", "``") + "`"


_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\b": "\\b", "\x1a": "\\Z"}


def quote_text(text: str) -> str:
    """Return a string literal of Spark SQL."""
    quoted = "".join(_ESCAPES.get(letter, letter) for letter in text)
    return "'" + quoted.replace("${", "$\\{") + "'"  # Spark substitutes variables for ${...} even inside strings


def literal_text(value: Any, data_type: DataType) -> str:
    """Return a literal of Spark SQL that means the same in any session time zone."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds").rjust(26, "0")
        return f"TIMESTAMP '{text} UTC'" if value.tzinfo else f"TIMESTAMP_NTZ '{text}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return f"CAST('{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}' AS DOUBLE)"
        return f"{value!r}D"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}BD"
    if -(2**31) <= value < 2**31:
        return str(value)
    return f"{value}L" if data_type.name in INTEGRAL and -(2**63) <= value < 2**63 else f"{value}BD"
