"""States that somebody sets by hand: the run's state tells whether its transaction is published."""

from __future__ import annotations

from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.operators import committing, tested

pytestmark = pytest.mark.airflow

LOST = "3 rows in 1 files of txn.stage are lost"
HANDS = [
    # what happens in the last task before the commit, states of commit, abort and run, what abort says
    (
        "run",
        "skipped",
        "failed",
        "failed",
        f"its commit was skipped although txn.check failed, as when a run is marked as failed; {LOST}",
    ),
    ("txn.commit", "success", "failed", "failed", f"its commit was marked as success by hand; {LOST}"),
    ("skip", "skipped", "success", "success", f"its commit was skipped; {LOST}"),
    ("fail", "upstream_failed", "success", "failed", None),
]


@pytest.mark.parametrize(("hand", "commit", "abort", "state", "told"), HANDS)
def test_a_transaction_that_is_not_published(run_dag, tables, capfd, hand, commit, abort, state, told):
    day = datetime(2026, 1, 1 + [row[0] for row in HANDS].index(hand), tzinfo=UTC)
    run = run_dag("states_by_hand", day, hand=hand)
    assert (run.state_of("txn.commit"), run.state_of("txn.abort"), run.state) == (commit, abort, state)
    assert run.xcom("txn.abort")["outcome"] == "deleted"
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/states_by_hand")
    said = capfd.readouterr()
    assert ("nothing of it is published" in said.out + said.err) is (told is not None)
    assert told is None or told in said.out + said.err


def test_a_transaction_that_is_published(run_dag, tables):
    run = run_dag("states_by_hand", datetime(2026, 2, 1, tzinfo=UTC))
    assert (run.state, run.state_of("txn.abort"), run.state_of("txn.watcher")) == ("success", "success", "success")


def test_airflow_tasks_test_says_that_it_publishes(run_dag, dag_bags, tables, capfd, monkeypatch):
    """``dag.test()`` does not: who runs a whole Dag wants what it does."""
    from airflow.cli import cli_parser

    uri = f"{tables}/tested"
    deltalake.write_deltalake(uri, pa.table({"id": pa.array([1], pa.int64())}))
    assert run_dag("tested").state == "success"
    said = capfd.readouterr()
    assert "does not test" not in said.out + said.err

    at = []

    def noted(*given):
        at.append(deltalake.DeltaTable(uri).version())
        tested.warn_if_tested(*given)

    monkeypatch.setattr(committing, "warn_if_tested", noted)
    monkeypatch.setenv("AIRFLOW_TEST_MODE", "False")  # the command sets it, and leaves it
    args = cli_parser.get_parser().parse_args(["tasks", "test", "tested", "alter", "2026-01-05"])
    args.func(args, next(bag.dags["tested"] for bag in dag_bags if "tested" in bag.dags))
    said = capfd.readouterr()
    assert f"it is about to change {uri}" in said.out + said.err
    assert (at, deltalake.DeltaTable(uri).version()) == ([1], 2), "it is said before it happens"
