"""The rows of a commit: who may read them, what is shown of which commit, and where the reading ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.exceptions import ReadLimitException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector
from airflow_delta.ui import commit_rows
from airflow_delta.ui.commit_rows import RowsGoneError, RowsNotShownError, rows_of_commit
from support.actions import add, info, metadata, protocol, remove
from support.tables import commit_path, create_table, write_commit

NAMES = ["a", "b", "c"]


def url(name: str, table: Path | str, version: int, **parameters: object) -> str:
    return f"/delta-tables/{name}?{urlencode({'table': table, 'version': version, **parameters})}"


def rows(ids: list[int], names: list[str]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": names})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Written by delta-rs: three rows, a MERGE, a DELETE, and an OPTIMIZE."""
    path = tmp_path / "people"
    deltalake.write_deltalake(path, rows([1, 2, 3], NAMES))
    merge = deltalake.DeltaTable(path).merge(rows([2, 4], ["B", "d"]), "target.id = source.id", "source", "target")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    deltalake.DeltaTable(path).delete("id = 3")
    deltalake.write_deltalake(path, rows([5], ["e"]), mode="append")
    deltalake.DeltaTable(path).optimize.compact()
    return path


def told(table: Path, version: int) -> dict[str, Any]:
    """The rows of a commit, as the reader's process sends them."""
    return json.loads(json.dumps(rows_of_commit(DeltaLog.for_table(str(table)), version), allow_nan=False))


def counts(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("exact", "added", "removed", "changed"))


# -- what a commit did --------------------------------------------------------------------------------------------------------


def test_the_first_commit_adds_its_rows(table):
    found = told(table, 0)
    assert counts(found) == (True, 3, 0, None)
    assert found["columns"] == ["id", "name"]
    assert sorted(found["sample"]["added"]) == [["1", "a"], ["2", "b"], ["3", "c"]]
    assert found["summary"] == "Compared with a new table: 3 rows added, 0 rows removed."


def test_a_merge_tells_what_changed_by_the_keys_of_its_condition(table):
    found = told(table, 1)
    assert (found["keys"], counts(found)) == (["id"], (True, 1, 0, 1))
    assert found["sample"]["added"] == [["4", "d"]]
    assert found["sample"]["changed"] == [{"before": ["2", "b"], "after": ["2", "B"], "differs": [False, True]}]


def test_a_delete(table):
    found = told(table, 2)
    assert counts(found) == (True, 0, 1, None)
    assert found["sample"]["removed"] == [["3", "c"]]


def test_an_optimize_changes_no_row(table):
    assert deltalake.DeltaTable(table).history(1)[0]["operation"] == "OPTIMIZE"
    assert counts(told(table, 4)) == (True, 0, 0, None)


def test_metadata_alone_changes_no_row(table):
    write_commit(table, 5, info("SET TBLPROPERTIES"))
    assert counts(told(table, 5)) == (True, 0, 0, None)


def test_a_partitioned_table(tmp_path):
    path = tmp_path / "parts"
    deltalake.write_deltalake(path, rows([1, 2, 3], ["x", "x", "y z"]), partition_by=["name"])
    deltalake.write_deltalake(path, rows([9], ["x"]), mode="overwrite", predicate="name = 'x'")
    found = told(path, 1)
    assert counts(found) == (True, 1, 2, None)
    assert (found["sample"]["added"], sorted(found["sample"]["removed"])) == ([["9", "x"]], [["1", "x"], ["2", "x"]])


def parquet(table: Path, name: str, rows: pa.Table) -> dict[str, Any]:
    pq.write_table(rows, table / name)
    return {"size": (table / name).stat().st_size, "stats": json.dumps({"numRecords": rows.num_rows})}


def test_of_a_deletion_vector_the_rows_that_it_adds(tmp_path):
    path = tmp_path / "vectors"
    features = {"reader_features": ["deletionVectors"], "writer_features": ["deletionVectors"]}
    path.mkdir()
    said = parquet(path, "a.parquet", pa.table({"id": list(range(10)), "part": ["p"] * 10}))
    first, second = (inline_deletion_vector(BitMap64(marked)) for marked in ([0, 1], [0, 1, 5, 7]))
    write_commit(path, 0, protocol(3, 7, **features), metadata(), add("a.parquet", **said, deletion_vector=first))
    before = remove("a.parquet", size=said["size"], deletion_vector=first)
    write_commit(path, 1, info("DELETE"), before, add("a.parquet", **said, deletion_vector=second))
    assert counts(told(path, 0)) == (True, 8, 0, None)
    found = told(path, 1)
    assert counts(found) == (True, 0, 2, None)
    assert found["sample"]["removed"] == [["5", "p"], ["7", "p"]]


def test_column_mapping(tmp_path):
    path = tmp_path / "mapped"
    path.mkdir()
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    fields = [{"name": "the name", "type": "string", "nullable": True, "metadata": mapped}]
    said = parquet(path, "a.parquet", pa.table({"col-1": ["x", None]}))
    schema = json.dumps({"type": "struct", "fields": fields})
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    write_commit(path, 0, protocol(2, 5), metadata(schema_string=schema, configuration=configuration), add("a.parquet", **said))
    found = told(path, 0)
    assert (found["columns"], found["sample"]["added"]) == (["the name"], [["x"], [None]])


def test_values_are_short_texts(tmp_path):
    path = tmp_path / "values"
    row = {"s": "x" * 500, "l": list(range(200)), "m": {"k": "v"}, "b": True, "n": None, "f": float("nan")}
    schema = {"n": pa.string(), "m": pa.struct([("k", pa.string())])}
    columns = {name: pa.array([value], schema.get(name)) for name, value in row.items()}
    deltalake.write_deltalake(path, pa.table(columns))
    found = told(path, 0)
    shown = dict(zip(found["columns"], found["sample"]["added"][0], strict=True))
    assert shown["s"] == "x" * 100 + "…"
    assert shown["l"].startswith("[0, 1, 2")
    assert len(shown["l"]) == 101
    assert (shown["m"], shown["b"], shown["n"], shown["f"]) == ('{"k": "v"}', "true", None, "nan")


# -- where the reading ends ---------------------------------------------------------------------------------------------------


def test_a_sample_is_short(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", rows(list(range(1000)), ["x"] * 1000))
    found = told(tmp_path / "t", 0)
    assert (found["added"], len(found["sample"]["added"])) == (1000, 20)


def test_a_wide_table_shows_the_keys_and_what_changed(tmp_path):
    path = tmp_path / "wide"
    names = [f"c{number}" for number in range(100)]
    wide = pa.table({**{name: [1, 2] for name in names}, "id": [1, 2]})
    deltalake.write_deltalake(path, wide)
    source = wide.slice(0, 1).set_column(99, "c99", pa.array([7]))
    merge = deltalake.DeltaTable(path).merge(source, "target.id = source.id", "source", "target")
    merge.when_matched_update_all().execute()
    found = told(path, 1)
    assert (len(found["columns"]), found["num_columns"], found["changed"]) == (40, 101, 1)
    assert found["columns"][-2:] == ["c99", "id"]


@pytest.mark.parametrize("limit", [{"FILES": 1}, {"DATA_BYTES": 10}, {"VALUES": 1}, {"ROWS": 1}])
def test_beyond_a_limit_counts_are_bounds_and_no_row_is_read(table, monkeypatch, limit):
    for name, value in limit.items():
        monkeypatch.setattr(commit_rows, name, value)
    for name in table.glob("*.parquet"):
        name.unlink()
    found = told(table, 1)
    assert counts(found) == (False, 4, None, None)  # delta-rs removes files without their statistics
    assert found["sample"] == {"added": [], "removed": [], "changed": []}


def test_of_rows_that_only_come_the_smallest_files_are_read(tmp_path, monkeypatch):
    path = tmp_path / "t"
    create_table(path)
    small, large = (pa.table({"id": range(number), "part": ["p"] * number}) for number in (3, 5000))
    said = {name: parquet(path, f"{name}.parquet", rows) for name, rows in (("large", large), ("small", small))}
    write_commit(path, 1, info(), *(add(f"{name}.parquet", **one) for name, one in said.items()))
    monkeypatch.setattr(commit_rows, "DATA_BYTES", said["small"]["size"])
    (path / "large.parquet").unlink()
    found = told(path, 1)
    assert (counts(found), len(found["sample"]["added"])) == ((True, 5003, 0, None), 3)
    monkeypatch.setattr(commit_rows, "DATA_BYTES", 1)
    assert told(path, 1)["sample"]["added"] == []


def test_a_commit_that_is_too_large_is_not_decoded(table, monkeypatch):
    monkeypatch.setattr(commit_rows, "MAX_COMMIT_BYTES", 10)
    with pytest.raises(ReadLimitException, match=r"The commit of version 1 of table .* are read"):
        told(table, 1)


@pytest.mark.parametrize("path", ["file:///etc/other.parquet", "/etc/other.parquet", "../other.parquet", "%2e%2e/other.parquet"])
def test_a_file_outside_the_table_is_not_read(tmp_path, path):
    create_table(tmp_path / "t")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "other.parquet")
    write_commit(tmp_path / "t", 1, info(), add(path))
    with pytest.raises(RowsNotShownError, match="outside the table's directory"):
        told(tmp_path / "t", 1)


def test_files_that_vacuum_has_deleted(table):
    vacuumed = deltalake.DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert vacuumed
    with pytest.raises(RowsGoneError, match="VACUUM deletes"):
        told(table, 1)


def test_a_commit_that_was_cleaned_up(table):
    log = DeltaLog.for_table(str(table))
    log.checkpoint(log.snapshot_at(2))
    commit_path(table, 0).unlink()
    commit_path(table, 1).unlink()
    for version in (0, 1, 99):
        with pytest.raises(VersionNotFoundException):
            told(table, version)
    # Of the first one that is left, the version before it is not needed.
    assert counts(told(table, 2)) == (True, 0, 1, None)


# -- on the pages -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(airflow, table) -> Path:
    airflow.asset(str(table))
    return table


@pytest.mark.airflow
def test_rows_are_for_those_who_may_edit_the_connection(client, known):
    for user, status in (("viewer", 403), ("op", 200), ("admin", 200)):
        page = client(user).get(url("commit", known, 1))
        assert (page.status_code, "Rows of this commit" in page.text) == (200, status == 200)
        assert (client(user).get(url("api/commit", known, 1)).json()["rows_url"] is None) == (status == 403)
        for name in ("rows", "api/rows"):
            answer = client(user).get(url(name, known, 1, part=1))
            assert answer.status_code == status
            assert ('"4"' in answer.text or ">4<" in answer.text) == (status == 200)
    refused = client("viewer").get(url("api/rows", known, 1)).json()
    assert refused["title"] == "You may not read rows of this table"
    assert client("").get(url("rows", known, 1)).status_code == 403
    assert client(None).get(url("api/rows", known, 1)).status_code == 401
    assert client("op").get(url("rows", known.parent / "unknown", 1)).status_code == 404


@pytest.mark.airflow
def test_the_connection_that_reaches_the_table_decides(client, airflow, table, monkeypatch):
    from ui.auth_manager import ScopedAuthManager

    asked = []
    decide = ScopedAuthManager.is_authorized_connection

    def ask(self, *, method, user, details=None):
        asked.append((method, details.conn_id))
        return decide(self, method=method, user=user, details=details)

    monkeypatch.setattr(ScopedAuthManager, "is_authorized_connection", ask)
    airflow.connection("lake", str(table.parent))
    airflow.ask_again()
    assert client("viewer").get(url("rows", table, 1)).status_code == 403
    assert asked[-1] == ("PUT", "lake")
    assert client("op").get(url("rows", table, 1)).status_code == 200
    airflow.clear()
    airflow.asset(str(table))
    airflow.ask_again()
    assert client("viewer").get(url("rows", table, 1)).status_code == 403
    assert asked[-1] == ("PUT", "delta_default")


@pytest.mark.airflow
def test_rows_on_a_page_and_as_a_part(client, known):
    page = client("op").get(url("commit", known, 1)).text
    assert f'data-load="{url("rows", known, 1).replace("&", "&amp;")}&amp;part=1"' in page
    whole, part = (client("op").get(url("rows", known, 1, **more)).text for more in ({}, {"part": 1}))
    assert ("<html" in whole, "<html" in part) == (True, False)
    for text in (whole, part):
        assert "Compared with version 0: 1 row added, 0 rows removed, 1 row changed (by id)." in text
        assert '<td class="differs">B</td>' in text
    assert "No row changed." in client("op").get(url("rows", known, 4)).text
    data = client("op").get(url("api/rows", known, 1)).json()
    assert data["sample"]["added"] == [["4", "d"]]
    assert data["command"].startswith(f"airflow delta diff {shlex.quote(str(known))} --version 1")


@pytest.mark.airflow
def test_the_command_that_a_page_names_is_one(client, known):
    """What is beyond the limits, the command line shows."""
    import subprocess
    import sys

    command = shlex.split(client("op").get(url("api/rows", known, 1)).json()["command"])
    assert command[0] == "airflow"
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Version 1.")


@pytest.mark.airflow
def test_values_and_names_are_escaped(client, airflow, tmp_path):
    path = tmp_path / "odd"
    odd = "<script>alert(1)</script>"
    deltalake.write_deltalake(path, pa.table({odd: [odd, "&amp;"], "x": [{'"><img src=x onerror=alert(2)>': odd}] * 2}))
    airflow.asset(str(path))
    for more in ({}, {"part": 1}):
        text = client("op").get(url("rows", path, 0, **more)).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 4
        assert "&amp;amp;" in text
    assert client("op").get(url("api/rows", path, 0)).headers["content-type"] == "application/json"


@pytest.mark.airflow
def test_a_commit_that_is_too_large_names_the_command(client, airflow, tmp_path):
    path = tmp_path / "large one"
    stats = json.dumps({"numRecords": 10**9})
    create_table(path, add("a.parquet", size=1 << 40, stats=stats))
    write_commit(path, 1, info("OVERWRITE"), remove("a.parquet", size=1 << 40), add("b.parquet", size=1 << 40, stats=stats))
    airflow.asset(str(path))
    answer = client("op").get(url("rows", path, 1, part=1))
    assert answer.status_code == 200
    assert "at most 1,000,000,000 rows added" in answer.text
    assert "too large to show rows of it here" in answer.text
    assert f"airflow delta diff &#39;{path}&#39; --version 1" in answer.text


@pytest.mark.airflow
def test_problems_are_pages(client, airflow, known, tmp_path):
    deltalake.DeltaTable(known).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    clone = tmp_path / "clone"
    create_table(clone)
    write_commit(clone, 1, info("CLONE"), add(f"file://{known}/x.parquet"))
    airflow.asset(str(clone))
    airflow.ask_again()
    for name, version, status, title, command in (
        (known, 1, 410, "The files of this commit are gone", False),
        (known, 99, 404, "This commit is not in the log", False),
        (clone, 1, 422, "These rows cannot be shown here", True),
    ):
        part = client("op").get(url("rows", name, version, part=1))
        assert (part.status_code, title in part.text, "<html" in part.text) == (status, True, False)
        assert ("airflow delta diff" in part.text) == command
        assert "Traceback" not in part.text
        assert client("op").get(url("api/rows", name, version)).json()["title"] == title


@pytest.mark.airflow
def test_no_answer_has_the_credentials_of_the_storage(client, airflow, tmp_path):
    """In an error of the storage, and among the rows themselves."""
    options = {"AWS_ENDPOINT_URL": "http://user:hush-hush@127.0.0.1:1", "AWS_REGION": "x", "AWS_SECRET_ACCESS_KEY": "hush-key"}
    options |= {"timeout": "1s", "connect_timeout": "1s", "max_retries": "0"}
    airflow.connection("broken", "s3://broken/lake", extra=json.dumps({"storage_options": options}))
    answer = client("admin").get(url("rows", "s3://broken/lake/t", 1, part=1))
    assert answer.status_code in (502, 504)
    assert "hush" not in answer.text
    path = tmp_path / "lake" / "rows"
    deltalake.write_deltalake(path, rows([1], ["the key is hush-key"]))
    airflow.connection("local", str(tmp_path / "lake"), extra=json.dumps({"storage_options": {"aws_secret": "hush-key"}}))
    airflow.ask_again()
    text = client("admin").get(url("rows", path, 0)).text
    assert "hush" not in text


@pytest.mark.airflow
def test_rows_and_listings_hold_up_no_history(airflow_app, monkeypatch):
    import asyncio
    import threading

    from airflow_delta.ui.place import Place
    from airflow_delta.ui.reader import schedule

    asked, go_on = [], threading.Event()

    def ask(place, what, arguments):
        if what == "history":
            return {"commits": []}
        asked.append((what, place.uri))
        assert go_on.wait(30)
        return []

    async def look() -> None:
        places = [Place(f"rows/{number}", {}, "rows") for number in range(3)]
        slow = [asyncio.ensure_future(schedule.commit_rows(place, 0)) for place in places]
        slow.append(asyncio.ensure_future(schedule.read_open_transactions(places[0])))
        await asyncio.gather(*(schedule.history_of_table(place, limit=1, before=None) for place in places))
        assert asked == [("rows", "rows/0")]
        go_on.set()
        await asyncio.gather(*slow)

    monkeypatch.setattr(schedule, "_ask", ask)
    asyncio.run(look())
    assert len(asked) == 4
