"""Random tables and transactions: few files, few values and narrow conditions, so that transactions meet on the same files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from faults.rows.model import (
    Append,
    Delete,
    Look,
    Merge,
    Operation,
    Optimize,
    Replace,
    ReplacePartitions,
    ReplaceUsing,
    Restate,
    Restore,
    Step,
    Update,
    Vacuum,
)
from faults.rows.random_rows import RandomRows
from faults.rows.setting import Aim, History, Setting
from faults.rows.values import AT, VALUES, Compare, In, IsNull, Row, selects

KINDS = {
    "append": 2.0, "delete": 4.0, "update": 4.0, "merge": 5.0, "replace": 2.0, "replace_partitions": 1.0, "replace_using": 1.5,
    "look": 3.0, "optimize": 4.0, "restate": 0.5, "restore": 1.0, "vacuum": 0.3,
}  # fmt: skip
"""How often a transaction is of each kind."""
LAGS = {0: 2, 1: 6, 2: 5, 3: 3, 4: 2, 6: 1}
WINNERS = {
    "delete": 6.0, "optimize": 4.0, "update": 2.0, "merge": 1.0, "append": 0.7, "restore": 0.7, "replace": 0.3, "vacuum": 0.1,
}  # fmt: skip
LATE = {"look": 5.0, "merge": 4.0, "delete": 2.0, "update": 2.0, "replace": 1.0, "replace_using": 1.0, "optimize": 0.5}
"""In rounds: how often a transaction that wins is of each kind, and one that comes after all of them."""
BESIDE_OPTIMIZE = ("append", "delete", "update", "merge", "look")
RUST_KINDS = ("append", "delete", "optimize")
LEVELS = ("Serializable", "WriteSerializable")


@dataclass
class Draw(RandomRows):
    """Draws a history.

    :param detection: level of conflict detection of every transaction; by default most are at ``rows``.
    :param aim: what it is to be about; default: anything.
    """

    detection: str | None = None
    aim: Aim | None = None

    def history(self) -> History:
        draw = self.random
        aim = self.aim or Aim()
        self.narrow = draw.random() < 0.55 or self.aim is not None
        self._winners = dict.fromkeys(aim.winners, 1.0) or WINNERS
        self._late = dict.fromkeys(aim.late, 1.0) or LATE
        tracked = draw.random() < (0.7 if self.narrow else 0.4)
        self.setting = Setting(
            level=draw.choice(LEVELS),
            partitioned=draw.random() < 0.35,
            vectors=draw.random() < (0.9 if self.narrow else 0.65),
            tracked=tracked,
            mapped=draw.random() < 0.15,
            stats=draw.choice(("footer", "footer", "footer", "spark", "spark", "few", "mixed") + (() if tracked else ("none",))),
            prunes=draw.random() < 0.3,
            interval=3 if draw.random() < 0.08 else None,
            shared=draw.random() < 0.3,
            fine=draw.choice((1, 2, 1000, 1000)),
            odd=draw.random() < 0.2,
            short_decimals=draw.random() < 0.3,
            has_ids=draw.random() < (0.95 if self.narrow else 0.8),
        )
        self.setting = replace(self.setting, **aim.setting)
        clustered = not self.narrow and draw.random() < 0.6
        self.high = draw.choice((4, 6, 8) if self.narrow else (3, 5, 8))
        chosen = [kind for kind in KINDS if draw.random() < 0.6] or list(KINDS)
        self._kinds = {kind: weight for kind, weight in KINDS.items() if kind in chosen}
        self._mixed = draw.random() < 0.25
        self.focus = aim.focus or ("k" if draw.random() < 0.6 else draw.choice(("n", "s", "day", "amount", "x", "x")))
        first = tuple(self._first(number, clustered) for number in range(draw.randint(1, 2 if self.narrow else 4)))
        steps = self._rounds() if self.narrow else [self.step() for _ in range(draw.randint(3, 9))]
        return History(self.name, self.setting, first, tuple(steps))

    def _rounds(self) -> list[Step]:
        """Return rounds of transactions that win one after the other, each with some that began before all of them.

        They look for few keys in the same files.
        """
        draw = self.random
        steps: list[Step] = []
        for _ in range(draw.randint(1, 3)):
            self.pool = draw.sample(range(self.high), draw.randint(1, 4))
            winners = draw.choice((1, 2, 2, 3, 4))
            steps += [self.step(0, self._winners, inner=True) for _ in range(winners)]
            steps += [self.step(winners + number, self._late) for number in range(draw.randint(1, 3))]
        return steps

    def _first(self, number: int, clustered: bool) -> tuple[Row, ...]:
        draw = self.random
        low = (2 * number) % self.high if clustered else 0
        high = min(low + 2, self.high) if clustered else self.high
        part, count = draw.choice(VALUES["p"]), draw.randint(3, 10) if self.narrow else draw.randint(1, 5)
        return tuple(self.row(k=draw.randrange(low, high), p=part) for _ in range(count))

    # -- transactions ---------------------------------------------------------------------------------------------------------

    def step(self, lag: int | None = None, kinds: Mapping[str, float] | None = None, *, inner: bool = False) -> Step:
        """Return a transaction.

        :param kinds: how often it is of each kind; default: as drawn for the history.
        :param inner: no other one lands inside it.
        """
        draw = self.random
        operation: Operation = getattr(self, f"_{self._kind(kinds or self._kinds)}")()
        rust = self.setting.rust and operation.kind in RUST_KINDS and draw.random() < 0.12 and _told_to_rust(operation)
        alone = rust or operation.kind in ("restore", "vacuum")
        if lag is None or alone:
            lag = 0 if alone else draw.choices(list(LAGS), list(LAGS.values()))[0]
        also: Append | Delete | Optimize | None = None
        if not alone and operation.kind != "restate" and draw.random() < 0.06:
            also = self._delete() if operation.kind == "delete" and draw.random() < 0.5 else self._append()
        often = 0.8 if self.aim is not None and self.aim.optimizes else 0.06
        if also is None and operation.kind in BESIDE_OPTIMIZE and not rust and draw.random() < often:
            also = self._optimize()
        inside: tuple[Step, ...] = ()
        if not (inner or alone) and draw.random() < 0.2:
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
        keys = self.keys()
        rows: dict[Row, Row] = {}
        for row in self.rows(0 if draw.random() < 0.03 else 1, 4):
            rows.setdefault(tuple(row[AT[name]] for name in keys), row)
        matched = draw.choice(("update", "update", "update", "delete", None))
        settable = [name for name in ("n", "s", "amount", "x", "p") if name not in keys]
        return Merge(
            tuple(rows.values()),
            keys=keys,
            null_safe=tuple(draw.random() < 0.4 for _ in keys),
            where=self.condition() if draw.random() < 0.2 else self.condition_on_part() if draw.random() < 0.2 else None,
            matched=matched,
            matched_if=self.condition() if matched and draw.random() < 0.35 else None,
            sets=tuple(draw.sample(settable, draw.randint(1, 2))),
            inserts=matched is None or draw.random() < 0.6,
            by_source=self.condition() if draw.random() < 0.08 else None,
        )

    def _replace(self) -> Replace:
        draw = self.random
        where = None if draw.random() < 0.08 else self.condition(deep=False)
        candidates = [self.row(**self.inside(where)) for _ in range(draw.randint(0, 6))]
        rows = tuple(row for row in candidates if selects(where, row))[:3]
        return Replace(where, rows)

    def _replace_partitions(self) -> ReplacePartitions:
        return ReplacePartitions(self.rows(1, 2))

    def _replace_using(self) -> ReplaceUsing:
        draw = self.random
        return ReplaceUsing(self.keys(), self.rows(1, 3), self.condition() if draw.random() < 0.2 else None)

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
            draw.choice((2, 10, 10) if self.narrow else (1, 2, 2, 3, 10)),
            pieces=draw.choice((1, 1, 2)),
            keeps_ids=draw.random() < (0.95 if self.narrow else 0.8),
            staged=draw.random() < (0.1 if self.narrow else 0.4),
            recorded=draw.random() < 0.6,
        )

    def _restate(self) -> Restate:
        return Restate()

    def _restore(self) -> Restore:
        return Restore(self.random.choice((1, 1, 2, 3)), plain=self.random.random() < 0.7)

    def _vacuum(self) -> Vacuum:
        return Vacuum()


def _told_to_rust(operation: Operation) -> bool:
    """Tell whether delta-rs gives a condition the same meaning: it knows other operators and functions, and other doubles."""
    where = operation.where if isinstance(operation, Delete) else None
    if not isinstance(operation, Delete):
        return True
    plain = isinstance(where, In | IsNull) or (isinstance(where, Compare) and where.operator != "<=>")
    return plain and where is not None and not where.columns() & {"x", "amount", "s"}
