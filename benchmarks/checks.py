"""What checks between stages and commit cost. Called by run.py.

python benchmarks/checks.py [--quick] [--laps 60] [--plain]

An append of one file, staged before the winners landed: its audit, and its whole commit without checks and with those that must
hold in the version that is published, taking turns in one warm process, in memory, without `fsync`. `--plain`: only the commit
without checks, for a comparison with code that has none (PYTHONPATH).
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
LAPS = 60
FILES, ROWS = 100, 1000
WINNERS = (0, 1, 8)
ROW_CHECKS = {"min_rows": 1, "rows_change": {"max_ratio": 2}}
CHECKS: dict[str, dict[str, Any]] = {
    "none": {},
    "min_rows and rows_change": ROW_CHECKS,
    "unique": {"unique": "id"},
}
GOAL = 5.0  # ms of CPU, of an audit by totals and statistics, and of what it adds to a commit; the least on a busy machine
IN_MEMORY = Path("/dev/shm")


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> tuple[Cost, Any]:
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        value = work()
        return Cost(time.perf_counter() - wall, time.process_time() - cpu), value
    finally:
        gc.enable()


class Race:
    """A table of `FILES` files, an append, and the commits of others that land before it.

    :param winners: each appends a file with other ids within the same bounds, so that `unique` has to read it.
    """

    def __init__(self, root: Path, winners: int) -> None:
        from support.table import Table

        self.table = Table(root)
        configuration = {"delta.checkpointInterval": "1000000"}
        for file in range(FILES):
            self.table.write(self._rows(range(ROWS * file, ROWS * (file + 1))), begin={"configuration": configuration})
        self.table.log().checkpoint()
        first = len(self.table.versions())
        for winner in range(winners):
            ids = [2 * ROWS * FILES + 2 * WINNERS[-1] * number + 2 * winner for number in range(ROWS)]
            self.table.write(self._rows(ids))
        aside = root.with_name(f"{root.name}-winners")
        aside.mkdir()
        self.winners = [path.rename(aside / path.name) for path in self._commits() if int(path.stem) >= first]
        for path in self._log.glob("*.crc"):
            if int(path.stem) >= first:
                path.unlink()
        self._new = range(2 * ROWS * FILES + 1, 2 * ROWS * FILES + 2 * WINNERS[-1] * ROWS, 2 * WINNERS[-1])

    @property
    def _log(self) -> Path:
        return self.table.path / "_delta_log"

    def _commits(self) -> list[Path]:
        return sorted(self._log.glob("*.json"))

    @staticmethod
    def _rows(ids: Any) -> Any:
        import pyarrow as pa

        return pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array(ids, pa.int64())})

    def run(self, checks: dict[str, Any]) -> tuple[Cost | None, Cost]:
        """Stage, audit, let the winners land, commit, and leave the table as it was; return the costs of audit and commit."""
        from airflow_delta.table.commit.publish import publish

        before = set(self._log.iterdir())
        log, handle = self.table.log(), self.table.begin()
        staged = self.table.stage(handle, self._rows(self._new))
        audit, given = None, {}
        if checks:
            opened = self.table.log()
            opened.update()  # as the task does to find out whether there is something to check
            audit, held = timed(lambda: self._audit(opened, handle, staged, checks))
            given = {"policy": self._policy(log, handle, held, staged)}
        for path in self.winners:
            os.link(path, self._log / path.name)
        commit, result = timed(lambda: publish(log, handle, [staged], attempt="1-00000000", **given))
        if result.version != FILES + len(self.winners):
            raise SystemExit(f"version {result.version} was committed, not {FILES + len(self.winners)}")
        for path in set(self._log.iterdir()) - before:
            path.unlink()
        shutil.rmtree(self.table.path / "staged" / handle.transaction_id)
        return audit, commit

    @staticmethod
    def _audit(log: Any, handle: Any, staged: Any, checks: dict[str, Any]) -> list[Any]:
        from airflow_delta.table.audit.audited_table import AuditedTable
        from airflow_delta.table.audit.held_reads import held_ratio, held_unique
        from airflow_delta.table.audit.limit_checks import statistics_checks

        table = AuditedTable(log, handle, [staged])
        found: list[Any] = []
        for outcome in statistics_checks(**checks).run(table):
            if not outcome.passed:
                raise SystemExit(outcome.message)
            if outcome.name == "rows_change":
                found += held_ratio(table, checks["rows_change"], outcome, "audit")
            elif outcome.name == "unique":
                found += held_unique(table, checks["unique"], outcome, "audit")
        return found

    @staticmethod
    def _policy(log: Any, handle: Any, held: list[Any], staged: Any) -> Any:
        from airflow_delta.table.audit.held import HeldChecks
        from airflow_delta.transaction import CommitPolicy

        return CommitPolicy(check_winners=HeldChecks(log, handle, held, [staged]))


def measure(race: Race, cases: dict[str, dict[str, Any]], laps: int) -> dict[str, list[tuple[Cost | None, Cost]]]:
    """Run all cases, taking turns, each in its turn the first; the first laps warm up and are not returned."""
    found: dict[str, list[tuple[Cost | None, Cost]]] = {name: [] for name in cases}
    names, warm = list(cases), 3
    for lap in range(laps + warm):
        for position in range(len(names)):
            name = names[(lap + position) % len(names)]
            found[name].append(race.run(cases[name]))
    return {name: runs[warm:] for name, runs in found.items()}


def ms(values: Sequence[float]) -> tuple[float, float]:
    """Return median and least, in milliseconds."""
    return 1000 * statistics.median(values), 1000 * min(values)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="ten laps")
    parser.add_argument("--laps", type=int, default=LAPS)
    parser.add_argument("--plain", action="store_true", help="only commits without checks")
    options = parser.parse_args(argv)
    laps = 10 if options.quick else options.laps
    cases = {"none": CHECKS["none"]} if options.plain else CHECKS
    rows: list[dict[str, Any]] = []
    print(f"\n### Checks of an append to {FILES} files (warm process, in memory; median, least)\n")
    print("| winners | checks | audit, CPU ms | commit, ms | commit, CPU ms | of a commit without |\n|---|---|---|---|---|---|")
    work = Path(tempfile.mkdtemp(prefix="delta-checks-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        for number in WINNERS:
            figures = measure(Race(work / f"table-{number}", number), cases, laps)
            least = ms([commit.cpu for _, commit in figures["none"]])
            for name, runs in figures.items():
                audit = ms([cost.cpu for cost, _ in runs if cost is not None]) if cases[name] else None
                wall, cpu = ms([commit.wall for _, commit in runs]), ms([commit.cpu for _, commit in runs])
                shown = "" if audit is None else f"{audit[0]:.2f}, {audit[1]:.2f}"
                print(
                    f"| {number} | {name} | {shown} | {wall[0]:.2f}, {wall[1]:.2f} | {cpu[0]:.2f}, {cpu[1]:.2f} "
                    f"| {cpu[0] / least[0]:.2f}, {cpu[1] / least[1]:.2f} |",
                    flush=True,
                )
                reached = cases[name] is not ROW_CHECKS or (audit is not None and audit[1] < GOAL and cpu[1] - least[1] < GOAL)
                rows.append({"name": f"checks: {name}, {number} winners", "ours": {"median": wall[0] / 1000}, "reached": reached})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return rows


if __name__ == "__main__":
    sys.exit(0 if all(row["reached"] for row in main()) else 1)
