"""The page of an open transaction: what it shows to whom, with and without a preview, and from where one gets there."""

from __future__ import annotations

import shutil
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from ui.auth_manager import ScopedAuthManager
from ui.runs import Runs

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def waiting(airflow_app: Any, lake: str) -> dict[str, str]:
    """The second runs of the Dags, which wait for an answer, by table."""
    runs = Runs("reviews")
    for dag_id in ("reviewed_orders", "plain_orders"):
        runs.answer(dag_id, runs.run(dag_id, 1), "txn.approve", "Approve", "clara")
    dags = {"reviewed": "reviewed_orders", "plain": "plain_orders", "hidden": "hidden_orders"}
    return {table: runs.run(dag_id, 2) for table, dag_id in dags.items()}


class Pages:
    def __init__(self, client: Any, airflow: Any, lake: str) -> None:
        self._client, self._airflow, self._lake = client, airflow, lake

    def get(self, page: str, name: str, user: str = "admin", **parameters: str) -> Any:
        self._airflow.ask_again()
        more = "".join(f"&{key}={quote(value)}" for key, value in parameters.items())
        return self._client(user).get(f"/delta-tables/{page}?table={quote(f'{self._lake}/{name}', safe='')}{more}")

    def id_of(self, name: str) -> str:
        (told,) = self.get("api/table", name).json()["transactions"]
        return told["transaction_id"]

    def found(self, name: str, user: str = "admin") -> dict[str, Any]:
        answer = self.get("api/transaction", name, user, id=self.id_of(name))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def of_link(self, link: str, user: str = "admin") -> Any:
        self._airflow.ask_again()
        return self._client(user).get(link.removeprefix("/plugin/delta-tables"))


@pytest.fixture
def pages(client, airflow, lake, waiting) -> Pages:
    return Pages(client, airflow, lake)


def partitions(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(one["values"]["region"], one["added"], one["removed"]) for one in found["partitions"]]


@pytest.mark.parametrize("name", ["reviewed", "plain"])
def test_what_the_page_shows(pages, name):
    page = pages.found(name)
    found = page["found"]
    assert (page["transaction"]["state"], page["transaction"]["ended_by"]["task_id"]) == ("waiting", "txn.approve")
    assert (found["read_version"], found["exact"], found["added"], found["removed"]) == (0, True, 2, 3)
    assert partitions(found) == [("eu", 1, 1), ("us", 1, 1), (None, 0, 1)]
    assert found["columns"] == ["id", "region", "amount", "note"]
    assert found["sample"]["added"] == [
        ["2", "eu", "7.0", "late"],
        ["5", "us", "3.0", "<script>document.title = 'harm'</script>"],
    ]
    assert sorted(row[0] for row in found["sample"]["removed"]) == ["2", "3", "4"]
    assert found["schema_changes"] == [{"kind": "new", "column": "note", "before": None, "after": "string"}]
    columns = {column["name"]: column for column in found["statistics"]}
    assert found["whole"]
    assert columns["id"]["before"] == {"nulls": 0, "min": "1", "max": "4", "distinct": None}
    assert columns["id"]["after"] == {"nulls": 0, "min": "1", "max": "5", "distinct": None}
    assert (columns["amount"]["before"]["nulls"], columns["amount"]["after"]["nulls"]) == (1, 0)
    assert (columns["region"]["before"]["distinct"], columns["region"]["before"]["nulls"]) == (2, 1)
    assert (columns["note"]["before"], columns["note"]["after"]["nulls"]) == (None, 1)
    (audit,) = page["audits"]
    assert audit["task"]["task_id"] == "txn.audit"
    assert [check["passed"] for check in audit["checks"]] == [True, True]
    assert [preview["only"] for preview in page["previews"]] == (["table"] if name == "reviewed" else [])
    text = pages.get("transaction", name, id=pages.id_of(name)).text
    assert "&lt;script&gt;document.title" in text
    assert "<script>document" not in text


def test_who_may_not_read_rows_sees_no_value_of_one(pages, lake):
    page = pages.found("plain", "viewer")
    found = page["found"]
    assert (page["rows"], found["rows"], found["columns"], found["sample"]) == (False, False, [], {"added": [], "removed": []})
    states = [column[when] for column in found["statistics"] for when in ("before", "after") if column[when]]
    assert {state[end] for state in states for end in ("min", "max")} == {None}
    # No data file is opened, so a row that stays counts on both sides.
    assert (found["exact"], partitions(found)) == (False, [("eu", 2, 2), ("us", 1, 1), (None, 0, 1)])
    answer = pages.get("transaction", "plain", "viewer", id=pages.id_of("plain"))
    assert "users who may edit the connection" in answer.text
    assert "late" not in answer.text


def test_the_runs_and_xcoms_must_be_the_viewers_to_read(pages, monkeypatch):
    hidden = pages.id_of("hidden")
    assert pages.get("transaction", "hidden", id=hidden).status_code == 200
    refused, unknown = (pages.get("transaction", "hidden", "viewer", id=each) for each in (hidden, "no-such-id"))
    assert refused.status_code == unknown.status_code == 404
    assert refused.text == unknown.text
    assert pages.get("transaction", "plain", None, id=pages.id_of("plain")).status_code in (303, 401)
    monkeypatch.setattr(ScopedAuthManager, "hidden_entities", {"XCOM"})
    answer = pages.get("transaction", "plain", "viewer", id=pages.id_of("plain"))
    assert (answer.status_code, "XComs of the Dag plain_orders" in answer.text) == (403, True)


def test_the_approval_links_to_the_page(pages, waiting):
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        joined = select(HITLDetail.body).join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        body = session.scalar(joined.where(TaskInstance.dag_id == "reviewed_orders", TaskInstance.run_id == waiting["reviewed"]))
    link = body.removeprefix("[What would be published](").removesuffix(")")
    assert parse_qs(urlsplit(link).query)["id"] == [pages.id_of("reviewed")]
    answer = pages.of_link(link)
    assert (answer.status_code, "What would be published" in answer.text) == (200, True)


def test_the_table_links_to_its_open_transactions(pages):
    (told,) = pages.get("api/table", "plain").json()["transactions"]
    assert pages.of_link(told["url_staged"]).status_code == 200
    assert "What is staged" in pages.get("table", "plain").text


def test_staged_files_that_are_gone_are_an_error_that_says_so(pages, lake, waiting):
    staged = f"{lake}/hidden/staged/{pages.id_of('hidden')}"
    shutil.move(staged, f"{lake}/kept")
    answer = pages.get("transaction", "hidden", id=pages.id_of("hidden"))
    shutil.move(f"{lake}/kept", staged)
    assert (answer.status_code, "Staged files of this transaction are gone" in answer.text) == (410, True)


def test_once_it_is_committed_or_rejected_it_is_not_open(pages, waiting):
    ids = {name: pages.id_of(name) for name in ("reviewed", "plain")}
    runs = Runs("reviews")
    runs.answer("reviewed_orders", waiting["reviewed"], "txn.approve", "Approve", "clara")
    runs.answer("plain_orders", waiting["plain"], "txn.approve", "Reject", "clara")
    committed, rejected = (pages.get("transaction", name, id=one) for name, one in ids.items())
    assert (committed.status_code, "This transaction is not open" in committed.text) == (404, True)
    assert (rejected.status_code, "are gone" in rejected.text) == (410, True)
