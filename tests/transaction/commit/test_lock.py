"""Commits of one process to one table take turns, where the store asks for it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from airflow_delta.exceptions import CommitCancelledException, MaxCommitRetriesExceededException
from airflow_delta.log.storage.base import LogStore
from airflow_delta.transaction import CommitPolicy, Operation, TransactionObserver
from airflow_delta.transaction.commit.lock import is_partial_write_visible, lock_commit_if_enabled, lock_of
from support.actions import add
from support.table import Table

WRITE = Operation.write()


class Elsewhere:
    """As much of a store as the choice needs."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.local_root: str | None = None


@pytest.mark.parametrize(
    ("uri", "visible"),
    [
        ("s3://bucket/table", False),
        ("s3a://bucket/table", False),
        ("S3://bucket/table", False),
        ("gs://bucket/table", False),
        ("az://container/table", True),
        ("abfss://container@account.dfs.core.windows.net/table", True),
        ("/data/table", True),
    ],
)
def test_kind_of_store(uri: str, visible: bool) -> None:
    store: LogStore = Elsewhere(uri)  # type: ignore[assignment]
    assert is_partial_write_visible(store) is visible


@pytest.mark.parametrize(("asked", "enabled"), [(None, True), (True, True), (False, False)])
def test_the_policy_decides_first(table: Table, asked: bool | None, enabled: bool) -> None:
    transaction = table.log().start_transaction(policy=CommitPolicy(commit_lock=asked))
    assert transaction.is_commit_lock_enabled is enabled


def test_one_lock_for_all_logs_of_a_table(table: Table, tmp_path: Path) -> None:
    first, second = lock_of(table.log().store), lock_of(table.log().store)
    assert first is second
    assert lock_of(Table(tmp_path / "other").log().store) is not first


def hold(table: Table) -> tuple[threading.Thread, threading.Event]:
    held, done = threading.Event(), threading.Event()

    def run() -> None:
        with lock_commit_if_enabled(table.log().store, CommitPolicy()):
            held.set()
            done.wait(20)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(10)
    return thread, done


def test_a_commit_waits_for_its_turn(table: Table) -> None:
    thread, done = hold(table)
    versions: list[int] = []
    other = threading.Thread(target=lambda: versions.append(table.commit(add("a"))))
    other.start()
    time.sleep(0.2)
    assert versions == []
    assert table.versions() == [0]
    free = table.log().start_transaction(policy=CommitPolicy(commit_lock=False))
    assert free.commit([add("free")], WRITE) == 1, "who does not take the lock does not wait"
    done.set()
    other.join(20)
    thread.join(20)
    assert versions == [2]


def test_waiting_can_be_cancelled(table: Table) -> None:
    thread, done = hold(table)
    asked: list[float] = []

    def cancelled() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 2

    try:
        transaction = table.log().start_transaction(policy=CommitPolicy(cancelled=cancelled))
        with pytest.raises(CommitCancelledException, match="cancelled while waiting"):
            transaction.commit([add("a")], WRITE)
        impatient = table.log().start_transaction(policy=CommitPolicy(total_timeout=0.1))
        with pytest.raises(MaxCommitRetriesExceededException, match="Nothing was written"):
            impatient.commit([add("a")], WRITE)
        assert not transaction.committed
    finally:
        done.set()
        thread.join(20)
    assert table.versions() == [0]
    assert table.commit(add("a")) == 1, "the lock is free again"


def test_the_lock_is_reentrant(table: Table) -> None:
    class Nested(TransactionObserver):
        def before_put(self, version: int, attempt: int) -> None:
            if attempt == 1:
                table.commit(add("inner"))

    assert table.log().start_transaction(observer=Nested()).commit([add("outer")], WRITE) == 2


def test_threads_do_not_lose_races(table: Table) -> None:
    attempts: list[int] = []

    def run(number: int) -> None:
        log = table.log()
        for index in range(5):
            transaction = log.start_transaction()
            transaction.commit([add(f"{number}-{index}")], WRITE)
            assert transaction.outcome is not None
            attempts.append(transaction.outcome.attempts)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert table.versions() == list(range(21))
    assert set(attempts) <= {1, 2}, "what was committed since the start is seen before the put, or right after one"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_inherit_a_held_lock(table: Table) -> None:
    thread, done = hold(table)
    try:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                policy = CommitPolicy(total_timeout=5.0)
                table.log().start_transaction(policy=policy).commit([add("child")], WRITE)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join(20)
    assert table.live() == {"child"}
