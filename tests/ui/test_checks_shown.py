"""What the pages show of the checks of a transaction, before its commit and after it, by a Dag with every kind of check."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.table.observe.commit_summary import commit_summary
from ui.auth_manager import ScopedAuthManager
from ui.runs import Runs

pytestmark = pytest.mark.airflow

DAG = "watched_orders"


@pytest.fixture(scope="module")
def runs(airflow_app: Any, lake: str) -> Runs:
    """Version 0 is published; the next run waits for an answer."""
    found = Runs("reviews")
    found.answer(DAG, found.run(DAG, 1, rows=4, most="10"), "txn.approve", "Approve", "clara")
    found.run(DAG, 2, rows=5, most="4")
    return found


@pytest.fixture
def get(client, airflow, lake, runs):
    def get(page: str, user: str = "admin", **parameters: str) -> Any:
        airflow.ask_again()
        more = "".join(f"&{name}={quote(value)}" for name, value in parameters.items())
        answer = client(user).get(f"/delta-tables/{page}?table={quote(f'{lake}/watched', safe='')}{more}")
        assert answer.status_code == 200, answer.text
        return answer

    return get


def waiting(get) -> str:
    (told,) = get("api/table").json()["transactions"]
    return told["transaction_id"]


def test_the_page_that_is_approved_names_the_attempts(get, runs):
    transaction = waiting(get)
    page = get("api/transaction", id=transaction).json()
    (stage,) = page["stages"]
    assert (stage["task"]["task_id"], stage["stage"], stage["try"], stage["num_records"]) == ("txn.write", "txn.write", "1", 5)
    text = get("transaction", id=transaction).text
    assert f"<code>{stage['attempt']}</code>" in text
    assert [audit["outdated"] for audit in page["audits"]] == [False]
    assert "outdated" not in text
    # The stage runs again alone: another attempt, and neither the audit nor the preview has seen it.
    runs.clear(DAG, page["transaction"]["run_id"], "txn.write", rows=3, most="4")
    page = get("api/transaction", id=transaction).json()
    (again,) = page["stages"]
    assert (again["try"], again["num_records"]) == ("2", 3)
    assert [audit["outdated"] for audit in (*page["audits"], *page["previews"])] == [True, True]
    text = get("transaction", id=transaction).text
    assert f"<code>{again['attempt']}</code>" in text
    assert "a stage has run again since" in text


def test_the_page_of_the_commit_names_its_checks(get, lake):
    page = get("api/commit", version="0").json()
    shown = {row["task"]["task_id"].removeprefix("txn."): row for row in page["checks"]["rows"]}
    found = {name: (row["kind"], row["state"], row["answer"]) for name, row in shown.items()}
    assert found == {
        "audit": ("audit", "passed", ""),
        "approve": ("approval", "passed", "Approve by clara"),
        "preview": ("preview", "passed", ""),
        "diff": ("diff", "passed", ""),
        "look": ("task", "passed", ""),
        "seldom": ("task", "skipped", ""),
    }
    (attempt,) = page["checks"]["attempts"].values()
    assert {row["stages"] for name, row in shown.items() if name != "seldom"} == {f"txn.write {attempt}"}
    assert shown["seldom"]["stages"] == ""
    # The files of the commit are those of the attempt that the checks have seen.
    assert all(f"/txn.write/{attempt}/" in file["path"] for file in page["files"])
    text = get("commit", version="0").text
    assert "Checks before this commit" in text
    assert "Approve by clara" in text


def test_who_may_not_see_the_run_sees_no_check_of_it(get, monkeypatch):
    monkeypatch.setattr(ScopedAuthManager, "hidden_entities", {"RUN"})
    page = get("api/commit", "viewer", version="0").json()
    assert page["commit"]["run_hidden"]
    assert page["checks"] is None
    assert "clara" not in get("commit", "viewer", version="0").text


def test_a_check_that_only_warns_is_named(get, runs, lake):
    """The waiting run, whose checks have all run again: five rows where four are wanted at most."""
    run_id = get("api/transaction", id=waiting(get)).json()["transaction"]["run_id"]
    runs.clear(
        DAG,
        run_id,
        *(f"txn.{name}" for name in ("write", "audit", "diff", "approve", "look", "seldom", "preview")),
        rows=5,
        most="4",
    )
    runs.answer(DAG, run_id, "txn.approve", "Approve", "dora")
    (audit,) = (row for row in get("api/commit", version="1").json()["checks"]["rows"] if row["kind"] == "audit")
    assert (audit["state"], audit["result"], audit["version"]) == ("warned", "warned: max_rows", "0")
    records = commit_summary(DeltaLog.for_table(f"{lake}/watched"), 1).checks
    first, second = (commit_summary(DeltaLog.for_table(f"{lake}/watched"), version).checks.checks[0] for version in (0, 1))
    assert first.definition != second.definition  # as rendered: 10 rows at most, then 4
    assert [check.approved_by for check in records.checks if check.kind == "approval"] == ["dora"]
