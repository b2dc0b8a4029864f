"""The publications on a table's page: one row each, with its state, its versions and the tables that the user may see."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from support.actions import add, info, txn
from support.tables import create_table, write_commit

pytestmark = pytest.mark.airflow

DONE = "5e1f.41d0a7c2b3d4e5f6.1c22aa01.88f0e3b2"
OPEN = "77aa.00d0a7c2b3d4e5f6.1c22aa01.88f0e3b2"


def entry(publication: str, state: int, name: str, tables: list[str]) -> dict:
    tags = {
        "airflow.publication": publication,
        "airflow.publicationState": name,
        "airflow.publicationAnchor": tables[0],
        "airflow.publicationTables": json.dumps(tables),
    }
    app = "airflow.intent" if name == "intent" else "airflow.publication"
    return info("WRITE" if name == "published" else f"PUBLICATION {name.upper()}", tags=tags), txn(f"{app}/{publication}", state)


@pytest.fixture
def tables(tmp_path, airflow) -> list[Path]:
    paths = [tmp_path / name for name in ("orders", "lines")]
    uris = [str(path) for path in paths]
    for path in paths:
        create_table(path)
        airflow.asset(str(path))
    orders, lines = paths
    write_commit(lines, 1, *entry(DONE, 0, "intent", uris))
    write_commit(orders, 1, *entry(DONE, 1, "published", uris), add("a"))
    write_commit(lines, 2, *entry(DONE, 1, "published", uris), add("a"))
    write_commit(lines, 3, *entry(OPEN, 0, "intent", [*uris, "/elsewhere/secret"]))
    return paths


def page(kind: str, table: Path) -> str:
    return f"/delta-tables/{kind}?table={quote(str(table), safe='')}"


def test_one_row_for_each(client, tables):
    orders, lines = tables
    found = client("viewer").get(page("api/table", lines)).json()["publications"]
    assert [(one["publication"], one["state"]) for one in found] == [(OPEN, "intent"), (DONE, "published")]
    assert [(entry["version"], entry["state"]) for entry in found[1]["entries"]] == [(1, "intent"), (2, "published")]
    assert [table["name"] for table in found[1]["tables"]] == ["orders", "lines"]
    assert (len(found[0]["tables"]), found[0]["num_hidden"], found[0]["settle"]) == (2, 1, None)
    assert "/elsewhere/secret" not in json.dumps(found)
    (only,) = client("viewer").get(page("api/table", orders)).json()["publications"]
    assert (only["publication"], only["state"]) == (DONE, "published")


def test_its_state_on_every_table_with_links(client, tables):
    orders, lines = tables
    open_one, done = client("viewer").get(page("api/table", lines)).json()["publications"]
    assert [(table["name"], table["state"]) for table in done["tables"]] == [("orders", "published"), ("lines", "published")]
    (entry,) = done["tables"][0]["entries"]
    assert entry["version"] == 1
    assert client("viewer").get(entry["url"]).status_code == 200
    assert [(table["state"], table["problem"]) for table in open_one["tables"]] == [
        (None, "not in its newest 2 commits"),
        ("intent", None),
    ]
    (only,) = client("viewer").get(page("api/table", orders)).json()["publications"]
    assert [[entry["version"] for entry in table["entries"]] for table in only["tables"]] == [[1], [1, 2]]


@pytest.mark.parametrize("damage", ["gone", "not a log", "no commits"])
def test_a_table_that_cannot_be_read_says_so(client, tables, damage):
    orders, lines = tables
    if damage == "gone":
        shutil.rmtree(orders)
    elif damage == "no commits":
        shutil.rmtree(orders / "_delta_log")
    else:
        for entry in (orders / "_delta_log").glob("*.json"):
            entry.write_bytes(b"\x00 no log")
    answer = client("viewer").get(page("api/table", lines))
    assert answer.status_code == 200
    told = [one["tables"][0] for one in answer.json()["publications"]]
    assert all(table["state"] is None and table["problem"] for table in told), told
    html = client("viewer").get(page("table", lines))
    assert html.status_code == 200
    assert told[0]["problem"].partition(":")[0] in html.text


def test_the_page_says_who_may_settle_an_open_one(client, tables):
    text = client("viewer").get(page("table", tables[1])).text
    assert "Publications of several tables" in text
    assert f'data-publication="{OPEN}"' in text
    assert "airflow delta settle" in text
    assert "and 1 that you may not see" in text
    # One word for a state, in the colour of what it means.
    assert re.findall(r'<span class="state (\w+)">(\w+)</span>', text) == [("open", "open"), ("published", "published")]
    assert "intent" not in re.findall(r'class="as">([^<]*)<', text)


def test_tags_that_are_no_publication(client, tmp_path, airflow):
    path = tmp_path / "odd"
    create_table(path)
    airflow.asset(str(path))
    for version, tags in enumerate(
        [
            {"airflow.publication": "x", "airflow.publicationState": "<script>"},
            {"airflow.publication": "y", "airflow.publicationState": "intent", "airflow.publicationTables": "{"},
            {"airflow.publication": "z", "airflow.publicationState": "intent", "airflow.publicationTables": "7"},
        ],
        1,
    ):
        write_commit(path, version, info("WRITE", tags=tags))
    answer = client("viewer").get(page("table", path))
    assert answer.status_code == 200
    assert "<script>" not in answer.text.replace("<script src", "").replace("<script defer", "")
