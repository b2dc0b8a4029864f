"""Random rows, and random conditions that some of them satisfy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from faults.rows.setting import Setting
from faults.rows.values import COLUMNS, FUNCTIONS, VALUES, Both, ByFunction, Compare, Condition, In, IsNull, Not, Row

KEYS = (("k",), ("k",), ("k",), ("n",), ("s",), ("day",), ("amount",), ("k", "n"), ("k", "s"), ("p", "k"), ("n", "day"))


@dataclass
class RandomRows:
    """Draws rows and conditions.

    :ivar focus: column of most conditions and keys.
    :ivar high: ``k`` is less.
    :ivar pool: values of ``k`` that are drawn most; none: all alike.
    :ivar narrow: most conditions are for one value of the focus.
    """

    name: str
    random: random.Random = field(init=False)
    setting: Setting = field(init=False)
    focus: str = field(default="k", init=False)
    high: int = field(default=8, init=False)
    pool: Sequence[int] = field(default=(), init=False)
    narrow: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.name)
        self._uids = count()

    def keys(self) -> tuple[str, ...]:
        draw = self.random
        return draw.choice([names for names in KEYS if self.focus in names and draw.random() < 0.5] or KEYS)

    def value(self, name: str) -> Any:
        if name == "k" and self.pool and self.random.random() < 0.8:
            return self.random.choice(self.pool)
        if name == "k":
            return self.random.randrange(self.high)
        return self.random.choice(VALUES[name])

    def row(self, **known: Any) -> Row:
        return tuple(next(self._uids) if name == "uid" else known.get(name, self.value(name)) for name in COLUMNS)

    def rows(self, low: int, high: int) -> tuple[Row, ...]:
        """Return new rows, near each other as what one transaction adds tends to be."""
        draw = self.random
        known = {name: self.value(name) for name in ("k", "p", "s", "day") if draw.random() < 0.4}
        return tuple(self.row(**known) for _ in range(draw.randint(low, high)))

    def condition(self, *, deep: bool = True) -> Condition:
        draw = self.random
        if self.narrow and draw.random() < 0.7:
            return self._comparison(self.focus)
        found = self._simple() if not deep or draw.random() < 0.75 else self._deep()
        part = self.condition_on_part()
        return found if part is None else Both((part, found)) if draw.random() < 0.9 else part

    def condition_on_part(self) -> Condition | None:
        """Return a condition on the partition, for some conditions on partitioned tables."""
        draw = self.random
        if not self.setting.partitioned or draw.random() < 0.5:
            return None
        return self._comparison("p")

    def _deep(self) -> Condition:
        draw = self.random
        kind = draw.randrange(4)
        if kind == 0:
            return ByFunction(draw.choice(sorted(FUNCTIONS)))
        if kind == 1:
            return Not(self._simple())
        return Both((self._simple(), self._simple()), either=kind == 2)

    def _simple(self) -> Condition:
        draw = self.random
        return self._comparison(self.focus if draw.random() < 0.6 else draw.choice(("k", "s", "n", "day", "amount", "x")))

    def _comparison(self, name: str) -> Condition:
        draw = self.random
        kind = draw.random()
        value = self.value(name)
        if value is None:
            return IsNull(name) if kind < 0.9 else Compare("<=>", name, None)
        if kind < (0.8 if self.narrow else 0.5):
            return Compare("=", name, value)
        if kind < (0.88 if self.narrow else 0.62):
            others = [value, *(self.value(name) for _ in range(draw.randint(0, 2)))]
            return In(name, tuple(dict.fromkeys(others)))
        if kind < (0.9 if self.narrow else 0.66):
            return Not(IsNull(name))
        return Compare(draw.choice(("<", "<=", ">", ">=", "<>", "<=>")), name, value)

    def inside(self, where: Condition | None) -> dict[str, Any]:
        """Return values that make it likely that a row satisfies a condition."""
        parts: Sequence[Condition | None] = where.parts if isinstance(where, Both) and not where.either else (where,)
        return {part.column: part.value for part in parts if isinstance(part, Compare) and part.operator in ("=", "<=", ">=")}
