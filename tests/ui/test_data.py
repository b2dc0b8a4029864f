"""What the pages read of a log: tables written by hand, no Airflow."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import DeltaTableNotFoundException, ReadLimitException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint import part as checkpoint_part
from airflow_delta.ui import data, limits, metadata
from airflow_delta.ui.problems import of_error
from support.actions import add, info, remove, txn
from support.tables import commit_path, create_table, table_with_commits, write_commit


def log_of(table) -> DeltaLog:
    return DeltaLog.for_table(str(table))


@pytest.fixture
def table(tmp_path):
    return tmp_path / "sales"


def test_a_history_is_paged_and_knows_where_it_begins(table):
    table_with_commits(table, 7)
    first = data.history(log_of(table), limit=3)
    assert [commit["version"] for commit in first["commits"]] == [7, 6, 5]
    assert (first["version"], first["older"], first["newer"], first["begins_at"]) == (7, 5, None, None)
    second = data.history(log_of(table), limit=3, before=first["older"])
    assert [commit["version"] for commit in second["commits"]] == [4, 3, 2]
    assert (second["older"], second["newer"]) == (2, 8)
    last = data.history(log_of(table), limit=3, before=second["older"])
    assert [commit["version"] for commit in last["commits"]] == [1, 0]
    assert (last["older"], last["newer"], last["begins_at"]) == (None, 5, None)


def test_a_history_is_plain_json(table):
    table_with_commits(table, 2)
    assert json.loads(json.dumps(data.history(log_of(table))))["commits"][0]["num_added_files"] == 1


def test_a_history_reads_only_the_commits_of_its_page(table):
    table_with_commits(table, 60)
    commit_path(table, 3).write_bytes(b"this is no commit\n")
    # The snapshot is not decoded, and neither is any commit that the page does not show.
    assert data.history(log_of(table), limit=5)["commits"][-1]["version"] == 56


def test_a_long_page_does_not_hold_all_its_commits_at_once(table, monkeypatch):
    table_with_commits(table, 45)
    log, at_once = log_of(table), []
    read = log.read_commit_range
    monkeypatch.setattr(log, "read_commit_range", lambda versions: at_once.append(len(versions)) or read(versions))
    page = data.history(log, limit=40, before=44)
    assert [commit["version"] for commit in page["commits"]] == list(range(43, 3, -1))
    assert page["older"] == 4
    assert max(at_once) <= 10


def test_no_table_is_a_page(table):
    with pytest.raises(DeltaTableNotFoundException) as raised:
        data.history(log_of(table))
    problem = of_error(raised.value, str(table))
    assert problem.status == 404
    assert str(table) in problem.detail


@pytest.fixture
def small_limits(monkeypatch):
    """Commits of more than a kilobyte are large, and a page decodes three of them."""
    monkeypatch.setattr(data, "MAX_COMMIT_BYTES", 1_000)
    monkeypatch.setattr(data, "MAX_PAGE_BYTES", 3_000)
    monkeypatch.setattr(data, "_HEAD_BYTES", 900)


def test_a_commit_that_is_too_large_is_told_by_its_info(table, small_limits):
    create_table(table)
    many = [add(f"{number}.parquet") for number in range(50)]
    write_commit(table, 1, info("MERGE", read_version=0, operation_metrics={"numOutputRows": "7"}), txn("app", 1), *many)
    write_commit(table, 2, add("small.parquet"))
    page = data.history(log_of(table))
    assert [(commit["version"], commit["too_large"]) for commit in page["commits"]] == [(2, False), (1, True), (0, False)]
    large = page["commits"][1]
    assert (large["operation"], large["operation_metrics"], large["app_transactions"]) == (
        "MERGE",
        {"numOutputRows": "7"},
        {"app": 1},
    )
    assert [large[name] for name in data._NOT_COUNTED] == [None] * len(data._NOT_COUNTED)
    assert large["timestamp"] > 0
    detail = data.commit_detail(log_of(table), 1, offset=40)
    assert (detail["num_files"], detail["offset"], detail["commit"]["too_large"]) == (None, 0, True)
    assert [file["path"] for file in detail["files"]][:2] == ["0.parquet", "1.parquet"]
    assert len(detail["files"]) < 10


def test_a_large_commit_without_a_line_that_fits_is_shown_all_the_same(table, small_limits):
    create_table(table)
    write_commit(table, 1, info(user_metadata="x" * 5_000), add("a.parquet"))
    assert data.history(log_of(table))["commits"][0]["operation"] is None
    assert data.commit_detail(log_of(table), 1)["files"] == []


def test_a_page_of_long_commits_is_a_short_one(table, small_limits):
    create_table(table)
    for version in range(1, 8):
        write_commit(table, version, info(user_metadata="x" * 600), add("a.parquet"))
    shown, before = [], None
    while True:
        page = data.history(log_of(table), before=before)
        assert 1 <= len(page["commits"]) <= 4
        shown += [commit["version"] for commit in page["commits"]]
        if page["older"] is None:
            break
        before = page["older"]
    assert shown == list(range(7, -1, -1))


def test_a_commit_that_is_known_is_not_read_again(table):
    table_with_commits(table, 3)
    first = data.history(log_of(table))["commits"]
    known = {str(commit["version"]): commit["stamp"] for commit in first}
    path = commit_path(table, 2)
    before = path.stat()
    path.write_bytes(b"#" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    write_commit(table, 4, add("new.parquet"))
    again = data.history(log_of(table), known=known)["commits"]
    assert [commit["version"] for commit in again] == [4, 3, 2, 1, 0]
    assert [commit.get("known", False) for commit in again] == [False, True, True, True, True]
    detail = data.commit_detail(log_of(table), 1)
    assert data.commit_detail(log_of(table), 1, stamp=detail["stamp"]) == {"same": True, "latest": 4}
    assert "commit" in data.commit_detail(log_of(table), 1, stamp=[1, 1])


def checkpoint_of_one_path(table, rows: int, path: str) -> int:
    """Write a checkpoint that repeats a path, as another engine might have; return its size."""
    table_with_commits(table, 1)
    log_of(table).checkpoint()
    (file,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    written = pq.read_table(file)
    added = written.filter(pc.is_valid(pc.struct_field(written["add"], "path"))).slice(0, 1)
    others = written.filter(pc.is_null(pc.struct_field(written["add"], "path")))
    fields = added["add"].combine_chunks()
    values = [pa.array([path]) if field.name == "path" else fields.field(field.name) for field in fields.type]
    one = pa.StructArray.from_arrays(values, fields=list(fields.type))
    group = min(rows, 20_000)
    repeated = one.take(pa.array([0] * group))
    columns = [repeated if name == "add" else pa.nulls(group, others.schema.field(name).type) for name in others.schema.names]
    with pq.ParquetWriter(file, others.schema, compression="zstd") as writer:
        writer.write_table(others)
        for _ in range(rows // group):
            writer.write_table(pa.table(columns, schema=others.schema))
    staged = table / "staged" / "11111111-2222-3333-4444-555555555555"
    staged.mkdir(parents=True)
    (staged / "part-0.parquet").write_bytes(b"x")
    return file.stat().st_size


def test_a_checkpoint_that_repeats_a_path_takes_the_memory_of_a_few_batches(table, monkeypatch):
    monkeypatch.setattr(checkpoint_part, "BATCH_ROWS", 2_000)
    path = f"staged/11111111-2222-3333-4444-555555555555/load/{'x' * 2_000}.parquet"
    rows = 40_000
    assert checkpoint_of_one_path(table, rows, path) < 200_000
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert data.open_transactions(log_of(table)) == []
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < rows * len(path) / 4


def test_a_checkpoint_of_too_many_rows_is_not_looked_through(table, monkeypatch):
    checkpoint_of_one_path(table, 1_000, "a.parquet")
    monkeypatch.setattr(limits, "MAX_ACTIONS", 1_000)
    with pytest.raises(ReadLimitException, match="checkpoint"):
        data.open_transactions(log_of(table))
    monkeypatch.setattr(limits, "MAX_ACTIONS", 2_000)
    monkeypatch.setattr(limits, "MAX_TAIL_BYTES", 10)
    write_commit(table, 2, add("b.parquet"))
    with pytest.raises(ReadLimitException, match="since its last checkpoint") as raised:
        data.open_transactions(log_of(table))
    assert of_error(raised.value, str(table)).title == "Too large to show"


def test_a_commit_tells_what_it_was_checked_against(table):
    table_with_commits(table, 3)
    write_commit(table, 4, info(read_version=1, isolation_level="Serializable", is_blind_append=False), add("late.parquet"))
    detail = data.commit_detail(log_of(table), 4)
    assert detail["num_winners"] == 2
    assert [winner["version"] for winner in detail["winners"]] == [3, 2]
    assert detail["latest"] == 4


def test_only_the_latest_winners_are_listed(table):
    table_with_commits(table, 40)
    write_commit(table, 41, info(read_version=0), add("late.parquet"))
    detail = data.commit_detail(log_of(table), 41)
    assert (detail["num_winners"], len(detail["winners"]), detail["winners"][0]["version"]) == (40, data.WINNERS, 40)


@pytest.mark.parametrize(("read_version", "expected"), [(None, None), (3, 0)])
def test_a_commit_that_raced_nobody(table, read_version, expected):
    table_with_commits(table, 3)
    write_commit(table, 4, info(read_version=read_version), add("a.parquet"))
    detail = data.commit_detail(log_of(table), 4)
    assert (detail["num_winners"], detail["winners"]) == (expected, [])


def test_the_files_of_a_commit_are_paged(table):
    create_table(table)
    stats = json.dumps({"numRecords": 12})
    write_commit(
        table,
        1,
        remove("old%20name.parquet", part="x"),
        *(add(f"{number}.parquet", part="a b", stats=stats) for number in range(5)),
        txn("app", 3),
    )
    detail = data.commit_detail(log_of(table), 1, offset=0, limit=4)
    assert detail["num_files"] == 6
    assert [file["action"] for file in detail["files"]] == ["remove", "add", "add", "add"]
    assert detail["files"][0]["path"] == "old name.parquet"
    assert detail["files"][1] == {
        "action": "add",
        "path": "0.parquet",
        "size": 100,
        "num_records": 12,
        "partition_values": {"part": "a b"},
        "data_change": True,
        "deleted_rows": None,
    }
    assert [file["path"] for file in data.commit_detail(log_of(table), 1, offset=4, limit=4)["files"]] == [
        "3.parquet",
        "4.parquet",
    ]
    assert data.commit_detail(log_of(table), 1, offset=6, limit=4)["files"] == []


@pytest.mark.parametrize("rows", ['"many"', "NaN", "1.5", "{}"])
def test_statistics_that_make_no_sense_tell_nothing(table, rows):
    create_table(table)
    write_commit(table, 1, add("a.parquet", stats=f'{{"numRecords":{rows}}}'))
    (file,) = data.commit_detail(log_of(table), 1)["files"]
    assert file["num_records"] is None


def test_a_commit_tells_the_metadata_that_it_set(table):
    create_table(table, configuration={"delta.appendOnly": "true"}, partition_columns=["part"])
    changes = data.commit_detail(log_of(table), 0)["changes"]
    assert changes["metadata"]["configuration"] == {"delta.appendOnly": "true"}
    assert changes["metadata"]["partition_columns"] == ["part"]
    assert changes["metadata"]["columns"][0] == {"name": "id", "type": "bigint", "nullable": True, "comment": None}
    assert changes["protocol"] == {"min_reader_version": 1, "min_writer_version": 2, "features": []}
    write_commit(table, 1, add("a.parquet"))
    assert data.commit_detail(log_of(table), 1)["changes"] == {"metadata": None, "protocol": None, "domains": []}


def test_nested_types_read_as_in_sql():
    nested = {
        "type": "array",
        "elementType": {
            "type": "map",
            "keyType": "string",
            "valueType": {"type": "struct", "fields": [{"name": "x", "type": "long"}]},
        },
    }
    assert metadata._type(nested) == "array<map<string, struct<x: bigint>>>"


def test_a_commit_that_is_not_there(table):
    table_with_commits(table, 1)
    with pytest.raises(VersionNotFoundException) as raised:
        data.commit_detail(log_of(table), 9)
    problem = of_error(raised.value, str(table))
    assert (problem.status, problem.title) == (404, "This commit is not in the log")


def test_open_transactions_and_their_staged_bytes(table):
    table_with_commits(table, 1)
    staged = table / "staged" / "11111111-2222-3333-4444-555555555555" / "load" / "1-0a1b2c3d"
    staged.mkdir(parents=True)
    (staged / "part-0.parquet").write_bytes(b"x" * 1000)
    (found,) = data.open_transactions(log_of(table))
    assert (found["state"], found["num_bytes"], found["stages"]) == ("open", 1000, ["load"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FileNotFoundError("x"), 404),
        (PermissionError("x"), 502),
        (ConnectionRefusedError("x"), 502),
        (KeyError("x"), 502),
    ],
)
def test_errors_become_pages(error, status):
    problem = of_error(error, "s3://lake/sales")
    assert problem.status == status
    assert problem.title
