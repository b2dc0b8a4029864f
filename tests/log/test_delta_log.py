"""DeltaLog: updates that read only new commits, concurrent commits, writing, old versions (DeltaLogSuite)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_delta.exceptions import VersionNotFoundException, VersionsNotContiguousException
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.log.actions.actions import encode_actions
from support import tables
from support.work import calls


class Counting:
    """Counts what a log reads."""

    def __init__(self, log: DeltaLog) -> None:
        self.paths: list[str] = []
        self.listings = 0
        read, list_from = log.store.read, log.store.list_from

        def counted_read(path: str) -> bytes:
            self.paths.append(path)
            return read(path)

        def counted_list(*args, **options):
            self.listings += 1
            return list_from(*args, **options)

        log.store.read = counted_read  # type: ignore[method-assign]
        log.store.list_from = counted_list  # type: ignore[method-assign]

    def take(self) -> tuple[list[str], int]:
        taken = [path.rpartition("/")[2].lstrip("0") for path in self.paths], self.listings
        self.paths, self.listings = [], 0
        return taken


def files(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files(columns=["path"])["path"].to_pylist())


def test_update_reads_only_new_commits(table: Path) -> None:
    tables.table_with_commits(table, 5)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.metadata == tables.metadata()
    counting = Counting(log)
    assert log.update() is log.snapshot
    assert counting.take() == (["6.json"], 0)  # asked for, not there
    tables.write_commit(table, 6, tables.txn("app", 1))
    tables.write_commit(table, 7, tables.metadata(name="renamed"))
    assert log.update().version == 7
    assert log.snapshot.metadata.name == "renamed"
    assert log.snapshot.transaction_version("app") == 1
    assert counting.take() == (["6.json", "7.json", "8.json"], 0)


def test_the_old_snapshot_stays_as_it_was(table: Path) -> None:
    tables.table_with_commits(table, 2)
    log = DeltaLog.for_table(str(table))
    before = log.snapshot
    assert len(files(before)) == 3
    tables.write_commit(table, 3, tables.remove("0-0.parquet"), tables.metadata(name="new"))
    after = log.update()
    assert (len(files(before)), len(files(after))) == (3, 2)
    assert (before.metadata.name, after.metadata.name) == (None, "new")
    assert (before.num_files, after.num_files) == (3, 2)


def test_files_after_updates_are_those_of_a_fresh_log(table: Path) -> None:
    tables.create_table(table)
    log = DeltaLog.for_table(str(table))
    assert files(log.snapshot) == []
    for version in range(1, 30):
        removed = [tables.remove(f"{version - 3}-0.parquet")] if version > 3 and version % 2 else []
        tables.write_commit(table, version, tables.add(f"{version}-0.parquet"), *removed)
        if version % 3 == 0:
            log.update()
        if version % 9 == 0:
            assert files(log.snapshot) == files(DeltaLog.for_table(str(table)).snapshot)
    assert files(log.update()) == files(DeltaLog.for_table(str(table)).snapshot)


def test_the_table_appears(table: Path) -> None:
    log = DeltaLog.for_table(str(table))
    assert not log.table_exists()
    tables.create_table(table)
    assert log.table_exists()
    assert log.snapshot.version == 0


def test_the_table_is_deleted_and_made_anew(table: Path) -> None:
    tables.table_with_commits(table, 3)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.metadata.id == tables.TABLE_ID
    shutil.rmtree(table)
    assert log.update().version == -1
    tables.create_table(table)
    assert log.update().version == 0
    shutil.rmtree(table)
    tables.create_table(table, id="another")
    for version in range(1, 4):
        tables.append(table, version)
    assert log.update().metadata.id == "another"


def test_the_commit_we_stand_on_is_replaced(table: Path) -> None:
    tables.table_with_commits(table, 1)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.metadata.name is None
    tables.write_commit(table, 1, tables.metadata(name="replaced"), at=1_600_000_000_000)
    assert log.update().metadata.name == "replaced"


def test_own_commits_of_a_table_that_is_gone_are_forgotten(table: Path) -> None:
    tables.create_table(table)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.version == 0
    log.write_commit(1, encode_actions([tables.info(), tables.txn("ours", 1)]))
    assert log.update().version == 1
    shutil.rmtree(table)
    tables.create_table(table, id="another")
    tables.write_commit(table, 1, tables.info(), tables.txn("theirs", 1), at=1_600_000_000_000)
    assert log.update().transactions == {"theirs": 1}
    assert log.read_commit(1) == tables.commit_path(table, 1).read_bytes()


def test_own_commits_are_not_read_back(table: Path) -> None:
    tables.create_table(table)
    log = DeltaLog.for_table(str(table))
    assert log.write_checksum(log.snapshot)
    log.write_commit(1, encode_actions([tables.info(), tables.txn("app", 1), tables.add("a")]))
    assert log.update().transaction_version("app") == 1
    counting = Counting(log)
    assert log.write_checksum(log.snapshot)
    assert counting.take() == ([], 0)
    with pytest.raises(FileExistsError):
        log.write_commit(1, b"{}\n")


def test_long_running_logs_move_to_newer_checkpoints(table: Path) -> None:
    tables.create_table(table)
    log = DeltaLog.for_table(str(table))
    _ = log.snapshot.metadata
    for version in range(1, 150):
        tables.write_commit(table, version, tables.txn("app", version))
    tables.write_checkpoint_by_hand(table, 140, [tables.protocol(), tables.metadata(), tables.txn("app", 140)])
    found = log.update()
    assert found.segment.checkpoint is not None
    assert found.segment.first_commit == 141
    assert found.transactions == {"app": 149}


# -- winners ----------------------------------------------------------------------------------------------------------


def test_winners_since_a_version(table: Path) -> None:
    tables.table_with_commits(table, 6)
    log = DeltaLog.for_table(str(table))
    assert [commit.version for commit in log.read_commits(4)] == [4, 5, 6]
    assert log.read_commits(7) == []
    assert log.read_commits(4)[0].data == tables.commit_path(table, 4).read_bytes()


def test_no_winner_of_a_table_that_does_not_exist(table: Path) -> None:
    assert DeltaLog.for_table(str(table)).read_commits(0) == []


def test_a_read_version_that_the_log_no_longer_holds(table: Path) -> None:
    tables.table_with_commits(table, 12)
    tables.write_checkpoint_by_hand(table, 10, [tables.protocol(), tables.metadata()])
    for version in range(10):
        tables.commit_path(table, version).unlink()
    log = DeltaLog.for_table(str(table))
    for start in (0, 1, 5, 9):
        with pytest.raises(VersionNotFoundException, match="cleaned up") as caught:
            log.read_commits(start)
        assert (caught.value.earliest, caught.value.latest) == (10, 12)
    assert [commit.version for commit in log.read_commits(10)] == [10, 11, 12]
    assert log.read_commits(13) == []


def test_a_gap_among_the_winners(table: Path) -> None:
    tables.table_with_commits(table, 6)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.version == 6
    tables.append(table, 8)
    for read in (lambda: log.read_commits(6), lambda: log.read_commits(7), log.update):
        with pytest.raises(VersionsNotContiguousException, match=r"Commit 7 .* is missing, although commit 8"):
            read()


def test_a_version_whose_place_was_cleaned_up_is_not_written_again(table: Path) -> None:
    tables.table_with_commits(table, 12)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.version == 12
    tables.write_checkpoint_by_hand(table, 10, [tables.protocol(), tables.metadata()])
    for version in range(8):
        tables.commit_path(table, version).unlink()
    for version in (1, 6, 7):
        with pytest.raises(VersionNotFoundException, match="Start the transaction again"):
            log.write_commit(version, encode_actions([tables.info()]))
        assert not tables.commit_path(table, version).exists()
    log.write_commit(13, encode_actions([tables.info()]))


def test_a_deleted_table_is_not_brought_back(table: Path) -> None:
    tables.table_with_commits(table, 2)
    log = DeltaLog.for_table(str(table))
    assert log.snapshot.version == 2
    shutil.rmtree(table)
    with pytest.raises(VersionNotFoundException, match="table was deleted"):
        log.write_commit(3, encode_actions([tables.info()]))
    assert not table.exists()


def test_a_commit_follows_a_checkpoint_whose_commit_is_gone(table: Path) -> None:
    tables.table_with_commits(table, 2)
    tables.write_checkpoint_by_hand(table, 2, [tables.protocol(), tables.metadata()])
    for version in range(3):
        tables.commit_path(table, version).unlink()
    log = DeltaLog.for_table(str(table))
    log.write_commit(3, encode_actions([tables.info()]))
    assert log.update().version == 3


# -- old versions -----------------------------------------------------------------------------------------------------


def test_old_versions(table: Path) -> None:
    tables.table_with_commits(table, 12)
    tables.write_checkpoint_by_hand(
        table, 5, [tables.protocol(), tables.metadata(), *(tables.add(f"{number}-0.parquet") for number in range(6))]
    )
    log = DeltaLog.for_table(str(table))
    for version in (0, 4, 5, 8, 12):
        found = log.snapshot_at(version)
        assert found.version == version
        assert len(files(found)) == version + 1
    tables.append(table, 13)
    assert log.snapshot_at(13).version == 13
    with pytest.raises(VersionNotFoundException, match="holds versions 0 to 13"):
        log.snapshot_at(14)


def test_a_version_of_no_table(table: Path) -> None:
    assert DeltaLog.for_table(str(table)).snapshot.version == -1
    with pytest.raises(VersionNotFoundException, match="no table"):
        DeltaLog.for_table(str(table)).snapshot_at(0)


# -- how much work it is ------------------------------------------------------------------------------------------------


def test_ten_thousand_commits_are_little_work(table: Path) -> None:
    tables.create_table(table)
    folder = tables.log_path(table, "")
    for version in range(1, 10_001):
        line = encode_actions([tables.info(), tables.txn("app", version), tables.add(f"{version}.parquet", stats="x" * 200)])
        (folder / f"{version:020d}.json").write_bytes(line)
    found: list[object] = []

    def read() -> None:
        snapshot = DeltaLog.for_table(str(table)).snapshot
        found.extend((snapshot.metadata, snapshot.transaction_version("app")))

    assert calls(read) < 60 * 10_000
    assert found == [tables.metadata(), 10_000]


def test_a_stray_file_of_a_huge_version_is_a_gap(table: Path) -> None:
    tables.table_with_commits(table, 2)
    tables.log_path(table, "9" * 20 + ".json").write_text("{}")
    with pytest.raises(VersionsNotContiguousException, match="commit 3 "):
        _ = DeltaLog.for_table(str(table)).snapshot


def test_a_gap_is_found_when_the_log_is_opened(table: Path) -> None:
    tables.table_with_commits(table, 5)
    tables.commit_path(table, 3).unlink()
    with pytest.raises(VersionsNotContiguousException, match="commit 3 is missing"):
        _ = DeltaLog.for_table(str(table)).snapshot
