"""What markers say, and what an abort tells, rule by rule."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.contract.intents import STATE_APP
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalStateException,
    StagingException,
    TransactionAbortedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.abort import abort, abort_transaction
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.state import markers as module
from airflow_delta.table.state import open_transactions
from airflow_delta.table.state.evidence import evidence
from airflow_delta.table.state.markers import Markers, fence, fence_off, mark_committed, read_markers
from support.actions import add, info
from support.table import Table
from support.tables import commit_path, write_commit

ID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of one transaction."""
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, stage(table, handle))
    return table


def stage(table: Table, handle: TransactionHandle, name: str = "rows") -> StagedWrite:
    return table.stage_rows(handle, [1, 2], task_id=name)


def marker(table: Table, name: str, content: dict[str, Any] | None = None, *, at: int | None = None) -> Path:
    path = table.path / "staged" / ID / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content if content is not None else {"transactionId": ID, "startedAt": 1}))
    if at is not None:
        os.utime(path, ns=(at * 1_000_000, at * 1_000_000))
    return path


def content(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def expire(table: Table, *, before: int) -> None:
    table.log().checkpoint()
    for version in range(before):
        commit_path(table.path, version).unlink()


# -- markers ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [read_markers, lambda *a, **o: fence_off(*a, **o)[0]], ids=["read", "fence off"])
def test_an_attempt_is_alive_from_a_time_on(table, read):
    now = 1_700_000_000_000
    marker(table, "_commit-0", at=now - 1)
    marker(table, "_commit-1", at=now)
    marker(table, "_commit-2", {"transactionId": ID, "failedAt": 1}, at=now)
    marker(table, "_commit-old", at=now - 1)  # of an earlier release
    marker(table, "_commit-young", at=now)
    log = table.log()
    assert set(read(log.store, ID, dead_before=now).alive) == {"_commit-1", "_commit-young"}
    assert set(read(log.store, ID).alive) == {"_commit-0", "_commit-1", "_commit-old", "_commit-young"}


def test_each_marker_counts_once(table):
    marker(table, "_commit-0")
    assert read_markers(table.log().store, ID).alive == ("_commit-0",)
    assert fence_off(table.log().store, ID)[0].alive == ("_commit-0",)


def test_the_markers_of_an_abort_say_whose_they_are(table):
    markers, own = fence_off(table.log().store, ID)
    assert own == [f"staged/{ID}/_aborted", f"staged/{ID}/_commit-0"]
    assert markers.alive == ()
    for path in own:
        found = content(table.path / path)
        assert found.keys() == {"transactionId", "abortedAt", "by"}
        assert found["transactionId"] == ID
        assert found["abortedAt"] <= time.time() * 1000
    assert fence_off(table.log().store, ID)[1] == own, "an abort may be repeated"


def test_a_commit_without_a_marker_gets_one(table):
    log = table.log()
    mark_committed(log, ID, 7)
    found = content(table.path / "staged" / ID / "_committed")
    assert (found["transactionId"], found["version"], found.keys()) == (ID, 7, {"transactionId", "version", "committedAt"})
    assert (read_markers(log.store, ID).committed, read_markers(log.store, ID).version) == (True, 7)
    mark_committed(log, ID, 8)
    assert content(table.path / "staged" / ID / "_committed")["version"] == 7


@pytest.mark.parametrize(
    ("content", "version"),
    [
        ({"committedAt": 1, "version": 3}, 3),  # of an earlier release: it does not say whose it is
        ({"transactionId": ID, "committedAt": 1, "version": "3"}, None),
        ({"transactionId": ID, "committedAt": 1}, None),
    ],
)
def test_a_marker_of_a_commit_tells_its_version_if_it_has_one(table, content, version):
    marker(table, "_commit-0", content)
    found = read_markers(table.log().store, ID)
    assert (found.committed, found.version, found.alive) == (True, version, ())


def test_a_marker_of_another_transaction_says_nothing(table):
    marker(table, "_commit-0", {"transactionId": "another", "committedAt": 1, "version": 3})
    assert read_markers(table.log().store, ID) == Markers(False, None, ("_commit-0",))


def test_an_attempt_that_ends_without_saying_how_stays_alive(table):
    handle = table.begin()
    with fence(table.log(), handle, "1-00000000"):
        pass
    assert content(Path(handle.staging_path) / "_commit-0").keys() == {"transactionId", "attempt", "startedAt", "claim"}


def test_each_attempt_takes_the_next_number(table):
    """A gap would be free for an abort, which would not see what comes after it."""
    handle = table.begin()
    now = int(time.time() * 1000)
    for number in range(4):
        with fence(table.log(), handle, f"{number}-00000000"):
            found = content(Path(handle.staging_path) / f"_commit-{number}")
        assert (found["attempt"], found["transactionId"]) == (f"{number}-00000000", handle.transaction_id)
        assert now <= found["startedAt"] <= now + 3_600_000
    assert {path.name for path in Path(handle.staging_path).iterdir()} == {f"_commit-{number}" for number in range(4)}


def test_a_look_that_failed_is_repeated_before_the_next_put(table, monkeypatch):
    """It has found nothing out: the transaction may be aborted, and its files gone."""
    handle, log = table.begin(), table.log()
    monkeypatch.setattr(module, "LOOK_AGAIN_AFTER", 0.2)
    monkeypatch.setattr(module, "_UNREADABLE_PAUSES", ())
    with fence(log, handle, "1-00000000") as held:
        cancelled = held.policy(None).cancelled
        assert cancelled is not None
        fence_off(log.store, handle.transaction_id)
        time.sleep(0.3)
        with monkeypatch.context() as stale:
            stale.setattr(module, "read_marker", lambda store, path: None)
            with pytest.raises(StagingException):
                cancelled()
        with pytest.raises(TransactionAbortedException):
            cancelled()


def test_a_number_that_was_taken_by_a_repeated_put_is_its_own(table, monkeypatch):
    handle = table.begin()
    creates = module.creates

    def repeated(*arguments: Any) -> bool:
        assert creates(*arguments)
        return False

    monkeypatch.setattr(module, "creates", repeated)
    with fence(table.log(), handle, "1-00000000") as held:
        held.version = 7
    assert content(Path(handle.staging_path) / "_commit-0")["version"] == 7
    assert len(list(Path(handle.staging_path).iterdir())) == 1


def held(table: Table, handle: TransactionHandle, *, commits: bool) -> Path:
    """Let an attempt fail, after its commit or without one; return its marker."""
    log = table.log()

    def attempt() -> None:
        with fence(log, handle, "1-00000000"):
            if commits:
                write_commit(table.path, len(table.versions()), info(txn_id=handle.transaction_id))
            raise DeltaAnalysisException("a hook failed")

    with pytest.raises(DeltaAnalysisException):
        attempt()
    return Path(handle.staging_path) / "_commit-0"


def test_an_attempt_that_failed_after_its_commit_says_so(table):
    found = content(held(table, table.begin(), commits=True))
    assert (found["version"], isinstance(found["committedAt"], int), "failedAt" in found) == (1, True, False)


def test_an_attempt_that_committed_nothing_says_so(table):
    found = content(held(table, table.begin(), commits=False))
    assert isinstance(found["failedAt"], int)
    assert not {"version", "committedAt"} & found.keys()


def test_only_commits_after_the_version_that_was_read_are_looked_at(table):
    """Those before cannot hold it, and may have left the log."""
    write_commit(table.path, 1)
    handle = table.begin()
    expire(table, before=2)
    write_commit(table.path, 2)
    assert "failedAt" in content(held(table, handle, commits=False))
    assert evidence(table.log(), handle).committed is False


def test_a_table_that_the_transaction_would_have_created(tmp_path):
    """Version 0 is after the version that was read."""
    table = Table(tmp_path / "table")
    handle = table.begin()
    write_commit(table.path, 0, *actions_of_a_table(), info(txn_id=handle.transaction_id))
    assert evidence(table.log(), handle).version == 0
    assert content(held(table, handle, commits=False))["version"] == 0


def actions_of_a_table() -> list[Any]:
    from support.actions import metadata, protocol

    return [protocol(), metadata()]


# -- evidence -----------------------------------------------------------------------------------------------------------------


def test_each_witness_gives_its_reason(table):
    handle = table.begin()
    assert evidence(table.log(), handle).committed is False
    write_commit(table.path, 1, add(f"staged/{handle.transaction_id}/x.parquet"))
    found = evidence(table.log(), handle)
    assert (found.committed, found.version, found.reason) == (True, 1, "The log holds this transaction.")
    expire(table, before=2)
    write_commit(table.path, 2)
    found = evidence(table.log(), handle)
    assert (found.committed, found.version, found.reason) == (True, None, "Files of it are in the table.")
    assert evidence(table.log(), handle, files=False).committed is False
    ahead = evidence(table.log(), replace(handle, read_version=9))
    assert (ahead.committed, ahead.reason) == (None, "It read version 9, and the table is at version 2.")
    gone = evidence(DeltaLog.for_table(f"{table.uri}-gone"), handle)
    assert (gone.committed, gone.reason) == (None, "It read version 0, and the table is gone.")


# -- abort --------------------------------------------------------------------------------------------------------------------


def told(result: Any) -> tuple[Any, ...]:
    return result.outcome, result.version, result.table, result.transaction_id


def test_an_abort_says_what_it_found(table):
    handle = table.begin()
    write = stage(table, handle)
    log = table.log()
    begun = Path(handle.staging_path) / "_commit-0"
    begun.write_text(json.dumps({"transactionId": handle.transaction_id, "startedAt": 1}))
    result = abort(log, handle)
    assert told(result) == ("marked", None, table.uri, handle.transaction_id)
    assert result.reason.startswith("1 attempts of the commit may still be alive or ended in an unknown state (_commit-0)")
    begun.write_text(json.dumps({"transactionId": handle.transaction_id, "failedAt": 1}))
    result = abort(log, handle)
    assert told(result) == ("deleted", None, table.uri, handle.transaction_id)
    assert (result.num_deleted_files, "were deleted" in result.reason) == (1, True)
    other = table.begin()
    table.publish(other, stage(table, other))
    result = abort(table.log(), other)
    assert told(result) == ("committed", 1, table.uri, other.transaction_id)
    assert result.reason == "The log holds this transaction. Nothing was deleted."
    assert write.num_files == 1


def test_an_abort_of_what_an_earlier_run_has_committed(table):
    handle = table.begin(transaction_key="once")
    table.publish(handle, stage(table, handle))
    again = table.begin(transaction_key="once")
    result = abort(table.log(), again)
    assert told(result) == ("committed", 1, table.uri, again.transaction_id)
    assert result.reason == "An earlier run had committed this key. Nothing was deleted."
    claimed = replace(again, app_id="never")
    assert abort(table.log(), claimed).outcome == "deleted", "a claim about the log decides nothing"


def test_an_abort_that_cannot_tell_gives_the_reason(table):
    handle = table.begin()
    stage(table, handle)
    for version in (1, 2):
        write_commit(table.path, version)
    expire(table, before=2)
    result = abort(table.log(), handle)
    assert told(result) == ("marked", None, table.uri, handle.transaction_id)
    assert result.reason.startswith(
        "It is not certain whether it is committed. The log no longer holds every commit since version 0"
    )


def test_an_abort_deletes_all_but_the_markers(table):
    handle = table.begin()
    stage(table, handle)
    directory = Path(handle.staging_path)
    (directory / "loose").write_text("x")
    (directory / "a/b").mkdir(parents=True)
    (directory / "a/b/c").write_text("x")
    assert abort(table.log(), handle).num_deleted_files == 3
    assert {path.name for path in directory.rglob("*")} == {"_aborted", "_commit-0"}


# -- by its id alone ----------------------------------------------------------------------------------------------------------


def left_behind(table: Table) -> TransactionHandle:
    handle = table.begin()
    stage(table, handle)
    return handle


def test_a_committed_one_is_not_aborted(table):
    handle = left_behind(table)
    write_commit(table.path, 1, info(txn_id=handle.transaction_id))
    result = abort_transaction(table.log(), handle.transaction_id, force=True)
    assert told(result) == ("committed", 1, table.uri, handle.transaction_id)
    assert result.reason.endswith("Nothing was deleted.")
    assert len(result.reason) > len("Nothing was deleted.") + 5
    assert not (Path(handle.staging_path) / "_aborted").exists()


@pytest.mark.parametrize("how", ["commit", "files", "gap", "nothing"])
def test_what_happens_while_it_is_aborted(table, monkeypatch, how):
    """After the first look, which found it open: it commits, its commit expires, or all commits do."""
    handle = left_behind(table)
    state = open_transactions.transaction_state

    def stale(log: DeltaLog, *arguments: Any, **options: Any) -> Any:
        found = state(log, *arguments, **options)
        assert found.state == "open"
        added = [add(f"staged/{handle.transaction_id}/rows/part-0.parquet")] if how == "files" else []
        write_commit(table.path, 1, *added, info(txn_id=handle.transaction_id if how == "commit" else "x"))
        if how in ("files", "gap"):
            write_commit(table.path, 2, info(timestamp=int(time.time() * 1000)))
            expire(table, before=2)
        return found

    monkeypatch.setattr(open_transactions, "transaction_state", stale)
    result = abort_transaction(table.log(), handle.transaction_id, force=True)
    expected = {"commit": ("committed", 1), "files": ("committed", None), "gap": ("marked", None), "nothing": ("deleted", None)}
    assert told(result) == (*expected[how], table.uri, handle.transaction_id)
    reason = {
        "commit": "The log holds this transaction. Nothing was deleted.",
        "files": "Files of it are in the table. Nothing was deleted.",
        "gap": "It is not certain whether it is committed. The log no longer holds every commit since its oldest",
        "nothing": "No attempt of the commit is alive",
    }
    assert result.reason.startswith(reason[how])
    assert (Path(handle.staging_path) / "rows/part-0.parquet").exists() == (how != "nothing")


@pytest.mark.parametrize(("hours", "outcome"), [(1, "marked"), (3, "deleted")])
def test_what_was_idle_for_the_grace_time_needs_no_log(table, hours, outcome):
    handle = left_behind(table)
    for path in Path(handle.staging_path).rglob("*.parquet"):
        then = time.time() - hours * 3600
        os.utime(path, (then, then))
    for version in (1, 2):
        write_commit(table.path, version, info(timestamp=int(time.time() * 1000)))
    expire(table, before=2)
    result = abort_transaction(table.log(), handle.transaction_id, force=hours < 2, abandoned_after=timedelta(hours=2))
    assert result.outcome == outcome


@pytest.mark.parametrize(("hours", "alive"), [(1, True), (3, False)])
def test_an_attempt_older_than_the_grace_time_is_dead(table, hours, alive):
    handle = left_behind(table)
    begun = Path(handle.staging_path) / "_commit-0"
    begun.write_text(json.dumps({"transactionId": handle.transaction_id, "startedAt": 1}))
    then = time.time() - hours * 3600
    for path in (begun, *Path(handle.staging_path).rglob("*.parquet")):
        os.utime(path, (then, then))
    result = abort_transaction(table.log(), handle.transaction_id, force=True, abandoned_after=timedelta(hours=2))
    assert result.outcome == ("marked" if alive else "deleted")


def test_a_name_that_no_transaction_can_have(table):
    with pytest.raises(StagingException):
        abort_transaction(table.log(), "../x", force=True)


A, B = "a" * 16, "b" * 16
PLAN = f"publication-{A}.json"


@pytest.mark.parametrize(
    ("states", "names", "open_plan"),
    [
        ({}, [PLAN], PLAN),
        ({A: 1}, [PLAN], PLAN),
        ({A: 2}, [PLAN], None),
        ({B: 2}, [PLAN], PLAN),
        ({A: 2}, [PLAN, f"publication-{B}.json"], f"publication-{B}.json"),
        ({A: 2, B: 3}, [PLAN, f"publication-{B}.json"], None),
        ({}, [f"publication-{A}.ended", "publication.json", "rows.json"], None),
    ],
)
def test_a_plan_without_an_end_on_the_table_keeps_its_transaction(
    table: Table, states: dict[str, int], names: list[str], open_plan: str | None
) -> None:
    """State 1 is that of a publication whose commit is there; those above are its ends."""
    handle = table.begin()
    stage(table, handle)
    for name in names:
        (Path(handle.staging_path) / name).write_text("{}")
    now = int(time.time() * 1000)
    known = {f"{STATE_APP}anchor.{plan}.{'0' * 8}": state for plan, state in states.items()} | {"loader/x.a": 5}
    lines = [{"txn": {"appId": app_id, "version": version, "lastUpdated": now}} for app_id, version in known.items()]
    table.put_foreign(1, {"commitInfo": {"timestamp": now}}, *lines)
    if open_plan is None:
        result = abort_transaction(table.log(), handle.transaction_id, force=True)
        assert (result.outcome, result.transaction_id, result.table) == ("deleted", handle.transaction_id, table.log().uri)
        return
    with pytest.raises(DeltaIllegalStateException, match=f"{handle.transaction_id}/{open_plan}"):
        abort_transaction(table.log(), handle.transaction_id, force=True)
    assert (Path(handle.staging_path) / "rows").is_dir(), "nothing was deleted"


def test_an_attempt_that_put_nothing_says_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files can be deleted then. Where the store refuses the note, the first error is the one that is told."""
    handle = table.begin()
    with fence(table.log(), handle, "1-a") as held:
        held.end_without_commit()
        [path] = (table.path / "staged" / handle.transaction_id).iterdir()
        assert content(path)["failedAt"] >= content(path)["startedAt"]
        monkeypatch.setattr(LocalStore, "put", lambda *_args, **_options: (_ for _ in ()).throw(OSError("full")))
        held.end_without_commit()
        monkeypatch.undo()


# -- what waits for the disk --------------------------------------------------------------------------------------------------


def test_of_a_whole_commit_only_the_log_entry_waits_for_the_disk(table, monkeypatch):
    """One durable put: its content and its name. Checksum and markers can be made again, or are looked up in the log."""
    handle = table.begin()
    staged = stage(table, handle)
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}").removeprefix(str(table.path.resolve())))
        real(descriptor)

    log = DeltaLog.for_table(table.uri)  # the tables of most tests wait for no disk
    monkeypatch.setattr(os, "fsync", fsync)
    publish(log, handle, [staged], attempt="1")
    assert len(synced) == 2, synced
    assert {name.split("/")[1] for name in synced} == {"_delta_log"}


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b'{"transactionId": "'], ids=["empty", "zeros", "torn"])
def test_a_marker_that_a_crash_of_the_machine_left_torn_deletes_nothing(table, left):
    handle = table.begin()
    version = table.publish(handle, stage(table, handle)).version
    path = Path(handle.staging_path) / "_commit-0"
    path.write_bytes(left)
    rows = sorted(table.path.rglob("*.parquet"))
    found = abort(table.log(), handle)
    assert (found.outcome, found.version) == ("committed", version)
    assert sorted(table.path.rglob("*.parquet")) == rows
