"""Filters, orders, keys and breadcrumbs of the pages, and what a user without a right finds by them: nothing."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.ui import selection
from support.actions import add, info, txn
from support.tables import create_table, write_commit

pytestmark = pytest.mark.airflow

EVIL = "\"><script>alert('x')</script>"


def page(name: str, table: Path | str, **parameters: object) -> str:
    query = "".join(f"&{key}={quote(str(value), safe='')}" for key, value in parameters.items())
    return f"/delta-tables/{name}?table={quote(str(table), safe='')}{query}"


@pytest.fixture
def table(tmp_path, airflow) -> Path:
    """Seven versions: two Dags, one of them hidden, keys, and sizes that are not in the order of versions."""
    path = tmp_path / "sales"
    create_table(path)
    for version, (operation, dag, key, size) in enumerate(
        [
            ("WRITE", "load", "load/a", 30),
            ("MERGE", "load", "Orders/Monday", 10),
            ("WRITE", "hidden_dag", "hidden_dag/secret", 50),
            ("DELETE", "tidy", None, 40),
            ("OPTIMIZE", None, None, 20),
            ("WRITE", "load", "orders/tuesday", 60),
        ],
        1,
    ):
        tags = {"airflow.dagId": dag, "airflow.runId": f"run {version}", "airflow.taskId": "commit"} if dag else {}
        keys = [txn(key, 0)] if key else []
        write_commit(path, version, info(operation, read_version=version - 1, tags=tags), *keys, add(f"{version}", size=size))
    airflow.asset(str(path))
    return path


def versions(client, table, user="viewer", **parameters) -> list[int]:
    answer = client(user).get(page("api/table", table, **parameters))
    assert answer.status_code == 200, answer.text
    return [commit["version"] for commit in answer.json()["commits"]]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"operation": "write"}, [6, 3, 1, 0]),
        ({"operation": " Optim "}, [5]),
        ({"dag": "LOAD"}, [6, 2, 1]),
        ({"key": "orders/"}, [6, 2]),
        ({"key": "orders/", "operation": "merge"}, [2]),
        ({"dag": "nobody"}, []),
        ({"dag": "%"}, []),
        ({"key": "' OR 1=1 --"}, []),
    ],
)
def test_a_filter(client, table, asked, found):
    assert versions(client, table, **asked) == found


def test_what_is_hidden_is_not_found(client, table):
    assert versions(client, table, dag="hidden") == versions(client, table, key="secret") == []
    assert versions(client, table, "admin", dag="hidden") == versions(client, table, "admin", key="secret") == [3]
    assert "hidden_dag" not in client().get(page("table", table, dag="hidden", sort="dag")).text.replace('value="hidden"', "")
    # The place of a hidden Dag among the others does not tell its name: it is unknown, and comes last.
    assert versions(client, table, sort="dag")[:4] == [6, 2, 1, 4]


@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ("version", [0, 1, 2, 3, 4, 5, 6]),
        ("-added", [6, 3, 4, 1, 5, 2, 0]),
        ("added", [0, 2, 5, 1, 4, 3, 6]),
        ("-committed", [6, 5, 4, 3, 2, 1, 0]),
        ("-attempts", [6, 5, 4, 3, 2, 1, 0]),  # all unknown: the newest first
    ],
)
def test_an_order(client, table, sort, found):
    assert versions(client, table, sort=sort) == found


def test_a_search_says_what_it_looked_at_and_goes_on(client, table, monkeypatch):
    from airflow_delta.ui import pages

    monkeypatch.setattr(pages, "SEARCHED", 3)
    first = client().get(page("api/table", table, operation="WRITE")).json()
    assert ([commit["version"] for commit in first["commits"]], first["searched"]) == ([6], {"newest": 6, "oldest": 4})
    text = client().get(page("table", table, operation="WRITE", sort="-added")).text
    assert "1 commit of versions 4 to 6." in text
    assert "before=4" in text
    assert text.count("operation=WRITE") >= 9, "links to the other pages, and to orders, keep the filter"
    second = client().get(page("api/table", table, operation="WRITE", before=first["older"])).json()
    assert ([commit["version"] for commit in second["commits"]], second["searched"]) == ([3, 1], {"newest": 3, "oldest": 1})
    # A page that has no match is no end.
    text = client().get(page("table", table, operation="CLONE")).text
    assert "No commit of these versions matches." in text
    assert "search older ones" in text


def test_a_search_costs_a_page_at_most(client, table):
    from airflow_delta.ui import data

    assert selection.SEARCHED <= data.MAX_PAGE
    assert client().get(page("table", table, operation="WRITE", limit=data.MAX_PAGE + 1)).status_code == 422


@pytest.mark.parametrize("asked", [{"sort": "size; DROP"}, {"sort": "--version"}, {"operation": "x" * 201}, {"key": "x" * 201}])
def test_an_address_that_is_not_valid(client, table, asked):
    answer = client().get(page("table", table, **asked))
    assert (answer.status_code, "Delta tables</a>" in answer.text) == (422, True)


def test_what_is_asked_for_is_escaped(client, table):
    for name in ("operation", "dag", "key"):
        text = client().get(page("table", table, **{name: EVIL})).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


def test_failures_are_below_the_history(client, table):
    text = client().get(page("table", table)).text
    assert 0 < text.index('id="history"') < text.index('id="staged"')


# -- keys of rows -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path, airflow) -> Path:
    path = tmp_path / "people"
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "a,b": ["x", "y"], "name": ["Ada", "Bob"]})
    deltalake.write_deltalake(path, rows)
    changed = pa.table({"id": pa.array([1, 2], pa.int64()), "a,b": ["x", "y"], "name": ["Ada", "Cyd"]})
    deltalake.write_deltalake(path, changed, mode="overwrite")
    airflow.asset(str(path))
    return path


@pytest.mark.parametrize(
    ("given", "keys", "counts"),
    [
        ("", [], (1, 1, None)),
        ("id", ["id"], (0, 0, 1)),
        ("ID , name", ["id", "name"], (1, 1, 0)),
        ("a,b", ["a,b"], (0, 0, 1)),  # one column, not two
    ],
)
def test_rows_are_compared_by_keys(client, people, given, keys, counts):
    found = client("op").get(page("api/rows", people, version=1, keys=given)).json()
    assert (found["keys"], (found["added"], found["removed"], found["changed"])) == (keys, counts)
    assert ("--keys" in found["command"]) == bool(keys)


def test_a_key_that_is_no_column(client, people):
    for name in ("rows", "api/rows"):
        answer = client("op").get(page(name, people, version=1, keys=EVIL))
        assert (answer.status_code, "These columns cannot identify a row" in answer.text) == (400, True)
        assert name == "api/rows" or "<script>alert" not in answer.text
    assert client("op").get(page("rows", people, version=1, keys="x" * 2_001)).status_code == 422
    assert client().get(page("rows", people, version=1, keys="id")).status_code == 403


# -- the way back -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked", "status", "crumbs"),
    [
        ("table", {"sort": "odd"}, 422, ["Delta tables", "people"]),
        ("commit", {"version": 99}, 404, ["Delta tables", "people", "Version 99"]),
        ("commit", {"version": "x"}, 422, ["Delta tables", "people"]),
        ("commit", {"version": "9" * 5_000}, 422, ["Delta tables", "people"]),
        ("rows", {"version": 99}, 404, ["Delta tables", "people", "Version 99", "Rows"]),
        ("transactions", {"part": "maybe"}, 422, ["Delta tables", "people", "Transactions"]),
    ],
)
def test_breadcrumbs_of_an_error(client, people, name, asked, status, crumbs):
    import re

    answer = client("op").get(page(name, people, **asked))
    assert answer.status_code == status
    (nav,) = re.findall(r'<nav class="crumbs".*?</nav>', answer.text, re.DOTALL)
    assert re.findall(r">([^<>]+)</(?:a|span)>", nav) == crumbs
    links = re.findall(r'href="([^"]+)"', nav)
    assert len(links) >= len(crumbs) - 1  # only the last one may be none
    for link in links[:2]:
        assert client("op").get(link.replace("&amp;", "&")).status_code == 200


def test_breadcrumbs_repeat_no_secret_and_no_markup(client, airflow):
    for location in ("s3://key:hush-hush@bucket/t", f"/x/{EVIL}", "x" * 3_000):
        text = client().get(page("commit", location, version=1)).text
        assert "hush-hush" not in text
        assert "<script>alert" not in text
    assert '<span class="here">Error</span>' in client().get("/delta-tables/nowhere").text
