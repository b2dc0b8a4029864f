"""What the page of a table says it is: columns, properties, number and bytes of files, and why something is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.exceptions import DeltaTableNotFoundException, ReadLimitException
from airflow_delta.log import DeltaLog
from airflow_delta.ui.table_state import table_state
from support.actions import add, info, metadata, protocol
from support.tables import create_table, table_with_commits, write_commit


def state_of(table: Path) -> dict[str, object]:
    return json.loads(json.dumps(table_state(DeltaLog.for_table(str(table)))))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A partitioned table of delta-rs: it writes checkpoints, and no checksums."""
    path = tmp_path / "orders"
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "month": ["a", "b"], "price": pa.array([1, None], pa.decimal128(9, 2))})
    deltalake.write_deltalake(path, rows, partition_by=["month"], configuration={"delta.appendOnly": "false"})
    deltalake.write_deltalake(path, rows, mode="append")
    return path


def test_a_table_tells_what_it_is(table):
    found = state_of(table)
    other = deltalake.DeltaTable(table)
    files = pa.table(other.get_add_actions())
    assert (found["num_files"], found["size_in_bytes"]) == (files.num_rows, sum(files["size_bytes"].to_pylist()))
    assert (found["num_records"], found["unknown"], found["version"]) == (4, {}, 1)
    told = found["metadata"]
    assert [(column["name"], column["type"]) for column in told["columns"]] == [
        ("id", "bigint"),
        ("month", "string"),
        ("price", "decimal(9,2)"),
    ]
    assert (told["partition_columns"], told["configuration"]) == (["month"], {"delta.appendOnly": "false"})
    assert found["protocol"]["min_reader_version"] == other.protocol().min_reader_version


def test_what_only_the_list_of_files_tells_is_unknown(table, monkeypatch):
    deltalake.DeltaTable(table).create_checkpoint()
    monkeypatch.setattr("airflow_delta.log.snapshot.Snapshot.read_with_checkpoint", None)  # that reads the list
    found = state_of(table)
    assert (found["num_files"], found["size_in_bytes"], found["num_records"]) == (None, None, None)
    assert set(found["unknown"]) == {"num_files", "size_in_bytes", "num_records"}
    assert "No checksum file" in found["unknown"]["num_files"]
    assert [column["name"] for column in found["metadata"]["columns"]] == ["id", "month", "price"]


def test_rows_of_many_files_are_unknown_and_their_bytes_are_not(tmp_path):
    create_table(tmp_path / "many", *(add(f"{number}.parquet", size=10) for number in range(60)))
    found = state_of(tmp_path / "many")
    assert (found["num_files"], found["size_in_bytes"], found["num_records"]) == (60, 600, None)
    assert list(found["unknown"]) == ["num_records"]


def test_a_file_without_a_row_count(tmp_path):
    create_table(tmp_path / "t", add("a.parquet", stats=None))
    assert state_of(tmp_path / "t")["unknown"] == {"num_records": "Some files have no row count in their statistics."}


def test_a_table_that_needs_a_newer_reader_keeps_its_columns(tmp_path):
    write_commit(tmp_path / "new", 0, info(), protocol(3, 7, reader_features=["later"], writer_features=["later"]), metadata())
    found = state_of(tmp_path / "new")
    assert found["metadata"]["columns"][0]["name"] == "id"
    assert "cannot read the table" in found["unknown"]["num_files"]


def test_a_wide_table_tells_its_first_columns(tmp_path, monkeypatch):
    from airflow_delta.ui import metadata

    deltalake.write_deltalake(tmp_path / "wide", pa.table({f"c{number}": [1] for number in range(30)}))
    monkeypatch.setattr(metadata, "MAX_COLUMNS", 10)
    told = state_of(tmp_path / "wide")["metadata"]
    assert (len(told["columns"]), told["num_columns"]) == (10, 30)


@pytest.mark.parametrize(("limit", "value"), [("MAX_COMMITS", 3), ("MAX_TAIL_BYTES", 100)])
def test_a_long_log_without_checksums_is_not_read(tmp_path, monkeypatch, limit, value):

    path = table_with_commits(tmp_path / "long", 5)
    for checksum in (path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    assert state_of(path)["num_files"] == 6
    monkeypatch.setattr(f"airflow_delta.ui.{'table_state' if limit == 'MAX_COMMITS' else 'limits'}.{limit}", value)
    with pytest.raises(ReadLimitException, match="since its last checksum or checkpoint"):
        state_of(path)


def test_no_table(tmp_path):
    with pytest.raises(DeltaTableNotFoundException):
        state_of(tmp_path / "none")


# -- on the page --------------------------------------------------------------------------------------------------------------


def page(name: str, table: Path, **parameters: object) -> str:
    query = "".join(f"&{key}={value}" for key, value in parameters.items())
    return f"/delta-tables/{name}?table={quote(str(table), safe='')}{query}"


@pytest.mark.airflow
def test_the_page_shows_it(client, airflow, table):
    airflow.asset(str(table))
    text = client().get(page("table", table)).text
    for shown in (
        "decimal(9,2)",
        "delta.appendOnly",
        "<dt>Partitioned by</dt>",
        "<dt>Files</dt><dd>4</dd>",
        "<dt>Rows</dt><dd>4",
    ):
        assert shown in text, shown
    assert client().get(page("api/table", table)).json()["state"]["num_files"] == 4
    assert client().get(page("api/table", table, before=1)).json()["state"] is None
    deltalake.DeltaTable(table).create_checkpoint()
    text = client().get(page("table", table)).text
    assert "Files, size, rows unknown: No checksum file" in text
    assert text.count(">unknown</span>") == 3


@pytest.mark.airflow
def test_a_state_that_cannot_be_read_costs_no_history(client, airflow, tmp_path):
    path = table_with_commits(tmp_path / "damaged", 40)
    for checksum in (path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    (path / "_delta_log" / f"{3:020}.json").write_bytes(b"this is no commit\n")
    airflow.asset(str(path))
    answer = client().get(page("table", path))
    assert (answer.status_code, "Schema and size are unknown" in answer.text) == (200, True)
    found = client().get(page("api/table", path)).json()
    assert (len(found["commits"]), found["state"]["problem"]["title"]) == (30, "The log of this table is damaged")
