"""Maintenance as one run: what each step does, in which order, and that a step that fails stops no other."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.exceptions import DeltaIllegalArgumentException, DeltaTableNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.table.operations.maintenance import STEPS, maintain, ordered_steps
from airflow_delta.table.state.optimize_result import OptimizeResult
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction
from support.table import Table, put_rows

DAY = 24 * 3600
EVERYTHING_NOW = {"retention_hours": 0, "retention_check": False}


def rows(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three one-file commits; the fourth removes two of the files."""
    path = tmp_path / "table"
    for value in range(3):
        write_deltalake(path, rows(value), mode="append")
    DeltaTable(path).delete("id < 2")
    return Table(path)


def commits_without_checkpoint(table: Table, count: int) -> None:
    """Commits as operators with ``checkpoint="off"`` make them."""
    for _ in range(count):
        log = table.log()
        OptimisticTransaction(log, policy=CommitPolicy(checkpoint="off")).commit([], Operation("TEST", {}))


def step(report, name: str) -> dict:
    return next(found for found in report.to_dict()["steps"] if found["step"] == name)


def checkpoints(table: Table) -> list[str]:
    return sorted(path.name for path in (table.path / "_delta_log").glob("*.checkpoint*.parquet"))


def set_properties(table: Table, **properties: str) -> None:
    """With underscores for dots."""
    log = table.log()
    txn = OptimisticTransaction(log)
    configuration = {**txn.metadata.configuration, **{name.replace("_", "."): value for name, value in properties.items()}}
    import msgspec

    txn.update_metadata(msgspec.structs.replace(txn.metadata, configuration=configuration))
    txn.commit([], Operation("SET TBLPROPERTIES", {}))


def age_log(table: Table, days: int) -> None:
    then = time.time() - days * DAY
    for path in (table.path / "_delta_log").glob("0*"):
        os.utime(path, (then, then))


# -- the steps ------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_when_enough_commits_have_come(table):
    report = maintain(table.log(), ["checkpoint"])
    assert step(report, "checkpoint") == {
        "step": "checkpoint",
        "status": "nothing",
        "seconds": step(report, "checkpoint")["seconds"],
        "lastCheckpoint": None,
        "commitsSince": 4,
        "dueAfter": 10,
    }
    assert checkpoints(table) == []
    done = step(maintain(table.log(), ["checkpoint"], min_commits=4), "checkpoint")
    assert (done["status"], done["checkpoint"]) == ("done", 3)
    assert checkpoints(table) == [f"{3:020}.checkpoint.parquet"]
    again = step(maintain(table.log(), ["checkpoint"], min_commits=1), "checkpoint")
    assert (again["status"], again["lastCheckpoint"], again["commitsSince"]) == ("nothing", 3, 0)
    assert table.rows() == [(2,)]


def test_commits_that_leave_checkpoints_to_maintenance(table):
    """Commits write none whatever their version; one run catches up, also between two multiples of the interval."""
    set_properties(table, delta_checkpointInterval="5")
    commits_without_checkpoint(table, 8)
    assert checkpoints(table) == []
    assert step(maintain(table.log(), ["checkpoint"]), "checkpoint")["checkpoint"] == 12
    assert checkpoints(table) == [f"{12:020}.checkpoint.parquet"]
    commits_without_checkpoint(table, 4)
    assert step(maintain(table.log(), ["checkpoint"]), "checkpoint")["status"] == "nothing"
    commits_without_checkpoint(table, 1)
    assert step(maintain(table.log(), ["checkpoint"]), "checkpoint")["checkpoint"] == 17


def test_vacuum_with_what_was_staged_and_given_up(table):
    handle = table.begin()
    left = put_rows(handle, [9])
    live = table.begin()
    kept = put_rows(live, [10])
    then = time.time() - 8 * DAY
    os.utime(left, (then, then))
    report = step(maintain(table.log(), ["vacuum"], vacuum=EVERYTHING_NOW, max_paths=10), "vacuum")
    assert (report["status"], report["numFiles"], report["numLiveTransactions"]) == ("done", 3, 1)
    assert len(report["paths"]) == 3 + report["numDirectories"]
    assert kept.exists()
    assert not left.exists()
    assert table.rows() == [(2,)]


def test_the_log_is_cut_off_at_a_checkpoint(table):
    set_properties(table, delta_logRetentionDuration="interval 7 days")
    commits_without_checkpoint(table, 3)
    age_log(table, 10)
    before = len(table.versions())
    assert step(maintain(table.log(), ["log_cleanup"]), "log_cleanup")["status"] == "nothing"  # there is no checkpoint
    report = maintain(table.log(), ["log_cleanup", "checkpoint"], min_commits=1, max_paths=2)
    assert [found["step"] for found in report.to_dict()["steps"]] == ["checkpoint", "log_cleanup"]
    done = step(report, "log_cleanup")
    assert done["status"] == "done"
    assert done["numFiles"] >= before - 1
    assert len(done["paths"]) == 2
    assert len(table.versions()) == 1  # the latest version stays, with its checkpoint
    assert table.rows() == [(2,)]
    assert DeltaLog.for_table(table.uri).snapshot.version == before - 1


def test_a_table_that_keeps_its_log(table):
    set_properties(table, delta_enableExpiredLogCleanup="false")
    age_log(table, 100)
    done = step(maintain(table.log(), ["checkpoint", "log_cleanup"], min_commits=1), "log_cleanup")
    assert (done["status"], done["reason"]) == ("nothing", "delta.enableExpiredLogCleanup is false")
    assert len(table.versions()) == 5


def test_optimize_is_done_by_who_has_spark(table):
    asked = []

    def optimize(log: DeltaLog) -> OptimizeResult:
        asked.append(log.uri)
        return OptimizeResult(table=log.uri, operation="OPTIMIZE", read_version=log.snapshot.version, num_considered=1)

    done = step(maintain(table.log(), ["optimize"], optimize=optimize), "optimize")
    assert asked == [table.uri]
    assert (done["status"], done["version"], done["numConsideredFiles"]) == ("nothing", None, 1)
    failed = step(maintain(table.log(), ["optimize"]), "optimize")
    assert (failed["status"], failed["error"]) == ("failed", "DeltaIllegalArgumentException")


# -- the run --------------------------------------------------------------------------------------------------------------------


def test_steps_are_done_in_their_order_and_told(table):
    told = []
    report = maintain(
        table.log(), ["log_cleanup", "vacuum", "checkpoint"], on_step=lambda uri, found: told.append((uri, found.step))
    )
    assert told == [(table.uri, name) for name in ("checkpoint", "vacuum", "log_cleanup")]
    assert (report.version_before, report.version_after) == (3, 5)  # VACUUM START and END
    json.dumps(report.to_dict())


def test_a_step_that_fails_stops_no_other(table):
    def optimize(_log: DeltaLog) -> OptimizeResult:
        raise RuntimeError("no Spark today")

    report = maintain(table.log(), STEPS, min_commits=1, optimize=optimize, vacuum={"retention_hours": 0})
    assert [(found["step"], found["status"]) for found in report.to_dict()["steps"]] == [
        ("checkpoint", "done"),
        ("optimize", "failed"),
        ("vacuum", "failed"),  # the retention is too short
        ("log_cleanup", "nothing"),
    ]
    assert [type(error).__name__ for error in report.errors] == ["RuntimeError", "VacuumRetentionPeriodTooShortException"]
    assert step(report, "optimize")["message"] == "no Spark today"
    json.dumps(report.to_dict())


def test_what_was_done_is_reported_also_when_the_log_cannot_be_read_any_more(table):
    def lose_the_log(_uri, _report):
        log = table.path / "_delta_log"
        log.rename(table.path / "_moved")
        log.symlink_to(log)  # to itself

    report = maintain(table.log(), ["vacuum"], vacuum=EVERYTHING_NOW, on_step=lose_the_log)
    assert (step(report, "vacuum")["status"], step(report, "vacuum")["numFiles"]) == ("done", 2)
    assert (report.version_before, report.version_after, report.errors) == (3, None, [])


def test_cancelled_between_two_steps(table):
    report = maintain(table.log(), ["checkpoint", "vacuum"], min_commits=1, cancelled=lambda: bool(checkpoints(table)))
    assert [found.status for found in report.steps] == ["done", "cancelled"]
    assert len(table.versions()) == 4


def test_a_commit_in_between_is_kept(table):
    """Maintenance takes no lock: what others commit while it runs is there afterwards, and its files with it."""

    def commit_something(_log: DeltaLog) -> OptimizeResult:
        write_deltalake(table.path, rows(7), mode="append")
        return OptimizeResult(table=table.uri, operation="OPTIMIZE", read_version=3)

    report = maintain(table.log(), STEPS, min_commits=1, optimize=commit_something, vacuum=EVERYTHING_NOW)
    assert not report.errors
    assert table.rows() == [(2,), (7,)]


def test_no_table(tmp_path):
    with pytest.raises(DeltaTableNotFoundException, match="nothing to maintain"):
        maintain(DeltaLog.for_table(str(tmp_path / "none")), ["vacuum"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("given", "expected"), [(["vacuum", "checkpoint"], ("checkpoint", "vacuum")), (STEPS, STEPS)])
def test_order(given, expected):
    assert ordered_steps(given) == expected


@pytest.mark.parametrize("given", [["vaccum"], []])
def test_no_such_step(given):
    with pytest.raises(DeltaIllegalArgumentException, match="'log_cleanup'"):
        ordered_steps(given)
