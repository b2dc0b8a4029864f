"""Every way in which Airflow runs a task again, and what the table holds after it: the matrix of ``docs/reruns.md``.

Each scenario has a table of its own. ``stages()`` of a table tells by run which stages are in it, as (map index, try); a stage
that is there in part, or twice, shows as such.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from live.names import ROWS
from live.runs import Live, Run
from live.tables import ScenarioTable

NOT_MAPPED = -1
START, STAGE, COMMIT, ABORT = "txn.start", "txn.stage", "txn.commit", "txn.abort"
POLICIES = ("skip", "replace", "append", "fail")


def holds(table: ScenarioTable, *runs: tuple[Run, int], version: int) -> None:
    """Check that a table holds one stage of each run, written by a try, and that its latest version is this one."""
    assert table.stages() == {run.run_id: [(NOT_MAPPED, attempt)] for run, attempt in runs}
    assert table.version == version


# -- retries ------------------------------------------------------------------------------------------------------------------

RETRIES = [
    # point, fault, tries of stage and commit, the try whose rows are in the table, the try whose commit is in the log
    ("stage.begin", "raise", 2, 1, 2, "1"),
    ("stage.staged", "raise", 2, 1, 2, "1"),
    ("stage.staged", "kill", 2, 1, 2, "1"),
    ("commit.begin", "raise", 1, 2, 1, "2"),
    ("commit.begin", "kill", 1, 2, 1, "2"),
    ("commit.before_put", "kill", 1, 2, 1, "2"),
    ("commit.logged", "kill", 1, 2, 1, "1"),
    ("commit.done", "raise", 1, 2, 1, "1"),
    ("commit.done", "kill", 1, 2, 1, "1"),
]


@pytest.mark.parametrize(("point", "fault", "stage_tries", "commit_tries", "rows_of", "logged_by"), RETRIES)
def test_retry(live: Live, point: str, fault: str, stage_tries: int, commit_tries: int, rows_of: int, logged_by: str) -> None:
    """A task fails, or is killed, at a point, and Airflow tries it again: one version, the rows of one try."""
    table = live.table(f"retry-{point}-{fault}")
    run = live.trigger("load", table=str(table), faults={point: fault}).wait()
    assert (run.tries_of(STAGE), run.tries_of(COMMIT)) == (stage_tries, commit_tries)
    holds(table, (run, rows_of), version=0)
    (commit,) = table.commits()
    assert commit["tags"]["airflow.tryNumber"] == logged_by
    assert commit["txnId"] == run.xcom(START)["transactionId"]
    # A commit that was in the log before its task could say so is told as the same result, and the event is emitted.
    result = run.xcom(COMMIT)
    assert (result["version"], result["committedBefore"]) == (0, logged_by != str(commit_tries))
    assert [event["version"] for event in run.events()] == [0]
    assert run.xcom(ABORT)["outcome"] == "committed"


@pytest.mark.parametrize("policy", ["append", "fail"])
def test_an_operation_of_its_own_is_killed_after_its_commit(live: Live, policy: str) -> None:
    """The retry finds the commit whatever the policy; only after a clear it asks the policy."""
    table = live.table(f"alone-{policy}")
    table.append("2013-01")
    run = live.trigger("alone", table=str(table), policy=policy, faults={"commit.logged": "kill"}).wait()
    assert (run.tries_of("alone"), table.version) == (2, 1)
    assert run.xcom("alone")["committedBefore"]
    run.clear("alone")
    run.wait_for_task("alone", "success" if policy == "append" else "failed", tries=3)
    assert table.version == (2 if policy == "append" else 1)


def test_retries_run_out(live: Live) -> None:
    """A commit fails for good before it put anything: the transaction is given up, and nothing of it is left."""
    table = live.table("retries-run-out")
    table.append("2012-12")
    run = live.trigger("load", table=str(table), faults={"commit.begin": "fail"}).wait("failed")
    assert run.xcom(ABORT)["outcome"] == "deleted"
    assert table.staged_files() == set()
    assert table.version == 0
    assert run.events() == []

    # Clearing the commit alone does not bring the files back: it is refused, and says so.
    run.clear(COMMIT)
    run.wait_for_task(COMMIT, "failed", tries=2)
    run.wait("failed")
    assert table.version == 0
    assert run.xcom(COMMIT, key="delta_commit_failure")["exception"] == "TransactionAbortedException"

    # Clearing start and all after it begins a new transaction.
    run.clear(START, downstream=True)
    run.wait_for_task(COMMIT, "success", tries=3)
    run.wait()
    assert table.stages()[run.run_id] == [(NOT_MAPPED, run.tries_of(STAGE))]
    assert table.version == 1


def test_clear_a_stage_after_an_abort(live: Live) -> None:
    """Its transaction is over: it fails at once, and the commit after it does not run."""
    table = live.table("clear-stage-aborted")
    run = live.trigger("load", table=str(table), faults={"stage.begin": "fail"}).wait("failed")
    assert run.xcom(ABORT)["outcome"] == "deleted"
    run.clear(STAGE, downstream=True)
    run.wait_for_task(STAGE, "failed", tries=2)
    run.wait("failed")
    assert run.tries_of(STAGE) == 2, "without a retry"
    assert "TransactionAbortedException" in run.explain()
    assert (run.state_of(COMMIT), table.version) == ("upstream_failed", -1)

    run.clear(START, downstream=True)
    run.wait_for_task(COMMIT, "success")
    run.wait()
    holds(table, (run, run.tries_of(STAGE)), version=0)


def test_clear_a_stage_that_restarts_after_an_abort(live: Live) -> None:
    """``on_clear="restart"``: start is cleared with everything after it, once, even if two stages ask for it."""
    table = live.table("clear-stage-restarts")
    run = live.trigger("cleared", table=str(table), faults={"stage.begin": "fail", "other.begin": "fail"}).wait("failed")
    old = run.xcom(START)["transactionId"]
    run.clear(STAGE, "txn.other", downstream=True)
    run.wait_for_task(COMMIT, "success")
    run.wait()
    assert run.xcom(START)["transactionId"] != old
    (stages,) = table.stages().values()
    assert (len(stages), table.version) == (2, 0)
    assert {path.split("/")[1] for path in table.live_files()} == {run.xcom(START)["transactionId"]}


# -- states that are set by hand ------------------------------------------------------------------------------------------------


def test_mark_a_run_failed(live: Live) -> None:
    """While a task runs: Airflow skips the commit, and abort deletes the rows. The run ends as it was marked."""
    table = live.table("marked-failed")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    run.reached("audit")
    run.mark("failed")
    run.wait("failed")
    assert (run.state_of(COMMIT), run.state_of(ABORT), table.version) == ("skipped", "failed", -1)
    assert run.xcom(ABORT)["outcome"] == "deleted"
    assert f"{ROWS} rows in 1 files of {STAGE} are lost" in run.explain()

    run.clear(START, downstream=True)
    run.wait_for_task(COMMIT, "success")
    run.wait()
    holds(table, (run, 2), version=0)


def test_mark_the_commit_success(live: Live) -> None:
    """Nothing is in the log, so the run fails."""
    table = live.table("marked-success")
    run = live.trigger("load", table=str(table), faults={"commit.begin": "hold"})
    run.reached("commit.begin")
    run.mark("success", COMMIT)
    run.wait("failed")
    assert (run.state_of(COMMIT), run.state_of(ABORT), table.version) == ("success", "failed", -1)


# -- heartbeat timeouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["stage.staged", "commit.begin", "commit.before_put"])
def test_zombie(live: Live, point: str) -> None:
    """A task is cut off and tried again elsewhere; when all is committed, the first try wakes up and goes on."""
    table = live.table(f"zombie-{point}")
    run = live.trigger("load", table=str(table), faults={point: "freeze"})
    zombie = run.reached(point)
    task = STAGE if point.startswith("stage") else COMMIT
    run.wait_for_task(task, "success", tries=2)
    run.wait()
    version, stages, files = table.version, table.stages(), table.live_files()
    assert zombie.is_running()

    zombie.open()  # goes on to its end, whatever that is, before Airflow can tell it to stop
    live.until(zombie.rests, f"the zombie of {run} went on until it waits for its supervisor", explain=run.explain)
    zombie.thaw()  # its supervisor hears that it was replaced
    live.until(lambda: not zombie.is_running(), f"the zombie of {run} ended")

    assert (table.version, table.stages(), table.live_files()) == (version, stages, files)
    holds(table, (run, 2 if task == STAGE else 1), version=0)
    assert run.wait().state_of(task) == "success"

    # Whatever the zombie left in XCom, the commit still finds its version.
    run.clear(COMMIT)
    run.wait_for_task(COMMIT, "success", tries=run.tries_of(COMMIT) + 1)
    run.wait()
    assert (table.version, run.xcom(COMMIT)["version"]) == (0, 0)


# -- waiting in between -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dag_id", ["waits_deferred", "waits_rescheduled"])
def test_wait_between_stage_and_commit(live: Live, dag_id: str) -> None:
    """A sensor of the transaction leaves its process and comes back: same transaction, same try, one version."""
    table, awaited = live.table(dag_id), live.table(f"{dag_id}-awaited")
    run = live.trigger(dag_id, table=str(table), awaited=str(awaited))
    run.wait_for_task("txn.wait", "deferred" if dag_id == "waits_deferred" else "up_for_reschedule")
    run.wait_until_left("txn.wait")
    assert table.version == -1
    awaited.append("2013-01")
    run.wait()
    assert run.tries_of("txn.wait") == 1
    assert run.xcom("txn.wait")["version"] == 0
    holds(table, (run, 1), version=0)
    assert table.commits()[0]["txnId"] == run.xcom(START)["transactionId"]


# -- clears -------------------------------------------------------------------------------------------------------------------


def test_clear_a_stage_alone_before_the_commit(live: Live) -> None:
    """What it stages again has not been checked, and is not published."""
    table = live.table("clear-stage-before")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    held = run.reached("audit")
    run.clear(STAGE)
    run.wait_for_task(STAGE, "success", tries=2)
    held.open()
    run.wait("failed")
    assert (run.tries_of(COMMIT), table.version) == (1, -1)
    assert run.xcom(COMMIT, key="delta_commit_failure")["exception"] == "ChecksOutdatedException"

    run.clear(START, downstream=True)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    holds(table, (run, 3), version=0)


def test_clear_a_stage_whose_check_is_asked_again(live: Live) -> None:
    """``on_outdated="check_again"``: the commit has the check run again, and publishes what it has seen."""
    table = live.table("clear-stage-checked")
    run = live.trigger("load_checked", table=str(table), faults={"audit": "hold"})
    held = run.reached("audit")
    transaction = run.xcom(START)["transactionId"]
    run.clear(STAGE)
    run.wait_for_task(STAGE, "success", tries=2)
    held.open()
    run.wait_for_task(COMMIT, "success")
    run.wait()
    assert [run.tries_of(task) for task in (START, STAGE, "txn.audit", COMMIT)] == [1, 2, 2, 2]
    holds(table, (run, 2), version=0)
    assert table.commits()[0]["txnId"] == transaction
    assert len(table.staged_files()) == 2, "the first try's file stays where it is, referenced by no version"


def test_clear_a_stage_with_its_check_before_the_commit(live: Live) -> None:
    """It stages again for the same transaction, and what the commit publishes is what it staged last."""
    table = live.table("clear-stage-with-check")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    run.reached("audit")
    transaction = run.xcom(START)["transactionId"]
    run.clear(STAGE, downstream=True)
    run.wait_for_task(COMMIT, "success")
    run.wait()
    holds(table, (run, 2), version=0)
    assert table.commits()[0]["txnId"] == transaction


def test_clear_a_stage_after_the_commit(live: Live) -> None:
    """It stages nothing; a commit that is cleared with it returns the version that it wrote."""
    table = live.table("clear-stage-after")
    run = live.trigger("load", table=str(table)).wait()
    run.clear(STAGE)
    run.wait_for_task(STAGE, "success", tries=2)
    run.wait()
    holds(table, (run, 1), version=0)
    assert (run.clear_number, run.xcom(STAGE)["alreadyCommitted"]) == (1, True)

    run.clear(STAGE, downstream=True)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    holds(table, (run, 1), version=0)
    assert run.xcom(COMMIT)["committedBefore"]


def test_clear_the_commit(live: Live) -> None:
    """After it committed: it returns the version that it wrote, and emits its event again."""
    table = live.table("clear-commit")
    run = live.trigger("load", table=str(table)).wait()
    before = run.xcom(COMMIT)
    run.clear(COMMIT)
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    holds(table, (run, 1), version=0)
    after = run.xcom(COMMIT)
    assert after["committedBy"]["runId"] == run.run_id
    assert {**after, "committedBefore": False, "committedBy": None} == before
    assert [event["version"] for event in run.events()] == [0, 0]
    assert len({event["dedupe_key"] for event in run.events()}) == 1


@pytest.mark.parametrize(("task", "point"), [(STAGE, "stage.begin"), (STAGE, "stage.staged"), (COMMIT, "commit.before_put")])
def test_clear_a_running_task(live: Live, task: str, point: str) -> None:
    """Airflow kills it and runs it again: one version, the rows of one try."""
    table = live.table(f"clear-running-{point}")
    run = live.trigger("load", table=str(table), faults={point: "hold"})
    held = run.reached(point)
    run.clear(task)
    run.wait()
    assert not held.is_running()
    holds(table, (run, 2 if task == STAGE else 1), version=0)
    assert len(table.commits()) == 1


def test_clear_start_before_the_commit(live: Live) -> None:
    """With everything after it: a new transaction, and nothing of the old one is published."""
    table = live.table("clear-start-before")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    run.reached("audit")
    old = run.xcom(START)["transactionId"]
    run.clear(START, downstream=True)
    run.wait()
    new = run.xcom(START)["transactionId"]
    assert new != old
    holds(table, (run, 2), version=0)
    assert table.commits()[0]["txnId"] == new
    assert {path.split("/")[1] for path in table.live_files()} == {new}


def test_clear_start_alone_before_the_commit(live: Live) -> None:
    """Without what comes after it: the stage is of another transaction, and the commit refuses it."""
    table = live.table("clear-start-alone")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    held = run.reached("audit")
    run.clear(START)
    run.wait_for_task(START, "success", tries=2)
    held.open()
    run.wait("failed")
    assert table.version == -1
    assert run.xcom(COMMIT, key="delta_commit_failure")["exception"] == "ForeignTransactionException"


def test_clear_an_unrelated_task(live: Live) -> None:
    """Its clear moves the run's clear number, which is no part of any identity: before the commit, and after it."""
    table = live.table("clear-unrelated")
    run = live.trigger("load", table=str(table), faults={"audit": "hold"})
    held = run.reached("audit")
    key = run.xcom(START)["appId"]
    run.clear("unrelated")
    run.wait_for_task("unrelated", "success", tries=0)
    assert run.clear_number == 1
    held.open()
    run.wait()
    holds(table, (run, 1), version=0)
    run.clear("unrelated")
    live.until(lambda: run.clear_number == 2 and run.state == "success", f"{run} is done again")
    holds(table, (run, 1), version=0)
    assert run.xcom(START)["appId"] == key
    assert run.tries_of(COMMIT) == 1


AGAIN = {
    # policy: how the second run ends, the table's version after it, whose rows are in it: of the first, the second execution
    "skip": ("success", 0, [True, False]),
    "replace": ("success", 1, [False, True]),
    "append": ("success", 1, [True, True]),
    "fail": ("failed", 0, [True, False]),
}
"""The same transaction key again, by policy."""


@pytest.mark.parametrize("policy", POLICIES)
def test_clear_the_whole_run(live: Live, policy: str) -> None:
    """After the commit: the policy decides."""
    table = live.table(f"clear-run-{policy}")
    run = live.trigger("load", table=str(table), policy=policy).wait()
    run.clear_all()
    state, version, there = AGAIN[policy]
    run.wait_for_task(START, "success" if state == "success" else "failed", tries=2)
    run.wait(state)
    assert table.version == version
    assert table.stages() == {run.run_id: [(NOT_MAPPED, attempt) for attempt, held in enumerate(there, 1) if held]}
    assert run.tries_of(START) == 2, "a refusal is not retried"
    events = [event["version"] for event in run.events()]
    assert events == ([0] if policy == "fail" else [0, version])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_key_from_another_run(live: Live, policy: str) -> None:
    """A key of the author's is recognised whichever run comes with it."""
    table = live.table(f"key-{policy}")
    first = live.trigger("load_keyed", table=str(table), key="sales/2013-01", policy=policy).wait()
    second = live.trigger("load_keyed", table=str(table), key="sales/2013-01", policy=policy)
    state, version, there = AGAIN[policy]
    second.wait(state)
    holds(table, *[(run, 1) for run, held in zip((first, second), there, strict=True) if held], version=version)


def test_clear_an_overwrite(live: Live) -> None:
    """An overwrite of a slice is the same after each execution, also when it is appended to what is there."""
    table = live.table("clear-overwrite")
    run = live.trigger("load_month", table=str(table), policy="append").wait()
    run.clear_all()
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    holds(table, (run, 2), version=1)


# -- backfills ----------------------------------------------------------------------------------------------------------------

JANUARY, FEBRUARY = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize("policy", POLICIES)
def test_reprocess_an_ordinary_dag(live: Live, policy: str) -> None:
    """The backfill clears the run that is there, and makes it a backfill run: the same run id, so the same key."""
    dag_id = f"reprocess_{policy}"
    table = live.table(dag_id)
    (run,) = live.finish(live.wait_for_backfill(live.backfill(dag_id, JANUARY, JANUARY, policy=policy)))
    key = run.xcom(START)["appId"]
    (again,) = live.wait_for_backfill(live.backfill(dag_id, JANUARY, JANUARY, reprocess="completed", policy=policy))
    state, version, there = AGAIN[policy]
    again.wait(state)
    assert again.run_id == run.run_id
    assert again.tries_of(START) == 2
    assert table.version == version
    assert table.stages() == {run.run_id: [(NOT_MAPPED, attempt) for attempt, held in enumerate(there, 1) if held]}
    if state == "success":
        assert again.xcom(START)["appId"] == key


@pytest.mark.parametrize("policy", POLICIES)
def test_reprocess_a_partitioned_dag(live: Live, policy: str) -> None:
    """The backfill makes a new run beside the old one, for the same partition: a key of the partition recognises it."""
    dag_id = f"partition_{policy}"
    table = live.table(dag_id)
    (run,) = live.finish(live.wait_for_backfill(live.backfill(dag_id, JANUARY, JANUARY, policy=policy)))
    (again,) = live.wait_for_backfill(live.backfill(dag_id, JANUARY, JANUARY, reprocess="completed", policy=policy))
    state, version, there = AGAIN[policy]
    again.wait(state)
    assert again.run_id != run.run_id
    assert (run.partition_key, again.partition_key) == ("2013-01", "2013-01")
    assert (again.logical_date, again.run_type) == (None, "backfill")
    holds(table, *[(one, 1) for one, held in zip((run, again), there, strict=True) if held], version=version)


def test_reprocess_a_partitioned_dag_with_the_default_key(live: Live) -> None:
    """The default key is that of the run: the new run publishes beside the old one."""
    (run,) = live.finish(live.wait_for_backfill(live.backfill("partition", JANUARY, JANUARY)))
    (again,) = live.finish(live.wait_for_backfill(live.backfill("partition", JANUARY, JANUARY, reprocess="completed")))
    holds(live.table("partition"), (run, 1), (again, 1), version=1)


def test_new_run_for_the_same_interval(live: Live) -> None:
    """A run by hand for an interval that was backfilled: the key decides, or the overwrite."""
    dags = ("interval", "interval_overwritten", "interval_keyed")
    backfills = {dag_id: live.backfill(dag_id, JANUARY, JANUARY) for dag_id in dags}
    first = {dag_id: live.finish(live.wait_for_backfill(backfills[dag_id]))[0] for dag_id in dags}
    second = {dag_id: live.trigger_for(dag_id, JANUARY, FEBRUARY) for dag_id in dags}
    live.finish(second.values())
    holds(live.table("interval"), (first["interval"], 1), (second["interval"], 1), version=1)
    holds(live.table("interval_overwritten"), (second["interval_overwritten"], 1), version=1)
    holds(live.table("interval_keyed"), (first["interval_keyed"], 1), version=0)
    assert second["interval_keyed"].xcom(COMMIT)["committedBefore"]


# -- mapped tasks, mapped groups ----------------------------------------------------------------------------------------------


def test_mapped_stages(live: Live) -> None:
    """One of them is tried again, another one is cleared after the commit: one version, one try of each."""
    table = live.table("mapped")
    run = live.trigger("mapped", table=str(table), stages=3, faults={"stage.staged[1]": "kill"}).wait()
    assert [run.tries_of(STAGE, index) for index in range(3)] == [1, 2, 1]
    expected = {run.run_id: [(0, 1), (1, 2), (2, 1)]}
    assert (table.stages(), table.version) == (expected, 0)

    run.clear((STAGE, 2))
    run.wait_for_task(STAGE, "success", map_index=2, tries=2)
    run.wait()
    assert [run.tries_of(STAGE, index) for index in range(3)] == [1, 2, 2]
    assert (table.stages(), table.version) == (expected, 0)

    run.clear_all()
    run.wait_for_task(COMMIT, "success", tries=2)
    run.wait()
    assert (table.stages(), table.version) == (expected, 0)


def test_mapped_groups(live: Live) -> None:
    """Each index is a transaction of its own: clearing one concerns that one alone."""
    table = live.table("groups")
    run = live.trigger("groups", table=str(table), stages=3, policy="replace").wait()
    keys = {run.xcom("of_month.txn.start", index)["appId"] for index in range(3)}
    assert len(keys) == 3
    expected = {(index, 1) for index in range(3)}
    assert (set(table.stages()[run.run_id]), table.version) == (expected, 2)

    run.clear(("of_month.txn.start", 1), ("of_month.txn.stage", 1), ("of_month.txn.commit", 1))
    run.wait_for_task("of_month.txn.commit", "success", map_index=1, tries=2)
    run.wait()
    assert sorted(table.stages()[run.run_id]) == [(0, 1), (1, 2), (2, 1)]
    assert table.version == 3
