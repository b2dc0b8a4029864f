"""States that somebody sets by hand: the run's state tells whether its transaction is published."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.operators import transaction
from airflow_delta.tasks import airflow_tasks_test, unpublished
from airflow_delta.tasks.commit import commit_part

pytestmark = pytest.mark.airflow

LOST = "3 rows in 1 files of txn.stage are lost"
HANDS = [
    # what happens in a task before the commit, states of commit, abort and run, what abort says: a commit that the Dag itself has
    # skipped, as a rejected approval does, asks for nobody
    (
        "run",
        "skipped",
        "failed",
        "failed",
        f"its commit was skipped although txn.check failed, as when a run is marked as failed; {LOST}",
    ),
    ("txn.commit", "success", "failed", "failed", f"its commit was marked as success by hand; {LOST}"),
    (
        "run success",
        "skipped",
        "success",
        "success",
        f"its commit was skipped though no task has skipped it, as when a run is marked by hand; {LOST}",
    ),
    ("skip", "skipped", "success", "success", f"its commit was skipped, as txn.check says; {LOST}"),
    ("gate", "skipped", "success", "success", f"its commit was skipped, as txn.gate says; {LOST}"),
    ("nothing", "skipped", "success", "success", f"its commit was skipped, as txn.look says; {LOST}"),
    ("fail", "upstream_failed", "success", "failed", None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("hand", "commit", "abort", "state", "told"), HANDS)
def test_a_transaction_that_is_not_published(run_dag, tables, capfd, monkeypatch, hand, commit, abort, state, told):
    found = []
    monkeypatch.setattr(transaction, "unpublished", lambda *given: found.append(unpublished.unpublished(*given)) or found[-1])
    day = datetime(2026, 1, 1 + [row[0] for row in HANDS].index(hand), tzinfo=UTC)
    run = run_dag("states_by_hand", day, hand=hand)
    assert (run.state_of("txn.commit"), run.state_of("txn.abort"), run.state) == (commit, abort, state)
    assert run.xcom("txn.abort")["outcome"] == "deleted"
    assert not deltalake.DeltaTable.is_deltatable(f"{tables}/states_by_hand")
    assert told == (None if found == [None] else f"{found[0].why}; {found[0].rows}")
    said = capfd.readouterr()  # warnings and errors
    asks = told is not None and hand not in ("skip", "gate", "nothing")
    assert ("nothing of it is published" in said.out + said.err) is asks
    assert not asks or told in said.out + said.err


@pytest.mark.parametrize(("version", "said"), [(3, "(read version 3)"), (-1, "(a new table)")])
def test_the_error_of_an_abort_names_the_table_as_it_was(version, said):
    handle = TransactionHandle(
        transaction_id="t", table="/lake/t", read_version=version, staging_path="/lake/t/s", app_id="a", txn_version=0
    )
    error = unpublished.Unpublished("its commit was skipped", True, "3 rows").error(handle)
    assert f"Transaction t on table /lake/t {said} was aborted" in error.message


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
        airflow_tasks_test.warn_if_tested(*given)

    monkeypatch.setattr(commit_part, "warn_if_tested", noted)
    monkeypatch.setenv("AIRFLOW_TEST_MODE", "False")  # the command sets it, if it does, and leaves it
    monkeypatch.setattr("sys.argv", ["airflow", "tasks", "test", "tested", "alter", "2026-01-05"])
    args = cli_parser.get_parser().parse_args(sys.argv[1:])
    args.func(args, next(bag.dags["tested"] for bag in dag_bags if "tested" in bag.dags))
    said = capfd.readouterr()
    assert f"it is about to change {uri}" in said.out + said.err
    assert (at, deltalake.DeltaTable(uri).version()) == ([1], 2), "it is said before it happens"


@pytest.mark.parametrize(
    ("mode", "command", "said"),
    [
        ("True", "scheduler", True),
        ("False", "tasks test load commit 2026-01-05", True),  # Airflow 3.3.0 and 3.3.1 do not set the variable
        ("False", "dags test load 2026-01-05", False),
    ],
)
def test_airflow_tasks_test_is_known_by_its_variable_or_its_words(monkeypatch, caplog, mode, command, said):
    monkeypatch.setenv(airflow_tasks_test.TEST_MODE, mode)
    monkeypatch.setattr("sys.argv", ["airflow", *command.split()])
    task = SimpleNamespace(task_id="commit", log=logging.getLogger("a task"))
    airflow_tasks_test.warn_if_tested(task, "/lake/t", "change")
    assert ("it is about to change /lake/t" in caplog.text) is said


def test_a_check_that_runs_again_alone_is_told_of_the_abort(run_dag, clear_and_run, caplog):
    """It passes, and only the commit would say that its rows are gone."""
    with caplog.at_level(logging.ERROR, logger="airflow_delta.tasks.ended"):
        run = run_dag("states_by_hand", datetime(2026, 3, 1, tzinfo=UTC), hand="fail")
        assert (run.state_of("txn.check"), run.state_of("txn.abort"), caplog.messages) == ("failed", "success", [])
        run = clear_and_run(run, "txn.check", hand="")
    assert run.state_of("txn.check") == "success"
    [said] = [message for message in caplog.messages if "What this task does will not be published" in message]
    assert "was aborted" in said
    assert "Clear the start task with everything downstream" in said
