"""Nobody's committed files are deleted: what an abort asks before it deletes, and what it does when the log cannot tell."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

import airflow_delta.table.commit.publish as publishing
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    HandleMismatchException,
    PostCommitHookFailedException,
    StagingException,
    TransactionAbortedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.abort import abort, abort_transaction
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.operations.vacuum.run import HOUR, vacuum
from airflow_delta.table.state.markers import read_markers
from airflow_delta.table.state.open_transactions import transaction_state
from airflow_delta.transaction import CommitPolicy, PostCommitHook
from faults.shared.pasts import Past, World
from support.pauses import sleep_by
from support.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of one transaction of the key ``first``."""
    table = Table(tmp_path / "table")
    append(table, transaction_key="first")
    return table


def stage(table: Table, handle: TransactionHandle, mode: str = "append") -> StagedWrite:
    return table.stage_rows(handle, [1, 2], f"rows/{new_attempt()}", mode=mode)


def append(table: Table, mode: str = "append", **options) -> TransactionHandle:
    handle = table.begin(**options)
    table.publish(handle, stage(table, handle, mode))
    return handle


def forget_commits(table: Table, *, before: int | None = None) -> None:
    """Have log cleanup remove the JSON commits and checksums up to a version, which a checkpoint holds."""
    log = table.log()
    version = log.update().version if before is None else before
    log.checkpoint(log.snapshot_at(version))
    for name in (table.path / "_delta_log").iterdir():
        if name.suffix in (".json", ".crc") and name.stem.isdigit() and int(name.stem) <= version:
            name.unlink()


def forget_markers(handle: TransactionHandle) -> None:
    """Leave what a commit of an earlier release left, or one that died before its marker."""
    for marker in ("_committed", "_commit-0"):
        (Path(handle.staging_path) / marker).unlink(missing_ok=True)


def files(handle: TransactionHandle) -> set[str]:
    return {path.name for path in Path(handle.staging_path).rglob("*") if path.is_file()}


# -- each witness alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", [True, False])
def test_live_files_stay_when_the_commit_has_left_the_log(table, marker):
    handle = append(table)
    forget_commits(table)
    if not marker:
        forget_markers(handle)
    result = table.abort(handle)
    assert result.outcome == "committed"
    assert "_aborted" not in files(handle)
    assert abort_transaction(table.log(), handle.transaction_id, force=True).outcome == "committed"
    assert table.rows() == [(1,), (1,), (2,), (2,)]


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("policy", ["skip", "append", "replace", "fail"])
def test_a_commit_that_is_cleared_finds_itself_whatever_the_log_has_forgotten(table, policy, expired):
    """Not "clear the start task": under ``append`` that would publish the rows again."""
    handle = table.begin(rerun_policy=policy)
    write = stage(table, handle)
    table.publish(handle, write)
    if expired:
        DeltaTable(table.path).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
        found = table.publish(handle, write)
        assert (found.version, found.committed_before) == (1, True)
    forget_commits(table)
    found = table.publish(handle, write)
    assert (found.version, found.committed_before) == (1, True)
    forget_markers(handle)
    assert table.publish(handle, write).committed_before
    assert len(table.rows()) == 4


def test_the_key_tells_when_the_files_have_left_the_table(table):
    handle = append(table)
    append(table, "overwrite")
    table_without_tombstones(table)
    forget_commits(table)
    forget_markers(handle)
    result = table.abort(handle)
    assert (result.outcome, result.version) == ("committed", None)
    assert "is committed with version 0" in result.reason
    assert "part-0.parquet" in files(handle)


def table_without_tombstones(table: Table) -> None:
    """Have the table keep no removed files: the next checkpoint leaves them out."""
    DeltaTable(table.path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})


def test_the_marker_tells_alone(table):
    handle = append(table)
    append(table, "overwrite")
    table_without_tombstones(table)
    forget_commits(table)
    result = table.abort(replace(handle, app_id="never committed"))
    assert (result.outcome, result.version) == ("committed", 1)
    assert "part-0.parquet" in files(handle)


def test_a_marker_of_another_transaction_is_not_believed(table):
    committed, handle = append(table), table.begin()
    write = stage(table, handle)
    marker = Path(handle.staging_path, "_commit-0")
    marker.write_bytes(Path(committed.staging_path, "_commit-0").read_bytes())
    assert table.abort(handle).outcome == "marked"  # as for an attempt that may be alive
    with pytest.raises(TransactionAbortedException):
        table.publish(handle, write)
    marker.unlink()
    assert table.abort(handle).outcome == "deleted"


def test_a_damaged_marker_of_a_commit_keeps_its_files(table):
    """An earlier release put this one."""
    handle = table.begin()
    stage(table, handle)
    Path(handle.staging_path, "_committed").write_bytes(b"{")
    assert (table.abort(handle).outcome, table.abort(handle).version) == ("committed", None)


def test_a_handle_that_was_altered_hides_no_commit(table):
    """Key and version that were read travel in XCom; the table's files do not."""
    handle = append(table)
    forget_markers(handle)
    for forged in (replace(handle, app_id="x"), replace(handle, read_version=1), replace(handle, read_version=1, txn_version=9)):
        assert table.abort(forged).outcome == "committed"
    assert table.rows() == [(1,), (1,), (2,), (2,)]


# -- the log cannot tell ------------------------------------------------------------------------------------------------------


def test_nothing_is_deleted_when_commits_since_the_start_are_gone(table):
    handle = table.begin()
    write = stage(table, handle)
    append(table)
    append(table)
    forget_commits(table, before=1)
    result = table.abort(handle)
    assert (result.outcome, result.num_deleted_files) == ("marked", 0)
    assert "no longer holds every commit since version 0" in result.reason
    assert {"_aborted", "_commit-0", "part-0.parquet"} == files(handle)
    with pytest.raises(TransactionAbortedException):
        table.publish(replace(handle, read_version=2), write)
    # Maintenance deletes by what the table names now.
    vacuum(table.log(), retention_hours=0, retention_check=False, clock=later(8 * 24))
    assert "part-0.parquet" not in files(handle)
    assert len(table.rows()) == 6


def later(hours: float):
    return lambda: int(time.time() * 1000 + hours * HOUR)


@pytest.mark.parametrize("damage", ["gone", "shorter", "checkpoint", "feature"])
def test_nothing_is_deleted_when_the_table_cannot_be_read(table, damage):
    append(table)
    handle = table.begin()
    stage(table, handle)
    log = table.path / "_delta_log"
    if damage == "gone":
        log.rename(table.path / "elsewhere")
    elif damage == "shorter":
        for name in log.glob(f"{1:020}.*"):
            name.unlink()
    elif damage == "checkpoint":
        forget_commits(table)
        next(log.glob("*.checkpoint.parquet")).write_bytes(b"PAR1 and no more")
        (log / "_last_checkpoint").unlink(missing_ok=True)
    else:
        line = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["new"], "writerFeatures": ["new"]}}
        (log / f"{2:020}.json").write_text(json.dumps(line) + "\n")
    assert table.abort(handle).outcome == "marked"
    assert "part-0.parquet" in files(handle)


def test_another_execution_of_the_key_is_told_apart_by_the_commits(table):
    loser = table.begin(transaction_key="both")
    stage(table, loser)
    append(table, transaction_key="both")
    assert table.abort(loser).outcome == "deleted"
    assert len(table.rows()) == 4


# -- a listing decides nothing ------------------------------------------------------------------------------------------------


@pytest.fixture
def stale_listings(monkeypatch):
    """Listings show no marker, as those of NFS or of an eventually consistent store may."""
    listed, walked = LocalStore.list_from, LocalStore.list_recursive

    def shows(status) -> bool:
        return not status.name.startswith("_commit")

    monkeypatch.setattr(LocalStore, "list_from", lambda *a, **k: [s for s in listed(*a, **k) if shows(s)])
    monkeypatch.setattr(LocalStore, "list_recursive", lambda *a, **k: (s for s in walked(*a, **k) if shows(s)))


@pytest.mark.usefixtures("stale_listings")
def test_an_attempt_that_no_listing_shows_is_seen(table, monkeypatch):
    handle = table.begin()
    write = stage(table, handle)
    outcomes = []
    real = publishing.check_staged_files

    def abort_in_between(*arguments: object) -> None:
        real(*arguments)
        outcomes.append(table.abort(handle).outcome)

    monkeypatch.setattr(publishing, "check_staged_files", abort_in_between)
    assert table.publish(handle, write).version == 1
    assert outcomes == ["marked"]
    assert len(table.rows()) == 4


@pytest.mark.usefixtures("stale_listings")
def test_a_commit_that_no_listing_shows_is_seen(table):
    handle = append(table)
    forget_commits(table)
    assert table.abort(replace(handle, app_id="never committed")).outcome == "committed"
    assert len(table.rows()) == 4


# -- the markers of a commit --------------------------------------------------------------------------------------------------


def test_a_commit_leaves_one_marker_for_as_long_as_its_files(table):
    handle = append(table)
    assert files(handle) == {"_commit-0", "part-0.parquet"}
    vacuum(table.log(), retention_hours=0, retention_check=False, clock=later(30 * 24))
    assert files(handle) == {"_commit-0", "part-0.parquet"}
    append(table, "overwrite")
    vacuum(table.log(), retention_hours=0, retention_check=False, clock=later(30 * 24))
    assert not Path(handle.staging_path).exists()
    assert table.rows() == [(1,), (2,)]


def test_a_commit_that_died_before_its_marker_is_made_good_by_the_next_try(table, monkeypatch):
    handle = table.begin()
    write = stage(table, handle)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("airflow_delta.table.state.markers.Fence.end", die)
        with pytest.raises(KeyboardInterrupt):
            table.publish(handle, write)
    assert "_committed" not in files(handle)
    assert table.publish(handle, write).committed_before
    assert "_committed" in files(handle)


def test_a_hook_that_fails_after_the_log_entry_is_no_failed_commit(table):
    class Failing(PostCommitHook):
        name = "failing"

        def run(self, txn, version, actions):
            raise ValueError("no")

    handle = table.begin()
    write = stage(table, handle)
    with pytest.raises(PostCommitHookFailedException):
        table.publish(handle, write, hooks=[Failing()], policy=CommitPolicy(fail_on_hook_error=True))
    assert read_markers(table.log().store, handle.transaction_id).committed


def stale(table, world):
    """Return a log that does not see what others made in the last minute."""
    return DeltaLog(Past(LocalStore(table.uri), world))


def test_an_abort_that_cannot_see_a_commit_yet_leaves_its_files(table):
    world = World()
    handle = table.begin()
    write = stage(table, handle)
    publish(stale(table, world), handle, [write], attempt="1")
    assert abort(stale(table, world), handle).outcome == "marked"
    assert len(table.rows()) == 4


def test_a_commit_that_cannot_see_an_abort_yet_publishes_nothing(table, monkeypatch):
    world = World()
    sleep_by(monkeypatch, world.sleep)
    handle = table.begin()
    write = stage(table, handle)
    assert abort(stale(table, world), handle).outcome == "deleted"
    with pytest.raises(TransactionAbortedException):
        publish(stale(table, world), handle, [write], attempt="1")


def test_a_marker_that_stays_unreadable_refuses_the_commit(table, monkeypatch):
    world = World()
    sleep_by(monkeypatch, lambda _seconds: None)
    handle = table.begin()
    write = stage(table, handle)
    abort(stale(table, world), handle)
    with pytest.raises(StagingException, match="cannot be read, so it cannot be known"):
        publish(stale(table, world), handle, [write], attempt="1")


def test_failed_attempts_do_not_hide_one_that_is_alive(table, monkeypatch):
    """The first attempt ends while the second is at work: its number must not end the look for others."""
    handle = table.begin()
    write = stage(table, handle)
    outcomes = []
    real = publishing.check_staged_files

    def second(*arguments: object) -> None:
        real(*arguments)
        outcomes.append(table.abort(handle).outcome)

    def fails(*arguments: object) -> None:
        monkeypatch.setattr(publishing, "check_staged_files", second)
        raise HandleMismatchException("certainly nothing")

    monkeypatch.setattr(publishing, "check_staged_files", fails)
    with pytest.raises(HandleMismatchException):
        table.publish(handle, write)
    table.publish(handle, write)
    assert outcomes == ["marked"]
    assert len(table.rows()) == 4


def test_a_commit_that_was_halted_for_long_looks_again(table, monkeypatch):
    handle = table.begin()
    write = stage(table, handle)
    monkeypatch.setattr("airflow_delta.table.state.markers.LOOK_AGAIN_AFTER", 0.0)
    real = publishing.check_staged_files

    def abort_in_between(*arguments: object) -> None:
        real(*arguments)
        table.abort(handle)

    monkeypatch.setattr(publishing, "check_staged_files", abort_in_between)
    with pytest.raises(TransactionAbortedException):
        table.publish(handle, write)
    assert len(table.versions()) == 1


def test_the_listing_of_transactions_believes_the_marker(table):
    handle = append(table)
    append(table, "overwrite")
    table_without_tombstones(table)
    forget_commits(table)
    found = transaction_state(table.log(), handle.transaction_id)
    assert (found.state, found.version) == ("committed", 1)


# -- what the handle claims ---------------------------------------------------------------------------------------------------


def test_a_claimed_commit_is_looked_up(table):
    handle = table.begin(transaction_key="first")
    assert handle.committed is not None
    lying = replace(handle, committed=replace(handle.committed, version=999))
    assert table.publish(lying).version == 0
    assert table.abort(lying).version == 0
    with pytest.raises(HandleMismatchException, match="holds no such key"):
        table.publish(replace(lying, app_id="never committed"))
