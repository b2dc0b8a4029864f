"""Kills a task of a scenario at a point, lets Airflow's part be played to the end, and judges the table."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

from airflow_delta.log import DeltaLog
from faults.crash.host import Host
from faults.crash.scenarios import SCENARIOS, Scenario
from support import readers

Trail = list[tuple[str, str, int]]


@dataclass
class Case:
    """A scenario, with a copy of its directory from before each of its tasks."""

    host: Host
    name: str
    place: Path
    spark: Any = None

    def __post_init__(self) -> None:
        self.before: dict[str, Path] = {}
        self.trails: dict[str, Trail] = {}
        self.work = self.place / "work"  # always the same, since what Spark wrote names it
        self.table = self.work / self.scenario.table

    @property
    def scenario(self) -> Scenario:
        return SCENARIOS[self.name]

    @property
    def killed(self) -> Sequence[str]:
        return self.scenario.killed or tuple(self.scenario.tasks)

    def run_without_faults(self) -> None:
        """Run the tasks, note the points that each reaches, and keep what it found."""
        self.work.mkdir(parents=True)
        self._must("prepare")
        self.versions = versions(self.table)
        for task in self.scenario.tasks:
            if self.scenario.on_spark:
                self._record(task)
            self.before[task] = self.place / f"before {task}"
            shutil.copytree(self.work, self.before[task])
            self._must(task)
            self.trails[task] = [tuple(entry) for entry in json.loads((self.work / "trail.json").read_text())]
        self.judge()

    def _record(self, task: str) -> None:
        """Have Spark do the task's work, keep what it wrote, and forget the rest."""
        from faults.crash.points import Points
        from faults.crash.run import Run

        aside, recorded = self.place / "aside", self.work / "recorded"
        shutil.rmtree(recorded, ignore_errors=True)
        shutil.copytree(self.work, aside)
        self.scenario.tasks[task](Run(self.work, Points(), spark=self.spark))
        if recorded.exists():
            shutil.copytree(recorded, aside / "recorded")
        shutil.rmtree(self.work)
        aside.rename(self.work)

    def kill(self, task: str, point: int) -> None:
        """Kill the task at a point, run it again and then the rest; the table must be as if nothing had happened."""
        shutil.rmtree(self.work)
        shutil.copytree(self.before[task], self.work)
        where = f"{self.name}: {task} killed at point {point}, {self.trails[task][point][0]}"
        status = self.host.run(self.work, self.name, task, kill_at=point)
        assert os.WIFSIGNALED(status), f"{where}: ended by itself\n{self._said()}"
        assert os.WTERMSIG(status) == signal.SIGKILL, where
        tasks = list(self.scenario.tasks)
        for number, name in enumerate(tasks[tasks.index(task) :]):
            self._must(name, where, try_number=2 if number == 0 else 1)
        try:
            self.judge()
        except AssertionError as wrong:
            raise AssertionError(f"{where}: {wrong}") from wrong

    def judge(self) -> None:
        """Every reader sees the expected rows, before and after leftovers are deleted, and the log has each thing once."""
        table = self.table
        self._rows(table)
        once(table)
        if self.scenario.commits is not None:
            made = versions(table) - self.versions
            assert made == self.scenario.commits, f"{made} versions were made instead of {self.scenario.commits}"
        self._must("sweep")
        self._rows(table)
        named = {unquote(path) for path in _named(table)}
        staged = table / "staged"
        visible = (path for path in staged.rglob("*.parquet") if not path.name.startswith((".", "_")))
        left = {str(path.relative_to(table)) for path in visible}
        assert left <= named, f"VACUUM left {sorted(left - named)}"

    def _rows(self, table: Path) -> None:
        with mock.patch.dict(readers.READERS):
            for reader in self.scenario.cannot_read:
                del readers.READERS[reader]
            found = sorted((tuple(row.values()) for row in readers.rows(table)), key=repr)
        assert found == sorted(self.scenario.rows, key=repr), f"the table has the rows {found}"

    def _must(self, task: str, where: str = "", *, try_number: int = 1) -> None:
        status = self.host.run(self.work, self.name, task, try_number=try_number)
        assert status == 0, f"{where or self.name}: then {task} failed\n{self._said()}"

    def _said(self) -> str:
        log = self.work / "log.txt"
        return log.read_text()[-3000:] if log.exists() else ""

    def points(self, task: str, *, every: bool) -> list[int]:
        """Return the points to kill a task at: every one, or the first with each state of the world."""
        trail = self.trails[task]
        if every:
            return list(range(len(trail)))
        seen: dict[int, int] = {}
        for number, (_, _, effects) in enumerate(trail):
            seen.setdefault(effects, number)
        return list(seen.values())


def _actions(table: Path) -> list[tuple[int, dict[str, Any]]]:
    return [
        (int(path.stem), json.loads(line))
        for path in sorted((table / "_delta_log").glob("0*.json"))
        if path.stem.isdecimal()
        for line in path.read_text().splitlines()
    ]


def _named(table: Path) -> set[str]:
    """Return the paths of everything that the log names, tombstones too; without commits, of the live files."""
    if not (table / "_delta_log" / f"{0:020}.json").exists():
        return {file.path for file in DeltaLog.for_table(str(table)).snapshot.add_files()}
    return {action[kind]["path"] for _, action in _actions(table) for kind in ("add", "remove", "cdc") if kind in action}


def versions(table: Path) -> int:
    """Return how many versions the table has."""
    found = [int(path.stem) for path in (table / "_delta_log").glob("0*.json") if path.stem.isdecimal()]
    return max(found) + 1 if found else 0


def once(table: Path) -> None:
    """No execution and no key is committed twice, and no file is added that is there, or removed that is not."""
    live: set[tuple[str, str]] = set()
    ids: Counter[str] = Counter()
    keys: Counter[tuple[str, int]] = Counter()
    actions = _actions(table)
    whole = bool(actions) and actions[0][0] == 0
    for version, action in actions:
        for kind, value in action.items():
            vector = (value.get("deletionVector") or {}).get("pathOrInlineDv", "") if isinstance(value, dict) else ""
            match kind:
                case "add" if whole and value.get("dataChange"):
                    assert (value["path"], vector) not in live, f"version {version} adds {value['path']} again"
                    live.add((value["path"], vector))
                case "add":
                    live.add((value["path"], vector))
                case "remove" if whole:
                    assert (value["path"], vector) in live, f"version {version} removes {value['path']}, which is not there"
                    live.discard((value["path"], vector))
                case "txn":
                    keys[value["appId"], value["version"]] += 1
                case "commitInfo":
                    ids[value.get("txnId", str(version))] += 1
    twice = [name for counted in (ids, keys) for name, count in counted.items() if count > 1]
    assert not twice, f"committed twice: {twice}"
