"""What queues writers of the same rows: ``max_active_runs=1``, and a pool where the transaction is one task."""

from __future__ import annotations

from live.runs import ENDED, Live, Run

RUNS = 4


def explained(runs: list[Run]) -> str:
    return "\n".join(run.explain() for run in runs if run.state not in ENDED)


def ended(live: Live, dag_id: str) -> list[Run]:
    live.table(dag_id).append("2013-01")
    runs = [live.trigger(dag_id) for _ in range(RUNS)]
    for run in runs:
        live.until(lambda run=run: run.state in ENDED, f"{run} ended", explain=lambda: explained(runs))
    return runs


def test_max_active_runs_keeps_runs_apart(live: Live) -> None:
    runs = ended(live, "queued_by_runs")
    assert [run.state for run in runs] == ["success"] * RUNS
    assert live.table("queued_by_runs").version == RUNS


def test_a_pool_keeps_tasks_apart_not_transactions(live: Live) -> None:
    """Another run's start takes the slot between two tasks of a transaction."""
    runs = ended(live, "queued_by_pool")
    conflicts = [run for run in runs if run.state == "failed"]
    print(f"{len(conflicts)} of {RUNS} runs met a conflict")
    assert conflicts
    assert live.table("queued_by_pool").version == RUNS - len(conflicts)


def test_a_pool_keeps_transactions_of_one_task_apart(live: Live) -> None:
    table = live.table("queued-alone")
    table.append("2013-01")
    runs = live.finish([live.trigger("queued_alone", table=str(table)) for _ in range(RUNS)])
    results = sorted((run.xcom("truncate") for run in runs), key=lambda result: result["version"])
    assert [(result["readVersion"], result["version"]) for result in results] == [(n, n + 1) for n in range(RUNS)]
