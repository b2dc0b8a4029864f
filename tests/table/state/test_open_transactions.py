"""Which transactions have staged files, what they are, and giving one up by its id. Files come from PyArrow; no Spark."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from pyroaring import BitMap64

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt, transaction_directory
from airflow_delta.exceptions import (
    CommitStateUnknownException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    StagingException,
    TransactionAbortedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.actions.deletion_vectors import write_deletion_vectors
from airflow_delta.table.abort import abort_transaction
from airflow_delta.table.commit import publish as publishing
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.stage.write.job_runs import put_request
from airflow_delta.table.stage.write.plan import plan_stage
from airflow_delta.table.state import open_transactions as listing
from airflow_delta.table.state.open_transactions import TransactionState, list_transactions, transaction_state
from support.actions import add, remove
from support.table import Table
from support.tables import commit_path, create_table, write_commit

DAY = 24 * HOUR


@pytest.fixture
def table(tmp_path) -> Table:
    """A table of one transaction."""
    table = Table(tmp_path / "table")
    handle = table.begin(transaction_key="first")
    table.publish(handle, stage(table, handle))
    return table


def stage(table: Table, handle: TransactionHandle, name: str = "rows") -> StagedWrite:
    """Stage rows in a directory of their own for each attempt."""
    return table.stage_rows(handle, [1, 2], f"{name}/{new_attempt()}", task_id=name)


def age(table: Table, transaction_id: str, milliseconds: int) -> None:
    then = time.time() - milliseconds / 1000
    for path in staged_files(table, transaction_id):
        os.utime(path, (then, then))


def staged_files(table: Table, transaction_id: str) -> list[Path]:
    return [path for path in (table.path / transaction_directory(transaction_id)).rglob("*") if path.is_file()]


def state(table: Table, handle: TransactionHandle) -> TransactionState:
    found = {one.transaction_id: one for one in list_transactions(table.log())}[handle.transaction_id]
    assert transaction_state(table.log(), handle.transaction_id) == found
    return found


# -- what they are ------------------------------------------------------------------------------------------------------------


def test_a_committed_transaction_is_told_from_the_commit_that_holds_it(table):
    handle = table.begin(transaction_key="second")
    result = table.publish(handle, stage(table, handle, "a"), stage(table, handle, "b"))
    found = state(table, handle)
    sizes = [path.stat().st_size for path in staged_files(table, handle.transaction_id) if path.name != "_commit-0"]
    assert found == TransactionState(
        transaction_id=handle.transaction_id,
        state="committed",
        app_id="second",
        read_version=0,
        version=result.version,
        stages=("a", "b"),
        attempts=2,
        num_files=2,
        num_bytes=sum(sizes),
        first_modified=found.first_modified,
        last_modified=found.last_modified,
        reason="Version 1 of the table holds it.",
    )
    assert abs(time.time() * 1000 - found.last_modified) < 60_000
    assert json.loads(json.dumps(found.to_dict()))["stages"] == ["a", "b"]


def test_an_open_transaction_says_nothing_about_its_key_but_how_much_it_has_staged(table):
    handle = table.begin(transaction_key="second")
    stage(table, handle)
    stage(table, handle)  # a retry
    found = state(table, handle)
    assert (found.state, found.app_id, found.version, found.read_version) == ("open", None, None, None)
    assert (found.stages, found.attempts, found.num_files) == (("rows",), 2, 2)
    assert "may still be published" in found.reason


def test_the_request_of_a_stage_on_a_cluster_tells_the_version_that_is_read(table):
    handle = table.begin()
    log = table.log()
    put_request(log, plan_stage(table.view(handle, task_id="job")))
    assert state(table, handle).read_version == 0
    table.publish(other := table.begin(), stage(table, other))
    handle = table.begin()
    put_request(log, plan_stage(table.view(handle, task_id="job")))
    assert state(table, handle).read_version == 1


def test_a_transaction_that_nobody_has_touched_for_the_grace_time_is_abandoned(table):
    handle = table.begin()
    stage(table, handle)
    age(table, handle.transaction_id, 6 * DAY)
    assert state(table, handle).state == "open"
    [found] = list_transactions(table.log(), abandoned_after=timedelta(days=5), states=["abandoned"])
    assert found.transaction_id == handle.transaction_id
    age(table, handle.transaction_id, 9 * DAY)
    assert state(table, handle).state == "abandoned"
    assert state(table, handle).reason == "It has not changed for 9 days."
    stage(table, handle)  # one young file is enough
    assert state(table, handle).state == "open"


def test_an_aborted_transaction_is_its_marker(table):
    handle = table.begin()
    stage(table, handle)
    table.abort(handle)
    found = state(table, handle)
    assert (found.state, found.num_files, found.num_bytes, found.stages) == ("aborted", 0, 0, ())
    age(table, handle.transaction_id, 30 * DAY)
    assert state(table, handle).state == "aborted"


def test_an_attempt_of_the_commit_in_an_unknown_state_is_told(table, monkeypatch):
    handle = table.begin()
    staged = stage(table, handle)

    def unknown(*_args, **_kwargs):
        raise CommitStateUnknownException("the store did not answer")

    monkeypatch.setattr(publishing, "commit_stages", unknown)
    with pytest.raises(CommitStateUnknownException):
        table.publish(handle, staged)
    found = state(table, handle)
    assert (found.state, found.num_files) == ("open", 1)
    assert "1 attempts of its commit are running" in found.reason
    table.abort(handle)
    found = state(table, handle)
    assert (found.state, found.num_files) == ("aborted", 1)
    assert "its files stay" in found.reason


def test_before_the_first_commit_of_a_table(tmp_path):
    table = Table(tmp_path / "table")
    assert list_transactions(table.log()) == []
    handle = table.begin()
    stage(table, handle)
    assert [(one.transaction_id, one.state) for one in list_transactions(table.log())] == [(handle.transaction_id, "open")]


def test_what_else_lies_in_the_directory_is_no_transaction(table):
    before = list_transactions(table.log())
    (table.path / "staged/README").write_text("by hand")
    assert list_transactions(table.log()) == before


def test_the_one_that_was_touched_last_comes_first(table):
    old, new = table.begin(), table.begin()
    stage(table, old)
    stage(table, new)
    age(table, old.transaction_id, 3 * HOUR)
    [first] = list_transactions(table.log(), states=["committed"])
    age(table, first.transaction_id, HOUR)
    assert [one.transaction_id for one in list_transactions(table.log())] == [
        new.transaction_id,
        first.transaction_id,
        old.transaction_id,
    ]


def test_a_state_that_there_is_not_is_refused(table):
    with pytest.raises(DeltaIllegalArgumentException, match="open, committed, aborted, abandoned, got 'lost'"):
        list_transactions(table.log(), states=["open", "lost"])


# -- committed, however little of the log is left -----------------------------------------------------------------------------


def clean_up_log(table: Table, version: int) -> None:
    """Leave only the checkpoint of a version and what follows it."""
    log = table.log()
    log.checkpoint(log.snapshot_at(version))
    for older in range(version + 1):
        commit_path(table.path, older).unlink()


def test_files_in_the_table_tell_when_the_commit_is_gone(table):
    [first] = list_transactions(table.log())
    for _ in range(2):
        table.publish(handle := table.begin(), stage(table, handle))
    clean_up_log(table, 1)
    found = transaction_state(table.log(), first.transaction_id)
    assert (found.state, found.version, found.app_id) == ("committed", None, None)
    assert found.reason == "Files of it are in the table; the log no longer holds its commit."


def test_tombstones_and_deletion_vectors_tell_as_well(tmp_path):
    path = tmp_path / "table"
    store = DeltaLog.for_table(str(path)).store
    now = int(time.time() * 1000)
    for transaction in ("t-removed", "t-vector", "t-open"):
        directory = path / "staged" / transaction / "s" / "1-00000000"
        directory.mkdir(parents=True)
        (directory / "f.parquet").write_bytes(b"x")
    [vector] = write_deletion_vectors(store, "staged/t-vector/s/1-00000000", [BitMap64([1])])
    assert isinstance(vector, DeletionVectorDescriptor)
    create_table(path, add("a.parquet", deletion_vector=vector), add("staged/t-removed/s/1-00000000/f.parquet"))
    write_commit(path, 1, remove("staged/t-removed/s/1-00000000/f.parquet", deletion_timestamp=now))
    found = {one.transaction_id: one.state for one in list_transactions(DeltaLog.for_table(str(path)))}
    assert found == {"t-removed": "committed", "t-vector": "committed", "t-open": "open"}


def test_a_transaction_whose_files_have_left_the_table_is_known_by_its_commit(table):
    handle = table.begin()
    table.publish(handle, table.stage_rows(handle, [3], "out", mode="overwrite"))
    handle = table.begin()
    table.publish(handle, table.stage_rows(handle, [3], "out", mode="overwrite"))
    assert {one.state for one in list_transactions(table.log())} == {"committed"}
    assert sorted(one.version for one in list_transactions(table.log())) == [0, 1, 2]


def test_who_asks_only_for_open_ones_looks_for_no_commits_of_the_others(table, monkeypatch):
    for _ in range(3):
        table.publish(handle := table.begin(), stage(table, handle))
    handle = table.begin()
    stage(table, handle)
    looked_for: list[str] = []
    find = listing.find_commits
    monkeypatch.setattr(listing, "find_commits", lambda log, ids: looked_for.extend(ids) or find(log, ids))
    assert [one.transaction_id for one in list_transactions(table.log(), states=("open", "abandoned"))] == [handle.transaction_id]
    assert looked_for == [handle.transaction_id]


@pytest.mark.parametrize("few", [True, False])
def test_who_asks_only_for_open_ones_lists_no_files_of_the_others(table, monkeypatch, few):
    table.publish(handle := table.begin(), stage(table, handle))
    handle = table.begin()
    stage(table, handle)
    log, listed = table.log(), []
    list_recursive = log.store.list_recursive
    monkeypatch.setattr(log.store, "list_recursive", lambda directory: listed.append(directory) or list_recursive(directory))
    monkeypatch.setattr(listing, "_LISTED_ONE_BY_ONE", 50 if few else 0)
    [found] = list_transactions(log, states=("open", "abandoned", "aborted"))
    assert (found.transaction_id, found.num_files) == (handle.transaction_id, 1)
    root = transaction_directory(handle.transaction_id) if few else "staged"
    assert all(directory == root or directory.startswith(f"{root}/") for directory in listed)


def test_who_asks_only_for_open_ones_where_nothing_was_staged(tmp_path):
    assert list_transactions(DeltaLog.for_table(str(tmp_path / "nothing")), states=("open",)) == []
    create_table(tmp_path / "table")
    assert list_transactions(DeltaLog.for_table(str(tmp_path / "table")), states=("open",)) == []


def test_an_old_abort_marker_alone_does_not_have_the_log_read(table, monkeypatch):
    handle = table.begin()
    stage(table, handle)
    assert abort_transaction(table.log(), handle.transaction_id, force=True).outcome == "deleted"
    age(table, handle.transaction_id, 30 * DAY)
    monkeypatch.setattr(listing, "newest_first", None)
    [found] = list_transactions(table.log(), states=("open", "abandoned", "aborted"))
    assert (found.transaction_id, found.state, found.num_files) == (handle.transaction_id, "aborted", 0)


def test_one_that_is_committed_while_they_are_listed_is_not_open(table, monkeypatch):
    handle = table.begin()
    staged = stage(table, handle)
    log = table.log()
    names = log.store.list_directories("staged")
    in_table = listing._in_table

    def then_commit(snapshot):
        found = in_table(snapshot)
        monkeypatch.setattr(listing, "_in_table", in_table)
        table.publish(handle, staged)
        return found

    monkeypatch.setattr(listing, "_in_table", then_commit)
    assert handle.transaction_id in names
    assert list_transactions(log, states=("open",)) == []


# -- giving one up ------------------------------------------------------------------------------------------------------------


def test_one_that_may_be_at_work_is_refused_unless_forced(table):
    handle = table.begin()
    staged = stage(table, handle)
    before = staged_files(table, handle.transaction_id)
    with pytest.raises(DeltaIllegalStateException, match=r"may still be running: It changed .* Fail its Dag run"):
        abort_transaction(table.log(), handle.transaction_id)
    assert staged_files(table, handle.transaction_id) == before
    result = abort_transaction(table.log(), handle.transaction_id, force=True)
    assert (result.outcome, result.num_deleted_files, result.table) == ("deleted", 1, table.uri)
    assert {path.name for path in staged_files(table, handle.transaction_id)} == {"_aborted", "_commit-0"}
    with pytest.raises(TransactionAbortedException):
        table.publish(handle, staged)
    assert abort_transaction(table.log(), handle.transaction_id).outcome == "deleted"  # again: no error


def test_an_abandoned_one_needs_no_force(table):
    handle = table.begin()
    stage(table, handle)
    age(table, handle.transaction_id, 8 * DAY)
    assert abort_transaction(table.log(), handle.transaction_id).outcome == "deleted"
    assert state(table, handle).state == "aborted"


@pytest.mark.parametrize("force", [False, True])
def test_files_that_the_log_names_are_never_deleted(table, force):
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    before = staged_files(table, handle.transaction_id)
    for _ in range(2):
        result = abort_transaction(table.log(), handle.transaction_id, force=force)
        assert (result.outcome, result.num_deleted_files) == ("committed", 0)
        assert staged_files(table, handle.transaction_id) == before
        clean_up_log(table, 1) if result.version is not None else None  # now only the paths tell
    assert result.version is None
    assert table.rows() == [(1,), (1,), (2,), (2,)]


def test_a_path_that_another_writer_spelled_otherwise_counts(tmp_path):
    path = tmp_path / "table"
    file = path / "staged/t/s/1-00000000/f.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    create_table(path, add(f"{path}/staged/../staged/t/s/1-00000000/f.parquet"))
    assert abort_transaction(DeltaLog.for_table(str(path)), "t", force=True).outcome == "committed"
    assert file.exists()


def test_while_an_attempt_of_the_commit_may_be_alive_it_is_only_marked(table):
    handle = table.begin()
    stage(table, handle)
    marker = Path(handle.staging_path) / "_commit-1-abcdefab"
    marker.write_text("{}")
    result = abort_transaction(table.log(), handle.transaction_id, force=True)
    assert (result.outcome, result.num_deleted_files) == ("marked", 0)
    assert len(staged_files(table, handle.transaction_id)) == 4
    age(table, handle.transaction_id, 8 * DAY)
    assert abort_transaction(table.log(), handle.transaction_id).outcome == "deleted"
    assert {path.name for path in staged_files(table, handle.transaction_id)} == {"_aborted", "_commit-0", marker.name}


def test_a_commit_that_ends_during_the_abort_wins(table, monkeypatch):
    handle = table.begin()
    staged = stage(table, handle)
    log = table.log()
    put = log.store.put

    def put_after_commit(path: str, data: bytes) -> None:
        table.publish(handle, staged)
        put(path, data)

    monkeypatch.setattr(log.store, "put", put_after_commit)
    result = abort_transaction(log, handle.transaction_id, force=True)
    assert (result.outcome, result.version) == ("committed", 1)
    assert {path.name for path in staged_files(table, handle.transaction_id)} == {"_commit-0", "part-0.parquet"}


@pytest.mark.parametrize("transaction_id", ["no-such-transaction", "0b5e"])
def test_an_id_of_nothing_is_refused(table, transaction_id):
    with pytest.raises(DeltaIllegalArgumentException, match="nothing of transaction"):
        abort_transaction(table.log(), transaction_id, force=True)


@pytest.mark.parametrize("transaction_id", ["", "../_delta_log", "a/b"])
def test_an_id_that_leads_elsewhere_is_refused(table, transaction_id):
    with pytest.raises(StagingException):
        abort_transaction(table.log(), transaction_id, force=True)


def test_vacuum_agrees_on_which_are_over(table):
    live, dead = table.begin(), table.begin()
    stage(table, live)
    stage(table, dead)
    age(table, dead.transaction_id, 8 * DAY)
    found = vacuum(table.log(), dry_run=True)
    assert found.num_live_transactions == len(list_transactions(table.log(), states=["open"])) == 1
    abandoned = [one.transaction_id for one in list_transactions(table.log(), states=["abandoned"])]
    assert {path.split("/")[1] for path in found.paths if path.startswith("staged/")} == set(abandoned) == {dead.transaction_id}


# -- on an object store -------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_on_s3_it_is_one_listing(monkeypatch):
    import boto3

    from stores.locked_moto import s3_server

    with s3_server() as endpoint:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="lake-of-transactions")
        options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "aws_allow_http": "true"}
        log = DeltaLog.for_table("s3://lake-of-transactions/t", {**options, **keys})
        for name in ("t1/s/1-00000000/a.parquet", "t1/s/2-00000000/a.parquet", "t2/_aborted"):
            client.put_object(Bucket="lake-of-transactions", Key=f"t/staged/{name}", Body=b"12345")
        listed: list[str] = []
        list_recursive = log.store.list_recursive
        monkeypatch.setattr(log.store, "list_recursive", lambda directory: listed.append(directory) or list_recursive(directory))
        found = {one.transaction_id: one for one in list_transactions(log)}
        assert listed == ["staged"]
        assert (found["t1"].state, found["t1"].num_bytes, found["t1"].attempts) == ("open", 10, 2)
        assert found["t2"].state == "aborted"
        assert log.store.list_directories("staged") == ["t1", "t2"]
        assert log.store.list_directories("nothing") == []
        assert {one.transaction_id for one in list_transactions(log, states=("open", "aborted"))} == {"t1", "t2"}
        assert abort_transaction(log, "t1", force=True).num_deleted_files == 2
        assert [one["Key"] for one in client.list_objects_v2(Bucket="lake-of-transactions")["Contents"]] == [
            "t/staged/t1/_aborted",
            "t/staged/t1/_commit-0",
            "t/staged/t2/_aborted",
        ]
