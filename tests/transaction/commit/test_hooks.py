"""What happens after a commit. Order, failures and what a hook sees: ``conformance/test_post_commit_hooks.py``."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, CommitInfo
from airflow_delta.log.snapshot import Snapshot
from airflow_delta.log.storage.turns import turn
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, PostCommitHook
from support.actions import add
from support.table import Table


class Recorder(PostCommitHook):
    def __init__(self, name: str, calls: list[str], error: Exception | None = None) -> None:
        self.name = name
        self.calls = calls
        self.error = error

    def run(self, txn: OptimisticTransaction, version: int, actions: Sequence[Action]) -> None:
        assert isinstance(actions[0], CommitInfo)
        assert OptimisticTransaction.get_active() is None
        self.calls.append(f"{self.name} {version}")
        if self.error is not None:
            raise self.error


def test_hooks_may_start_transactions(table: Table) -> None:
    class Follow(PostCommitHook):
        name = "follow"

        def run(self, txn: OptimisticTransaction, version: int, actions: Sequence[Action]) -> None:
            with txn.log.with_new_transaction() as other:
                other.commit([add(f"after-{version}")], Operation.write())

    transaction = table.log().start_transaction()
    transaction.register_post_commit_hook(Follow())
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert table.live() == {"a", "after-1"}


def test_checkpoint_at_the_interval(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "3"})
    log = table.log()
    for index in range(7):
        log.start_transaction().commit([add(f"f{index}")], Operation.write())
    found = sorted(path.name for path in (table.path / "_delta_log").glob("*.checkpoint.parquet"))
    assert found == [f"{version:020d}.checkpoint.parquet" for version in (3, 6)]
    assert json.loads((table.path / "_delta_log" / "_last_checkpoint").read_text())["version"] == 6
    assert set(table.log().snapshot.files()["path"].to_pylist()) == table.live()


def checkpoints(table: Table) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table.path / "_delta_log").glob("*.checkpoint.parquet"))


def test_one_process_at_a_time_writes_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "1"})
    log = table.log()
    with caplog.at_level(logging.INFO), turn(log.store) as free:  # another descriptor, as that of another process
        assert free
        assert log.start_transaction().commit([add("a")], Operation.write()) == 1
    assert "Version 1 of" in caplog.text
    assert "another process is writing one" in caplog.text
    assert checkpoints(table) == []
    log.start_transaction().commit([add("b")], Operation.write())
    assert checkpoints(table) == [2]


LOCK = """
import fcntl, os, sys
root = os.open(sys.argv[1], os.O_RDONLY)  # what is above it may be closed to others
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
held = []
for path in sys.argv[2:]:
    try:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=root)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        held.append(path)
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""


def test_whoever_may_read_the_table_cannot_keep_its_checkpoints_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user locks the log, all of its files and what he finds of our locks. (Only root can be another user.)"""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    tmp_path.chmod(0o755)
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "1"})
    log = table.log()
    with turn(log.store):  # the file is there
        pass
    of_table = [table.path, *table.path.rglob("*")]
    ours = sorted((tmp_path / "cache").rglob("*.turn"))
    assert len(ours) == 1
    known = [str(path.relative_to(tmp_path)) for path in (*of_table, *(ours if os.getuid() == 0 else ()))]
    other = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(tmp_path), *known], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    with other:
        assert int(other.stdout.readline()) == len(of_table), "all of the table, and none of ours"
        log.start_transaction().commit([add("a")], Operation.write())
        other.communicate("")
    assert checkpoints(table) == [1]


def test_a_turn_that_is_not_given_back_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "1"})
    log = table.log()
    with turn(log.store) as free, turn(log.store) as second:
        assert free
        assert not second
        monkeypatch.setattr("airflow_delta.log.storage.turns.LONGEST_SECONDS", -1)
        log.start_transaction().commit([add("a")], Operation.write())
    assert checkpoints(table) == [1]


def test_who_writes_a_checkpoint_writes_what_falls_due_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "2"})
    log, other = table.log(), table.log()
    write = log.checkpoint

    def slowly(snapshot: Snapshot | None = None) -> None:
        for name in "xyz" if other.update().version < 4 else "":
            other.start_transaction().commit([add(name)], Operation.write())
        write(snapshot)

    monkeypatch.setattr(log, "checkpoint", slowly)
    for name in "ab":
        log.start_transaction().commit([add(name)], Operation.write())
    assert other.update().version == 5
    assert checkpoints(table) == [2, 4]


def test_checkpoints_off(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "1"})
    policy = CommitPolicy(checkpoint="off", checksum=False)
    table.log().start_transaction(policy=policy).commit([add("a")], Operation.write())
    names = {path.suffix for path in (table.path / "_delta_log").iterdir() if "0001" in path.name}
    assert names == {".json"}


def test_a_failing_checkpoint_is_logged_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.checkpointInterval": "1"})
    (table.path / "_delta_log" / "_last_checkpoint").mkdir()  # something is in its way
    transaction = table.log().start_transaction(policy=CommitPolicy(fail_on_hook_error=True))
    with caplog.at_level(logging.ERROR):
        assert transaction.commit([add("a")], Operation.write()) == 1
    assert any("Post commit checkpoint trigger" in record.getMessage() for record in caplog.records)


def test_checksum(table: Table) -> None:
    log = table.log()
    for index in range(3):
        log.start_transaction().commit([add(f"f{index}")], Operation.write())
    checksum = json.loads((table.path / "_delta_log" / f"{3:020d}.crc").read_text())
    assert checksum["numFiles"] == 3
    assert checksum["tableSizeBytes"] == 300
    assert checksum["txnId"] == table.info(3)["txnId"]


def test_the_open_log_stands_on_the_new_version_without_reading(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    log = table.log()
    transaction = log.start_transaction()
    table.commit(add("other"))
    transaction.commit([add("a")], Operation.write())
    monkeypatch.setattr(DeltaLog, "update", lambda self: pytest.fail("read the log"))
    assert log.snapshot.version == 2
    monkeypatch.undo()
    assert log.update() is log.snapshot
    assert set(log.snapshot.files()["path"].to_pylist()) == {"a", "other"}


class Deaf(Recorder):
    """Decides for itself that its failure does not matter."""

    def handle_error(self, txn: OptimisticTransaction, error: Exception, version: int) -> None:
        self.calls.append(f"handled {error} {version}")


def test_a_hook_decides_what_its_error_means(table: Table) -> None:
    calls: list[str] = []
    transaction = table.log().start_transaction(policy=CommitPolicy(fail_on_hook_error=True))
    transaction.register_post_commit_hook(Deaf("deaf", calls, ValueError("boom")))
    transaction.register_post_commit_hook(Recorder("good", calls))
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert calls == ["deaf 1", "handled boom 1", "good 1"]


def test_hooks_can_be_run_again_after_the_commit(table: Table) -> None:
    calls: list[str] = []
    transaction = table.log().start_transaction()
    transaction.register_post_commit_hook(Recorder("h", calls))
    version = transaction.commit([add("a")], Operation.write())
    assert transaction.outcome is not None
    transaction.run_post_commit_hooks(version, [transaction.outcome.commit_info, add("a")])
    assert calls == ["h 1", "h 1"]


def test_the_order_in_which_delta_registers(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(
        configuration={
            "delta.compatibility.symlinkFormatManifest.enabled": "true",
            "delta.autoOptimize.autoCompact": "true",
        }
    )
    calls: list[str] = []
    transaction = table.log().start_transaction()
    transaction.register_post_commit_hook(Recorder("own", calls))
    transaction.commit([add("a")], Operation.write())
    assert [hook.name for hook in transaction.post_commit_hooks] == [
        "Post commit checksum",
        "Post commit checkpoint trigger",
        "own",
        "Auto Compact",
        "Generate Symlink Format Manifest",
    ]
