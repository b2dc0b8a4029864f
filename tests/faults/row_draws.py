"""Random tables and transactions: few files, few values and narrow conditions, so that transactions meet on the same files."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from faults.row_model import (
    Append,
    Delete,
    Look,
    Merge,
    Operation,
    Optimize,
    Replace,
    ReplacePartitions,
    Restate,
    Restore,
    Step,
    Update,
    Vacuum,
)
from faults.row_values import AT, COLUMNS, FUNCTIONS, VALUES, Both, ByFunction, Compare, Condition, In, IsNull, Not, Row, selects

KINDS = {
    "append": 2.0, "delete": 4.0, "update": 4.0, "merge": 5.0, "replace": 2.0, "replace_partitions": 1.0, "look": 3.0,
    "optimize": 4.0, "restate": 0.5, "restore": 1.0, "vacuum": 0.3,
}  # fmt: skip
"""How often a transaction is of each kind."""
LAGS = {0: 2, 1: 6, 2: 5, 3: 3, 4: 2, 6: 1}
WINNERS = {
    "delete": 6.0, "optimize": 4.0, "update": 2.0, "merge": 1.0, "append": 0.7, "restore": 0.7, "replace": 0.3, "vacuum": 0.1,
}  # fmt: skip
LATE = {"look": 5.0, "merge": 4.0, "delete": 2.0, "update": 2.0, "replace": 1.0, "optimize": 0.5}
"""In rounds: how often a transaction that wins is of each kind, and one that comes after all of them."""
RUST_KINDS = ("append", "delete", "optimize")
KEYS = (("k",), ("k",), ("k",), ("n",), ("s",), ("day",), ("amount",), ("k", "n"), ("k", "s"), ("p", "k"), ("n", "day"))
LEVELS = ("Serializable", "WriteSerializable")


@dataclass(frozen=True)
class Setting:
    """What the table of a history is like.

    :param stats: statistics of new files: ``footer`` (as this provider), ``spark`` (as Delta Spark), ``few`` (of some columns),
        ``none``, ``mixed``.
    :param prunes: files leave out columns that are null in all of their rows.
    :param interval: versions between checkpoints; ``None`` for none.
    :param shared: all transactions use one ``DeltaLog``, as threads of a process do.
    :param fine: rows in a row group.
    :param odd: paths have characters that the log escapes.
    :param narrow: decimals are stored as integers, as Spark stores them.
    :param has_ids: with ``tracked``: the property is on, so that readers may rely on row ids.
    """

    level: str = "Serializable"
    partitioned: bool = False
    vectors: bool = True
    tracked: bool = False
    mapped: bool = False
    stats: str = "footer"
    prunes: bool = False
    interval: int | None = None
    shared: bool = False
    fine: int = 1000
    odd: bool = False
    narrow: bool = False
    has_ids: bool = True

    @property
    def rust(self) -> bool:
        """Whether delta-rs can write the table."""
        return not (self.tracked or self.mapped or self.interval or self.odd)


@dataclass(frozen=True)
class History:
    """A table and the transactions on it, in the order in which they commit.

    :param first: rows of each of the first files.
    """

    name: str
    setting: Setting
    first: tuple[tuple[Row, ...], ...]
    steps: tuple[Step, ...]


@dataclass
class Draw:
    """Draws a history.

    :param detection: level of conflict detection of every transaction; by default most are at ``rows``.
    """

    name: str
    detection: str | None = None
    random: random.Random = field(init=False)
    setting: Setting = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.name)
        self._uids = count()
        self._pool: Sequence[int] = ()

    def history(self) -> History:
        draw = self.random
        self._long = draw.random() < 0.55
        tracked = draw.random() < (0.7 if self._long else 0.4)
        self.setting = Setting(
            level=draw.choice(LEVELS),
            partitioned=draw.random() < 0.35,
            vectors=draw.random() < (0.9 if self._long else 0.65),
            tracked=tracked,
            mapped=draw.random() < 0.15,
            stats=draw.choice(("footer", "footer", "footer", "spark", "spark", "few", "mixed") + (() if tracked else ("none",))),
            prunes=draw.random() < 0.3,
            interval=3 if draw.random() < 0.08 else None,
            shared=draw.random() < 0.3,
            fine=draw.choice((1, 2, 1000, 1000)),
            odd=draw.random() < 0.2,
            narrow=draw.random() < 0.3,
            has_ids=draw.random() < (0.95 if self._long else 0.8),
        )
        clustered = not self._long and draw.random() < 0.6
        self._high = draw.choice((4, 6, 8) if self._long else (3, 5, 8))
        chosen = [kind for kind in KINDS if draw.random() < 0.6] or list(KINDS)
        self._kinds = {kind: weight for kind, weight in KINDS.items() if kind in chosen}
        self._mixed = draw.random() < 0.25
        self._focus = "k" if draw.random() < 0.6 else draw.choice(("n", "s", "day", "amount", "x", "x"))
        first = tuple(self._first(number, clustered) for number in range(draw.randint(1, 2 if self._long else 4)))
        steps = self._rounds() if self._long else [self.step() for _ in range(draw.randint(3, 9))]
        return History(self.name, self.setting, first, tuple(steps))

    def _rounds(self) -> list[Step]:
        """Return rounds of transactions that win one after the other, each with some that began before all of them.

        They look for few keys in the same files.
        """
        draw = self.random
        steps: list[Step] = []
        for _ in range(draw.randint(1, 3)):
            self._pool = draw.sample(range(self._high), draw.randint(1, 4))
            winners = draw.choice((1, 2, 2, 3, 4))
            steps += [self.step(0, WINNERS) for _ in range(winners)]
            steps += [self.step(winners + number, LATE) for number in range(draw.randint(1, 3))]
        return steps

    def _first(self, number: int, clustered: bool) -> tuple[Row, ...]:
        draw = self.random
        low = (2 * number) % self._high if clustered else 0
        high = min(low + 2, self._high) if clustered else self._high
        part, count = draw.choice(VALUES["p"]), draw.randint(3, 10) if self._long else draw.randint(1, 5)
        return tuple(self.row(k=draw.randrange(low, high), p=part) for _ in range(count))

    # -- transactions ---------------------------------------------------------------------------------------------------------

    def step(self, lag: int | None = None, kinds: Mapping[str, float] | None = None, *, inner: bool = False) -> Step:
        """Return a transaction.

        :param kinds: how often it is of each kind; default: as drawn for the history.
        :param inner: it lands inside another one.
        """
        draw = self.random
        operation: Operation = getattr(self, f"_{self._kind(kinds or self._kinds)}")()
        rust = self.setting.rust and operation.kind in RUST_KINDS and draw.random() < 0.12 and _told_to_rust(operation)
        alone = rust or operation.kind in ("restore", "vacuum")
        if lag is None or alone:
            lag = 0 if alone else draw.choices(list(LAGS), list(LAGS.values()))[0]
        also: Append | Delete | None = None
        if not alone and operation.kind != "restate" and draw.random() < 0.06:
            also = self._delete() if operation.kind == "delete" and draw.random() < 0.5 else self._append()
        inside: tuple[Step, ...] = ()
        if not (inner or alone or kinds is WINNERS) and draw.random() < 0.2:
            inside = tuple(self.step(inner=True) for _ in range(draw.randint(1, 2)))
        detection = self.detection or draw.choices(("rows", "statistics", "delta"), (25, 3, 1))[0]
        return Step(
            operation,
            also=also,
            lag=lag,
            level=draw.choice(LEVELS) if self._mixed else None,
            detection=detection,
            limit=draw.choice((0, 300, 2000)) if draw.random() < 0.06 else 1 << 26,
            rust=rust,
            inside=inside,
            rewrites=draw.random() < 0.15,
            keeps_ids=draw.random() < 0.3,
            inline=draw.random() < 0.1,
        )

    def _kind(self, kinds: Mapping[str, float]) -> str:
        kinds = {kind: weight for kind, weight in kinds.items() if kind != "replace_partitions" or self.setting.partitioned}
        kinds = kinds or {"delete": 1.0, "update": 1.0}
        return self.random.choices(list(kinds), list(kinds.values()))[0]

    def _append(self) -> Append:
        return Append(self.rows(1, 3))

    def _delete(self) -> Delete:
        return Delete(None if self.random.random() < 0.02 else self.condition())

    def _update(self) -> Update:
        draw = self.random
        names = draw.sample(("n", "s", "day", "amount", "x", "k", "p"), draw.choice((1, 1, 2)))
        values = tuple((name, "n + 1" if name == "n" and draw.random() < 0.5 else self.value(name)) for name in names)
        return Update(None if draw.random() < 0.03 else self.condition(), values)

    def _merge(self) -> Merge:
        draw = self.random
        keys = draw.choice([names for names in KEYS if self._focus in names and draw.random() < 0.5] or KEYS)
        rows: dict[Row, Row] = {}
        for row in self.rows(0 if draw.random() < 0.03 else 1, 3):
            rows.setdefault(tuple(row[AT[name]] for name in keys), row)
        matched = draw.choice(("update", "update", "update", "delete", None))
        settable = [name for name in ("n", "s", "amount", "x", "p") if name not in keys]
        return Merge(
            tuple(rows.values()),
            keys=keys,
            null_safe=tuple(draw.random() < 0.4 for _ in keys),
            where=self.condition() if draw.random() < 0.2 else self._part_of_condition() if draw.random() < 0.2 else None,
            matched=matched,
            matched_if=self.condition() if matched and draw.random() < 0.35 else None,
            sets=tuple(draw.sample(settable, draw.randint(1, 2))),
            inserts=matched is None or draw.random() < 0.6,
            by_source=self.condition() if draw.random() < 0.08 else None,
        )

    def _replace(self) -> Replace:
        draw = self.random
        where = None if draw.random() < 0.08 else self.condition(deep=False)
        candidates = [self.row(**self._inside(where)) for _ in range(draw.randint(0, 6))]
        rows = tuple(row for row in candidates if selects(where, row))[:3]
        return Replace(where, rows)

    def _replace_partitions(self) -> ReplacePartitions:
        return ReplacePartitions(self.rows(1, 2))

    def _look(self) -> Look:
        draw = self.random
        where = None if draw.random() < 0.15 else self.condition()
        update = self.condition() if draw.random() < 0.35 else None
        if update is not None and where is not None and draw.random() < 0.2:
            update = where
        whole = where is None or draw.random() < 0.1
        return Look(where, self.row(), whole=whole, once=draw.random() < 0.4, update=update)

    def _optimize(self) -> Optimize:
        draw = self.random
        part = self.value("p") if self.setting.partitioned and draw.random() < 0.5 else None
        return Optimize(
            part,
            draw.choice((2, 10, 10) if self._long else (1, 2, 2, 3, 10)),
            pieces=draw.choice((1, 1, 2)),
            keeps_ids=draw.random() < (0.95 if self._long else 0.8),
            staged=draw.random() < (0.1 if self._long else 0.4),
        )

    def _restate(self) -> Restate:
        return Restate()

    def _restore(self) -> Restore:
        return Restore(self.random.choice((1, 1, 2, 3)), plain=self.random.random() < 0.7)

    def _vacuum(self) -> Vacuum:
        return Vacuum()

    # -- rows and conditions --------------------------------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        if name == "k" and self._pool and self.random.random() < 0.8:
            return self.random.choice(self._pool)
        if name == "k":
            return self.random.randrange(self._high)
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
        if self._long and draw.random() < 0.7:
            return self._comparison(self._focus)
        found = self._simple() if not deep or draw.random() < 0.75 else self._deep()
        part = self._part_of_condition()
        return found if part is None else Both((part, found)) if draw.random() < 0.9 else part

    def _part_of_condition(self) -> Condition | None:
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
        return self._comparison(self._focus if draw.random() < 0.6 else draw.choice(("k", "s", "n", "day", "amount", "x")))

    def _comparison(self, name: str) -> Condition:
        draw = self.random
        kind = draw.random()
        value = self.value(name)
        if value is None:
            return IsNull(name) if kind < 0.9 else Compare("<=>", name, None)
        if kind < (0.8 if self._long else 0.5):
            return Compare("=", name, value)
        if kind < (0.88 if self._long else 0.62):
            others = [value, *(self.value(name) for _ in range(draw.randint(0, 2)))]
            return In(name, tuple(dict.fromkeys(others)))
        if kind < (0.9 if self._long else 0.66):
            return Not(IsNull(name))
        return Compare(draw.choice(("<", "<=", ">", ">=", "<>", "<=>")), name, value)

    def _inside(self, where: Condition | None) -> dict[str, Any]:
        """Return values that make it likely that a row satisfies a condition."""
        parts: Sequence[Condition | None] = where.parts if isinstance(where, Both) and not where.either else (where,)
        return {part.column: part.value for part in parts if isinstance(part, Compare) and part.operator in ("=", "<=", ">=")}


def _told_to_rust(operation: Operation) -> bool:
    """Tell whether delta-rs gives a condition the same meaning: it knows other operators and functions, and other doubles."""
    where = operation.where if isinstance(operation, Delete) else None
    if not isinstance(operation, Delete):
        return True
    plain = isinstance(where, In | IsNull) or (isinstance(where, Compare) and where.operator != "<=>")
    return plain and where is not None and not where.columns() & {"x", "amount", "s"}
