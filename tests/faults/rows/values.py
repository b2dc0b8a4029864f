"""Rows of the tables of row histories, and conditions on them with the meaning that Spark SQL gives them."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]
Truth = bool | None

TYPES = {
    "uid": "long",
    "k": "integer",
    "s": "string",
    "n": "integer",
    "day": "date",
    "amount": "decimal(9,2)",
    "x": "double",
    "p": "integer",
}
"""Columns of every table. ``uid`` differs for each row that is ever added, and no condition names it; ``p`` may partition it."""
COLUMNS = tuple(TYPES)
AT = {name: position for position, name in enumerate(COLUMNS)}

NAN, INFINITY = math.nan, math.inf
DAY = dt.date(2024, 2, 28)
VALUES: dict[str, tuple[Any, ...]] = {
    "k": tuple(range(8)),
    "s": ("a", "b", "B", "", "a" * 40, "a" * 39 + "b", "\U0010ffff" * 33, "é", None),
    "n": (None, None, 0, 1, 2, 3),
    "day": (*(DAY + dt.timedelta(days=days) for days in range(4)), None),
    "amount": (*map(Decimal, ("-1.50", "0.00", "1.50", "9999999.99")), None),
    "x": (-INFINITY, -1.5, -0.0, 0.0, 2.0, INFINITY, NAN, NAN, None),
    "p": (0, 1, 2, None),
}
"""Few values, so that rows and conditions meet."""


def canonical(row: Row) -> Row:
    """Return a row that equals another exactly if they hold the same values: NaN is itself, and zeros have signs."""
    return tuple([repr(value) if type(value) is float else value for value in row])  # a list is faster than a generator


def counted(rows: Iterable[Row]) -> Counter[Row]:
    """Return rows as a multiset."""
    return Counter(map(canonical, rows))


# -- conditions ---------------------------------------------------------------------------------------------------------------


def _key(value: Any) -> Any:
    """Return what orders values as Spark does: NaN equals itself, and is greater than every number."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def literal(value: Any) -> str:
    """Return a value as Spark SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return str(value) if math.isfinite(value) else f"CAST('{name}' AS DOUBLE)"
    if isinstance(value, dt.date):
        return f"DATE'{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


class Condition:
    """A condition on a row: true, false or unknown (``None``)."""

    def of(self, row: Row) -> Truth:
        raise NotImplementedError

    def columns(self) -> set[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class Compare(Condition):
    operator: str
    column: str
    value: Any

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {literal(self.value)}"

    def of(self, row: Row) -> Truth:
        found = row[AT[self.column]]
        if self.operator == "<=>" and (found is None or self.value is None):
            return found is None and self.value is None
        if found is None or self.value is None:
            return None
        return _COMPARE["=" if self.operator == "<=>" else self.operator](_key(found), _key(self.value))

    def columns(self) -> set[str]:
        return {self.column}


@dataclass(frozen=True)
class In(Condition):
    column: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.column} IN ({', '.join(map(literal, self.values))})"

    def of(self, row: Row) -> Truth:
        return any_of(Compare("=", self.column, value).of(row) for value in self.values)

    def columns(self) -> set[str]:
        return {self.column}


@dataclass(frozen=True)
class IsNull(Condition):
    column: str

    def __str__(self) -> str:
        return f"{self.column} IS NULL"

    def of(self, row: Row) -> Truth:
        return row[AT[self.column]] is None

    def columns(self) -> set[str]:
        return {self.column}


@dataclass(frozen=True)
class Both(Condition):
    """A conjunction, or with ``either`` a disjunction."""

    parts: tuple[Condition, ...]
    either: bool = False

    def __str__(self) -> str:
        return f" {'OR' if self.either else 'AND'} ".join(f"({part})" for part in self.parts)

    def of(self, row: Row) -> Truth:
        truths = [part.of(row) for part in self.parts]
        return any_of(truths) if self.either else negated(any_of(map(negated, truths)))

    def columns(self) -> set[str]:
        return set().union(*(part.columns() for part in self.parts))


@dataclass(frozen=True)
class Not(Condition):
    part: Condition

    def __str__(self) -> str:
        return f"NOT ({self.part})"

    def of(self, row: Row) -> Truth:
        return negated(self.part.of(row))

    def columns(self) -> set[str]:
        return self.part.columns()


@dataclass(frozen=True)
class ByFunction(Condition):
    """A condition of another form, one of :data:`FUNCTIONS`; null if a column is."""

    text: str

    def __str__(self) -> str:
        return self.text

    def of(self, row: Row) -> Truth:
        names, function = FUNCTIONS[self.text]
        values = [row[AT[name]] for name in names]
        return None if None in values else function(*values)

    def columns(self) -> set[str]:
        return set(FUNCTIONS[self.text][0])


FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[..., bool]]] = {
    "k % 3 = 0": (("k",), lambda k: k % 3 == 0),
    "length(s) > 1": (("s",), lambda s: len(s) > 1),
    "k = n": (("k", "n"), lambda k, n: k == n),
    "upper(s) = 'B'": (("s",), lambda s: s.upper() == "B"),
    "n + 1 > k": (("n", "k"), lambda n, k: n + 1 > k),
    "s LIKE 'a%'": (("s",), lambda s: s.startswith("a")),
    "s LIKE '_'": (("s",), lambda s: len(s) == 1),
    "k BETWEEN 2 AND 4": (("k",), lambda k: 2 <= k <= 4),
}


def any_of(truths: Iterable[Truth]) -> Truth:
    """Return a disjunction of truths, as SQL has it."""
    found = list(truths)
    return True if True in found else None if None in found else False


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def selects(where: Condition | None, row: Row) -> bool:
    """Tell whether a condition is true; without one every row is selected."""
    return where is None or where.of(row) is True
