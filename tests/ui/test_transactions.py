"""What the pages say of transactions that were not committed, or not at first: real runs of the Dags beside this file."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from airflow_delta.ui.transaction_rows import brief_of
from ui.runs import Runs

pytestmark = pytest.mark.airflow

FINE = {"least": "1", "level": "Serializable", "mode": "append"}


@pytest.fixture(scope="module")
def runs(airflow_app: Any, lake: str) -> Runs:
    return Runs()


class Pages:
    """The pages of the tables that the runs write."""

    def __init__(self, client: Any, airflow: Any, lake: str) -> None:
        self._client, self._airflow, self._lake = client, airflow, lake

    def get(self, path: str, name: str, user: str = "viewer", **more: str) -> Any:
        self._airflow.ask_again()
        asked = "".join(f"&{key}={quote(value)}" for key, value in more.items())
        return self._client(user).get(f"/delta-tables/{path}?table={quote(f'{self._lake}/{name}', safe='')}{asked}")

    def table(self, name: str, user: str = "viewer") -> dict[str, Any]:
        answer = self.get("api/table", name, user)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def transactions(self, name: str, user: str = "viewer") -> list[dict[str, Any]]:
        return self.table(name, user)["transactions"]

    def text(self, name: str, path: str = "table") -> str:
        answer = self.get(path, name)
        assert answer.status_code == 200, answer.text
        return answer.text

    def list_text(self, name: str) -> str:
        self._airflow.ask_again()
        return self._client("viewer").get(f"/delta-tables/?q={quote(f'{self._lake}/{name}')}").text

    def listed(self, name: str, user: str = "viewer") -> dict[str, Any]:
        self._airflow.ask_again()
        tables = self._client(user).get(f"/delta-tables/api/tables?q={quote(f'{self._lake}/{name}')}").json()["tables"]
        return next(table for table in tables if table["name"] == name)


@pytest.fixture
def pages(client, airflow, lake) -> Pages:
    return Pages(client, airflow, lake)


def task_of(told: dict[str, Any]) -> tuple[str, str, int]:
    by = told["ended_by"]
    return told["state"], by["task_id"], by["try_number"]


# fault, other conf, task and try that ended it, error and its first words
FAULTS = [
    ("write", {}, ("txn.write", 2), ("ValueError", "<b>17 rows</b> have no customer")),
    (None, {"least": "99"}, ("txn.audit", 1), ("DeltaAuditFailedException", "Transaction ")),
    (None, {"mode": "sideways"}, ("txn.stage", 1), ("DeltaIllegalArgumentException", "mode")),
    (None, {"level": "None at all"}, ("txn.start", 1), ("DeltaIllegalArgumentException", "isolation_level")),
    ("extract", {}, ("extract", 1), ("ConnectionError", "The source did not answer.")),
]


@pytest.mark.parametrize(("fault", "conf", "by", "error"), FAULTS)
def test_where_a_run_failed_and_why(runs, pages, fault, conf, by, error):
    day = 1 + [case[2][0] for case in FAULTS].index(by[0])
    run_id = runs.run("night", day, **{**FINE, **conf}, fault=fault)
    told = pages.transactions("nights")[0]
    assert (told["dag_id"], told["run_id"], task_of(told)) == ("night", run_id, ("failed", *by))
    assert told["exception"] == error[0]
    assert error[1] in told["message"]
    assert "\n" not in told["message"]
    assert not told["brief"].startswith(("[", "Transaction"))
    assert [moment // 86_400_000 for moment in told["interval"]] == [20_512 + day, 20_513 + day]
    assert told["repaired_by"] is None
    assert told["ended_by"]["task_url"].endswith(f"/runs/{run_id}/tasks/{by[0]}")
    assert pages.listed("nights")["last_failure"]["run_id"] == run_id


@pytest.mark.parametrize(
    ("operation", "timestamp", "counts"),
    [
        ("WRITE", 11, True),
        ("WRITE", 10, False),
        ("OPTIMIZE", 11, False),
        ("SET TBLPROPERTIES", 11, False),
        ("DELETE", None, False),
    ],
)
def test_which_versions_come_after_a_failure(operation, timestamp, counts):
    from airflow_delta.ui.views import newer_rows

    commits = [{"version": 4, "operation": operation, "timestamp": timestamp}]
    assert newer_rows(commits, since=10) == (4 if counts else None)


TXN = "Transaction 7f3c9a52-0d0b-4b9e-9c1f-2f6f0f6b6a11"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[DELTA_ILLEGAL_ARGUMENT] replace_where needs mode='overwrite'", "replace_where needs mode='overwrite'"),
        ("mode must be one of append, overwrite", "mode must be one of append, overwrite"),
        (f"[DELTA_AUDIT_FAILED] {TXN} on table /lake/t (read version 3) failed its audit: x", "Failed its audit: x"),
        (f"{TXN} on table /lake/t (a new table) was aborted.", "Was aborted."),
        (f"{TXN} merge_schema is missing", "merge_schema is missing"),
        (f"{TXN} mode='append' is not", "mode='append' is not"),
        ("The source did not answer.", "The source did not answer."),
    ],
)
def test_what_a_page_says_of_an_error(message, said):
    assert brief_of(message, "/lake/t") == said


def test_errors_are_escaped(runs, pages):
    runs.run("night", 1, **FINE, fault="write")
    text = pages.text("nights")
    assert "&lt;b&gt;17 rows&lt;/b&gt; have no customer" in text
    assert "<b>17 rows" not in text


@pytest.mark.slow
def test_a_repaired_run_keeps_its_conflict(runs, pages):
    runs.run("first_night", 1, **FINE)
    run_id = runs.run("first_night", 2, **{**FINE, "mode": "overwrite"}, fault="conflict")
    (told,) = pages.transactions("unborn")
    assert task_of(told) == ("failed", "txn.commit", 1)
    assert (told["exception"], told["conflict_version"]) == ("ConcurrentDeleteReadException", 1)
    runs.clear("first_night", run_id, **{**FINE, "mode": "overwrite"})
    (kept,) = pages.transactions("unborn")
    changed = {name for name in kept if kept[name] != told[name]}
    assert changed == {"repaired_by", "key"}, "the handle of the first transaction is gone, and nothing else"
    assert (kept["repaired_by"]["version"], kept["repaired_by"]["run"]["run_id"]) == (2, run_id)
    assert pages.table("unborn")["version"] == 2
    last = pages.listed("unborn")["last_failure"]
    assert (last["exception"], last["repaired_by"]["version"]) == ("ConcurrentDeleteReadException", 2)


def test_a_table_whose_only_run_failed_has_a_page(runs, pages):
    assert pages.get("table", "right").status_code == 404
    runs.run("two_tables", 1)
    data = pages.table("right")
    assert (data["version"], data["commits"]) == (None, [])
    (told,) = data["transactions"]
    assert (task_of(told), told["message"]) == (("failed", "right.write", 1), "The right one is wrong.")
    assert "No version yet" in pages.text("right")
    # Of two transactions in a run, the other one is committed.
    assert [each for each in pages.transactions("left") if each["dag_id"] == "two_tables"] == []
    assert pages.table("left")["commits"][0]["interval"] == told["interval"]


@pytest.mark.slow
def test_who_rejected(runs, pages):
    run_id = runs.run("approved_night", 1, **FINE)
    (waiting,) = pages.transactions("approvals")
    assert task_of(waiting)[:2] == ("waiting", "txn.approve")
    assert pages.listed("approvals")["open_transactions"] == 1
    runs.answer("approved_night", run_id, "txn.approve", "Reject", "Clara <b>")
    (told,) = pages.transactions("approvals")
    assert (task_of(told)[:2], told["rejected_by"]) == (("rejected", "txn.approve"), "Clara <b>")
    assert "Rejected by Clara &lt;b&gt;" in pages.text("approvals")
    # A person's answer is no failure.
    assert re.search(r'id="last-failure" class=""><dt>Last rejection<', pages.text("approvals"))
    assert 'class="state rejected"' in pages.list_text("approvals")
    # Cleared, and approved by somebody else: who rejected it first is not forgotten.
    runs.clear("approved_night", run_id, **FINE)
    runs.answer("approved_night", run_id, "txn.approve", "Approve", "Emil")
    (kept,) = pages.transactions("approvals")
    assert (kept["state"], kept["rejected_by"], kept["repaired_by"]["version"]) == ("rejected", "Clara <b>", 0)
    assert pages.listed("approvals")["open_transactions"] == 0


@pytest.mark.slow
def test_an_instance_of_a_mapped_group(runs, pages):
    runs.run("mapped_night", 1, broken=2)
    (told,) = pages.transactions("mapped")
    assert (task_of(told), told["ended_by"]["map_index"]) == (("failed", "load.txn.write", 1), 1)
    assert told["message"] == "Number 2 is broken."
    assert len(pages.table("mapped")["commits"]) == 2


def test_another_run_with_the_same_key_repairs_it(runs, pages):
    runs.run("keyed_night", 1, **FINE, key="monday", fault="write")
    other = runs.run("keyed_night", 2, **FINE, key="monday")
    (told,) = pages.transactions("keyed")
    assert (told["key"], told["repaired_by"]["run"]["run_id"], told["repaired_by"]["version"]) == ("monday", other, 0)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_a_commit_that_was_marked_as_success_by_hand(runs, pages, again):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    run_id = runs.run("night", 9, **{**FINE, "least": "99"})
    if again:
        runs.clear("night", run_id, **{**FINE, "least": "99"})
    with create_session() as session:
        where = (TaskInstance.dag_id == "night", TaskInstance.run_id == run_id)
        marked = TaskInstance.task_id.in_(("txn.audit", "txn.commit", "txn.meanwhile"))
        session.execute(update(TaskInstance).where(*where, marked).values(state="success"))
    told, *earlier = (told for told in pages.transactions("nights") if told["run_id"] == run_id)
    assert (told["state"], told["ended_by"]["task_id"]) == ("open", "txn.commit")
    assert "no version of the table holds" in told["reason"]
    assert [task_of(each) for each in earlier] == [("failed", "txn.audit", 1)] * again


def test_a_run_that_was_set_as_failed_by_hand(runs, pages):
    """The task that this ended has left no error; abort says why."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    run_id = runs.run("night", 12, **FINE, fault="by hand")
    with create_session() as session:  # as of a task that is killed
        where = (TaskStateStoreModel.run_id == run_id, TaskStateStoreModel.task_id == "txn.meanwhile")
        session.execute(delete(TaskStateStoreModel).where(TaskStateStoreModel.dag_id == "night", *where))
    (told,) = (told for told in pages.transactions("nights") if told["run_id"] == run_id)
    assert (task_of(told), told["exception"]) == (("failed", "txn.meanwhile", 1), "TransactionAbortedException")
    assert "although txn.meanwhile failed, as when a run is marked as failed; 10 rows in 1 files" in told["brief"]


def test_a_stage_of_an_aborted_transaction_that_is_cleared(runs, pages):
    """Whatever fails later in it, the transaction was ended by what failed first."""
    run_id = runs.run("night", 11, **FINE, fault="write")
    runs.clear("night", run_id, "txn.write", "txn.stage", "txn.audit", "txn.meanwhile", "txn.commit", "txn.abort", **FINE)
    (told,) = (told for told in pages.transactions("nights") if told["run_id"] == run_id)
    assert (task_of(told), told["exception"], told["repaired_by"]) == (("failed", "txn.write", 2), "ValueError", None)


def test_what_a_user_may_not_see(runs, pages, monkeypatch):
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    from ui.auth_manager import ScopedAuthManager

    runs.run("hidden_night", 1, **FINE)
    runs.run("hidden_night", 2, **FINE, fault="write")
    assert (pages.transactions("secret"), pages.listed("secret")["last_failure"]) == ([], None)
    assert "hidden_night" not in pages.text("secret")
    assert [told["exception"] for told in pages.transactions("secret", "admin")] == ["ValueError"]

    may, denied = ScopedAuthManager.is_authorized_dag, {DagAccessEntity.XCOM, DagAccessEntity.HITL_DETAIL}
    monkeypatch.setattr(
        ScopedAuthManager,
        "is_authorized_dag",
        lambda self, **asked: asked.get("access_entity") not in denied and may(self, **asked),
    )
    run_id = runs.run("approved_night", 7, **FINE)
    runs.answer("approved_night", run_id, "txn.approve", "Reject", "Clara")
    rejected = pages.transactions("approvals")[0]
    assert (rejected["state"], rejected["rejected_by"]) == ("rejected", None)
    runs.run("night", 10, **FINE, fault="write")
    told = pages.transactions("nights")[0]
    assert (task_of(told), told["exception"], told["message"]) == (("failed", "txn.write", 2), None, None)
    denied.add(DagAccessEntity.TASK_INSTANCE)
    assert pages.get("api/table", "nights").status_code == 404, "no version, and no run that they may see"


def test_nothing_to_do_is_no_failure(runs, pages, monkeypatch):
    from airflow_delta.ui import views

    runs.run("quiet_night", 1, skip="before")
    assert pages.get("api/table", "quiet").status_code == 404, "no transaction has begun"
    for day in (2, 3):
        runs.run("quiet_night", day, skip="inside")
    found = pages.transactions("quiet")
    assert [(told["state"], told["reason"]) for told in found] == [
        ("skipped", "It was skipped before it ran: by a task before it, or by hand.")
    ] * 2
    assert all(told["transaction_id"] for told in found), "so that what it left on storage has its run"
    listed = pages.listed("quiet")
    assert (listed["last_failure"], listed["open_transactions"]) == (None, 0)
    monkeypatch.setattr(views, "TRANSACTIONS", 1)
    data = pages.table("quiet")
    assert (len(data["transactions"]), data["num_transactions"]) == (1, 2)
    assert "The latest 1 of 2" in pages.text("quiet")


def test_a_task_that_is_a_transaction_by_itself(runs, pages):
    runs.run("two_tables", 4)
    run_id = runs.run("purge", 1, predicate="nothing = 1")
    told = pages.transactions("left")[0]
    assert (told["run_id"], task_of(told), told["exception"]) == (run_id, ("failed", "purge", 1), "PredicateException")


def test_staged_files_have_their_run(runs, pages, lake):
    run_id = runs.run("approved_night", 8, **FINE)
    answer = pages.get("api/transactions", "approvals").json()
    found = [staged for staged in answer["transactions"] if staged["state"] == "open"]
    assert [staged["run"]["run_id"] for staged in found] == [run_id]
    assert f"/runs/{run_id}" in pages.text("approvals", "transactions")


def test_what_an_xcom_backend_keeps_is_not_said_to_be_gone(runs, pages, lake, tmp_path, monkeypatch):
    from airflow.models.xcom import XComModel
    from airflow.providers.common.io.xcom.backend import XComObjectStorageBackend
    from airflow.utils.session import create_session
    from sqlalchemy import select

    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_PATH", f"file://{tmp_path}")
    monkeypatch.setenv("AIRFLOW__COMMON_IO__XCOM_OBJECTSTORAGE_THRESHOLD", "0")
    monkeypatch.setenv("AIRFLOW__CORE__XCOM_BACKEND", "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend")
    run_id = runs.run("approved_night", 18, **FINE)
    (waits,) = (one for one in pages.transactions("approvals") if one["run_id"] == run_id)
    assert pages.table("approvals")["notices"] == []
    with create_session() as session:  # as the backend has them in the database
        for row in session.scalars(select(XComModel).where(XComModel.run_id == run_id)):
            row.value = XComObjectStorageBackend.serialize_value(row.value, run_id=run_id, task_id=row.task_id)
    kept = "kept by the XCom backend airflow.providers.common.io.xcom.backend.XComObjectStorageBackend"
    (told,) = (one for one in pages.transactions("approvals") if one["run_id"] == run_id)
    assert (told["state"], told["transaction_id"]) == ("waiting", None)
    assert kept in pages.text("approvals")
    assert kept in pages.text("approvals", "transactions")
    answer = pages.get("api/transaction", "approvals", id=waits["transaction_id"])
    assert (answer.status_code, kept in answer.text) == (501, True)


@pytest.mark.parametrize("name", ["TaskInstance", "TaskStateStoreModel"])
def test_without_the_tries_of_tasks_the_page_says_what_it_lacks(runs, pages, monkeypatch, name):
    from airflow_delta.airflow_internals import database

    runs.run("night", 27, **FINE)
    runs.run("night", 28, **FINE, fault="write")
    monkeypatch.setitem(database._MODULES, name, "airflow.models.gone")
    assert "Transactions without a commit cannot be shown on this Airflow" in pages.text("nights")
    monkeypatch.undo()
    assert "cannot be shown on this Airflow" not in pages.text("nights")


@pytest.mark.parametrize(
    ("name", "what"), [("Connection", "Connections"), ("AssetModel", "Tables of assets"), ("AssetEvent", "Tables of assets")]
)
def test_without_what_airflow_knows_of_tables_the_list_says_what_it_lacks(pages, monkeypatch, name, what):
    from airflow_delta.airflow_internals import database

    monkeypatch.setitem(database._MODULES, name, "airflow.models.gone")
    assert f"{what} cannot be shown on this Airflow" in pages.text("nights", "")
    monkeypatch.undo()
    assert "cannot be shown on this Airflow" not in pages.text("nights", "")


def test_a_key_of_another_run_is_told(runs, pages, monkeypatch):
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    from ui.auth_manager import ScopedAuthManager

    first = runs.run("keyed_night", 11, **FINE, key="again/1")
    second = runs.run("keyed_night", 12, **FINE, key="again/1")
    third = runs.run("keyed_night", 13, **FINE, key="again/1", policy="replace")
    runs.run("keyed_night", 14, **FINE, key="again/2")
    failed = runs.run("keyed_night", 15, **FINE, key="again/1", policy="replace", fault="write")
    told = {commit["run"]["run_id"]: commit for commit in pages.table("keyed")["commits"]}
    assert [run["run_id"] for run in told[first]["key_found_again"]] == [second]
    assert second not in told
    assert (told[third]["key_met"]["version"], told[third]["key_met"]["run"]["run_id"]) == (told[first]["version"], first)
    assert [told[run]["key_met"] for run in told if run != third] == [None] * (len(told) - 1)
    assert [told[run]["key_found_again"] for run in told if run != first] == [[]] * (len(told) - 1)
    assert {one["run_id"]: one["met_key"] for one in pages.transactions("keyed")}[failed]
    text = pages.text("keyed")
    assert (text.count("key met again"), text.count("key of another run")) == (1, 2)
    # The warning is an XCom: who may not read those is not told, and nobody reads its text.
    assert "give them keys" not in text
    may = ScopedAuthManager.is_authorized_dag
    monkeypatch.setattr(
        ScopedAuthManager,
        "is_authorized_dag",
        lambda self, **asked: asked.get("access_entity") != DagAccessEntity.XCOM and may(self, **asked),
    )
    assert "key met again" not in (text := pages.text("keyed"))
    assert "key of another run" not in text


def test_the_last_failure_is_red_until_a_good_version_comes(runs, pages):
    """Last in this file: from here on, the table has a version."""
    runs.run("night", 25, **FINE, fault="extract")
    assert pages.table("nights")["last_failure"]["followed_by"] is None
    assert 'id="last-failure" class="bad"' in pages.text("nights")
    assert 'class="state failed"' in pages.list_text("nights")
    runs.run("night", 26, **FINE)
    version = pages.table("nights")["version"]
    for told in (pages.table("nights"), pages.listed("nights")):
        assert told["last_failure"]["followed_by"]["version"] == version
    for text, mark in (
        (pages.text("nights"), 'id="last-failure" class=""'),
        (pages.list_text("nights"), 'class="state failed past"'),
    ):
        assert mark in text
        assert f"version {version}</a> came later" in text
