"""The first Dag of docs/quick-start.md works by every way to start it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from live.runs import Live, Run

DAG = "orders"


def test_the_first_dag_works_by_every_way_to_start_it(live: Live) -> None:
    """By the API and the command line runs have no logical date unless one is named; the UI's form names the moment."""
    live.unpause(DAG)
    by_command = [Run(live, DAG, f"{DAG}-{uuid.uuid4().hex[:6]}") for _ in range(2)]
    now = datetime.now(UTC).replace(microsecond=0)
    first = live.trigger(DAG).wait()  # creates the table
    runs = [first, live.trigger(DAG, date=now)]
    live.airflow.command("dags", "trigger", DAG, "--run-id", by_command[0].run_id)
    live.airflow.command("dags", "trigger", DAG, "--run-id", by_command[1].run_id, "--logical-date", "2026-01-01")
    live.finish([*runs, *by_command])
    table = live.table("orders")
    assert [run.logical_date for run in runs] == [None, now]
    assert by_command[1].logical_date == datetime(2026, 1, 1, tzinfo=UTC)
    days = [row["day"].isoformat() for row in table.rows()]
    assert len(days) == 4000
    assert days.count("2026-01-01") == 1000
