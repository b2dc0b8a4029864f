"""A stage whose Spark work is a job that waits in the triggerer: it fails, and it is cleared meanwhile."""

from __future__ import annotations

from pathlib import Path

from live.runs import Live

START, PLAN, RUN, COLLECT, COMMIT = "txn.start", "txn.load.plan", "txn.load.run", "txn.load.collect", "txn.commit"


def test_a_deferred_job_fails(live: Live) -> None:
    """One task is red, and its log says what the job reports, below Airflow's own groups."""
    table = live.table("job-fails")
    Path(f"{table}.go").touch()
    run = live.trigger("job", table=str(table), fails=True).wait("failed")
    states = {task_id.rpartition(".")[2]: state for (task_id, _), (state, _) in run.tasks().items()}
    assert {name for name, state in states.items() if state == "failed"} == {"run"}
    assert (states["plan"], states["collect"], states["commit"]) == ("success", "upstream_failed", "upstream_failed")
    events = [line["event"] for line in run.log_lines(RUN)]
    (said,) = [event for event in events if event.startswith("The job itself reports: ")]
    assert "SchemaMismatchException" in said
    assert "no column id" in said
    before = events[: events.index(said)]
    assert sum("::group::" in event for event in before) <= sum("::endgroup::" in event for event in before)
    assert table.version == -1

    run.clear(START, downstream=True)
    run.wait_for_task(COMMIT, "success")
    run.wait()
    assert table.stages() == {run.run_id: [(-1, 2)]}


def test_a_job_that_waits_is_planned_anew(live: Live) -> None:
    """Its plan is cleared with everything after it, while it is deferred: the job of the new plan is published."""
    table = live.table("job-planned-anew")
    run = live.trigger("job", table=str(table))
    run.wait_for_task(RUN, "deferred")
    run.wait_until_left(RUN)
    first = run.xcom(PLAN)["directory"]
    run.clear(PLAN, downstream=True)
    run.wait_for_task(RUN, "deferred", tries=2)
    run.wait_until_left(RUN)
    Path(f"{table}.go").touch()
    run.wait()
    second = run.xcom(PLAN)["directory"]
    assert second != first
    assert {path.rsplit("/", 2)[0] for path in table.live_files()} == {second}
    assert table.stages() == {run.run_id: [(-1, 2)]}
