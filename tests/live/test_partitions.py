"""Events by partition on a running Airflow: what depends on a late correction runs again, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

from live.runs import Live

NAMES = ("raw", "daily", "monthly", "of_others")
DAYS = ["2026-03-02", "2026-03-03", "2026-03-04"]
RAW = "partitions_raw"
TESTS = Path(__file__).parents[1]


def test_a_late_correction(live: Live) -> None:
    """By a Dag, by delta-rs, also while the triggerer is dead, by Delta Spark: 3 March and March run again, once each time."""
    for name in NAMES:
        live.unpause(f"delta_partitions_{name}")
    monthly = live.table("partitions_monthly")
    live.trigger("delta_partitions_raw", day=DAYS[0], days=3, amount=10).wait()
    settle(live, daily=3)
    assert Counter(keys_of(live, "daily")) == Counter(DAYS)
    assert set(keys_of(live, "monthly")) == {"2026-03"}
    assert monthly.rows() == [{"month": "2026-03", "days": 3, "total": 30}]

    def corrected(correct, total: int) -> None:
        before = {name: keys_of(live, name) for name in ("daily", "monthly")}
        correct()
        settle(live, daily=len(before["daily"]) + 1, monthly=len(before["monthly"]) + 1)
        assert keys_of(live, "daily")[len(before["daily"]) :] == ["2026-03-03"]
        assert keys_of(live, "monthly")[len(before["monthly"]) :] == ["2026-03"]
        assert monthly.rows() == [{"month": "2026-03", "days": 3, "total": total}]

    corrected(lambda: live.trigger("delta_partitions_raw", day="2026-03-03", days=1, amount=15).wait(), 35)
    corrected(lambda: add_by_another_engine(live, 1), 36)

    live.airflow.kill("triggerer")
    add_by_another_engine(live, 4)
    live.airflow.start_again("triggerer")
    corrected(lambda: None, 40)

    # Another engine compacts: no row changes, nothing runs.
    import deltalake

    deltalake.DeltaTable(str(live.table(RAW))).optimize.compact()
    before = {name: keys_of(live, name) for name in ("daily", "monthly")}
    add_by_another_engine(live, 2)
    settle(live, daily=len(before["daily"]) + 1, monthly=len(before["monthly"]) + 1)
    assert keys_of(live, "daily")[len(before["daily"]) :] == ["2026-03-03"]

    # Delta Spark corrects rows that are there, and compacts.
    corrected(lambda: correct_by_spark(live), 52)

    # Each commit of the other engines was told once, those of our own by themselves.
    told = [run.xcom("changed") for run in live.runs_of("delta_partitions_of_others") if run.state == "success"]
    assert sorted(version for each in told for version in each["versions"]) == [2, 3, 5, 6]
    assert {key for each in told for key in each["keys"]} == {"2026-03-03"}


def add_by_another_engine(live: Live, amount: int) -> None:
    import deltalake
    import pyarrow as pa

    rows = pa.table({"day": [date(2026, 3, 3)], "amount": pa.array([amount], pa.int64())})
    deltalake.write_deltalake(str(live.table(RAW)), rows, mode="append")


def correct_by_spark(live: Live) -> None:
    table = f"delta.`{live.table(RAW)}`"
    statements = (f"UPDATE {table} SET amount = amount + 10 WHERE day = DATE '2026-03-03' AND amount = 15", f"OPTIMIZE {table}")
    command = [sys.executable, "-m", "live.delta_spark_sql", *statements]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    commits = live.table(RAW).commits()
    assert [commit["operation"] for commit in commits[-2:]] == ["UPDATE", "OPTIMIZE"]
    assert all("Delta-Lake" in commit["engineInfo"] for commit in commits[-2:])


def keys_of(live: Live, name: str) -> list[str | None]:
    return [run.partition_key for run in live.runs_of(f"delta_partitions_{name}")]


def settle(live: Live, **at_least: int) -> None:
    """Wait until there are as many runs, all have ended, and none is about to be made."""
    dags = [f"delta_partitions_{name}" for name in ("raw", "daily", "monthly")]

    def settled() -> bool:
        runs = {dag_id: [run.state for run in live.runs_of(dag_id)] for dag_id in dags}
        assert not any("failed" in states for states in runs.values()), [
            run.explain() for dag_id in dags for run in live.runs_of(dag_id)
        ]
        waiting = live.airflow.query(
            "SELECT count(*) FROM asset_partition_dag_run WHERE created_dag_run_id IS NULL AND target_dag_id LIKE %s",
            "delta_partitions_%",
        )[0][0]
        ended = all(state == "success" for states in runs.values() for state in states)
        return ended and not waiting and all(len(runs[f"delta_partitions_{name}"]) >= n for name, n in at_least.items())

    live.until(settled, f"runs have ended: {at_least}", explain=lambda: str({dag_id: live.runs_of(dag_id) for dag_id in dags}))


def test_a_late_partition(live: Live) -> None:
    """A run whose partition is not there in time calls its author once, and goes on waiting."""
    called, late = live.airflow.tables / "lateness.called", live.table("late")
    late.append("2013-01")
    run = live.trigger("late_partition", awaited=str(late))
    live.until(called.exists, "the callback was called", explain=run.explain)
    assert run.state in ("queued", "running")  # on a busy machine no worker may have come to it
    late.append("2013-02")
    run.wait()
    live.until(lambda: not live.airflow.query("SELECT 1 FROM deadline WHERE missed = false"), "no deadline is ahead")
    assert called.read_text().split() == [run.run_id]


def test_a_late_commit(live: Live) -> None:
    """A run counts from the last commit, as its event told: without another one its author is called once."""
    called = live.airflow.tables / "late_commit.called"
    live.trigger("late_commit_writer").wait()
    run = live.trigger("late_commit")
    live.until(called.exists, "the callback was called", explain=run.explain)
    assert run.state in ("queued", "running")  # on a busy machine no worker may have come to it
    committed, due = live.airflow.query(
        "SELECT max(e.timestamp), max(d.deadline_time) FROM asset_event e, deadline d JOIN dag_run r ON r.id = d.dagrun_id "
        "WHERE e.source_dag_id = 'late_commit_writer' AND r.dag_id = 'late_commit'"
    )[0]
    assert due - committed == timedelta(seconds=20)
    live.trigger("late_commit_writer").wait()
    run.wait()
    assert called.read_text().split() == [run.run_id]
