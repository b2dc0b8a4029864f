"""Histories of concurrent transactions, some on Spark and some in the worker: every version is what a serial order leaves.

A transaction reads a version, and commits over what others have committed since. The version that it makes must hold the rows
that it would have left of the rows of the version before, or it is refused.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_insert,
)
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import DeltaConcurrentModificationException
from airflow_delta.table.changes.read import read_changes
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from airflow_delta.table.read.read_table import read_table
from airflow_delta.transaction import CommitPolicy
from support.random_rows import frame_of, row_ids
from support.table import Table, WorkerTable

ENGINES = ("worker", "Spark")
KINDS = ("delete", "update", "merge", "optimize", "reorg", "append")
Row = tuple[int, int | None, str | None]
"""``id``, ``v`` and ``p``."""

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("p", pa.string())])
ON = "target.id = source.id"


def arrow_rows(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


class Keys:
    """Gives keys that no row has had yet."""

    def __init__(self, first: int = 0) -> None:
        self.next = first

    def __call__(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


@dataclass(frozen=True)
class Change:
    """One operation, and what it makes of rows.

    :param kind: one of :data:`KINDS`.
    :param where: a condition, and the same in Python.
    :param source: rows of a MERGE or an append.
    """

    kind: str
    where: str = "true"
    holds: Callable[[Row], bool] = lambda _row: True
    source: tuple[Row, ...] = ()
    deletes_matched: bool = False
    deletes_others: bool = False

    def __str__(self) -> str:
        return f"{self.kind} where {self.where} source {list(self.source)} {self.deletes_matched} {self.deletes_others}"

    @classmethod
    def drawn(cls, draw: random.Random, kind: str, new: Keys, ids: int) -> Change:
        """Return a random operation of a kind.

        :param new: gives keys of new rows.
        :param ids: keys that rows may have are below.
        """
        first, modulus, part = draw.randrange(ids), draw.randint(2, 6), draw.choice("abc")
        conditions: list[tuple[str, Callable[[Row], bool]]] = [
            (f"id BETWEEN {first} AND {first + 3}", lambda row: first <= row[0] <= first + 3),
            (f"id = {first}", lambda row: row[0] == first),
            (f"id % {modulus} = 1", lambda row: row[0] % modulus == 1),
            (f"p = '{part}' AND id < {first}", lambda row: row[2] == part and row[0] < first),
            (f"p = '{part}'", lambda row: row[2] == part),
            (f"v > {first} OR p IS NULL", lambda row: (row[1] is not None and row[1] > first) or row[2] is None),
        ]
        where, holds = draw.choice(conditions)
        if kind == "append":
            return cls(kind, source=tuple(cls._row(draw, key) for key in new(draw.randint(1, 4))))
        if kind == "merge":
            keys = [*draw.sample(range(ids), min(ids, draw.randint(1, 4))), *new(draw.randint(0, 2))]
            return cls(
                kind,
                source=tuple(cls._row(draw, key) for key in keys),
                deletes_matched=draw.random() < 0.3,
                deletes_others=draw.random() < 0.15,
            )
        return cls(kind) if kind in ("optimize", "reorg") else cls(kind, where, holds)

    @staticmethod
    def _row(draw: random.Random, key: int) -> Row:
        return key, draw.choice([None, key * 10, draw.randrange(100)]), draw.choice(["a", "b", "c", None])

    def after(self, rows: Sequence[Row]) -> list[Row]:
        """Return what the operation leaves of rows."""
        if self.kind == "append":
            return [*rows, *self.source]
        if self.kind == "delete":
            return [row for row in rows if not self.holds(row)]
        if self.kind == "update":
            return [(row[0], (row[1] or 0) + 1000, row[2]) if self.holds(row) else row for row in rows]
        if self.kind == "merge":
            source = {row[0]: row for row in self.source}
            left = [(row[0], source[row[0]][1], row[2]) if row[0] in source else row for row in rows]
            left = [row for row in left if not (self.deletes_matched and row[0] in source and source[row[0]][1] is None)]
            left = [row for row in left if not (self.deletes_others and row[0] not in source and row[2] == "c")]
            known = {row[0] for row in rows}
            return [*left, *(row for key, row in source.items() if key not in known)]
        return list(rows)

    @property
    def plan(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """What plans it, with its arguments."""
        if self.kind == "delete":
            return plan_delete, {"predicate": self.where}
        if self.kind == "update":
            return plan_update, {"predicate": self.where, "set": {"v": "coalesce(v, 0) + 1000"}}
        if self.kind == "merge":
            clauses = [
                *([when_matched_delete("source.v IS NULL")] if self.deletes_matched else []),
                when_matched_update({"v": "source.v"}),
                when_not_matched_insert(),
                *([when_not_matched_by_source_delete("target.p = 'c'")] if self.deletes_others else []),
            ]
            return plan_merge, {"condition": ON, "clauses": clauses, "source": arrow_rows(self.source)}
        return {"optimize": plan_optimize, "reorg": plan_reorg}[self.kind], {}


@dataclass
class _Open:
    engine: str
    change: Change
    handle: Any
    staged: Any


@dataclass
class MixedTable:
    """A table on which transactions of both engines are open at once; judges every version.

    :ivar rows: of each version, as a serial order leaves them.
    :ivar ids: the row id of each key, if the table tracks rows.
    :ivar counts: what became of the transactions.
    """

    spark: Any
    path: Path
    level: str = "Serializable"
    vectors: bool = True
    detection: str = "rows"
    partitioned: bool = False
    tracked: bool = False
    feed: bool = False
    mapped: bool = False
    rows: dict[int, list[Row]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _log: list[str] = field(default_factory=list)
    _appended: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables: Mapping[str, Table] = {"worker": WorkerTable(self.path), "Spark": Table(self.path, self.spark)}
        self.latest = -1

    def create(self, *files: Sequence[Row]) -> None:
        """Write the first files, each a version."""
        configuration = {
            "delta.enableDeletionVectors": str(self.vectors).lower(),
            "delta.enableRowTracking": str(self.tracked).lower(),
            "delta.enableChangeDataFeed": str(self.feed).lower(),
            "delta.columnMapping.mode": "name" if self.mapped else "none",
        }
        begin = {"partition_by": ("p",) if self.partitioned else (), "configuration": configuration}
        self.tables["worker"].write(arrow_rows([]), begin=begin)
        rows: list[Row] = []
        for file in files:
            result = self.tables["worker"].write(arrow_rows(file))
            rows = [*rows, *file]
            self.rows[result.version] = rows
            self.latest = result.version
        self._look()

    def open(self, engine: str, change: Change) -> _Open:
        """Begin a transaction on the latest version, and stage its operation."""
        table = self.tables[engine]
        handle = self.tables["worker"].begin(transaction_key=f"{len(self._log)}", isolation_level=self.level)
        self.note(f"{engine} reads {handle.read_version}: {change}")
        if change.kind == "append":
            rows = arrow_rows(change.source)
            staged = table.stage(handle, frame_of(self.spark, rows) if engine == "Spark" else rows)
        else:
            plan, arguments = change.plan
            if engine == "Spark" and "source" in arguments:
                arguments["source"] = frame_of(self.spark, arguments["source"])
            staged = table.operate(handle, plan, **arguments)
        return _Open(engine, change, handle, staged)

    def commit(self, opened: _Open) -> bool:
        """Publish a transaction and judge the version that it makes; return whether it was not refused."""
        log = self.tables["worker"].log()
        policy = CommitPolicy(conflict_detection=self.detection)
        try:
            result = publish(log, opened.handle, [opened.staged], attempt=new_attempt(), policy=policy)
        except DeltaConcurrentModificationException as error:
            self.counts["refused"] += 1
            self.counts[f"refused: {type(error).__name__}"] += 1
            self.note(f"{opened.engine} is refused: {type(error).__name__}")
            if self._found() != counted(self.rows[self.latest]):
                self._is_wrong("a transaction that was refused has changed rows")
            return False
        self.counts["committed"] += 1
        self.counts["resolved"] += bool(result.resolved)
        self.note(f"{opened.engine} commits {result.version} ({dict(result.resolved)})")
        self.judge(opened.change, opened.handle.read_version, result.version)
        return True

    def judge(self, change: Change, read: int, version: int) -> None:
        """Check what the version of an operation holds.

        :param read: the version that it has read.
        """
        if version == self.latest:
            return
        before, last = self.rows[self.latest], self.latest
        self.latest = version
        unseen = [row for at, rows in self._appended.items() if read < at <= last for row in rows]
        expected = [change.after(before)]
        if self.level == "WriteSerializable" and unseen:  # blind appends may count as later
            left = counted(unseen) & counted(before)
            seen = list((counted(before) - left).elements())
            expected.append([*change.after(seen), *left.elements()])
        if change.kind == "append":
            self._appended[version] = change.source
        found = self._found()
        for rows in expected:
            if found == counted(rows):
                self.rows[version] = rows
                break
        else:
            missing, more = counted(expected[0]) - found, found - counted(expected[0])
            self._is_wrong(f"version {version}: missing {dict(missing)}, unexpected {dict(more)}")
            self.rows[version] = list(found.elements())
        self._look()
        self._check_feed(last, version)

    def note(self, what: str) -> None:
        """Note what happened, for messages."""
        self._log.append(what)

    def _is_wrong(self, what: str) -> None:
        setting = f"{self.level}, vectors {self.vectors}, {self.detection}, partitioned {self.partitioned}, {self.tracked}"
        self.wrong.append(f"{what} ({setting}; {self._log})")

    def _found(self) -> Counter[Row]:
        return _counted(read_table(self.tables["worker"].log()).to_table())

    def _look(self) -> None:
        """Check that rows have kept their ids, and share none."""
        if not self.tracked:
            return
        found = row_ids(self.tables["worker"], "id")
        if len(found) != len(self.rows[self.latest]):
            self._is_wrong(f"version {self.latest} has {len(found)} row ids for {len(self.rows[self.latest])} rows")
        keys = Counter(key for key, _version in found.values())  # an append and a MERGE may both have added a key
        ids = {key: row_id for row_id, (key, _version) in found.items() if keys[key] == 1}
        moved = {key for key, row_id in ids.items() if self.ids.get(key, row_id) != row_id}
        if moved:
            self._is_wrong(f"version {self.latest}: the rows {sorted(moved)} have other ids")
        self.ids = ids

    def _check_feed(self, before: int, version: int) -> None:
        if not self.feed:
            return
        changes = read_changes(
            self.tables["worker"].log(), starting_version=version, ending_version=version, columns=[*SCHEMA.names, "_change_type"]
        ).to_table()
        total = counted(self.rows[before])
        kinds = changes.column("_change_type").to_pylist()
        for kind, row in zip(kinds, _tuples(changes), strict=True):
            total[row] += -1 if kind in ("delete", "update_preimage") else 1
        if +total != counted(self.rows[version]) or -total:
            self._is_wrong(f"version {version}: its change data does not lead from the rows of {before} to its own")


def counted(rows: Iterable[Row]) -> Counter[Row]:
    return Counter(rows)


def _counted(rows: pa.Table) -> Counter[Row]:
    return Counter(_tuples(rows))


def _tuples(rows: pa.Table) -> list[Row]:
    return list(zip(*(rows.column(name).to_pylist() for name in SCHEMA.names), strict=True))


def random_history(spark: Any, path: Path, seed: int | str, length: int = 8) -> MixedTable:
    """Run a random history of concurrent transactions of both engines and return its table, with what was wrong."""
    draw = random.Random(seed)
    table = MixedTable(
        spark,
        path,
        level=draw.choice(["Serializable", "WriteSerializable"]),
        vectors=draw.random() < 0.6,
        detection=draw.choice(["rows", "rows", "statistics", "delta"]),
        partitioned=draw.random() < 0.4,
        tracked=draw.random() < 0.5,
        feed=draw.random() < 0.5,
        mapped=draw.random() < 0.3,
    )
    keys = Keys()
    files = [[(key, draw.choice([None, key]), draw.choice(["a", "b", "c", None])) for key in keys(8)] for _ in range(3)]
    table.create(*files)
    waiting: list[_Open] = []
    for _ in range(length):
        kind = draw.choice(KINDS)
        waiting.append(table.open(draw.choice(ENGINES), Change.drawn(draw, kind, keys, keys.next)))
        while len(waiting) > draw.choice([0, 1, 2, 3]):
            table.commit(waiting.pop(draw.randrange(len(waiting))))
    for opened in waiting:
        table.commit(opened)
    return table


def concurrent_pair(
    spark: Any, path: Path, kinds: tuple[str, str], engines: tuple[str, str], seed: int | str, **setting: Any
) -> MixedTable:
    """Let two transactions read one version and commit in their order; return their table, with what was wrong."""
    draw = random.Random(f"{kinds} {seed}")
    table = MixedTable(spark, path, **setting)
    table.create(*([(key, key, draw.choice("abc")) for key in range(first, first + 8)] for first in (0, 8, 16)))
    if table.vectors:  # for REORG to purge
        table.commit(table.open("worker", Change("delete", "id IN (5, 13)", lambda row: row[0] in (5, 13))))
    keys = Keys(24)
    opened = [table.open(engine, Change.drawn(draw, kind, keys, 24)) for kind, engine in zip(kinds, engines, strict=True)]
    for one in opened:
        table.commit(one)
    if not table.counts["committed"]:
        table._is_wrong("both were refused")
    return table
