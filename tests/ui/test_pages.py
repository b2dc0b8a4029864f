"""The pages as a browser gets them: with Airflow's sessions and permissions, on real tables."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import deltalake
import psutil
import pyarrow as pa
import pytest

from support.actions import add, info, txn
from support.tables import commit_path, create_table, table_with_commits, write_commit

pytestmark = pytest.mark.airflow

PAGES = (
    "/delta-tables/",
    "/delta-tables/table?table=/x",
    "/delta-tables/commit?table=/x&version=0",
    "/delta-tables/rows?table=/x&version=0",
    "/delta-tables/transactions?table=/x",
)
ENDPOINTS = (
    "/delta-tables/api/tables",
    *(path.replace("/delta-tables/", "/delta-tables/api/") for path in PAGES[1:]),
)
TAGS = {
    "airflow.dagId": "load",
    "airflow.runId": "scheduled__2026-01-01T00:00:00+00:00",
    "airflow.taskId": "commit",
    "airflow.mapIndex": "-1",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of four versions; the last one was committed by a task and was checked against two others."""
    path = tmp_path / "sales"
    table_with_commits(path, 2)
    write_commit(
        path,
        3,
        info(read_version=0, tags=TAGS, operation="MERGE"),
        txn("load/sales/scheduled__2026-01-01/-1", 0),
        add("a.parquet"),
    )
    return path


@pytest.fixture
def known(airflow, table) -> str:
    """The same table, known to Airflow."""
    airflow.event(airflow.asset(str(table)), str(table), 3, attempts=2, versions_checked=2)
    return str(table)


def page(name: str, table: str, **parameters: object) -> str:
    query = "".join(f"&{key}={value}" for key, value in parameters.items())
    return f"/delta-tables/{name}?table={quote(table, safe='')}{query}"


# -- who may see them ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_nobody_is_sent_to_the_login_page_and_back(client, path):
    answer = client(None).get(path)
    assert answer.status_code == 303
    login = urlsplit(answer.headers["location"])
    assert login.path == "/api/v2/auth/login"
    assert parse_qs(login.query)["next"] == [f"/plugin/delta-tables{path}"]


def test_in_the_frame_the_page_says_that_the_session_has_ended(client):
    answer = client(None).get("/delta-tables/", headers={"sec-fetch-dest": "iframe"})
    assert answer.status_code == 401
    assert "Sign in" in answer.text
    assert "data-top" in answer.text


@pytest.mark.parametrize("path", ENDPOINTS)
def test_endpoints_refuse_nobody(client, path):
    answer = client(None).get(path)
    assert answer.status_code == 401
    assert answer.json()["title"] == "Your session has ended"


@pytest.mark.parametrize("path", [*PAGES, *ENDPOINTS])
def test_a_forged_token_is_refused(client, path):
    browser = client(None)
    browser.cookies.set("_token", "eyJhbGciOiJIUzUxMiJ9.eyJzdWIiOiJhZG1pbiJ9.AAAA")
    assert browser.get(path).status_code in (303, 401, 403)


def test_an_api_token_is_taken_as_well(client, airflow):
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="viewer", role="viewer"))
    answer = client(None).get("/delta-tables/api/tables", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200


def test_a_user_without_the_right_to_read_assets(client):
    browser = client("")
    answer = browser.get("/delta-tables/")
    assert answer.status_code == 403
    assert "You may not see Delta tables" in answer.text
    assert browser.get("/delta-tables/api/tables").status_code == 403


def test_an_asset_that_the_user_may_not_read_does_not_exist(client, airflow, table):
    from ui.auth_manager import ScopedAuthManager

    asset_id = airflow.asset(str(table))
    airflow.event(asset_id, str(table), 3)
    ScopedAuthManager.hidden_assets = {str(asset_id)}
    try:
        assert client().get(f"/delta-tables/api/tables?q={quote(str(table))}").json()["tables"] == []
        assert client().get(page("api/table", str(table))).status_code == 404
        assert client("admin").get(page("api/table", str(table))).status_code == 200
    finally:
        ScopedAuthManager.hidden_assets = set()


def test_a_dag_that_the_user_may_not_read_is_not_named(client, airflow, tmp_path):
    path = tmp_path / "sales"
    create_table(path)
    tags = {**TAGS, "airflow.dagId": "hidden_dag"}
    write_commit(path, 1, info(read_version=0, tags=tags), txn("hidden_dag/sales/scheduled__2026/-1", 0), add("a.parquet"))
    write_commit(path, 2, info(read_version=0), add("b.parquet"))
    airflow.event(airflow.asset(str(path)), str(path), 1, dag_id="hidden_dag", run_id="scheduled__2026")
    paths = [
        "/delta-tables/",
        page("table", str(path)),
        page("commit", str(path), version=1),
        page("commit", str(path), version=2),
    ]
    for url in [*paths, *(url.replace("/delta-tables/", "/delta-tables/api/") for url in paths[1:]), "/delta-tables/api/tables"]:
        seen = client().get(url)
        assert seen.status_code == 200, url
        assert "hidden_dag" not in seen.text, url
        assert "scheduled__2026" not in seen.text, url
    assert "hidden_dag" in client("admin").get(paths[1]).text


# -- what may be opened -------------------------------------------------------------------------------------------------------


def test_a_table_that_airflow_does_not_know_is_not_opened(client, airflow, table):
    answer = client("admin").get(page("table", str(table)))
    assert answer.status_code == 404
    assert "This table is not known" in answer.text


@pytest.mark.parametrize(
    "name",
    [
        "../other/secret",
        "x/../../other/secret",
        "%2e%2e/other/secret",
        "x/%2e%2e/%2e%2e/other/secret",
        "..%2fother%2fsecret",
        "link",
        "x/./../../other/secret",
        "",
    ],
)
def test_nothing_outside_a_base_path_is_opened(client, airflow, tmp_path, name):
    table_with_commits(tmp_path / "other" / "secret", 1)
    (tmp_path / "lake").mkdir()
    os.symlink(tmp_path / "other" / "secret", tmp_path / "lake" / "link")
    airflow.connection("lake", str(tmp_path / "lake"))
    browser = client("admin")
    for spelled in (
        f"{tmp_path}/lake/{name}",
        f"file://{tmp_path}/lake/{name}",
        f"file:{tmp_path}/lake/{name}",
        f"delta://connection/lake/{name}",
    ):
        answer = browser.get(page("api/table", spelled))
        assert answer.status_code in (400, 404), spelled
        assert "commits" not in answer.json()
    opened = browser.get("/delta-tables/open", params={"conn_id": "lake", "name": name})
    assert opened.status_code in (303, 404)
    if opened.status_code == 303:
        assert browser.get(opened.headers["location"]).status_code == 404


@pytest.mark.parametrize("directory", ["_delta_log", "staged"])
def test_a_directory_of_a_table_that_is_a_link_out_of_the_base_path_is_not_read(client, airflow, tmp_path, directory):
    table_with_commits(tmp_path / "other", 1)
    (tmp_path / "other" / "staged").mkdir()
    inside = tmp_path / "lake" / "linked"
    inside.mkdir(parents=True)
    os.symlink(tmp_path / "other" / directory, inside / directory)
    airflow.connection("lake", str(tmp_path / "lake"))
    answer = client("admin").get(page("api/transactions", str(inside)))
    assert (answer.status_code, answer.json()["title"]) == (404, "This table is not known")


@pytest.mark.parametrize("name", ["t", "../t", "a b"])
@pytest.mark.parametrize("base_path", ["db.internal.example.com", "s3://secret-bucket/lake", "/srv/secret"])
def test_a_connection_that_the_user_may_not_read_is_not_looked_into(client, airflow, base_path, name):
    airflow.connection("hidden", base_path)
    told = [
        client("viewer").get(page("api/table", f"delta://connection/{conn_id}/{name}")) for conn_id in ("hidden", "not_there")
    ]
    assert [answer.status_code for answer in told] == [404, 404]
    assert told[0].json()["detail"] == f"delta://connection/hidden/{name}"
    assert told[0].json() == {**told[1].json(), "detail": told[0].json()["detail"]}


@pytest.mark.parametrize("spelled", ["s3://lake/a/t", "s3a://lake/a/t/", "S3N://lake/a/t"])
def test_what_was_checked_is_what_is_opened(client, airflow, spelled):
    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import find_table

    airflow.connection("lake", "s3a://lake/a/")
    viewer = Viewer(None)
    viewer._connections["GET", "lake"] = True
    assert find_table(viewer, spelled).uri == "s3://lake/a/t"


@pytest.mark.parametrize("other", ["s3://lake//a/t", "S3://lake/a//t", "s3:///lake/a/t", "s3://lake/a/t?sig=x", "s3://l#/t"])
def test_another_place_is_not_taken_for_it(client, airflow, other):
    airflow.connection("lake", "s3a://lake/a/")
    assert client("admin").get(page("api/table", other)).status_code == 400


AZURE = "lake@account.dfs.core.windows.net"
AZURE_SPELLINGS = [
    f"abfss://{AZURE}/x/t",
    "wasbs://lake@account.blob.core.windows.net/x/t",
    "https://account.blob.core.windows.net/lake/x/t",
    "az://lake/x/t",
    f"delta://abfs/{AZURE}/x/t",
    "delta://az/lake/x/t",
]


@pytest.mark.parametrize("spelled", AZURE_SPELLINGS)
@pytest.mark.parametrize("base_path", ["az://lake/x", f"abfs://{AZURE}/x"])
def test_a_table_of_azure_is_for_those_who_may_read_its_connection(client, airflow, monkeypatch, base_path, spelled):
    from airflow_delta.ui.access import Viewer
    from airflow_delta.ui.known import find_table
    from airflow_delta.ui.problems import PageProblem

    airflow.connection("lake", base_path, login="account", password="a2V5")
    for uri in (f"delta://abfs/{AZURE}/x/t", "delta://az/lake/x/t"):
        airflow.asset(uri, uri=uri)
    viewer = Viewer(None)
    viewer._connections["GET", "lake"] = False
    monkeypatch.setattr(Viewer, "may_read_asset", lambda _self, _asset_id: True)
    with pytest.raises(PageProblem) as raised:
        find_table(viewer, spelled)
    assert raised.value.status == 404
    viewer._connections["GET", "lake"] = True
    found = find_table(viewer, spelled)
    assert found.conn_id == "lake"
    assert found.place().options["azure_storage_account_key"] == "a2V5"


@pytest.mark.parametrize("odd", ['{"conn_type": "delta", "extra": "[1]"}', "{not json", '{"port": "x"}'])
def test_a_connection_that_cannot_be_read_hides_no_other_table(client, airflow, table, monkeypatch, odd):
    monkeypatch.setenv("AIRFLOW_CONN_ODD", odd)
    airflow.asset("t", uri="delta://connection/odd/t")
    airflow.asset(str(table))
    listed = client().get(f"/delta-tables/api/tables?q={quote(str(table))}").json()["tables"]
    assert [row["name"] for row in listed] == [table.name]


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_event_that_was_sent_to_the_api_opens_nothing(client, airflow, table, wrapped):
    asset_id = airflow.asset("s3://bucket/x", uri="s3://bucket/x")
    more = {"from_trigger": True, "payload": {"table": str(table), "version": 1, "transaction_id": None}} if wrapped else {}
    airflow.event(asset_id, str(table), 3, from_rest_api=True, **more)
    assert client("admin").get(page("api/table", str(table))).status_code == 404


@pytest.mark.parametrize(
    "uri", ["relative/name", "http://169.254.169.254/latest", "gopher://x/y", "/etc", "\x00", "a" * 3000, "s3://other/table"]
)
def test_no_other_place_is_opened(client, airflow, tmp_path, uri):
    airflow.connection("lake", str(tmp_path))
    assert client("admin").get(page("api/table", uri)).status_code in (400, 404, 422)


def test_a_table_below_a_base_path_is_for_those_who_may_read_the_connection(client, airflow, tmp_path):
    table_with_commits(tmp_path / "lake" / "raw" / "events", 1)
    airflow.connection("hidden_lake", str(tmp_path / "lake"))
    opened = client("op").get("/delta-tables/open", params={"conn_id": "hidden_lake", "name": "raw/events"})
    assert opened.status_code == 303
    assert client("op").get(opened.headers["location"]).status_code == 200
    assert client("viewer").get(opened.headers["location"]).status_code == 404
    assert "hidden_lake" in [found["conn_id"] for found in client("op").get("/delta-tables/api/tables").json()["connections"]]
    assert client("viewer").get("/delta-tables/api/tables").json()["connections"] == []


# -- what they show -----------------------------------------------------------------------------------------------------------


def test_the_list_comes_from_events_alone(client, airflow, tmp_path):
    place = str(tmp_path / "gone" / "orders")
    asset_id = airflow.asset(place)
    for version in range(1, 6):
        airflow.event(asset_id, place, version, run_id=f"manual__{version}")
    airflow.asset(str(tmp_path / "new"))
    airflow.event(airflow.asset("s3://bucket/file.csv", uri="s3://bucket/file.csv"), "", 0, transaction_id=None)
    listed = client().get(f"/delta-tables/api/tables?q={quote(str(tmp_path))}").json()["tables"]
    assert [row["name"] for row in listed] == ["new", "orders"]
    assert listed[1]["version"] == 5
    assert listed[1]["bytes"] == [1000, 2000, 3000, 4000, 5000]
    assert (len(listed[1]["runs"]), listed[1]["num_runs"]) == (3, 5)
    text = client().get(f"/delta-tables/?q={quote(str(tmp_path))}").text
    assert "orders" in text
    assert "no commits by tasks yet" in text
    found = client().get(f"/delta-tables/api/tables?q={quote(str(tmp_path / 'gone').upper())}").json()["tables"]
    assert [row["name"] for row in found] == ["orders"]


def test_of_many_tables_one_page_is_read_and_each_of_its_assets_once(client, airflow, tmp_path):
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    from airflow_delta.ui.views import TABLES

    for number in range(TABLES + 10):
        place = str(tmp_path / f"table_{number:02}")
        asset_id = airflow.asset(place)
        for version in range(3):
            airflow.event(asset_id, place, version)
    asked: list[str] = []

    def note(_connection, _cursor, statement, *_):
        asked.append(" ".join(statement.split()))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        listed = client().get(f"/delta-tables/api/tables?q={quote(str(tmp_path))}").json()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert (len(listed["tables"]), listed["more"]) == (TABLES, True)
    assert all(row["version"] == 2 for row in listed["tables"])
    events = [statement for statement in asked if statement.startswith("SELECT asset_event.extra") and " ORDER BY " in statement]
    assert len(events) == TABLES


def test_an_asset_stands_for_the_table_of_its_own_uri(client, airflow, table, tmp_path):
    """Whoever emits events of an asset could name any other table."""
    airflow.event(airflow.asset(str(table), uri="s3://team/our-name"), str(table), 3)
    other = airflow.asset(str(tmp_path / "other"))
    airflow.event(other, str(table), 7)
    for user in ("viewer", "admin"):
        assert client(user).get(page("api/table", str(table))).status_code == 404
    listed = client("admin").get(f"/delta-tables/api/tables?q={quote(str(tmp_path))}").json()["tables"]
    assert [(row["name"], row["version"]) for row in listed] == [("other", None)]


def test_an_asset_with_a_plain_uri_is_a_table_when_its_events_say_so(client, airflow, table):
    airflow.event(airflow.asset(str(table), uri=f"file://{table}"), str(table), 3, attempts=4)
    commits = client().get(page("api/table", str(table))).json()["commits"]
    assert commits[0]["attempts"] == 4


def test_a_table_is_opened_through_a_connection_that_the_user_may_read(client, airflow, tmp_path):
    path = tmp_path / "lake" / "costs"
    table_with_commits(path, 1)
    airflow.connection("hidden_lake", str(tmp_path / "lake"))
    location, named = airflow.asset(str(path)), airflow.asset("costs", uri="delta://connection/hidden_lake/costs")
    for asset in (location, named):
        airflow.event(asset, str(path), 1)
    urls = [page("table", str(path)), page("api/commit", str(path), version=1), page("api/transactions", str(path))]
    urls += [page("table", "delta://connection/hidden_lake/costs")]
    for url in urls:
        assert client("viewer").get(url).status_code == 404, url
        assert client("op").get(url).status_code == 200, url
    assert client("viewer").get(f"/delta-tables/api/tables?q={quote(str(tmp_path))}").json()["tables"] == []
    # One that they may read holds it as well.
    airflow.connection("open_lake", str(tmp_path))
    airflow.ask_again()
    assert client("viewer").get(urls[0]).status_code == 200
    assert len(client("viewer").get(f"/delta-tables/api/tables?q={quote(str(tmp_path))}").json()["tables"]) == 1


def test_the_default_connection_is_one_as_well(client, airflow, known):
    from ui.auth_manager import ScopedAuthManager

    assert client().get(page("table", known)).status_code == 200
    airflow.connection("delta_default", "")
    airflow.ask_again()
    assert client().get(page("table", known)).status_code == 200
    ScopedAuthManager.hidden_connections = {"delta_default"}
    try:
        assert client().get(page("table", known)).status_code == 404
    finally:
        ScopedAuthManager.hidden_connections = set()


def test_a_commit_that_a_watcher_saw_is_told_once(client, airflow, table):
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    asset_id = airflow.asset(str(table))
    airflow.event(asset_id, str(table), 3, attempts=2, versions_checked=2)
    for version in (2, 3):
        payload = {"table": str(table), "version": version, "transaction_id": None, "operation": "WRITE", "num_bytes": 100}
        with create_session() as session:
            session.add(AssetEvent(asset_id=asset_id, extra={"from_trigger": True, "payload": payload}))
    (row,) = client().get(f"/delta-tables/api/tables?q={quote(str(table))}").json()["tables"]
    assert (row["version"], row["bytes"], row["num_runs"]) == (3, [100, 3000], 1)
    commits = client().get(page("api/table", str(table))).json()["commits"]
    assert [commit["attempts"] for commit in commits[:2]] == [2, None]


def test_an_event_of_several_commits_tells_each(client, airflow, table):
    several = [{"version": version, "attempts": version + 1, "versions_checked": 0, "num_bytes": version} for version in (2, 3)]
    airflow.event(airflow.asset(str(table)), str(table), 3, commits=several)
    commits = client().get(page("api/table", str(table))).json()["commits"]
    assert [commit["attempts"] for commit in commits[:3]] == [4, 3, None]
    (row,) = client().get(f"/delta-tables/api/tables?q={quote(str(table))}").json()["tables"]
    assert (row["version"], row["bytes"]) == (3, [2, 3])


def test_an_event_with_odd_values_breaks_no_page(client, airflow, table):
    odd = {"operation": {"name": "WRITE"}, "timestamp": "today", "num_records": "many", "num_bytes": [], "commits": [None, {}, 3]}
    airflow.event(airflow.asset(str(table)), str(table), 3, attempts="two", versions_checked=None, **{**odd, "commits": "two"})
    airflow.event(airflow.asset(str(table), name="second"), str(table), 2, **odd)
    for url in ("/delta-tables/", "/delta-tables/api/tables", page("table", str(table)), page("commit", str(table), version=3)):
        assert client().get(url).status_code == 200, url
    assert client().get(page("api/table", str(table))).json()["commits"][0]["attempts"] is None


@pytest.mark.parametrize("time", [9_999_999_999_999_999, 253_402_300_799_000, -62_135_596_800_000])
def test_times_that_no_calendar_has_break_no_page(client, airflow, tmp_path, time):
    from support.actions import metadata, protocol

    path = tmp_path / "odd"
    recorded = {"delta.enableInCommitTimestamps": "true"}
    features = ["inCommitTimestamp"]
    write_commit(
        path, 0, info(in_commit_timestamp=time), protocol(3, 7, writer_features=features), metadata(configuration=recorded)
    )
    airflow.event(airflow.asset(str(path)), str(path), 0, timestamp=time)
    listed = f"/delta-tables/?q={quote(str(tmp_path))}"
    for url in (listed, page("table", str(path)), page("commit", str(path), version=0)):
        assert client().get(url).status_code == 200, url


def test_a_history(client, known):
    data = client().get(page("api/table", known)).json()
    newest, older = data["commits"][:2]
    assert (newest["version"], newest["operation"], newest["kind"]) == (3, "MERGE", "change")
    assert (newest["attempts"], newest["versions_checked"], newest["num_winners"]) == (2, 2, 2)
    assert newest["run"]["url"] == "/dags/load/runs/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00"
    assert newest["run"]["task_url"].endswith("/tasks/commit")
    assert (older["run"], older["attempts"]) == (None, None)
    text = client().get(page("table", known)).text
    assert 'id="v3"' in text
    assert "<svg" in text
    assert "data-load=" in text
    (legend,) = re.findall(r'<ul class="legend".*?</ul>', text, re.DOTALL)
    operations = dict.fromkeys((commit["kind"], commit["operation"]) for commit in data["commits"])
    assert re.findall(r'<li class="op (\w+)">([^<]*)</li>', legend) == list(operations)


def test_the_list_says_what_its_charts_show(client, airflow, table):
    asset_id = airflow.asset(str(table))
    for version in (1, 3):
        airflow.event(asset_id, str(table), version)
    text = client().get(f"/delta-tables/?q={quote(str(table))}").text
    assert re.findall(r'class="of">([^<]*)<', text) == ["up to 30 rows", "up to 2.9 KiB"]
    assert 'data-label="Rows and bytes of added files"' in text


def test_a_long_history_is_paged(client, airflow, tmp_path):
    path = table_with_commits(tmp_path / "long", 45)
    airflow.asset(str(path))
    first = client().get(page("table", str(path), limit=20))
    assert "Older" in first.text
    assert "Newer" not in first.text
    assert "before=26" in first.text
    middle = client().get(page("table", str(path), limit=20, before=26)).text
    assert ">← Newest</a>" in middle
    assert ">Older →</a>" in middle


def test_one_commit(client, known):
    data = client().get(page("api/commit", known, version=3)).json()
    assert [winner["version"] for winner in data["winners"]] == [2, 1]
    text = client().get(page("commit", known, version=3)).text
    assert "2 concurrent commits; none conflicts" in text
    assert "a.parquet" in text
    assert 'id="dag-run"' in text
    assert ">← Older: version 2</a>" in text
    assert "Newer: version" not in text
    assert ">Newer: version 3 →</a>" in client().get(page("commit", known, version=2)).text
    (winners,) = re.findall(r'<table[^>]* id="winners">.*?</table>', text, re.DOTALL)
    labels = re.findall(r'data-label="([^"]*)"', winners)
    assert labels == 2 * re.findall(r"<th[^>]*>([^<]*)</th>", winners) == 2 * ["Version", "Operation", "Dag run", "Committed"]
    first = client().get(page("commit", known, version=0)).text
    assert "Set by this commit" in first
    assert "There was nothing to check against." in first


DETECTED = [
    # the commit's tags airflow.conflictDetection and airflow.conflictsResolved, the row of its page
    (None, None, None),
    ("delta", None, "delta"),
    ("rows", '{"statistics":"1-2"}', "rows; versions 1-2 by statistics"),
    ("rows", '{"moved":"2","rows":"1,3"}', "rows; version 2 by moved, versions 1,3 by rows"),
    (None, '{"rows":"1"}', "version 1 by rows"),
    ("rows", "[1]", "rows"),
    ("<b>", '{"<i>":"<u>"}', "&lt;b&gt;; version &lt;u&gt; by &lt;i&gt;"),
]


@pytest.mark.parametrize(("level", "resolved", "row"), DETECTED)
def test_how_closely_a_commit_was_checked(client, airflow, tmp_path, level, resolved, row):
    """Also shown to those who may not see the Dag: it does not name it."""
    path = tmp_path / "sales"
    table_with_commits(path, 2)
    tags = {"airflow.dagId": "hidden_dag", "airflow.conflictDetection": level, "airflow.conflictsResolved": resolved}
    said = {name: value for name, value in tags.items() if value is not None}
    write_commit(path, 3, info(read_version=0, tags={**TAGS, **said}), add("a.parquet"))
    airflow.event(airflow.asset(str(path)), str(path), 3)
    text = client().get(page("commit", str(path), version=3)).text
    assert "hidden_dag" not in text
    assert re.findall(r"<dt>Conflict detection</dt><dd[^>]*>(.*?)</dd>", text) == ([] if row is None else [row])
    commit = client().get(page("api/commit", str(path), version=3)).json()["commit"]
    assert commit["conflict_detection"] == level
    assert commit["resolved"] == (json.loads(resolved) if " by " in str(row) else {})


def test_transactions_as_page_part_and_data(client, known):
    staged = Path(known) / "staged" / "tx-1" / "load" / "1-0a1b2c3d"
    staged.mkdir(parents=True)
    (staged / "a.parquet").write_bytes(b"x" * 2048)
    assert client().get(page("api/transactions", known)).json()["staged_bytes"] == 2048
    assert "2.0 KiB" in client().get(page("transactions", known, part=1)).text
    assert "<html" not in client().get(page("transactions", known, part=1)).text
    assert "<html" in client().get(page("transactions", known)).text


def test_what_a_table_says_is_escaped(client, airflow, tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    path = tmp_path / f"t{evil.replace('/', '')}"
    create_table(path, description=evil, configuration={evil: evil})
    write_commit(
        path,
        1,
        info(
            operation=evil,
            user_metadata=evil,
            engine_info=evil,
            tags={**TAGS, "airflow.dagId": evil, evil: evil},
            operation_parameters={evil: evil},
        ),
        txn(evil, 1),
        add(quote(evil), part=evil),
    )
    airflow.event(airflow.asset(str(path)), str(path), 1, operation=evil, dag_id=evil, run_id=evil)
    listed = f"/delta-tables/?q={quote(str(tmp_path))}"
    for url in (listed, page("table", str(path)), *(page("commit", str(path), version=version) for version in (0, 1))):
        text = client("admin").get(url).text
        assert "<img" not in text, url
        assert "&lt;img" in text, url


# -- when something is wrong --------------------------------------------------------------------------------------------------


def test_a_table_that_is_gone(client, airflow, tmp_path):
    airflow.asset(str(tmp_path / "gone"))
    answer = client().get(page("table", str(tmp_path / "gone")))
    assert answer.status_code == 404
    assert "There is no table here" in answer.text
    assert 'class="problem "' in answer.text, "not red: nothing is broken"


def test_a_damaged_log(client, known):
    commit_path(known, 3).write_bytes(b'{"commitInfo":{"timest')
    answer = client().get(page("table", known))
    assert answer.status_code == 502
    assert "damaged" in answer.text
    assert 'class="problem broken"' in answer.text
    assert client().get(page("api/commit", known, version=3)).status_code == 502


def test_a_commit_that_is_not_there(client, known):
    answer = client().get(page("commit", known, version=99))
    assert answer.status_code == 404
    assert "This commit is not in the log" in answer.text


@pytest.mark.parametrize("parameters", [{"version": -1}, {"version": "x"}, {}, {"version": 1, "offset": -5}])
def test_an_address_that_is_not_valid(client, known, parameters):
    assert client().get(page("commit", known, **parameters)).status_code == 422


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_credentials_that_never_come_hold_up_no_other_table(client, airflow, known, endpoint, monkeypatch):
    from airflow_delta.hooks import cloud

    monkeypatch.setattr(cloud, "CREDENTIALS_TIMEOUT", 8.0)
    options = {"AWS_ENDPOINT_URL_STS": endpoint, "AWS_REGION": "us-east-1", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/x"}
    airflow.connection("dead", "s3://dead/lake", login="a", password="b", extra=json.dumps({"storage_options": options}))
    names = [f"s3://dead/lake/{name}" for name in ("a", "b", "c", "d", "e")]
    with ThreadPoolExecutor(len(names)) as threads:
        slow = [threads.submit(client("admin").get, page("table", name)) for name in names]
        time.sleep(1)
        assert client().get(page("table", known)).status_code == 200
        assert client().get("/delta-tables/").status_code == 200
        assert not any(answer.done() for answer in slow)
        told = [answer.result() for answer in slow]
    assert {answer.status_code for answer in told} == {502}
    assert "did not come within 8 s" in told[0].text


def test_the_api_server_has_no_credentials_for_a_connection_without(client, airflow, monkeypatch):
    airflow.connection("lake", "s3://lake")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-server")
    told = client("admin").get(page("api/table", "s3://lake/t"))
    assert told.status_code == 502
    assert "AIRFLOW__DELTA__PROCESS_CREDENTIALS_IN" in told.json()["detail"]


def test_a_reader_has_one_identity_on_hdfs(monkeypatch):
    """A name node knows a process by one name, so a reader that is kept warm answers only for that one."""
    from airflow_delta.ui.reader.pool import Readers, environment

    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-server")
    assert "AWS_SESSION_TOKEN" not in environment()
    monkeypatch.setenv("AIRFLOW__DELTA__PROCESS_CREDENTIALS_IN", "api_server")
    assert environment()["AWS_SESSION_TOKEN"] == "of-the-server"
    pool = Readers()
    try:
        used = []
        for user in ("etl", "finance", None, "etl", "etl"):
            options = {"hadoop_user_name": user} if user else {}
            request = {"what": "nothing", "uri": "hdfs://name-node/t", "options": options}
            assert pool.ask(request, 30)["kinds"][0] == "KeyError"
            used.append(pool._idle[-1][1]._process.pid)
        assert len(set(used)) == 4, "only two are kept"
        assert len(pool._idle) <= 2
    finally:
        pool.stop()


def test_a_reader_does_not_load_numpy(tmp_path):
    """It shows rows without; NumPy would be a fifth of its first answer."""
    from airflow_delta.ui.reader.pool import Readers

    rows = pa.table({"id": [1, 2], "d": [None, 0.5], "s": ["a", None], "at": [datetime(1900, 1, 1, tzinfo=UTC), None]})
    deltalake.write_deltalake(tmp_path / "t", rows)
    pool = Readers()
    try:
        request = {"what": "rows", "uri": str(tmp_path / "t"), "arguments": {"version": 0}}
        found = pool.ask(request, 60)["result"]
        assert "1900-01-01" in json.dumps(found)
        process = pool._idle[-1][1]._process
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert ("pyarrow" in maps, "numpy" in maps) == (True, False)
    finally:
        pool.stop()


@pytest.mark.slow
def test_a_dead_endpoint_holds_up_no_other_table(client, airflow, known, endpoint, monkeypatch):
    from airflow_delta.ui.reader import schedule

    monkeypatch.setattr(schedule, "READ_TIMEOUT", 15.0)
    options = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "x",
        "AWS_ACCESS_KEY_ID": "dead-id",
        "AWS_SECRET_ACCESS_KEY": "dead-password",
    }
    airflow.connection("dead", "s3://dead/lake", extra=json.dumps({"storage_options": options}))
    names = [f"s3://dead/lake/{name}" for name in ("a", "b", "c", "d", "e")]
    with ThreadPoolExecutor(len(names)) as threads:
        slow = [threads.submit(client("admin").get, page("table", name)) for name in names]
        time.sleep(1)
        assert client().get(page("table", known)).status_code == 200
        assert not any(answer.done() for answer in slow)
        readers = [
            process for process in psutil.Process().children() if "airflow_delta.ui.reader.worker" in str(process.cmdline())
        ]
        assert 2 <= len(readers) <= 4, "two for the connection, and those that are warm"
        told = [(" ".join(process.cmdline()), " ".join(process.environ())) for process in readers]
        answers = [answer.result() for answer in slow]
    assert [answer.status_code for answer in answers] == [504] * len(names)
    assert "did not answer in time" in answers[0].text
    # Credentials come by a pipe; and what Airflow has in its environment is not a reader's.
    assert not any("dead-password" in command or "AIRFLOW" in environment for command, environment in told)
    # While it does not answer, the connection has one reader.
    assert "dead" in schedule._process().schedule._slow


def test_what_takes_too_much_memory_is_too_large_to_show(client, known, monkeypatch):
    from airflow_delta.ui.reader import pool, schedule

    schedule.readers().stop()
    monkeypatch.setattr(pool, "MAX_MEMORY", 1)
    monkeypatch.setattr(pool, "_LOOK", 0.001)
    answer = client().get(page("table", known))
    assert (answer.status_code, "Too large to show" in answer.text) == (413, True)
    monkeypatch.undo()
    assert client().get(page("table", known)).status_code == 200


def test_a_reader_that_ends_is_replaced(client, known):
    from airflow_delta.ui.reader import schedule

    for ask in range(2):
        assert client().get(page("table", known)).status_code == 200, ask
        for _, reader in schedule.readers()._idle:
            reader._process.kill()
            reader._process.wait()


def test_a_page_is_read_once_for_many_viewers(known, airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.reader import schedule

    asked, go_on = [], threading.Event()

    def ask(place, what, arguments):
        asked.append(place.uri)
        assert go_on.wait(30)
        return []

    async def look() -> list[object]:
        place, other = (schedule.Place(uri, {}, "one connection") for uri in (f"{known}#1", f"{known}#2"))
        reads = [asyncio.ensure_future(schedule.read_open_transactions(found)) for found in [place] * 50 + [other]]
        await asyncio.sleep(0.05)
        go_on.set()
        return await asyncio.gather(*reads)

    monkeypatch.setattr(schedule, "_ask", ask)
    assert asyncio.run(look()) == [[]] * 51
    assert sorted(asked) == [f"{known}#1", f"{known}#2"]


def test_a_listing_that_takes_long_holds_up_no_history(airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.reader import schedule

    listed, go_on = [], threading.Event()

    def ask(place, what, arguments):
        if what == "history":
            return {"commits": []}
        listed.append(place.uri)
        assert go_on.wait(30)
        return []

    async def look() -> list[object]:
        places = [schedule.Place(f"slow/{number}", {}, "slow") for number in range(4)]
        listings = [asyncio.ensure_future(schedule.read_open_transactions(place)) for place in places]
        await asyncio.gather(*(schedule.history_of_table(place, limit=1, before=None) for place in places))
        assert listed == ["slow/0"]
        go_on.set()
        return await asyncio.gather(*listings)

    monkeypatch.setattr(schedule, "_ask", ask)
    assert asyncio.run(look()) == [[]] * 4
    assert len(listed) == 4


def test_of_one_connection_two_reads_are_under_way_at_a_time(airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.reader import schedule

    running, most, lock = {"a": 0, "b": 0}, {"a": 0, "b": 0}, threading.Lock()

    def ask(place, what, arguments):
        name = place.connection
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])
        time.sleep(0.02)
        with lock:
            running[name] -= 1
        return {"commits": []}

    async def look() -> list[object]:
        places = [schedule.Place(f"{name}/{number}", {}, name) for number in range(12) for name in ("a", "b")]
        return await asyncio.gather(*(schedule.history_of_table(place, limit=1, before=None) for place in places))

    monkeypatch.setattr(schedule, "_ask", ask)
    assert len(asyncio.run(look())) == 24
    assert most == {"a": 2, "b": 2}


def test_many_dead_endpoints_leave_readers_to_the_others(airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.reader import schedule

    ended = threading.Event()

    def ask(place, what, arguments):
        if place.connection.startswith("dead"):
            ended.wait(30)
        return {"commits": []}

    async def look() -> list[object]:
        def read(connection: str, number: int) -> asyncio.Future[object]:
            place = schedule.Place(f"{connection}/{number}", {}, connection)
            return asyncio.ensure_future(schedule.history_of_table(place, limit=1, before=None))

        await read("known", 0)
        dead = [read(f"dead{connection}", number) for connection in range(10) for number in range(2)]
        await asyncio.sleep(0.1)
        try:
            return await asyncio.wait_for(asyncio.gather(*(read("known", number) for number in range(1, 9))), 10)
        finally:
            ended.set()
            await asyncio.gather(*dead)

    monkeypatch.setattr(schedule, "_ask", ask)
    assert len(asyncio.run(look())) == 8


def test_too_many_that_wait_are_told_so(airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.problems import PageProblem
    from airflow_delta.ui.reader import schedule

    go_on = threading.Event()
    monkeypatch.setattr(schedule, "WAITING_FOR_A_CONNECTION", 3)
    monkeypatch.setattr(schedule, "_ask", lambda *_: go_on.wait(30) and {"commits": []})

    async def look() -> list[object]:
        places = [schedule.Place(f"full/{number}", {}, "full") for number in range(7)]
        reads = [asyncio.ensure_future(schedule.history_of_table(place, limit=1, before=None)) for place in places]
        await asyncio.sleep(0.05)
        go_on.set()
        return await asyncio.gather(*reads, return_exceptions=True)

    answers = asyncio.run(look())
    assert answers[:5] == [{"commits": []}] * 5
    assert [answer.status for answer in answers[5:] if isinstance(answer, PageProblem)] == [503, 503]


@pytest.mark.slow
def test_a_server_under_load_tells_who_is_too_many(airflow_app, client, known, monkeypatch):
    """A real server: requests beyond the queue are refused at once, and the others are answered."""
    import socket
    import threading
    import time
    from collections import Counter
    from concurrent.futures import ThreadPoolExecutor

    import httpx
    import uvicorn

    from airflow_delta.ui import pages
    from airflow_delta.ui.reader import schedule

    token = client().cookies["_token"]
    found = pages._located

    def slowly(*arguments):
        time.sleep(0.05)
        return found(*arguments)

    monkeypatch.setattr(pages, "_located", slowly)
    monkeypatch.setattr(schedule, "WAITING_FOR_A_THREAD", 20)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # By default it closes what was idle for as long as the client would use it again, which may happen at once.
    config = uvicorn.Config(airflow_app, port=port, log_level="error", lifespan="off", timeout_keep_alive=600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        with httpx.Client(cookies={"_token": token}, limits=httpx.Limits(max_connections=None), timeout=180) as browser:
            url = f"http://127.0.0.1:{port}{page('api/table', known)}"
            with ThreadPoolExecutor(80) as pool:
                for _ in range(20):  # a busy machine may ask too slowly
                    answers = list(pool.map(lambda _: browser.get(url), range(160)))
                    if any(answer.status_code == 503 for answer in answers):
                        break
            states = Counter(answer.status_code for answer in answers)
            assert set(states) == {200, 503}
            assert states[200] >= schedule.WAITING_FOR_A_THREAD
            refused = next(answer for answer in answers if answer.status_code == 503)
            assert refused.headers["Retry-After"] == "5"
            assert refused.json()["title"].startswith("Too many pages are ")
            assert browser.get(url).status_code == 200
            assert schedule._process().web.waiting == 0
    finally:
        server.should_exit = True
        thread.join(20)


def test_a_commit_is_read_once_and_again_when_it_is_another(client, known):
    from airflow_delta.ui.reader import schedule

    first = client().get(page("api/table", known)).json()
    kept = schedule.remembered()._commits
    assert any(set(commits) == {0, 1, 2, 3} for commits in kept.values())
    assert client().get(page("api/table", known)).json() == first
    detail = client().get(page("api/commit", known, version=3)).json()
    assert client().get(page("api/commit", known, version=3)).json() == detail
    write_commit(known, 3, info("DELETE", read_version=2), add("other.parquet"))
    again = client().get(page("api/table", known)).json()["commits"]
    assert [commit["operation"] for commit in again] == ["DELETE", *(commit["operation"] for commit in first["commits"][1:])]
    assert client().get(page("api/commit", known, version=3)).json()["commit"]["operation"] == "DELETE"


def test_what_is_remembered_has_a_limit(monkeypatch):
    from airflow_delta.ui.reader import cache

    monkeypatch.setattr(cache, "MAX_BYTES", 10_000)
    memory = cache.Remembered()
    for number in range(100):
        memory.keep(("page", number), "x" * 300)
        memory.keep_commit(f"table {number % 10}", number, {"version": number, "stamp": [1, 2], "note": "y" * 300})
    assert memory._bytes <= 10_000
    assert memory._bytes == sum(len(kept.text) for kept in memory._results.values()) + sum(
        len(text) for commits in memory._commits.values() for _, text in commits.values()
    )
    memory.keep(("page",), [1])
    assert (memory.fresh(("page",), 60.0), memory.fresh(("page",), 0.0)) == ([1], None)


def test_a_large_commit_on_its_pages(client, airflow, tmp_path, monkeypatch):
    path = tmp_path / "large"
    create_table(path)
    files = (add(f"{number:06}-{'x' * 200}.parquet") for number in range(130_000))
    write_commit(path, 1, info(operation="WRITE", read_version=0, operation_metrics={"numFiles": "130000"}), *files)
    airflow.asset(str(path))
    assert "too large to show" in client().get(page("table", str(path))).text
    told = client().get(page("commit", str(path), version=1)).text
    assert "This commit is too large to show" in told
    assert "130000" in told
    assert "000000-xx" in told


def test_transactions_are_loaded_on_demand(client, known):
    text = client().get(page("table", known)).text
    assert "data-load-now" in text
    assert client().get("/delta-tables/static/delta.js").text.count("load(part)") == 1


def test_no_page_shows_credentials(client, airflow, tmp_path):
    """In the endpoint of a connection, in an error of the storage, in what a log says, in the address itself."""
    options = {"AWS_ENDPOINT_URL": "http://user:hush-hush@127.0.0.1:1", "AWS_REGION": "x", "aws_new_thing": "unknown-thing"}
    options |= {"timeout": "1s", "connect_timeout": "1s", "AWS_CONDITIONAL_PUT": "etag"}
    airflow.connection("broken", "s3://broken/lake", extra=json.dumps({"storage_options": {**options, "no such option": "x"}}))
    airflow.connection("place", "s3://key:hush-hush@bucket/lake")
    path = tmp_path / "told"
    create_table(path, configuration={"my.secret.key": "hush-hush", "owner": "me"}, description="http://u:hush-hush@h/")
    said = {"source": "s3a://u:hush-hush@b/x", "password": "hush-hush", "properties": '{"a.token":"hush-hush"}'}
    write_commit(path, 1, info(operation_parameters=said, user_metadata="https://h/?sig=hush-hush"), add("a.parquet"))
    airflow.event(airflow.asset(str(path)), str(path), 1)
    airflow.event(airflow.asset("odd", uri="delta://s3/key:hush-hush@bucket/odd"), "s3://key:hush-hush@bucket/odd", 1)
    urls = [
        "/delta-tables/",
        page("table", str(path)),
        page("commit", str(path), version=0),
        page("commit", str(path), version=1),
    ]
    urls += ["/delta-tables/api/tables", page("api/commit", str(path), version=1)]
    urls += [page("table", "s3://broken/lake/t"), page("table", "s3://key:hush-hush@bucket/t")]
    seen = [client("admin").get(url) for url in urls]
    assert [answer.status_code for answer in seen] == [200] * 6 + [502, 400]
    for url, answer in zip(urls, seen, strict=True):
        assert "hush-hush" not in answer.text, url
        assert "unknown-thing" not in answer.text, url
    assert "owner" in seen[2].text


def test_an_error_keeps_the_secrets_of_the_connection(airflow_app):
    from airflow.sdk.log import mask_secret

    from airflow_delta.ui.problems import of_error

    mask_secret("a-key-that-is-secret")
    assert "a-key-that" not in of_error(OSError("refused: key=a-key-that-is-secret"), "s3://lake/x").detail


def test_below_a_path_every_link_keeps_it(airflow_app, client, known):
    """Airflow at ``[api] base_url = https://host/airflow``."""
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from airflow_delta.ui.pages import create_app

    root = FastAPI(root_path="/airflow")
    root.mount("/delta-tables", create_app())
    browser = TestClient(root, cookies=client("op").cookies, follow_redirects=False)
    for url in (page("table", known), page("commit", known, version=3), "/delta-tables/"):
        answer = browser.get(f"/airflow{url}")
        assert answer.status_code == 200
        links = re.findall(r'(?:href|src|action|data-load|data-shell)="([^"]*)"', answer.text)
        assert links
        assert [link for link in links if not link.startswith(("/airflow/", "#"))] == []
    login = TestClient(root, follow_redirects=False).get("/airflow/delta-tables/").headers["location"]
    assert login.startswith("/airflow/api/v2/auth/login?")
    assert parse_qs(urlsplit(login).query)["next"] == ["/airflow/plugin/delta-tables/airflow/delta-tables/"]


def test_every_answer_keeps_the_browser_at_home(client, known):
    for answer in (
        client().get(page("table", known)),
        client().get("/delta-tables/nowhere"),
        client().get("/delta-tables/static/delta.css"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    assert client(None).get("/delta-tables/static/delta.css").status_code == 200
    assert client(None).get("/delta-tables/static/../pages.py").status_code in (303, 404)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("TaskOutletAssetReference", "Transactions without a commit"),
        ("DagRun", "Data intervals"),
    ],
)
def test_a_page_without_a_part_of_airflow_says_what_it_lacks(client, known, monkeypatch, name, what):
    from airflow_delta.airflow_internals import database

    monkeypatch.setitem(database._MODULES, name, "airflow.models.gone")
    for url in (page("table", known), page("commit", known, version=3), "/delta-tables/"):
        answer = client().get(url)
        assert answer.status_code == 200
        if what == "Transactions without a commit" and "commit?" in url:
            assert "cannot be shown on this Airflow" not in answer.text
        elif name != "DagRun" or "table?" in url:
            assert f"{what} cannot be shown on this Airflow" in answer.text
