"""What a commit pays for its check against other commits, by `conflict_detection`. Called by run.py.

python benchmarks/conflict_check.py [--quick] [--laps 7]

The transaction is a DELETE with a deletion vector that was staged before the winners landed. Measured is its whole commit, in one
warm process, without `fsync`: reading the winners' log entries, checking them, and writing its own. A level that conflicts is
measured too: it stops at the first winner that it cannot settle.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tables

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
LEVELS = ("delta", "statistics", "rows")
LAPS = 7
GOAL = 0.3
ROWS = 1000
IN_MEMORY = Path("/dev/shm")


class Run(NamedTuple):
    """One commit.

    :param result: how the winners were settled, or the conflict.
    """

    wall: float
    cpu: float
    result: str


@dataclass
class Race:
    """A table, a DELETE of some of its rows, and commits that land before it.

    :param table: a `RowTable`.
    :param winners: their log entries, kept aside.
    """

    table: Any
    winners: list[Path] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return Path(self.table.root) / "_delta_log"

    def keep_aside(self, first: int) -> None:
        """Take the commits from a version on out of the log, for `run` to put them back."""
        aside = Path(self.table.root).with_name(f"{self.table.root.name}-winners")
        aside.mkdir()
        for path in sorted(self.log.glob("*.json")):
            if int(path.stem) >= first:
                self.winners.append(path.rename(aside / path.name))

    def run(self, level: str, isolation: str | None = None) -> Run:
        """Commit after the winners, and leave the table as it was."""
        from airflow_delta.exceptions import DeltaConcurrentModificationException

        before = set(self.log.iterdir())
        work = self.table.begin(level, isolation=isolation).delete("id >= 5 AND id < 10", lambda row: 5 <= row["id"] < 10)
        for path in self.winners:
            os.link(path, self.log / path.name)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            work.commit()
            result = "+".join(work.resolved) or "no conflict"
        except DeltaConcurrentModificationException as error:
            result = type(error).__name__.removesuffix("Exception")
        run = Run(time.perf_counter() - wall, time.process_time() - cpu, result)
        for path in set(self.log.iterdir()) - before:
            path.unlink()
        return run


def new_table(root: Path) -> Any:
    """Return an unpartitioned table of one file, with deletion vectors."""
    from transaction.row_table import RowTable

    columns = dict.fromkeys(tables.DATA_COLUMNS, "long")
    table = RowTable(root, columns=columns, configuration={"delta.checkpointInterval": "1000000"})
    table.append(*(dict.fromkeys(columns, number) for number in range(ROWS)))
    return table


def appends(root: Path, winners: int) -> Race:
    """Winners that each add ten files, whose bounds are in the log and nowhere near the rows that are deleted."""
    race = Race(new_table(root))
    for version in range(2, winners + 2):
        adds = [tables.add(10 * version + number) for number in range(10)]
        for add in adds:
            add["add"]["partitionValues"] = {}
        info = tables.info()
        info["commitInfo"]["isBlindAppend"] = True
        tables.write_commit(root, version, [info, *adds])
    race.keep_aside(2)
    return race


def overlapping_appends(root: Path, winners: int) -> Race:
    """Winners that each add one file whose bounds span the rows that are deleted, while none of its rows is one of them."""
    race = Race(new_table(root))
    for winner in range(winners):
        numbers = [0, *(20 + winner + 1000 * number for number in range(ROWS - 1))]
        race.table.append(*(dict.fromkeys(tables.DATA_COLUMNS, number) for number in numbers))
    race.keep_aside(2)
    return race


def vectors(root: Path, winners: int) -> Race:
    """Winners that each mark another row of the one file."""
    race = Race(new_table(root))
    for number in range(winners):
        race.table.begin("delta").delete(f"id = {100 + number}", lambda row: row["id"] == 100 + number).commit()
    race.keep_aside(2)
    return race


def compaction(root: Path, *, recorded: bool) -> Race:
    """A winner that compacts the file with the rows that are deleted."""
    race = Race(new_table(root))
    race.table.compact(recorded=recorded)
    race.keep_aside(2)
    return race


def measure(runs: Mapping[str, Callable[[], Run]], laps: int) -> dict[str, dict[str, Any]]:
    """Return the medians of each, taking turns, each in its turn the first; the first lap warms up."""
    found: dict[str, list[Run]] = {name: [] for name in runs}
    names = list(runs)
    for lap in range(laps + 1):
        for position in range(len(names)):
            name = names[(lap + position) % len(names)]
            found[name].append(runs[name]())
    return {
        name: {
            "median": statistics.median(run.wall for run in laps_of[1:]),
            "cpu": statistics.median(run.cpu for run in laps_of[1:]),
            "result": laps_of[-1].result,
        }
        for name, laps_of in found.items()
    }


def levels_of(race: Race) -> dict[str, Callable[[], Run]]:
    return {level: partial(race.run, level) for level in LEVELS}


def report(name: str, figures: Mapping[str, dict[str, Any]], goals: Mapping[str, str], rows: list[dict[str, Any]]) -> None:
    """Print the figures of one race.

    :param goals: levels that have to stay under `GOAL`, and the result that they have to come to.
    """
    least = figures["delta"]["median"]
    for level, figure in figures.items():
        expected = goals.get(level)
        reached = expected is None or (figure["cpu"] < GOAL and figure["result"] == expected)
        goal = "" if expected is None else f"{GOAL * 1000:.0f}: {'reached' if reached else 'MISSED'}"
        wall, cpu = (f"{figure[key] * 1000:,.1f}" for key in ("median", "cpu"))
        print(f"| {name} | {level} | {wall} | {cpu} | {figure['median'] / least:.2f} | {figure['result']} | {goal} |", flush=True)
        rows.append({"name": f"conflict check, {name}: {level}", "ours": figure, "reached": reached})


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the winners, three laps")
    parser.add_argument("--laps", type=int, default=LAPS)
    options = parser.parse_args(argv)
    share, laps = (10, 3) if options.quick else (1, options.laps)
    rows: list[dict[str, Any]] = []
    print("\n### A DELETE against commits that landed since it read (whole commit, warm process)\n")
    print("| winners | level | ms | CPU ms | of delta's | result | goal, CPU ms |\n|---|---|---|---|---|---|---|", flush=True)
    work = Path(tempfile.mkdtemp(prefix="delta-conflicts-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        report("none", measure(levels_of(Race(new_table(work / "alone"))), 30 * laps), {}, rows)
        number = 1000 // share
        race = appends(work / "appends", number)
        runs = {**levels_of(race), "delta, WriteSerializable": partial(race.run, "delta", "WriteSerializable")}
        goals = {"statistics": "statistics", "rows": "statistics"}
        report(f"{number:,} appends of 10 files, other bounds", measure(runs, laps), goals, rows)
        number = 100 // share
        race = overlapping_appends(work / "overlapping", number)
        report(f"{number} appends of 1 file of {ROWS:,} rows, same bounds", measure(levels_of(race), laps), {}, rows)
        race = vectors(work / "vectors", number)
        report(f"{number} deletion vectors in turn on one file", measure(levels_of(race), laps), {"rows": "rows"}, rows)
        for name, recorded in (("recorded", True), ("rows found by content", False)):
            race = compaction(work / f"compaction-{recorded}", recorded=recorded)
            report(f"an OPTIMIZE of its file, {name}", measure(levels_of(race), laps), {"rows": "moved+rows"}, rows)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return rows


if __name__ == "__main__":
    sys.exit(0 if all(row["reached"] for row in main()) else 1)
