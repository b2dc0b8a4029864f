"""Publications whose worker is halted at every effect while others work, and on stores whose answers cannot be trusted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaError
from airflow_delta.log.storage.base import LogStore
from faults.crash.uncertain import FAULTS, LIST, PUT, READ, Uncertain
from faults.crash.zombie_table import slept
from faults.publications.workers import Lake
from faults.shared.layers import Remote
from support.pauses import sleep_by

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

DAY = 24 * 3600
OTHERS = ("commit", "abort", "settle", "publish_another", "vacuum_later")


@pytest.fixture(autouse=True)
def on_different_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts are threads here; they do not wait for each other."""
    monkeypatch.setattr("airflow_delta.transaction.commit.committer.lock_commit_if_enabled", lambda *_: nullcontext())


PAIRS = [(task, other) for task in ("commit", "abort", "take back") for other in OTHERS]
PAIRS.remove(("take back", "vacuum_later"))  # what was replaced is gone by then, so it is split


@pytest.mark.parametrize(("task", "other"), PAIRS)
def test_one_wakes_up_after_another(task: str, other: str, tmp_path: Path, is_long: bool, figures: Callable[..., None]) -> None:
    """At every effect of the first, on every table: plans, markers, entries, checksums."""
    count = 3 if is_long else 2

    def lake_at(folder: Path) -> Lake:
        return Lake(folder, count).refused_late() if task == "take back" else Lake(folder, count)

    name = "commit" if task == "take back" else task
    counted = lake_at(tmp_path / "count").worker(name).run()
    assert counted.error is None, counted.error
    points, tried = len(counted.points.trail), 0
    for point in range(points):
        if not is_long and (point + OTHERS.index(other)) % 3:
            continue
        lake = lake_at(tmp_path / str(point))
        where = f"{other} while {task} is at {counted.points.trail[point][0]}"
        sleeping = lake.worker(name, stop_at=point).begin()
        awake = lake.worker(other).run()
        shown = lake.shown() if awake.result == "published" and other == "commit" else None
        with slept(3 * DAY) if other == "vacuum_later" else nullcontext():  # by its clock, ten days have passed
            sleeping.wake()
        for attempt in (sleeping, awake):
            assert attempt.error is None or isinstance(attempt.error, DeltaError), f"{where}: {attempt.error!r}"
        lake.check(where, cleaned=other == "vacuum_later")
        if shown is not None or (name == "commit" and sleeping.result == "published"):
            assert lake.shown() == count, f"{where}: reported as published, and it is on {lake.shown()} tables"
        again = lake.worker("commit").run()
        assert again.error is None or isinstance(again.error, DeltaError), f"{where}: {again.error!r}"
        lake.check(f"{where}, then again", cleaned=other == "vacuum_later")
        on = lake.shown()
        may_be_split = other == "vacuum_later" and again.error is not None
        assert may_be_split or on == (count if again.error is None and again.result == "published" else 0), where
        tried += 1
    figures(f"zombies of publications, {task}, {other}", tried=tried, points=points, failed=0)


TASKS: dict[str, tuple[Callable[[Lake], Lake], str, str]] = {
    "publish": (lambda lake: lake, "commit", "published"),
    "go on": (lambda lake: lake.killed_at("published first"), "settle", "published"),
    "publish again": (lambda lake: lake.killed_at(f"published {lake.tables[-1].path.name}"), "commit", "published"),
    "take back": (Lake.refused_late, "commit", "undone"),
    "abort": (lambda lake: lake.killed_at("published first", "before"), "abort", "refused"),
    "abort after the decision": (lambda lake: lake.killed_at("published first"), "abort", "published"),
}
"""What stands before, who works, and the outcome."""


class _Untrusted:
    """Clients of all tables, of which one request of all is answered wrongly."""

    def __init__(self, fault: str, table: str, at: int) -> None:
        self._fault, self._table, self._at = fault, table, at
        self.stores: list[Uncertain] = []

    def __call__(self, below: LogStore) -> LogStore:
        if below.root.rstrip("/") != self._table:
            return Remote(below)
        self.stores.append(Uncertain(below, self._fault, self._at))
        return self.stores[-1]

    @property
    def hit(self) -> str | None:
        return next((store.hit for store in self.stores if store.hit), None)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", TASKS)
def test_one_answer_of_a_store_cannot_be_trusted(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool, figures: Callable[..., None]
) -> None:
    """At every put and listing, and at every third read unless the suite is long, of every table."""
    sleep_by(monkeypatch, lambda _seconds: None)
    prepare, task, outcome = TASKS[name]
    count, step = (3 if is_long else 2), (1 if is_long or fault in (*PUT, *LIST) else 3)
    tried = right = 0
    for number in range(count):
        for at in itertools.count(0, step):
            lake = prepare(Lake(tmp_path / f"{number}-{at}", count))
            untrusted = _Untrusted(fault, lake.tables[number].uri, at)
            lake.client = untrusted
            worker = lake.worker(task).run()
            if untrusted.hit is None:
                break
            where = f"{fault} at {untrusted.hit} of {lake.tables[number].path.name}"
            if worker.error is not None:
                assert type(worker.error).__module__.startswith("airflow_delta."), f"{where} led to {worker.error!r}"
            lake.client = Remote
            ended = worker.result
            if worker.error is not None or (task == "settle" and ended == "none"):  # it saw nothing that was open
                again = lake.worker(task).run()
                assert again.error is None, f"{where}: {worker.error!r}, then {again.error!r}"
                ended = again.result if again.result != "none" else outcome
            assert ended == outcome, f"{where}: {ended} ({worker.error!r})"
            assert lake.shown() == (count if outcome == "published" else 0), f"{where}: it is on {lake.shown()} tables"
            lake.check(where)
            tried, right = tried + 1, right + (worker.error is None)
    figures(f"ambiguous stores, publications, {name}, {fault}", tried=tried, right=right, errors=tried - right, failed=0)
    assert tried or fault in READ or name == "publish again", "the fault happened to no request"
