"""Runs row histories whose transactions commit from several processes at once: ``python -m faults.rows.processes --seed 7``.

Each round, every process plans one transaction, and all of them put at the same moment. Who wins is up to the machine, so what
is judged is the order that came of it: the seed repeats the transactions, not the order.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

from faults.rows.commits import Result, run
from faults.rows.draws import Draw
from faults.rows.files import HistoryTable
from faults.rows.histories import Judged, Verdict, described
from faults.rows.model import Restore, Step, Vacuum
from faults.rows.setting import History, Setting

PROCESSES = 3
FILES_OF_EACH = 1000
"""Names of data files that a process has for itself."""
PATIENCE = 0.15
"""Seconds that a process waits for the others at its put: one that is refused before it does not come."""


def work(number: int, orders: Connection, puts: Barrier) -> None:
    """Run transactions as they are ordered, until there is none.

    :param puts: where the processes meet before their first puts.
    """
    logging.disable(logging.CRITICAL)
    table, log = None, None
    while (order := orders.recv()) is not None:
        directory, setting, step, name = order
        if table is None or table.path != directory:
            table = HistoryTable(directory, setting)
            table._number = FILES_OF_EACH * (number + 1)
            log = table.log()
        own = log if setting.shared and log is not None else table.log()
        table.reader.advance()
        try:
            result: Result | str = run(table, own, step, name, own.update().version, [lambda: _meet(puts)])
        except Exception as error:  # of the engine: no history may make it fail
            result = f"{type(error).__name__}: {error}"
        orders.send(result)


def _meet(puts: Barrier) -> None:
    with suppress(BrokenBarrierError):
        puts.wait(PATIENCE)


@dataclass
class Crew:
    """The processes."""

    orders: Sequence[Connection]
    puts: Barrier

    def run(self, directory: Path, setting: Setting, steps: Sequence[Step], name: str) -> list[Result | str]:
        """Run a round of transactions, one in each process."""
        self.puts.reset()
        busy = list(zip(self.orders, steps, strict=False))
        for number, (orders, step) in enumerate(busy):
            orders.send((directory, setting, step, f"{name}-{number}"))
        return [orders.recv() for orders, _step in busy]


@contextmanager
def crew() -> Iterator[Crew]:
    context = multiprocessing.get_context("spawn")  # a store that was used does not outlive a fork
    puts = context.Barrier(PROCESSES)
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    processes = [context.Process(target=work, args=(number, inner, puts)) for number, (_, inner) in enumerate(pipes)]
    for process in processes:
        process.start()
    try:
        yield Crew([outer for outer, _ in pipes], puts)
        for outer, _ in pipes:
            outer.send(None)
        for process in processes:
            process.join(10)
    finally:
        for process in processes:
            process.kill()


@dataclass
class Raced(Judged):
    """Runs a history in several processes, and judges the versions that came of it."""

    def race(self, crew: Crew) -> Verdict:
        self.table = HistoryTable(self.directory, self.history.setting)
        self.table.create_with(self.history.first)
        self.table.reader.advance()
        steps = self.history.steps
        for first in range(0, len(steps), PROCESSES):
            together = steps[first : first + PROCESSES]
            results = crew.run(self.directory, self.history.setting, together, f"{self.history.name}-{first}")
            self._take(together, results)
        self.verdict.wrong += self.table.reader.wrong
        return self.verdict

    def _take(self, steps: Sequence[Step], results: Sequence[Result | str]) -> None:
        known = self._latest
        self.table.reader.advance()
        new: set[int] = set()
        for step, result in zip(steps, results, strict=True):
            self.verdict.counts[f"tried:{step.operation.kind}"] += 1
            if isinstance(result, str):
                self.verdict.wrong.append(f"{step}: {result}")
            elif result.version is None:
                self.verdict.counts["refused" if result.error else "nothing"] += 1
            else:
                self._landed[result.version] = step, result
                new.add(result.version)
                self.verdict.counts["commits"] += 1
                self.verdict.counts["resolved"] += bool(result.resolved)
                self.verdict.counts["lost a race"] += result.version > known + 1
        if new != set(range(known + 1, self._latest + 1)):
            self.verdict.wrong.append(f"versions {sorted(new)} were reported after {known}, the latest is {self._latest}")
            return
        for version in sorted(new):
            self._judge(*self._landed[version], version)


def drawn(name: str) -> History:
    """Return a history of what several processes can do at once: RESTORE and VACUUM depend on more than the rows."""
    history = Draw(name).history()
    steps = [
        replace(step, inside=(), rust=False, lag=min(step.lag, 1))
        for step in history.steps
        if not isinstance(step.operation, Restore | Vacuum)
    ]
    return replace(history, steps=tuple(steps))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / "row-processes")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    with crew() as processes:
        for number in range(options.first, options.first + options.count):
            history, directory = drawn(f"{options.seed}-{number}"), options.directory / f"rows-{options.seed}-{number}"
            try:
                verdict = Raced(history, directory).race(processes)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            line: dict[str, Any] = {"history": history.name, "wrong": verdict.wrong, "counts": verdict.counts}
            if verdict.wrong:
                line["steps"] = described(history)
            print(json.dumps(line, default=str), flush=True)


if __name__ == "__main__":
    main()
