"""Random orders of what the scheduler runs, and a user clears or marks, around a job: what whole runs publish by Airflow's rules.

Judged after each step: nothing but the commit publishes, after start, plan, run and collect have succeeded; it publishes what was
collected last, for the transaction that is open now, and none twice; the job's row is in the table at most once, since a rerun
replaces it. At the end: whatever has happened, the whole run cleared publishes. Each order has published something before.

No single check is judged here: most of these orders are refused in several places, one after the other, so that the outcome is
right without any one. Each check has its test: ``table/stage/test_job_runs.py`` (reports), ``test_job_groups.py`` (plans),
``test_job_listener.py`` (durable operators), ``test_job_causes.py`` (what was cleared). ``table/stage/test_job_histories.py`` has
drivers that overlap, without Airflow.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.stepped_runs import SteppedRun
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]

START, PLAN, RUN, COLLECT, COMMIT = "txn.start", "txn.load.plan", "txn.load.run", "txn.load.collect", "txn.commit"
WAYS = ["stages"] * 9 + ["twice", "fails", "fails unnoticed", "runs nothing", "crashes", "loses the worker"]


@dataclass
class Drawn:
    """A run of one transaction with one job, and all that happens to it."""

    table: Table
    run: SteppedRun
    random: random.Random
    ways: list[str] = field(default_factory=lambda: list(WAYS))
    done: list[str] = field(default_factory=list)
    published: dict[str, int] = field(default_factory=dict)
    """The versions of transactions, by the attempt that each has published."""

    def step(self) -> bool:
        """Run one of the tasks that are ready; return whether there was one."""
        ready = self.run.ready()
        if not ready:
            return False
        name, _ = self.random.choice(ready)
        if name == RUN:
            Path(f"{self.table.path}.todo").write_text(json.dumps([self.random.choice(self.ways)]))
        before, states = self.table.versions(), self.run.states()
        self.done.append(name)
        self.run.run_task(name)
        if self.table.versions() != before:
            self.check_published(name, states)
        return True

    def check_published(self, by: str, states) -> None:
        """Check what a task has published: what was collected last, and nothing after a failure."""
        assert by == COMMIT
        assert [states[name, -1] for name in (START, PLAN, RUN, COLLECT)] == ["success"] * 4
        added = [line["add"]["path"] for line in self.table.lines(self.table.versions()[-1]) if "add" in line]
        staged = self.run.xcom(COLLECT)
        transaction = self.run.xcom(START)["transactionId"]
        assert {tuple(path.split("/")[1:4]) for path in added} == {(transaction, staged["stage"], staged["attempt"])}
        assert transaction not in self.published
        self.published[transaction] = self.table.versions()[-1]

    def clear(self) -> None:
        names = self.random.sample([START, PLAN, RUN, COLLECT, COMMIT], self.random.choice([1, 1, 1, 2, 3]))
        self.clear_these(*names, downstream=self.random.random() < 0.4)

    def clear_these(self, *names: str, downstream: bool) -> None:
        self.done.append(f"clear {' '.join(names)}{' and after' if downstream else ''}")
        self.run.clear(*names, downstream=downstream)

    def mark(self) -> None:
        name, state = self.random.choice([PLAN, RUN, RUN, COLLECT]), self.random.choice(["success", "success", "failed"])
        self.done.append(f"mark {name} {state}")
        self.run.mark(name, state)

    def check(self) -> None:
        """Check the table: the row that was there, and at most one of the job's."""
        rows = [row[0] for row in self.table.rows()]
        assert rows[0] == 0, self.done
        assert len(rows) == (2 if self.published else 1), self.done
        assert self.table.versions() == [0, *self.published.values()], self.done

    def go(self, steps: int) -> None:
        for _ in range(steps):
            action = self.random.choices([self.step, self.clear, self.mark], [10, 1, 0.3])[0]
            if action() is False:  # the run has ended
                self.random.choice([self.clear, self.clear_all])()
            self.check()
        while self.step():
            self.check()
        assert self.published, "nothing was published, so nothing was judged"
        # Whatever has happened: the whole run again publishes.
        before, self.ways = len(self.published), ["stages"]
        self.clear_all()
        while self.step():
            self.check()
        assert self.run.state_of(COMMIT) == "success", self.done
        assert len(self.published) == before + 1, self.done

    def clear_all(self) -> None:
        self.clear_these(START, downstream=True)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_cleared_the_row_is_there_once(tmp_path, dag_bags, spark, seed):
    table = Table(tmp_path / "table", spark)
    table.write("SELECT 0L AS id")
    dag = next(bag.dags["job_causes"] for bag in dag_bags if "job_causes" in bag.dags)
    Drawn(table, SteppedRun(dag, table=table.uri), random.Random(seed)).go(30)
