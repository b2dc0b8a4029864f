"""What transactions do to rows: each operation is a function from the rows before to the rows after, without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

from faults.rows.values import AT, COLUMNS, Condition, Row, selects

Rows = list[Row]


def changed(row: Row, values: Mapping[str, Any]) -> Row:
    """Return a row with other values."""
    return tuple(values.get(name, value) for name, value in zip(COLUMNS, row, strict=True))


@dataclass(frozen=True)
class Append:
    """Adds rows without looking."""

    kind: ClassVar[str] = "append"
    rows: tuple[Row, ...]

    def apply(self, rows: Sequence[Row]) -> Rows:
        return [*rows, *self.rows]


@dataclass(frozen=True)
class Delete:
    kind: ClassVar[str] = "delete"
    where: Condition | None

    def apply(self, rows: Sequence[Row]) -> Rows:
        return [row for row in rows if not selects(self.where, row)]


@dataclass(frozen=True)
class Update:
    """Sets columns.

    :param values: new values; for ``n``, ``"n + 1"`` too.
    """

    kind: ClassVar[str] = "update"
    where: Condition | None
    values: tuple[tuple[str, Any], ...]

    def new(self, row: Row) -> Row:
        n = row[AT["n"]]
        plus = None if n is None else n + 1
        return changed(row, {name: plus if value == "n + 1" else value for name, value in self.values})

    def apply(self, rows: Sequence[Row]) -> Rows:
        return [self.new(row) if selects(self.where, row) else row for row in rows]


@dataclass(frozen=True)
class Merge:
    """MERGE of a source whose rows differ in the keys.

    :param keys: columns that are compared.
    :param null_safe: for each, whether with ``<=>``.
    :param where: what the condition also asks of the row of the table.
    :param matched: ``update`` (sets :param:`sets` as in the source), ``delete``, or nothing.
    :param matched_if: condition of that clause.
    :param inserts: whether source rows without a match are added.
    :param by_source: condition of a clause that deletes rows without a match; there is none without one.
    """

    kind: ClassVar[str] = "merge"
    source: tuple[Row, ...]
    keys: tuple[str, ...]
    null_safe: tuple[bool, ...]
    where: Condition | None = None
    matched: str | None = "update"
    matched_if: Condition | None = None
    sets: tuple[str, ...] = ("n", "s")
    inserts: bool = True
    by_source: Condition | None = None

    def match(self, row: Row) -> Row | None:
        """Return the source row that a row of the table matches."""
        if not selects(self.where, row):
            return None
        return next((new for new in self.source if self._equal(row, new)), None)

    def _equal(self, row: Row, new: Row) -> bool:
        pairs = ((row[AT[name]], new[AT[name]], safe) for name, safe in zip(self.keys, self.null_safe, strict=True))
        return all(one == other and (one is not None or safe) for one, other, safe in pairs)

    def result(self, row: Row) -> Row | None:
        """Return what becomes of a row of the table, ``None`` if it is deleted; the same object if no clause applies."""
        new = self.match(row)
        if new is None:
            return None if self.by_source is not None and selects(self.by_source, row) else row
        if self.matched is None or not selects(self.matched_if, row):
            return row
        return None if self.matched == "delete" else changed(row, {name: new[AT[name]] for name in self.sets})

    def inserted(self, rows: Sequence[Row]) -> Rows:
        """Return the source rows that match none of the rows."""
        found = [self.match(row) for row in rows]
        return [new for new in self.source if self.inserts and not any(new is other for other in found)]

    def apply(self, rows: Sequence[Row]) -> Rows:
        kept = [result for row in rows if (result := self.result(row)) is not None]
        return [*kept, *self.inserted(rows)]


@dataclass(frozen=True)
class Replace:
    """Overwrites the rows of a condition, all without one."""

    kind: ClassVar[str] = "replace"
    where: Condition | None
    rows: tuple[Row, ...]

    def apply(self, rows: Sequence[Row]) -> Rows:
        return [*(row for row in rows if not selects(self.where, row)), *self.rows]


@dataclass(frozen=True)
class ReplacePartitions:
    """Overwrites the partitions that the new rows are in."""

    kind: ClassVar[str] = "replace_partitions"
    rows: tuple[Row, ...]

    def apply(self, rows: Sequence[Row]) -> Rows:
        parts = {row[AT["p"]] for row in self.rows}
        return [*(row for row in rows if row[AT["p"]] not in parts), *self.rows]


@dataclass(frozen=True)
class ReplaceUsing:
    """Overwrites the rows that equal a new row in some columns; null equals nothing.

    :param where: what is also asked of them.
    """

    kind: ClassVar[str] = "replace_using"
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    where: Condition | None = None

    def replaces(self, row: Row) -> bool:
        values = [row[AT[name]] for name in self.keys]
        others = ([new[AT[name]] for name in self.keys] for new in self.rows)
        return None not in values and selects(self.where, row) and any(values == other for other in others)

    def apply(self, rows: Sequence[Row]) -> Rows:
        return [*(row for row in rows if not self.replaces(row)), *self.rows]


@dataclass(frozen=True)
class Look:
    """Reads, and then writes what depends on the answer: the classic write skew.

    :param where: rows that are counted.
    :param whole: the whole table is read, whatever the condition says.
    :param row: added with the count as its ``amount``; with ``once`` only if the count is 0.
    :param update: rows of this condition get the count as their ``n`` instead.
    """

    kind: ClassVar[str] = "look"
    where: Condition | None
    row: Row
    whole: bool = False
    once: bool = False
    update: Condition | None = None

    def count(self, rows: Sequence[Row]) -> int:
        return sum(selects(self.where, row) for row in rows)

    def as_update(self, count: int) -> Update:
        return Update(self.update, (("n", count),))

    def added(self, count: int) -> Rows:
        if self.update is not None or (self.once and count):
            return []
        return [changed(self.row, {"amount": Decimal(count)})]

    def apply(self, rows: Sequence[Row]) -> Rows:
        count = self.count(rows)
        kept = list(rows) if self.update is None else self.as_update(count).apply(rows)
        return [*kept, *self.added(count)]


@dataclass(frozen=True)
class Optimize:
    """Rewrites files without changing rows.

    :param part: only this partition of a partitioned table.
    :param count: files to rewrite, at most.
    :param pieces: files that take the rows, of each partition.
    :param keeps_ids: the new files hold the row ids.
    :param recorded: rows stay in order, and a record says where they went: for one piece, on a table with deletion vectors.
    :param staged: as a stage of a transaction, which records less than the operator does, and writes ``txn``.
    """

    kind: ClassVar[str] = "optimize"
    part: int | None
    count: int
    pieces: int = 1
    keeps_ids: bool = True
    recorded: bool = False
    staged: bool = False

    def apply(self, rows: Sequence[Row]) -> Rows:
        return list(rows)


@dataclass(frozen=True)
class Restate:
    """Adds files again, with other statistics, as COMPUTE STATS does."""

    kind: ClassVar[str] = "restate"

    def apply(self, rows: Sequence[Row]) -> Rows:
        return list(rows)


@dataclass(frozen=True)
class Restore:
    """Brings the files of an earlier version back. What it does to the rows depends on the table's past.

    :param back: how many versions before the one that it reads.
    :param plain: only files, without the metadata that this provider's RESTORE writes too.
    """

    kind: ClassVar[str] = "restore"
    back: int
    plain: bool = False


@dataclass(frozen=True)
class Vacuum:
    """Deletes files that the latest version does not have. No transaction: it writes no version."""

    kind: ClassVar[str] = "vacuum"

    def apply(self, rows: Sequence[Row]) -> Rows:
        return list(rows)


Operation = (
    Append | Delete | Update | Merge | Replace | ReplacePartitions | ReplaceUsing | Look | Optimize | Restate | Restore | Vacuum
)


@dataclass(frozen=True)
class Step:
    """A transaction of a history.

    :param also: of a second stage, planned on the same version; an OPTIMIZE takes files that the first one leaves alone.
    :param lag: it reads the version that was the latest so many versions ago.
    :param level: its isolation level; ``None``: the table's.
    :param detection: level of conflict detection.
    :param limit: bytes that a commit may read of winners.
    :param rust: delta-rs runs it.
    :param inside: transactions that land right before its puts, one each.
    :param rewrites: it rewrites files even where it could use deletion vectors, as other writers do.
    :param keeps_ids: rows that it rewrites keep their row ids, as with Delta Spark.
    :param inline: deletion vectors are in the log itself, as with some writers.
    """

    operation: Operation
    also: Append | Delete | Optimize | None = None
    lag: int = 0
    level: str | None = None
    detection: str = "rows"
    limit: int = 1 << 26
    rust: bool = False
    inside: tuple[Step, ...] = field(default=())
    rewrites: bool = False
    keeps_ids: bool = False
    inline: bool = False

    @property
    def is_blind(self) -> bool:
        """Whether it only adds rows, and reads none."""
        return isinstance(self.operation, Append) and not isinstance(self.also, Delete | Optimize)

    @property
    def optimizes(self) -> bool:
        """Whether one of its stages is an OPTIMIZE."""
        return isinstance(self.operation, Optimize) or isinstance(self.also, Optimize)

    def apply(self, rows: Sequence[Row]) -> Rows:
        """Return the rows after the transaction; that of a RESTORE depends on more than the rows."""
        if isinstance(self.operation, Restore):
            raise TypeError("what a RESTORE leaves depends on the past")
        after = self.operation.apply(rows)
        return after if self.also is None else self.also.apply(after)
