"""A publication of three tables on a running Airflow: every way in which it is run again, or ended by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from live.names import FIRST, ROWS, RUNS
from live.runs import Live, Run
from live.tables import ScenarioTable

NAMES = ("orders", "lines", "totals")
COMMIT, ABORT = "p.commit", "p.abort"
BEFORE = {"another-writer": [(-1, 1)]}


class Lake:
    """The three tables of a scenario, each with rows of another writer."""

    def __init__(self, live: Live, name: str) -> None:
        self.root = live.table(name)
        self.tables = {name: ScenarioTable(self.root.path / name) for name in NAMES}
        for table in self.tables.values():
            table.append("2012-12")

    def trigger(self, live: Live, **faults: str) -> Run:
        points = {point.replace("_", "."): what for point, what in faults.items()}
        return live.trigger("publish", tables=str(self.root), faults=points)

    def holds(self, run: Run | None, **tries: int) -> None:
        """Check that each table has the rows of a run once, or none of it.

        :param tries: which try of the stage has written them, where not the first.
        """
        for name, table in self.tables.items():
            expected = BEFORE if run is None else {**BEFORE, run.run_id: [(-1, tries.get(name, 1))]}
            assert table.stages() == expected, name

    def states(self) -> dict[str, list[str]]:
        """Return the states that each log has, oldest first."""
        tags = {name: [commit.get("tags") or {} for commit in table.commits()] for name, table in self.tables.items()}
        state = "airflow.publicationState"
        return {name: [one[state] for one in found if state in one] for name, found in tags.items()}

    @property
    def versions(self) -> dict[str, int]:
        return {name: table.version for name, table in self.tables.items()}


@pytest.mark.parametrize("point", ["commit_begin", "commit_logged", "commit_done"])
def test_killed_and_tried_again(live: Live, point: str) -> None:
    """Also between tables: ``commit.logged`` is after the entry of the first of them, which decides."""
    lake = Lake(live, f"publish-killed-{point}")
    run = lake.trigger(live, **{point: "kill"}).wait()
    assert run.tries_of(COMMIT) == 2
    lake.holds(run)
    result = run.xcom(COMMIT)
    assert (result["outcome"], result["committedBefore"]) == ("published", point != "commit_begin")
    assert {uri.rpartition("/")[2]: commit["version"] for uri, commit in result["tables"].items()} == lake.versions
    assert sorted(lake.states().values()) == [["intent", "published"], ["intent", "published"], ["published"]]
    assert run.xcom(ABORT)["outcome"] == "published"


def test_clear_everything(live: Live) -> None:
    lake = Lake(live, "publish-clear-all")
    run = lake.trigger(live).wait()
    versions = lake.versions
    run.clear_all()
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    lake.holds(run)
    assert lake.versions == versions
    assert run.xcom(COMMIT)["committedBefore"]


def test_clear_one_inner_group_after_it(live: Live) -> None:
    lake = Lake(live, "publish-clear-inner-after")
    run = lake.trigger(live).wait()
    versions = lake.versions
    run.clear("p.lines.start", downstream=True)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    lake.holds(run)
    assert lake.versions == versions


def test_clear_one_inner_group_before_it(live: Live) -> None:
    """Its table gets the rows of the second try, the others those of the first."""
    lake = Lake(live, "publish-clear-inner-before")
    run = lake.trigger(live, commit_begin="hold")
    run.reached("commit.begin")
    run.clear("p.lines.start", downstream=True)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    lake.holds(run, lines=2)


def test_mark_the_commit_as_success(live: Live) -> None:
    """Nothing is in a log, so the run fails; a clear publishes."""
    lake = Lake(live, "publish-marked-success")
    run = lake.trigger(live, commit_begin="hold")
    run.reached("commit.begin")
    run.mark("success", COMMIT)
    run.wait("failed")
    assert (run.state_of(COMMIT), run.state_of(ABORT)) == ("success", "failed")
    lake.holds(None)
    run.clear_all()
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    lake.holds(run, **dict.fromkeys(NAMES, 2))


def test_mark_the_commit_as_failed_before_the_decision(live: Live) -> None:
    lake = Lake(live, "publish-marked-failed-before")
    run = lake.trigger(live, commit_begin="hold")
    run.reached("commit.begin")
    run.mark("failed", COMMIT)
    run.wait("failed")
    assert run.xcom(ABORT)["outcome"] == "refused"
    lake.holds(None)
    assert all(table.staged_files() == set() for table in lake.tables.values())


def test_mark_the_commit_as_failed_after_the_decision(live: Live) -> None:
    """The first table shows it already: the abort brings it to the others, and deletes nothing."""
    lake = Lake(live, "publish-marked-failed-after")
    run = lake.trigger(live, commit_logged="hold")
    run.reached("commit.logged")
    assert sorted(lake.states().values()) == [["intent"], ["intent"], ["published"]]
    run.mark("failed", COMMIT)
    run.wait("failed")
    assert run.xcom(ABORT)["outcome"] == "published"
    lake.holds(run)


def test_mark_the_run_as_failed(live: Live) -> None:
    lake = Lake(live, "publish-run-failed")
    run = lake.trigger(live, audit="hold")
    run.reached("audit")
    for name in NAMES:
        run.wait_for_task(f"p.{name}.stage", "success")
    run.mark("failed")
    run.wait("failed")
    assert run.xcom(ABORT)["outcome"] == "refused"
    lake.holds(None)
    assert f"{ROWS} rows in 1 files" in run.explain()


def test_a_backfill_publishes_each_month_once(live: Live) -> None:
    """Runs at once on the same tables; again, nothing is published twice."""
    lake = Lake(live, "published_months")
    last = datetime(2013 + (RUNS - 1) // 12, (RUNS - 1) % 12 + 1, 1, tzinfo=UTC)
    runs = live.wait_for_backfill(live.backfill("published_months", FIRST, last, at_once=4))
    assert len(runs) == RUNS
    live.finish(runs)
    months = {f"{2013 + number // 12}-{number % 12 + 1:02}": {run.run_id} for number, run in enumerate(runs)}

    def check() -> None:
        for table in lake.tables.values():
            assert table.months() == {**months, "2012-12": {"another-writer"}}
            assert all(len(stages) == 1 for stages in table.stages().values())

    check()
    assert {len(run.events()) for run in runs} == {len(NAMES)}
    versions = lake.versions
    live.finish(live.wait_for_backfill(live.backfill("published_months", FIRST, last, reprocess="completed", at_once=4)))
    check()
    assert lake.versions == versions
