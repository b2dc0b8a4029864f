"""How a job may end, and what its tasks say: by Airflow's own machinery, with drivers on a real Spark.

Each test has a table and a run of its own. A row is the number of the driver that staged it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.stepped_runs import SteppedRun
from support.table import Table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]

START, PLAN, RUN, COLLECT, COMMIT = "txn.start", "txn.load.plan", "txn.load.run", "txn.load.collect", "txn.commit"


class World:
    """A table with one row, 0, and a run of a Dag on it."""

    def __init__(self, path: Path, dag_bags, dag_id: str, *todo: str, spark) -> None:
        self.table = Table(path, spark)
        self.table.write("SELECT 0L AS id")
        if todo:
            self.todo(*todo)
        dag = next(bag.dags[dag_id] for bag in dag_bags if dag_id in bag.dags)
        self.run = SteppedRun(dag, table=self.table.uri)

    def todo(self, *what: str) -> None:
        """Say what the service does with the jobs that it is given next."""
        Path(f"{self.table.path}.todo").write_text(json.dumps(what))

    def choose(self, task_id: str) -> None:
        Path(f"{self.table.path}.choice").write_text(task_id)

    @property
    def rows(self) -> list[int]:
        return [row[0] for row in self.table.rows()]

    @property
    def drivers(self) -> int:
        return int(Path(f"{self.table.path}.drivers").read_text())

    @property
    def plan(self) -> str:
        return self.run.xcom(PLAN)["directory"]

    def states(self) -> dict[str, str | None]:
        """Return the states of plan, run, collect and commit."""
        found = self.run.states()
        return {name.rpartition(".")[2]: found[name, -1] for name in (PLAN, RUN, COLLECT, COMMIT)}


GREEN = dict.fromkeys(("plan", "run", "collect", "commit"), "success")


@pytest.fixture
def world(tmp_path, dag_bags, spark):
    return lambda dag_id, *todo: World(tmp_path / "table", dag_bags, dag_id, *todo, spark=spark)


@pytest.fixture
def told(capfd, caplog):
    """What the tasks have logged since it was asked last."""

    def read() -> str:
        text = "".join(capfd.readouterr()) + caplog.text
        caplog.clear()
        return text

    return read


def test_all_is_well(world, told):
    one = world("job_causes")
    one.run.run()
    assert (one.states(), one.rows) == (GREEN, [0, 1])
    assert "The job itself" not in told()


class TestTheJobFails:
    """Before the task that collects, which does not run then: the author's task is red, and its log says what the job reports."""

    def test_with_a_report(self, world, told):
        one = world("job_causes", "fails")
        one.run.run()
        assert one.states() == {"plan": "success", "run": "failed", "collect": "upstream_failed", "commit": "upstream_failed"}
        text = told()
        assert "see the console" in text
        said = next(line for line in text.splitlines() if "The job itself reports" in line)
        assert "SchemaMismatchException" in said
        assert "other" in said
        assert one.rows == [0]

    def test_without_a_report(self, world, told):
        one = world("job_causes", "crashes")
        one.run.run()
        assert one.states()["run"] == "failed"
        assert "No run of the job has left a report" in told()

    def test_after_it_has_staged(self, world, told):
        """The service has lost sight of a job that did its work: nothing is published because of a task that failed."""
        one = world("job_causes", "loses the worker")
        one.run.run()
        assert (one.states()["collect"], one.rows) == ("upstream_failed", [0])
        assert "a run of its job has staged everything" in told()

    @pytest.mark.parametrize(
        ("todo", "said"), [("fails", "The job itself"), ("crashes", "No run"), ("loses the worker", "staged every")]
    )
    def test_a_retry_needs_no_new_plan(self, world, told, todo, said):
        one = world("job_retried", todo)
        one.run.run()
        assert said in told()
        tries = {name: one.run.result().tries_of(name) for name in (PLAN, RUN, COLLECT)}
        assert tries == {PLAN: 1, RUN: 2, COLLECT: 1}
        # A driver that finds a good report ends without work.
        staged_by = 1 if todo != "fails" and todo == "loses the worker" else one.drivers
        assert (one.states(), one.rows) == (GREEN, [0, staged_by])

    @pytest.mark.parametrize("todo", ["fails", "runs nothing"])
    def test_unnoticed_by_its_operator(self, world, told, todo):
        one = world("job_causes", "fails unnoticed" if todo == "fails" else todo)
        one.run.run()
        assert one.states() == {"plan": "success", "run": "success", "collect": "failed", "commit": "upstream_failed"}
        text = told()
        assert ("SchemaMismatchException" if todo == "fails" else "has left no report at") in text
        assert one.rows == [0]

    def test_before_a_task_that_runs_nevertheless(self, world, told):
        """What has failed is not right before the task that collects: the commit looks at all tasks."""
        one = world("job_with_cleanup", "loses the worker")
        one.run.run()
        assert one.states() == {"plan": "success", "run": "failed", "collect": "success", "commit": "failed"}
        assert "UpstreamFailedException" in told()
        assert one.rows == [0]

    def test_and_its_task_is_marked_as_success(self, world, told):
        """By somebody who has seen that the job ended well: what failed after it runs again, for the same plan."""
        one = world("job_causes", "loses the worker")
        one.run.run(until="txn.abort")
        one.run.mark(RUN, "success").run()
        assert (one.states(), one.rows) == (GREEN, [0, 1])


def test_marked_as_success_without_having_run(world, told):
    one = world("job_causes")
    one.run.run(until=RUN)
    one.run.mark(RUN, "success").run()
    assert (one.states()["collect"], one.rows) == ("failed", [0])
    assert "has left no report at" in told()


@pytest.mark.parametrize("task_id", [PLAN, COLLECT])
def test_a_task_of_ours_marked_as_success_without_having_run(world, task_id):
    one = world("job_causes")
    one.run.run(until=task_id)
    one.run.mark(task_id, "success").run()
    assert (one.states()["commit"], one.rows) == ("upstream_failed" if task_id == PLAN else "failed", [0])


def test_a_job_that_runs_twice(world):
    one = world("job_causes", "twice")
    one.run.run()
    assert (one.states(), one.rows, one.drivers) == (GREEN, [0, 1], 2)


def test_a_deferred_operator(world, told):
    one = world("job_deferred", "fails", "stages")
    one.run.run(until="txn.abort")
    assert one.states()["run"] == "failed"
    assert "The job itself reports: SchemaMismatchException" in told()
    one.run.clear(RUN, downstream=True).run()
    assert (one.states(), one.rows) == (GREEN, [0, 2])


def test_a_durable_operator_reconnects_to_the_job_of_its_plan_alone(world):
    """Its first try is lost with the worker; cleared with its plan, it runs the job of the new plan."""
    one = world("job_durable")
    one.run.run(until=COMMIT)
    submitted = Path(f"{one.table.path}.submitted")
    assert (one.run.result().tries_of(RUN), submitted.read_text()) == (2, "1")
    one.run.clear(PLAN, RUN, COLLECT).run()
    assert (one.states(), submitted.read_text(), one.rows) == (GREEN, "2", [0, 2])


BEFORE_THE_COMMIT = [
    # cleared, with those after it, states of plan, run, collect and commit at the end, rows
    ("start", False, "success success success failed", [0]),
    ("start", True, "success success success success", [0, 2]),
    ("plan", False, "success success success success", [0, 1]),
    ("plan", True, "success success success success", [0, 2]),
    ("plan collect", False, "success success failed upstream_failed", [0]),
    ("plan run", False, "success success success success", [0, 1]),
    ("run", False, "success success success success", [0, 1]),
    ("run", True, "success success success success", [0, 1]),
    ("run collect", False, "success success success success", [0, 1]),
    ("collect", False, "success success success success", [0, 1]),
    ("start collect", False, "success success failed upstream_failed", [0]),
]
NAMES = {"start": START, "plan": PLAN, "run": RUN, "collect": COLLECT, "commit": COMMIT}


@pytest.mark.parametrize(("cleared", "downstream", "states", "rows"), BEFORE_THE_COMMIT)
def test_cleared_before_the_commit(world, cleared, downstream, states, rows):
    one = world("job_causes")
    one.run.run(until=COMMIT)
    first = one.plan
    one.run.clear(*(NAMES[name] for name in cleared.split()), downstream=downstream).run(until=COMMIT).run()
    assert (one.states(), one.rows) == (dict(zip(GREEN, states.split(), strict=True)), rows)
    assert ("plan" in cleared or (downstream and cleared == "start")) == (one.plan != first)


@pytest.mark.parametrize("cleared", [PLAN, RUN])
def test_a_commit_that_begins_before_what_was_cleared_has_ended(world, told, cleared):
    """The scheduler may run both at once: the commit stands after the task that collects, which nobody has cleared."""
    one = world("job_causes")
    one.run.run(until=COMMIT)
    one.run.clear(cleared)
    assert one.run.ready() == sorted([(COMMIT, -1), (cleared, -1)])
    one.run.run_task(COMMIT)
    assert (one.states()["commit"], one.rows) == ("failed", [0])
    assert "UpstreamFailedException" in told()
    one.run.run()  # to the end, with the abort
    assert one.rows == [0]
    one.run.clear(START, downstream=True).run()
    assert (one.states(), one.rows) == (GREEN, [0, one.drivers])


@pytest.mark.parametrize("downstream", [False, True])
@pytest.mark.parametrize("cleared", [PLAN, RUN, COLLECT, COMMIT])
def test_cleared_after_the_commit(world, told, cleared, downstream):
    """Nothing is published again, and no job does its work again."""
    one = world("job_causes")
    one.run.run()
    one.run.clear(cleared, downstream=downstream).run()
    assert (one.states()["run"] == "failed") == (cleared == RUN)
    assert (one.rows, one.table.versions()) == ([0, 1], [0, 1])
    if cleared == RUN:  # nobody has planned its job for a transaction that is done
        assert "The request of this stage is not at" in told()
        one.run.clear(PLAN, downstream=True).run()
        assert (one.rows, one.table.versions()) == ([0, 1], [0, 1])
    assert "failed" not in one.states().values()
    assert one.run.xcom(COMMIT)["version"] == 1


def test_collect_and_commit_cleared_after_the_commit(world):
    """Request and reports are gone then; the log says what was published."""
    one = world("job_causes")
    one.run.run()
    version = one.run.xcom(COMMIT)["version"]
    one.run.clear(COLLECT, COMMIT).run()
    assert (one.states(), one.rows, one.table.versions()) == (GREEN, [0, 1], [0, 1])
    assert one.run.xcom(COMMIT)["version"] == version


@pytest.mark.parametrize(
    ("dag_id", "states", "rows"),
    [
        ("job_causes", "success success success success", [0, 2]),
        ("job_with_cleanup", "skipped skipped success success", [0, 1]),
    ],
    ids=["a rerun replaces", "a rerun skips"],
)
def test_cleared_as_a_whole_after_the_commit(world, dag_id, states, rows):
    """With ``rerun_policy="replace"``, what a new job stages replaces what the first one did; by default there is no new job."""
    one = world(dag_id)
    one.run.run()
    one.run.clear(START, downstream=True).run()
    assert (one.states(), one.rows) == (dict(zip(GREEN, states.split(), strict=True)), rows)
    assert one.drivers == rows[-1]


@pytest.mark.parametrize(
    ("dag_id", "todo", "cleared"),
    [
        ("job_causes", "fails", PLAN),
        ("job_causes", "fails", RUN),
        ("job_with_cleanup", "loses the worker", RUN),
        ("job_with_cleanup", "loses the worker", COLLECT),
        ("job_with_cleanup", "loses the worker", COMMIT),
    ],
)
def test_cleared_after_an_abort(world, told, dag_id, todo, cleared):
    """The transaction stays aborted, whatever its job stages or has staged; with the task that starts one, there is a new one."""
    one = world(dag_id, todo)
    one.run.run()
    told()
    if cleared == COMMIT:  # by somebody who has seen that the job ended well
        one.run.mark(RUN, "success")
    one.run.clear(cleared, downstream=True).run()
    assert one.states()["commit"] == ("failed" if cleared == COMMIT else "upstream_failed")
    assert (one.rows, one.table.versions()) == ([0], [0])
    assert "aborted" in told()
    one.run.clear(START, downstream=True).run()
    assert (one.states(), one.rows) == (GREEN, [0, one.drivers])


def test_a_branch_leaves_a_job_out(world):
    """Also one that it chose before: what that has planned and staged then does not count."""
    one = world("job_of_branch")
    one.choose("txn.delete.plan")
    one.run.run(until=COMMIT)
    found = one.run.states()
    assert [found[f"txn.delete.{name}", -1] for name in ("plan", "run", "collect")] == ["skipped", "skipped", "success"]
    assert one.states() == {"plan": "skipped", "run": "skipped", "collect": "skipped", "commit": None}

    one.choose(PLAN)
    one.run.clear("txn.choose", downstream=True).run(until=COMMIT)
    found = one.run.states()
    assert [found[f"txn.delete.{name}", -1] for name in ("plan", "run", "collect")] == ["skipped"] * 3
    assert one.states()["collect"] == "success"

    one.choose("txn.delete.plan")
    one.run.clear("txn.choose", downstream=True).run()
    assert one.states() == {"plan": "skipped", "run": "skipped", "collect": "skipped", "commit": "success"}
    assert one.rows == []  # the DELETE of all rows, and not what the job staged before


class TestMapped:
    def test_jobs_of_one_transaction(self, world):
        one = world("job_in_mapped_group")
        one.run.run(until=COMMIT)
        plans = [one.run.xcom("txn.of_day.load.plan", index)["directory"] for index in range(2)]
        assert [plan.split("/")[2] for plan in plans] == ["txn.of_day.load.collect.0", "txn.of_day.load.collect.1"]
        one.run.run()
        assert one.run.state_of(COMMIT) == "success"
        assert (one.rows, one.table.versions()) == ([0, 1, 2], [0, 1])

    def test_one_of_them_fails(self, world, told):
        one = world("job_in_mapped_group", "stages", "fails")
        one.run.run()
        assert [one.run.state_of("txn.of_day.load.collect", index) for index in range(2)] == ["success", "upstream_failed"]
        assert "The job itself reports: SchemaMismatchException" in told()
        assert (one.run.state_of(COMMIT), one.rows) == ("upstream_failed", [0])

    def test_transactions(self, world):
        one = world("job_in_mapped_transaction")
        one.run.run()
        assert [one.run.state_of("of_day.txn.commit", index) for index in range(2)] == ["success", "success"]
        assert (one.rows, one.table.versions()) == ([0, 1, 2], [0, 1, 2])

    def test_the_operator_of_a_job(self, world):
        """All of its instances run the same job: it is one."""
        one = world("job_mapped_inside")
        one.run.run()
        assert (one.run.state_of(COMMIT), one.rows, one.drivers) == ("success", [0, 1], 2)
