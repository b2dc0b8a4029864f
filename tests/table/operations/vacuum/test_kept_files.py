"""Which files VACUUM must keep and which transactions it may clear away, rule by rule, on logs written by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddCDCFile, AddFile, DeletionVectorDescriptor, RemoveFile
from airflow_delta.log.storage.base import FileStatus
from airflow_delta.table.operations.vacuum import valid_files as module
from airflow_delta.table.operations.vacuum.last_look import COMMIT_MAY_LAST, LastLook
from airflow_delta.table.operations.vacuum.listing import Listing
from airflow_delta.table.operations.vacuum.staged_transactions import staged_transactions, transaction_of
from airflow_delta.table.operations.vacuum.valid_files import (
    committed_within,
    last_version_before,
    needs_commits,
    remember_vacuum,
    removed_files,
    valid_files,
)
from support.actions import add, info, protocol, remove, txn
from support.tables import commit_path, create_table, write_commit

NOW = int(time.time()) * 1000
DAY = 24 * 3_600_000
VECTORS = protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_table(tmp_path)
    write_commit(tmp_path, 1, VECTORS)
    return tmp_path


def log_of(path: Path) -> DeltaLog:
    return DeltaLog.for_table(str(path))


def vector(name: str, kind: str = "relative") -> DeletionVectorDescriptor:
    """A vector at ``deletion_vector_<name>.bin``, whose name ends like a UUID; no rows need to be there."""
    if kind == "inline":
        return DeletionVectorDescriptor(storage_type="i", path_or_inline_dv=name, size_in_bytes=40, cardinality=1)
    return DeletionVectorDescriptor(
        storage_type="p", path_or_inline_dv=f"file://{name}", offset=1, size_in_bytes=34, cardinality=1
    )


def marked(path: Path, name: str, at: int = NOW) -> RemoveFile:
    """A tombstone of ``<name>.parquet`` with the vector ``<name>.bin``."""
    return remove(f"{name}.parquet", deletion_timestamp=at, deletion_vector=vector(f"{path}/{name}.bin"))


def marked_add(path: Path, name: str) -> AddFile:
    return add(f"{name}.parquet", deletion_vector=vector(f"{path}/{name}.bin"), stats='{"numRecords":9}')


def change(name: str, size: int = 7) -> AddCDCFile:
    return AddCDCFile(path=name, partition_values={}, size=size)


# -- what the table names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
def test_live_files_and_recent_tombstones_with_their_vectors(path: Path, checkpoint: bool) -> None:
    live = msgspec.structs.replace(marked_add(path, "live"), path="live%20file.parquet")
    times = {"old": NOW - 1, "last": NOW, "new": NOW + 1}
    inline = add("inline.parquet", deletion_vector=vector("abc", "inline"), stats='{"numRecords":9}')
    write_commit(path, 2, live, inline, *(marked_add(path, name) for name in times))
    write_commit(path, 3, *(marked(path, name, at) for name, at in times.items()))
    if checkpoint:
        log_of(path).checkpoint()
    kept = valid_files(log_of(path).snapshot, deleted_before=NOW)
    both = {f"{name}.{kind}" for name in ("last", "new") for kind in ("parquet", "bin")}
    assert kept - {"live%20file.parquet"} == {"live file.parquet", "live.bin", "inline.parquet", *both}


def test_commits_are_read_for_change_data_below_staged_or_for_a_longer_retention(path: Path) -> None:
    files = {name: [FileStatus(name, 1, 1)] for name in ("a.parquet", "staged/t/a.parquet")}
    snapshot = log_of(path).snapshot
    assert not needs_commits(snapshot, files["staged/t/a.parquet"], longer=False)
    assert needs_commits(snapshot, files["a.parquet"], longer=True)
    assert not needs_commits(snapshot, [], longer=True)
    write_commit(path, 2, protocol(1, 7, writer_features=["changeDataFeed"]))
    snapshot = log_of(path).snapshot
    assert needs_commits(snapshot, files["staged/t/a.parquet"], longer=False)
    assert not needs_commits(snapshot, files["a.parquet"], longer=False)


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_what_commits_within_the_retention_removed(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_COMMITS_AT_ONCE", at_once)
    for version in range(2, 8):
        write_commit(path, version, add(f"{version}.parquet"), marked(path, f"gone-{version}"), change(f"_change_data/{version}"))
    log = log_of(path)
    snapshot = log.snapshot_at(6)
    for gone in range(3):  # has expired meanwhile
        commit_path(path, gone).unlink()
    names = {name for v in (4, 5, 6) for name in (f"gone-{v}.parquet", f"gone-{v}.bin", f"_change_data/{v}")}
    assert committed_within(log, snapshot, 3) == names


def test_the_last_version_at_or_before_a_time(path: Path) -> None:
    for version, at in ((0, NOW), (1, NOW + 10), (2, NOW + 20)):
        write_commit(path, version, *((protocol(), *_metadata()) if not version else ()), info(timestamp=at), at=at)
    assert [last_version_before(log_of(path), NOW + after) for after in (-1, 0, 9, 10, 19, 20, 99)] == [None, 0, 0, 1, 1, 2, 2]


def _metadata() -> list[Action]:
    from support.actions import metadata

    return [metadata()]


# -- VACUUM LITE --------------------------------------------------------------------------------------------------------------


def lite(path: Path, last: int | None, before: int = NOW) -> dict[str, tuple[int, int]]:
    return {s.path: (s.size, s.modification_time) for s in removed_files(log_of(path), last, deleted_before=before)}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_lite_finds_what_was_removed_before_a_time(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_COMMITS_AT_ONCE", at_once)
    write_commit(
        path, 2, remove("young.parquet", deletion_timestamp=NOW), remove("old%20one.parquet", deletion_timestamp=NOW - 1)
    )
    write_commit(path, 3, marked(path, "b", at=5), change("_change_data/c%20d"))
    write_commit(path, 4, remove("no-size.parquet", size=None, deletion_timestamp=0))
    write_commit(path, 5, remove("later.parquet", deletion_timestamp=1))
    assert lite(path, 4) == {
        "old one.parquet": (100, NOW - 1),
        "b.parquet": (100, 5),
        "b.bin": (34, 5),
        "_change_data/c d": (7, 0),
        "no-size.parquet": (0, 0),
    }
    assert "later.parquet" in lite(path, 5)
    assert lite(path, None) == {}


def test_lite_leaves_change_data_of_others_alone(path: Path) -> None:
    write_commit(path, 2, change("file:///elsewhere/c"))
    assert lite(path, 2) == {}


def test_lite_goes_on_after_the_last_vacuum(path: Path) -> None:
    for version in range(2, 6):
        write_commit(path, version, remove(f"{version}.parquet", deletion_timestamp=1))
    remember_vacuum(log_of(path), 3)
    assert set(lite(path, 5)) == {"4.parquet", "5.parquet"}
    log_of(path).checkpoint()
    for gone in range(3):
        commit_path(path, gone).unlink()
    assert set(lite(path, 5)) == {"4.parquet", "5.parquet"}


def test_lite_needs_the_first_commit_that_it_has_not_seen(path: Path) -> None:
    for version in range(2, 6):
        write_commit(path, version, remove(f"{version}.parquet", deletion_timestamp=1))
    remember_vacuum(log_of(path), 3)
    log_of(path).checkpoint()
    for gone in range(4):
        commit_path(path, gone).unlink()
    with pytest.raises(Exception, match="DELTA_CANNOT_VACUUM_LITE"):
        lite(path, 5)


# -- staged transactions ------------------------------------------------------------------------------------------------------


def file(name: str, at: int = NOW, size: int = 1) -> FileStatus:
    return FileStatus(name, size, at)


def test_what_is_below_a_transaction() -> None:
    assert transaction_of("staged/t/a.parquet") == "t"
    assert [transaction_of(name) for name in ("staged/t", "staged", "a/t/x", "x")] == [None] * 4


@pytest.mark.parametrize("padding", [0, 3])
def test_the_log_tells_which_transactions_are_over(path: Path, padding: int) -> None:
    """By the id in ``commitInfo``: no marker, and none of its files is in the table any more."""
    write_commit(path, 2, info(txn_id="done", timestamp=NOW + 1))
    for version in range(3, 3 + padding):
        write_commit(path, version, info(timestamp=NOW + version))
    listing = Listing([file("staged/done/a"), file("staged/open/a"), file("a.parquet"), file("staged/loose")])
    found = staged_transactions(log_of(path), listing, ["x.parquet"], dead_before=NOW)
    assert (found.committed, found.live, found.aborted, found.in_table) == ({"done"}, {"open"}, frozenset(), frozenset())


def test_only_commits_that_may_be_of_a_staged_transaction_are_read(path: Path) -> None:
    """One whose entry is over a day older than their files ends the search; what its writer claims does not."""
    write_commit(path, 2, info(txn_id="done", timestamp=NOW - DAY))
    write_commit(path, 3, info(txn_id="other", timestamp=0))
    found = staged_transactions(log_of(path), Listing([file("staged/done/a")]), [], dead_before=0)
    assert found.committed == {"done"}
    write_commit(path, 3, info(txn_id="other", timestamp=0), at=NOW - DAY - 1)
    found = staged_transactions(log_of(path), Listing([file("staged/done/a")]), [], dead_before=0)
    assert found.live == {"done"}


def test_a_transaction_with_files_in_the_table_is_committed(path: Path) -> None:
    found = staged_transactions(log_of(path), Listing([file("staged/done/a")]), ["staged/done/b", "x"], dead_before=0)
    assert found.in_table == found.committed == {"done"}
    assert found.protects("staged/done/_committed")
    assert not found.protects("staged/done/a")


@pytest.mark.parametrize(("after", "live"), [(-1, False), (0, True)])
def test_a_transaction_is_dead_once_its_newest_file_is_too_old(path: Path, after: int, live: bool) -> None:
    listing = Listing([file("staged/t/a", NOW - 9), file("staged/t/b", NOW + after)])
    assert staged_transactions(log_of(path), listing, [], dead_before=NOW).live == (frozenset("t") if live else frozenset())


def test_an_empty_directory_counts_by_its_own_time(path: Path) -> None:
    listing = Listing([], {"staged": NOW, "staged/t": NOW, "staged/u": NOW - 1})
    found = staged_transactions(log_of(path), listing, [], dead_before=NOW)
    assert found.live == {"t"}
    assert found.protects("staged")
    assert found.protects("staged/t")
    assert not found.protects("staged/u")
    assert not staged_transactions(log_of(path), Listing(), [], dead_before=NOW).protects("staged")


def test_markers_tell_of_each_transaction(path: Path) -> None:
    """The first one that is committed does not end the search."""
    for name, marker, content in (("a", "_committed", {"version": 1}), ("b", "_aborted", {}), ("c", "_commit-0", {})):
        (path / "staged" / name).mkdir(parents=True)
        (path / "staged" / name / marker).write_text(json.dumps(content))
    listing = Listing([file("staged/a/_committed"), file("staged/b/_aborted"), file("staged/b/x"), file("staged/c/_commit-0")])
    found = staged_transactions(log_of(path), listing, [], dead_before=0)
    assert (found.committed, found.aborted, found.live) == ({"a"}, {"b"}, {"c"})
    assert found.protects("staged/b")
    assert found.protects("staged/b/_aborted")
    assert not found.protects("staged/b/x")
    assert not found.protects("staged/a")


# -- the last look ------------------------------------------------------------------------------------------------------------


def look(path: Path, version: int, *, now: int = NOW, over: bool = False) -> LastLook:
    return LastLook(log_of(path), version, over=lambda _: over, deleted_before=NOW, dead_before=now, now=now)


def left(last_look: LastLook, *names: str) -> set[str]:
    return {status.path for status in last_look([file(name) for name in names])}


def test_what_was_committed_since_the_decision_stays(path: Path) -> None:
    names = ["new.parquet", "new.bin", "gone.parquet", "gone.bin", "c", "other"]
    last_look = look(path, 1)
    assert left(last_look, *names) == set(names)
    write_commit(path, 2, add("new.parquet", deletion_vector=vector(f"{path}/new.bin"), stats='{"numRecords":9}'))
    write_commit(path, 3, marked(path, "gone"), change("c"))
    assert left(last_look, *names) == {"other"}
    assert left(last_look, *names) == {"other"}


def test_commits_before_the_decision_matter_no_more(path: Path) -> None:
    write_commit(path, 2, add("a.parquet"))
    write_commit(path, 3, remove("a.parquet"))
    assert left(look(path, 3), "a.parquet") == {"a.parquet"}


def test_where_commits_have_expired_the_table_itself_tells(path: Path) -> None:
    last_look = look(path, 1)
    write_commit(path, 2, add("first.parquet"), txn("a", 1))
    assert left(last_look, "first.parquet", "x") == {"x"}
    write_commit(path, 3, remove("first.parquet", deletion_timestamp=NOW - 1), add("live.parquet"), add("young.parquet"))
    write_commit(path, 4, remove("young.parquet", deletion_timestamp=NOW))
    write_commit(path, 5)
    log_of(path).checkpoint()
    for gone in range(5):
        commit_path(path, gone).unlink()
    # What has been kept once stays; a file that was removed before the retention goes.
    assert left(last_look, "first.parquet", "live.parquet", "young.parquet", "x") == {"x"}


def begun(path: Path, transaction: str, at: int, name: str = "_commit-0") -> None:
    import os

    marker = path / "staged" / transaction / name
    marker.parent.mkdir(parents=True)
    marker.write_text("{}")
    os.utime(marker, ns=(at * 1_000_000, at * 1_000_000))


@pytest.mark.parametrize(("hours", "alive"), [(23, True), (25, False)])
def test_an_attempt_of_a_commit_lives_for_a_day(path: Path, hours: int, alive: bool) -> None:
    begun(path, "t", NOW - hours * 3_600_000)
    assert left(look(path, 1), "staged/t/a.parquet") == (set() if alive else {"staged/t/a.parquet"})
    assert COMMIT_MAY_LAST == DAY


def test_a_committed_transaction_needs_no_fence(path: Path) -> None:
    begun(path, "t", NOW)
    assert left(look(path, 1, over=True), "staged/t/a.parquet") == {"staged/t/a.parquet"}
    assert [marker.name for marker in (path / "staged" / "t").iterdir()] == ["_commit-0"]


def test_each_transaction_is_asked_by_its_name(path: Path) -> None:
    asked = []
    begun(path, "open", NOW)
    last_look = LastLook(
        log_of(path), 1, over=lambda name: asked.append(name) or name == "done", deleted_before=NOW, dead_before=NOW, now=NOW
    )
    assert left(last_look, "staged/done/a", "staged/open/a", "b") == {"staged/done/a", "b"}
    assert sorted(asked) == ["done", "open"]


def test_a_name_that_no_transaction_can_have(path: Path) -> None:
    assert left(look(path, 1), "staged/..odd name/a") == {"staged/..odd name/a"}
