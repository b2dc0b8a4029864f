"""Many runs and many stages at once."""

from __future__ import annotations

from datetime import UTC, datetime

from live.names import FIRST, LONG, RUNS
from live.runs import Live, Run

STAGES = 200 if LONG else 40
COMMIT = "txn.commit"


def commits_wait(live: Live, runs: list[Run]) -> None:
    """Wait until the commits of all runs are next, and nothing else is left to do: all of them have read the same version."""

    def all_wait() -> bool:
        return all(run.state_of("txn.stage") == "success" and run.state_of(COMMIT) == "scheduled" for run in runs)

    live.until(all_wait, "all commits wait", explain=lambda: "\n".join(run.explain() for run in runs))


def test_many_mapped_stages(live: Live) -> None:
    """All of them are one version."""
    table = live.table("fan-in")
    run = live.trigger("fan_in", table=str(table), stages=STAGES).wait()
    assert table.version == 0
    assert table.stages() == {run.run_id: [(index, run.tries_of("txn.stage", index)) for index in range(STAGES)]}
    assert len(table.months()) == STAGES
    result = run.xcom(COMMIT)
    assert (result["numFiles"], result["numRecords"], result["attempts"]) == (STAGES, 3 * STAGES, 1)


def test_months_at_once(live: Live) -> None:
    """A backfill of months that all read the same version: every one lands, none has to be tried again by Airflow."""
    table = live.table("months")
    table.append("2013-01")  # a month that is there is replaced
    table.append("2012-12")  # one that nobody asked for stays
    last = datetime(2013 + (RUNS - 1) // 12, (RUNS - 1) % 12 + 1, 1, tzinfo=UTC)
    backfill = live.backfill("months", FIRST, last)
    runs = live.runs_of_backfill(backfill)
    assert len(runs) == RUNS
    commits_wait(live, runs)
    assert {run.xcom("txn.start")["readVersion"] for run in runs} == {1}
    live.airflow.set_pool("gate_months", 128)
    live.finish(runs)
    assert table.version == RUNS + 1
    expected = {f"{2013 + number // 12}-{number % 12 + 1:02}": {run.run_id} for number, run in enumerate(runs)}
    assert table.months() == {**expected, "2012-12": {"another-writer"}}
    assert all(len(stages) == 1 for run, stages in table.stages().items() if run != "another-writer")
    assert sorted(table.committed_by()[2:]) == sorted(run.run_id for run in runs)
    assert {run.tries_of(COMMIT) for run in runs} == {1}
    assert sum(run.xcom(COMMIT)["attempts"] for run in runs) >= RUNS


def test_runs_on_one_month(live: Live) -> None:
    """A backfill whose runs all replace the same rows of the same version: one wins, every other one fails for good."""
    table = live.table("same_month")
    table.append("2013-01")
    backfill = live.backfill("same_month", FIRST, datetime(2013, 1, RUNS, tzinfo=UTC))
    runs = live.runs_of_backfill(backfill)
    assert len(runs) == RUNS
    commits_wait(live, runs)
    live.airflow.set_pool("gate_same_month", 128)
    live.until(lambda: all(run.state in ("success", "failed") for run in runs), "all runs ended")
    winners = [run for run in runs if run.state == "success"]
    losers = [run for run in runs if run.state == "failed"]
    assert (len(winners), len(losers)) == (1, RUNS - 1)
    assert table.version == 1
    assert table.months() == {"2013-01": {winners[0].run_id}}
    assert len(table.stages()[winners[0].run_id]) == 1
    for run in losers:
        note = run.xcom(COMMIT, key="delta_commit_failure")
        # The winner added rows to the month that this one read as empty of them; that it also removed what this one replaces
        # is checked later.
        assert (note["exception"], note["version"]) == ("ConcurrentAppendException", 1), note
        assert run.tries_of(COMMIT) == 1, "a conflict is final for its transaction"
        assert run.xcom("txn.abort")["outcome"] == "deleted"
    assert len(table.staged_files()) == 1

    # What the error says: cleared from start, the run reads the new version and replaces it.
    losers[0].clear("txn.start", downstream=True)
    losers[0].wait_for_task(COMMIT, "success", tries=2)
    losers[0].wait()
    assert table.version == 2
    assert table.months() == {"2013-01": {losers[0].run_id}}


def test_appends_to_one_month(live: Live) -> None:
    """Runs that only add rows never conflict, also when they make the table."""
    table = live.table("appends")
    runs = live.finish([live.trigger("load", table=str(table)) for _ in range(8)])
    assert table.version == 7
    assert table.stages() == {run.run_id: [(-1, 1)] for run in runs}
    assert sorted(table.committed_by()) == sorted(run.run_id for run in runs)


def test_conflicts_that_begin_again(live: Live) -> None:
    """``on_conflict="restart"``: runs that replace the same rows land one after the other, without anybody's hand."""
    table = live.table("restarts")
    table.append("2013-01")
    runs = [live.trigger("restarts") for _ in range(3)]
    commits_wait(live, runs)
    live.airflow.set_pool("gate_restart", 128)
    live.finish(runs)
    assert table.version == 3
    assert sorted(table.committed_by()[1:]) == sorted(run.run_id for run in runs)
    last = table.committed_by()[-1]
    assert table.months() == {"2013-01": {last}}
    assert len(table.stages()[last]) == 1
    assert any(run.tries_of("txn.stage") > 1 for run in runs), "the losers' stages ran again"
