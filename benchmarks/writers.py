"""Writers that change one unpartitioned table at once, each other rows, in several engines. Called by run.py.

python benchmarks/writers.py [--quick] [--writers 16] [--seconds 15] [--engines NAME ...] [--cases NAME ...] [--json FILE]

Each writer makes one change after the other until the time is over. A change that another commit stands against begins again, at
once, up to ten times. No two writers ever touch the same row, so an engine that looks at rows need not refuse anything; afterwards
the table must hold what the changes that succeeded make of it. Wants a JVM of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import operations
from writer_engines import SMALL_FILE, TRACKED, Change, Conflict, DeltaRs, DeltaSpark, Ours, PyIceberg, install_pyiceberg

ROWS = 80_000
SPACE = 2 * ROWS  # the even ids are there at first
KEYS = 100
TRIES = 10
IN_MEMORY = Path("/dev/shm")
SPARK = {
    # A short run of small changes: a JVM that compiles its code thoroughly would not get warm.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE),
}


# -- what the writers do ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """One of several writers, with rows of its own.

    :param span: ids from which all writers of its kind take theirs.
    """

    number: int
    of: int
    span: tuple[int, int] = (0, SPACE)

    @property
    def part(self) -> range:
        """Its ids, if the writers have one range each."""
        size = (self.span[1] - self.span[0]) // self.of
        return range(self.span[0] + self.number * size, self.span[0] + (self.number + 1) * size)

    def scattered(self, choose: random.Random, number: int) -> list[int]:
        """Return some of its even ids, if those of the writers alternate."""
        low, high = -(-self.span[0] // (2 * self.of)), self.span[1] // (2 * self.of)
        return [2 * (place * self.of + self.number) for place in choose.sample(range(low, high), number)]

    def value(self, change: int) -> int:
        return 1_000_000 * (self.number + 1) + change


def merge_range(writer: Writer) -> Iterator[Change]:
    """MERGE of ids that follow each other, each writer in a range of its own."""
    choose = random.Random(writer.number)
    for change in count():
        first = choose.choice(writer.part[:-KEYS])
        yield Change("merge", range(first, first + KEYS), writer.value(change))


def merge_keys(writer: Writer) -> Iterator[Change]:
    """MERGE of ids from all over the table, half of them new."""
    choose = random.Random(writer.number)
    for change in count():
        ids = [number + choose.randrange(2) for number in writer.scattered(choose, KEYS)]
        yield Change("merge", ids, writer.value(change))


def update_row(writer: Writer) -> Iterator[Change]:
    """UPDATE of one row by its id."""
    choose = random.Random(writer.number)
    for change in count():
        yield Change("update", writer.scattered(choose, 1), writer.value(change))


def delete_range(writer: Writer) -> Iterator[Change]:
    """DELETE of one range after the other."""
    for first in writer.part[::KEYS]:
        yield Change("delete", range(first, first + KEYS))


def append(writer: Writer) -> Iterator[Change]:
    for change in count():
        first = SPACE * (writer.number + 1) + change * KEYS
        yield Change("append", range(first, first + KEYS), writer.value(change))


LOWER, UPPER = (0, SPACE // 2), (SPACE // 2, SPACE)
MIXED = [
    (merge_range, LOWER), (merge_keys, UPPER), (update_row, UPPER), (append, LOWER),
    (delete_range, LOWER), (merge_range, LOWER), (merge_keys, UPPER), (update_row, UPPER),
]  # fmt: skip


def one_kind(kind: Callable[[Writer], Iterator[Change]]) -> Callable[[int, int], Iterator[Change]]:
    return lambda number, of: kind(Writer(number, of))


def deletes_and_appends(number: int, of: int) -> Iterator[Change]:
    return (append if number % 2 else delete_range)(Writer(number, of))


def mixed(number: int, of: int) -> Iterator[Change]:
    kind, span = MIXED[number % len(MIXED)]
    return kind(Writer(number, of, span))


CASES = {
    "merge-ranges": one_kind(merge_range),
    "merge-keys": one_kind(merge_keys),
    "update-rows": one_kind(update_row),
    "delete-append": deletes_and_appends,
    "optimize": mixed,
}
"""What each writer of a case does, by number and number of writers. In the last one, small files are compacted all the time."""


# -- the race ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """What one writer, or all of them, came to.

    :param succeeded: seconds of each attempt; so is `failed`.
    :param changes: those that are committed, in order.
    :param given_up: changes that conflicted in every try.
    :param resolved: how other commits turned out not to conflict, and in how many of ours.
    """

    succeeded: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    given_up: int = 0
    resolved: Counter[str] = field(default_factory=Counter)
    conflicts: Counter[str] = field(default_factory=Counter)
    end: float = 0.0

    def attempt(self, work: Callable[[], Sequence[str]]) -> bool:
        """Return whether an attempt came to its commit."""
        begin = time.perf_counter()
        try:
            resolved = work()
        except Conflict as conflict:
            self.failed.append(time.perf_counter() - begin)
            self.conflicts[str(conflict)] += 1
            return False
        finally:
            self.end = time.time()
        self.succeeded.append(time.perf_counter() - begin)
        self.resolved.update(resolved)
        return True

    def add(self, other: Record) -> None:
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.changes += other.changes
        self.given_up += other.given_up
        self.resolved += other.resolved
        self.conflicts += other.conflicts
        self.end = max(self.end, other.end)


def write(engine: Any, table: Any, case: str, number: int, of: int, window: tuple[float, float]) -> Record:
    """Be one writer from the beginning to the end of a window."""
    record = Record()
    time.sleep(max(0.0, window[0] - time.time()))
    for change in CASES[case](number, of):
        for _ in range(TRIES):
            if time.time() >= window[1]:
                return record
            if record.attempt(lambda change=change: engine.apply(table, change)):
                record.changes.append(change)
                break
        else:
            record.given_up += 1
    return record


@dataclass
class Compactions:
    """Attempts to compact a table that had small files."""

    succeeded: int = 0
    failed: int = 0


def compact(engine: Any, table: Any, window: tuple[float, float]) -> Compactions:
    """Compact the table again and again."""
    found = Compactions()
    time.sleep(max(0.0, window[0] - time.time()))
    while time.time() < window[1]:
        try:
            found.succeeded += engine.optimize(table) > 0
        except Conflict:
            found.failed += 1
        time.sleep(0.2)
    return found


def race(engine: Any, pool: Executor, case: str, writers: int, seconds: float, lead: float) -> dict[str, Any]:
    """Let the writers write, and compare the table with what they say they have committed.

    :param lead: seconds until they begin, in which a pool starts its processes.
    """
    table = engine.make()
    begin = time.time() + lead
    window = (begin, begin + seconds)
    asked = [pool.submit(write, engine, table, case, number, writers, window) for number in range(writers)]
    optimizing = pool.submit(compact, engine, table, window) if case == "optimize" else None
    total = Record()
    for writer in asked:
        total.add(writer.result())
    compactions = optimizing.result() if optimizing is not None else None
    done, lost = len(total.succeeded), len(total.failed)
    return {
        "rate": 60 * done / (max(total.end, begin + seconds) - begin),
        "attempts": done + lost,
        "failed": lost / max(done + lost, 1),
        "wasted": sum(total.failed),
        "wasted_share": sum(total.failed) / max(sum(total.failed) + sum(total.succeeded), 1e-9),
        "given_up": total.given_up,
        "optimize": f"{compactions.succeeded} of {compactions.succeeded + compactions.failed}" if compactions else "",
        "resolved": dict(total.resolved),
        "conflicts": dict(total.conflicts),
        "wrong_rows": wrong_rows(engine.rows(table), total.changes),
    }


def wrong_rows(found: Any, changes: Sequence[Change]) -> int:
    """Return how many rows of a table are not those that changes leave of the first ones: lost, doubled, or with another value."""
    expected = dict.fromkeys(range(0, SPACE, 2), 0)
    for change in changes:
        change.apply_to(expected)
    rows = Counter(zip(found.column("id").to_pylist(), found.column("value").to_pylist(), strict=True))
    wanted = Counter(expected.items())
    return (rows - wanted).total() + (wanted - rows).total()


def report(case: str, engine: Any, found: dict[str, Any], peer: dict[str, Any] | None) -> None:
    ratio = f"{found['rate'] / peer['rate']:.1f}x" if peer and peer["rate"] else "-"
    resolved = ", ".join(f"{how} {number}" for how, number in sorted(found["resolved"].items()))
    print(
        f"| {case} | {engine.name} | {found['rate']:.0f} | {ratio} | {found['attempts']} | {found['failed'] * 100:.0f} % "
        f"| {found['wasted']:.0f} | {found['wasted_share'] * 100:.0f} % | {found['given_up']} | {found['optimize']} "
        f"| {found['wrong_rows'] or 'right'} | {resolved} |",
        flush=True,
    )


HEAD = (
    "| case | engine | commits/min | of Delta Spark's | attempts | failed | s thrown away | of all | given up | OPTIMIZE | rows "
    "| no conflict after all, commits |"
)


def warm_up(engine: Any, laps: int) -> None:
    """Let the JVM load and compile what an engine runs."""
    table = engine.make()
    for lap in range(laps):
        for kind in (merge_keys, update_row, delete_range, append):
            engine.apply(table, next(kind(Writer(lap, 16))))
        engine.optimize(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two writers, one second each; under two minutes")
    parser.add_argument("--writers", type=int)
    parser.add_argument("--seconds", type=float, help="of each engine in each case; attempts that have begun go on to their end")
    parser.add_argument("--engines", nargs="+", help="beginnings of their names")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(argv)
    writers = options.writers or (2 if options.quick else 16)
    seconds = options.seconds or (1 if options.quick else 15)
    folder = Path(tempfile.mkdtemp(prefix="delta-writers-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    install_pyiceberg()
    spark = operations.session(SPARK)
    engines = [
        DeltaSpark(folder, spark, ROWS),
        Ours(folder, spark, ROWS, "rows"),
        Ours(folder, spark, ROWS, "rows", TRACKED),
        Ours(folder, spark, ROWS, "delta"),
        DeltaRs(folder, ROWS),
        PyIceberg(folder, ROWS),
    ]
    if options.engines:
        engines = [engine for engine in engines if engine.name.startswith(tuple(options.engines))]
    found: list[dict[str, Any]] = []
    try:
        for kind in (DeltaSpark, Ours):
            if (first := next((engine for engine in engines if isinstance(engine, kind)), None)) is not None:
                warm_up(first, laps=1 if options.quick else 3)
        print(f"\n### {writers} writers on one table of {ROWS:,} rows, {seconds:g} seconds each\n")
        print(f"{HEAD}\n|{'---|' * HEAD.count(' | ')}---|", flush=True)
        pools = {engine.name: engine.pool(writers + 1) for engine in engines}
        started: set[str] = set()
        for case in options.cases:
            peer = None
            for engine in engines:
                if not engine.takes_part(compacted=case == "optimize"):
                    continue
                starts_processes = isinstance(engine, PyIceberg) and engine.name not in started
                started.add(engine.name)
                lead = 1 + writers * 0.7 if starts_processes else 1
                figures = race(engine, pools[engine.name], case, writers, seconds, lead)
                peer = figures if isinstance(engine, DeltaSpark) else peer
                report(case, engine, figures, peer)
                found.append({"name": f"writers, {case}", "engine": engine.name, **figures})
        for pool in pools.values():
            pool.shutdown()
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    wrong = [row for row in found if row["wrong_rows"] and row["engine"].startswith("ours")]
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of PyIceberg's processes
    sys.exit(main())
