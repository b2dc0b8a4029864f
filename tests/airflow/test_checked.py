"""What was checked is what is published: checks whose stage has run again alone, by whole Dag runs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.table.observe.commit_summary import commit_summary
from support.dag_runs import answer_when_asked
from support.readers import rows

pytestmark = pytest.mark.airflow


def slow(*values: object) -> list[object]:
    """More cases of a kind, each a Dag run or two."""
    return [pytest.param(*each if isinstance(each, tuple) else (each,), marks=pytest.mark.slow) for each in values]


@pytest.fixture
def waiting(run_dag, tables):
    """A run whose stage has staged five rows and whose checks have passed, before its commit."""

    def begin(kind: str, day: int):
        run = run_dag(f"checked_by_{kind}", datetime(2026, 1, day, tzinfo=UTC), rows="5")
        assert (run.state_of("after"), run.state_of("gate"), run.state_of("commit")) == ("success", "failed", "upstream_failed")
        return run

    return begin


def published(tables, run) -> int | None:
    table = f"{tables}/{run.dag_id}_{int(run.run_id[16:18])}"
    return len(rows(table)) if deltalake.DeltaTable.is_deltatable(table) else None


def told(tables, run, version: int = 0):
    """What the log keeps of the checks before a version."""
    return commit_summary(DeltaLog.for_table(f"{tables}/{run.dag_id}_{int(run.run_id[16:18])}"), version).checks


@pytest.mark.parametrize("kind", ["audit", *slow("diff", "preview", "task")])
def test_rows_that_no_check_has_seen_are_not_published(waiting, clear_and_run, tables, kind, capfd):
    run = waiting(kind, 1)
    run = clear_and_run(run, "stage", "gate", "commit", rows="1", open=True)
    assert (run.state_of("check"), run.state_of("gate"), run.state_of("commit")) == ("success", "success", "failed")
    assert published(tables, run) is None
    said = "".join(capfd.readouterr())
    assert "ChecksOutdatedException" in said
    assert "check has seen run 1-" in said
    assert "of stage, of which run 2-" in said
    # The task that has seen the check is not enough, and neither is the check alone.
    run = clear_and_run(run, "after", "commit")
    assert (run.state_of("commit"), published(tables, run)) == ("failed", None)
    run = clear_and_run(run, "check", "commit")
    if kind == "audit":  # which now sees the one row
        assert (run.state_of("check"), published(tables, run)) == ("failed", None)
        return
    assert (run.state_of("commit"), published(tables, run)) == ("failed", None)
    assert "after has seen run " in "".join(capfd.readouterr())
    run = clear_and_run(run, "after", "commit")
    assert (run.state_of("commit"), published(tables, run)) == ("success", 1)


@pytest.mark.parametrize("kind", ["task", *slow("audit", "empty")])
def test_what_is_cleared_with_its_checks_is_published(waiting, clear_and_run, tables, kind):
    run = waiting(kind, 2)
    run = clear_and_run(run, "stage", "check", "after", "gate", "commit", rows="4", open=True)
    assert (run.state, published(tables, run)) == ("success", 4)
    records = told(tables, run)
    assert list(records.attempts) == ["stage"]
    assert re.fullmatch("2-[0-9a-f-]+", records.attempts["stage"])
    found = {check.task_id: check for check in records.checks}
    assert found.keys() == {"after", "gate"} | ({"check"} if kind != "empty" else set())
    assert {check.result for check in found.values()} == {"passed"}
    assert {check.stages for check in found.values()} == {None}  # all
    if kind == "audit":
        assert (found["check"].kind, found["check"].version, len(found["check"].definition)) == ("audit", -1, 64)
    assert (found["gate"].kind, found["gate"].version, found["gate"].definition) == ("task", None, None)


@pytest.mark.parametrize("kind", ["audit", *slow("task", "empty")])
def test_a_gate_that_opens_later_changes_nothing(waiting, clear_and_run, tables, kind):
    run = waiting(kind, 3)
    run = clear_and_run(run, "gate", "commit", open=True)
    assert (run.state, published(tables, run)) == ("success", 5)


def test_instances_of_a_mapped_check_are_compared_one_by_one(run_dag, clear_and_run, tables, capfd):
    """Each index of a mapped group has a stage and a check of it; one more check sees all of them."""
    run = run_dag("checked_in_a_group", datetime(2026, 1, 4, tzinfo=UTC), rows="5")
    assert run.state_of("commit") == "upstream_failed"
    run = clear_and_run(run, "each.stage", "all", "gate", "commit", rows="2", open=True)
    assert run.state_of("commit") == "failed"
    said = "".join(capfd.readouterr())
    for index in range(3):
        assert f"each.check[{index}] has seen run 1-" in said
    run = clear_and_run(run, "each.check", "all", "commit")
    assert (run.state, published(tables, run)) == ("success", 6)
    seen = {(check.task_id, check.map_index): check.stages for check in told(tables, run).checks}
    one_by_one = {("each.check", index): (f"each.stage.{index}",) for index in range(3)}
    assert seen == {("all", -1): None, ("gate", -1): None, **one_by_one}


def test_an_approval_is_asked_again_when_the_stage_has_run_again(waiting, clear_and_run, tables, capfd):
    """Five rows are approved, the stage alone runs again, and nothing is published until somebody has approved its one row."""
    with answer_when_asked("checked_by_approval", "Approve", by="ada"):
        run = waiting("approval", 5)
    run = clear_and_run(run, "stage", "gate", "commit", rows="1", open=True)
    assert (run.state_of("check"), run.state_of("commit"), published(tables, run)) == ("success", "failed", None)
    said = "".join(capfd.readouterr())
    assert "ChecksOutdatedException" in said
    assert "check has seen run 1-" in said
    with answer_when_asked("checked_by_approval", "Approve", by="grace"):
        run = clear_and_run(run, "check", "after", "commit")
    assert (run.state_of("commit"), published(tables, run)) == ("success", 1)
    found = {check.task_id: check for check in told(tables, run).checks}
    assert (found["check"].kind, found["check"].approved_by, found["check"].chosen) == ("approval", "grace", ("Approve",))


def test_what_is_published_against_its_checks_is_told_as_such(run_dag, tables):
    """``trigger_rule="all_done"`` of the commit publishes after an audit that has failed."""
    run_dag("checked_at_risk", datetime(2026, 1, 1, tzinfo=UTC), rows="5")
    records = commit_summary(DeltaLog.for_table(f"{tables}/checked_at_risk"), 0).checks
    found = {check.task_id: (check.result, check.failed, check.stages) for check in records.checks}
    assert found == {"txn.audit": ("failed", ("min_rows",), None), "txn.after": ("not run", (), ())}


def test_openlineage_gets_every_check_of_an_audit(run_dag, tables):
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    assert DefaultExtractor is not None  # as where its provider is loaded
    assert run_dag("checked_with_lineage", datetime(2026, 1, 1, tzinfo=UTC), rows="5").state == "success"
    (output,) = json.loads(Path(f"{tables}/lineage_of_checks.json").read_text())
    found = output["facets"]["dataQualityAssertions"]["assertions"]
    assert [(each["assertion"], each.get("column"), each["success"], each["severity"]) for each in found] == [
        ("min_rows", None, True, "warn"),
        ("max_rows", None, False, "warn"),
        ("max_null_fraction", "id", True, "warn"),
    ]
    assert "at most 3 wanted" in found[1]["description"]


# -- what others commit between a check and the put -----------------------------------------------------------------------------


@pytest.fixture
def held(run_dag, tables):
    """A run that stages ``rows`` ids from 0 on; after its audit, others add two rows to the ten of the table."""

    def run(kind: str, name: str, **conf):
        deltalake.write_deltalake(f"{tables}/held_{name}", pa.table({"id": pa.array(range(100, 110), pa.int64())}))
        given = {"rows": "5", "others": [3, 200], **conf}
        return run_dag(f"held_by_{kind}", datetime(2026, 1, len(name), tzinfo=UTC), name=name, **given)

    return run


def test_the_rows_of_a_table_are_counted_again_after_others(held, tables, capfd):
    """Ten rows and five: once and a half as many. With two rows of others less, with eight of them taken away more."""
    run = held("statistics", "a", most="1.5")
    assert (run.state, len(rows(f"{tables}/held_a"))) == ("success", 17)
    run = held("statistics", "bb", others="DELETE", most="1.5")
    assert (run.state_of("txn.audit"), run.state_of("txn.commit")) == ("success", "failed")
    assert len(rows(f"{tables}/held_bb")) == 2
    said = "".join(capfd.readouterr())
    assert "rows_change of txn.audit holds for version 0, not after version 1" in said
    assert "2 rows before the commit and 7 after it, 3.5 times as many" in said


@pytest.mark.parametrize(
    ("name", "others", "holds_at", "published"),
    [
        ("same-id", [3, 200], "commit", False),
        *slow(("other", [5, 200], "commit", True), ("same-id-read", [3, 200], "read", True)),
    ],
)
def test_ids_stay_unique_without_spark(held, tables, capfd, name, others, holds_at, published):
    """The stage has the ids 0 to 4, and others add two more after the audit."""
    run = held("unique", name, others=others, holds_at=holds_at)
    assert (run.state_of("txn.audit"), run.state_of("txn.commit")) == ("success", "success" if published else "failed")
    assert len(rows(f"{tables}/held_{name}")) == (17 if published else 12)
    if not published:
        said = "".join(capfd.readouterr())
        assert "DeltaAuditFailedException" in said
        assert "the check unique of txn.audit holds for version 0, not after version 1 (WRITE)" in said
        assert "with 1 key id (3) that it stages as well. Clear the start task to stage again" in said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "where", "holds_at", "state"),
    [
        ("whole", "", "commit", "failed"),
        ("theirs", "WHERE id < 100", "commit", "failed"),
        ("others", "WHERE id BETWEEN 110 AND 150", "commit", "success"),
        ("as-read", "", "read", "success"),
    ],
)
def test_ids_that_are_unique_stay_so_or_nothing_is_published(held, tables, capfd, name, where, holds_at, state):
    """Others add id 3, which the stage has as well."""
    run = held("sql", name, holds_at=holds_at, where=where)
    assert (run.state_of("txn.audit"), run.state_of("txn.commit")) == ("success", state)
    assert len(rows(f"{tables}/held_{name}")) == (17 if state == "success" else 12)
    if state == "failed":
        said = "".join(capfd.readouterr())
        assert "ChecksOutdatedException" in said
        assert "the check ids are unique of txn.audit holds for version 0, and version 1 (WRITE) has changed" in said
