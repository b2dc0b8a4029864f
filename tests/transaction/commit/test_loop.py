"""The commit loop: bounds, cancellation, ambiguous puts, the seed's log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    CommitCancelledException,
    CommitStateUnknownException,
    ConcurrentAppendException,
    ConcurrentWriteException,
    DeltaIllegalArgumentException,
    DeltaLogCorruptedException,
    MaxCommitRetriesExceededException,
    VersionNotFoundException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.storage.errors import AmbiguousPutError, StoreAccessError
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.transaction import CommitPolicy, Operation, TransactionObserver, last_commit_version_in_session
from support.actions import add, foreign_info, remove
from support.pauses import sleep_by
from support.table import FAST, Table
from support.work import calls


class ScriptedStore(LocalStore):
    """A real local store; a script says what happens around each put of a commit."""

    def __init__(self, root: Path, *script: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(str(root), FAST)
        self.script = list(script)
        self.puts: list[str] = []
        self.unreadable = False

    def put_if_absent(self, path: str, data: bytes, *, durable: bool = True) -> None:
        def put() -> None:
            super(ScriptedStore, self).put_if_absent(path, data, durable=durable)

        if not path.endswith(".json"):
            return put()
        self.puts.append(path)
        return self.script.pop(0)(put) if self.script else put()

    def read(self, path: str) -> bytes:
        if self.unreadable and path.endswith(".json"):
            raise OSError("connection reset")
        return super().read(path)


def lands_unnoticed(put: Callable[[], None]) -> None:
    put()
    raise AmbiguousPutError("timeout")


def never_arrives(_put: Callable[[], None]) -> None:
    raise AmbiguousPutError("timeout")


def lost_below(put: Callable[[], None]) -> None:
    """A store that retries by itself: the first try landed, the second is refused."""
    put()
    raise FileExistsError("412")


def loser(table: Table, store: LocalStore, policy: CommitPolicy | None = None, **options: Any) -> Any:
    return DeltaLog(store).start_transaction(policy=policy or CommitPolicy(max_wait=0.01), **options)


def commits_of(table: Table, txn_id: str) -> list[int]:
    return [version for version in table.versions() if table.info(version).get("txnId") == txn_id]


@pytest.mark.parametrize("script", [lands_unnoticed, lost_below])
def test_a_put_that_landed_unnoticed_is_recognised(table: Table, script: Callable[..., None]) -> None:
    transaction = loser(table, ScriptedStore(table.path, script))
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert transaction.outcome.recognised
    assert commits_of(table, transaction.txn_id) == [1]
    assert last_commit_version_in_session() == 1


def test_a_put_that_landed_unnoticed_is_recognised_behind_other_commits(table: Table) -> None:
    def land_then_others(put: Callable[[], None]) -> None:
        put()
        table.commit(add("b"))
        table.commit(remove("a"))  # would conflict, were the commit not there already
        raise FileExistsError("412")

    transaction = loser(table, ScriptedStore(table.path, land_then_others))
    transaction.read_whole_table()
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert commits_of(table, transaction.txn_id) == [1]
    assert table.versions() == [0, 1, 2, 3]


def test_a_retried_commit_of_the_same_transaction_is_not_written_twice(table: Table) -> None:
    first = table.log().start_transaction(txn_id="same")
    second = table.log().start_transaction(txn_id="same")
    table.commit(add("other"))
    assert first.commit([add("a")], Operation.write()) == 2
    table.commit(remove("a"))
    second.track_files_read(["a"])
    assert second.commit([add("a")], Operation.write()) == 2
    assert second.outcome is not None
    assert second.outcome.recognised
    assert second.outcome.attempts == 0
    assert commits_of(table, "same") == [2]


def test_an_ambiguous_put_that_never_arrived_is_put_again(table: Table) -> None:
    store = ScriptedStore(table.path, never_arrives, never_arrives)
    transaction = loser(table, store)
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert transaction.outcome.attempts == 3
    assert not transaction.outcome.recognised
    assert len(set(store.puts)) == 1, "an unsettled version must not be left for another one"


def test_an_ambiguous_put_that_another_won_is_a_lost_race(table: Table) -> None:
    def other_wins(_put: Callable[[], None]) -> None:
        table.commit(add("b"))
        raise AmbiguousPutError("timeout")

    transaction = loser(table, ScriptedStore(table.path, other_wins))
    assert transaction.commit([add("a")], Operation.write()) == 2
    assert table.live() == {"a", "b"}


def test_an_ambiguous_put_that_another_won_may_be_a_conflict(table: Table) -> None:
    def other_wins(_put: Callable[[], None]) -> None:
        table.commit(add("b"))
        raise AmbiguousPutError("timeout")

    transaction = loser(table, ScriptedStore(table.path, other_wins))
    transaction.read_whole_table()
    with pytest.raises(ConcurrentAppendException):
        transaction.commit([add("a")], Operation.write())


def test_an_ambiguous_put_that_cannot_be_read_back_is_unknown(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_delta.transaction.commit.loop._SETTLING_PAUSES", (0.0, 0.0))

    def unreadable(put: Callable[[], None]) -> None:
        put()
        store.unreadable = True
        raise AmbiguousPutError("timeout")

    store = ScriptedStore(table.path, unreadable)
    transaction = loser(table, store)
    with pytest.raises(CommitStateUnknownException, match="version 1 of table"):
        transaction.commit([add("a")], Operation.write())
    assert not transaction.committed


def refused(_put: Callable[[], None]) -> None:
    raise StoreAccessError("403 AccessDenied")


def test_a_refused_put_is_an_error_at_once(table: Table) -> None:
    store = ScriptedStore(table.path, refused)
    transaction = loser(table, store)
    with pytest.raises(StoreAccessError, match="AccessDenied"):
        transaction.commit([add("a")], Operation.write())
    assert len(store.puts) == 1


def test_a_refusal_after_an_unsettled_put_is_unknown(table: Table) -> None:
    transaction = loser(table, ScriptedStore(table.path, never_arrives, refused))
    with pytest.raises(CommitStateUnknownException, match="AccessDenied"):
        transaction.commit([add("a")], Operation.write())


def test_a_cancel_after_an_unsettled_put_is_unknown(table: Table) -> None:
    store = ScriptedStore(table.path, never_arrives)
    transaction = loser(table, store, CommitPolicy(cancelled=lambda: bool(store.puts)))
    with pytest.raises(CommitStateUnknownException, match="cancelled"):
        transaction.commit([add("a")], Operation.write())


def test_running_out_of_attempts_after_an_unsettled_put_is_unknown(table: Table) -> None:
    transaction = loser(table, ScriptedStore(table.path, never_arrives), CommitPolicy(max_attempts=1))
    with pytest.raises(CommitStateUnknownException):
        transaction.commit([add("a")], Operation.write())


def test_ambiguous_puts_are_bounded(table: Table) -> None:
    store = ScriptedStore(table.path, *[never_arrives] * 20)
    transaction = loser(table, store, CommitPolicy(max_wait=0.001))
    with pytest.raises(CommitStateUnknownException):
        transaction.commit([add("a")], Operation.write())
    assert len(store.puts) == 10


def test_a_refused_put_is_raised_as_it_is(table: Table) -> None:
    def no_space(_put: Callable[[], None]) -> None:
        raise OSError(28, "No space left on device")

    transaction = loser(table, ScriptedStore(table.path, no_space))
    with pytest.raises(OSError, match="No space left"):
        transaction.commit([add("a")], Operation.write())
    assert table.versions() == [0]


def test_an_error_after_the_put_has_landed_does_not_hide_it(table: Table) -> None:
    def lands_and_breaks(put: Callable[[], None]) -> None:
        put()
        raise RuntimeError("the answer does not parse")

    transaction = loser(table, ScriptedStore(table.path, lands_and_breaks))
    assert transaction.commit([add("a")], Operation.write()) == 1
    assert transaction.outcome.recognised


class Rival(TransactionObserver):
    """Takes every version right before it is put."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.phases: list[str] = []

    def before_put(self, version: int, attempt: int) -> None:
        self.phases.append(f"put {version} attempt {attempt}")
        self.table.put_foreign(version, foreign_info(isBlindAppend=True), {"add": {**ADD, "path": f"rival-{version}"}})

    def aborted(self, error: BaseException) -> None:
        self.phases.append(f"aborted {type(error).__name__}")


ADD = {"path": "f", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}


def test_attempts_are_bounded(table: Table) -> None:
    rival = Rival(table)
    transaction = table.log().start_transaction(policy=CommitPolicy(max_attempts=3), observer=rival)
    with pytest.raises(MaxCommitRetriesExceededException) as caught:
        transaction.commit([add("a")], Operation.write())
    assert rival.phases == [
        "put 1 attempt 1",
        "put 2 attempt 2",
        "put 3 attempt 3",
        "aborted MaxCommitRetriesExceededException",
    ]
    text = caught.value.message
    assert "This commit has failed as it has been tried 3 times but did not succeed." in text
    assert "This can be caused by the Delta table being committed continuously by many concurrent commits." in text
    assert "Commit started at version: 1" in text
    assert "Commit failed at version: 4" in text
    assert "Number of actions attempted to commit: 2" in text
    assert "Total time spent attempting this commit: " in text
    assert table.versions() == [0, 1, 2, 3]
    assert "a" not in table.live()


def test_total_time_is_bounded(table: Table) -> None:
    policy = CommitPolicy(total_timeout=0.2, min_wait=0.01, max_wait=0.02)
    transaction = table.log().start_transaction(policy=policy, observer=Rival(table))
    with pytest.raises(MaxCommitRetriesExceededException, match=r"Total time .*: ([2-9]\d\d|\d{4,}) ms"):
        transaction.commit([add("a")], Operation.write())


def test_cancelled_is_read_right_before_each_put(table: Table) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(table.versions()[-1])
        return len(asked) == 3

    transaction = table.log().start_transaction(policy=CommitPolicy(cancelled=cancelled), observer=Rival(table))
    with pytest.raises(CommitCancelledException, match="Nothing was written"):
        transaction.commit([add("a")], Operation.write())
    assert asked == [0, 1, 2]
    assert "a" not in table.live()


def test_a_commit_that_nobody_holds_up_does_not_sleep(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep_by(monkeypatch, slept.append)
    table.commit(add("f"))
    assert slept == []


def test_every_winner_is_read_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    original = LocalStore.read

    def read(self: LocalStore, path: str) -> bytes:
        data = original(self, path)
        reads.append(path)
        return data

    store = LocalStore(str(table.path), FAST)
    transaction = loser(table, store, CommitPolicy(max_attempts=10), observer=Rival(table))
    for index in range(5):
        table.commit(add(f"before-{index}"))
    monkeypatch.setattr(LocalStore, "read", read)
    with pytest.raises(MaxCommitRetriesExceededException):
        transaction.commit([add("a")], Operation.write())
    commits = [path for path in reads if path.endswith(".json")]
    assert len(commits) == len(set(commits)) == 15


def test_log_lines(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    transaction = table.log().start_transaction()
    table.commit(add("b"))
    table.commit(add("c"))
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="airflow_delta.transaction"):
        transaction.commit([add("a")], Operation.write())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "No logical conflicts with deltas [1, 3), retrying.") in lines
    assert ("DEBUG", "Attempting to commit version 3 with 2 actions with Serializable isolation level") in lines
    assert ("INFO", f"Committed delta #3 to {table.path}/_delta_log") in lines
    checked = [text for level, text in lines if level == "INFO" and text.startswith("Completed checking for conflicts")]
    assert [text.split()[5] for text in checked] == ["1", "2"]
    assert all(" Attempt: " in text and text.endswith(" ms") for text in checked)
    stats = next(r.delta_data for r in caplog.records if getattr(r, "delta_event", "") == "delta.commit.stats")
    assert stats["commitVersion"] == 3
    assert stats["numAdd"] == 1
    assert stats["versionsChecked"] == 2


def test_phases_of_a_commit(table: Table) -> None:
    phases: list[Any] = []

    class Recorder(TransactionObserver):
        def starting(self, read_version: int) -> None:
            phases.append(("starting", read_version))

        def preparing(self) -> None:
            phases.append("preparing")

        def before_put(self, version: int, attempt: int) -> None:
            phases.append(("before_put", version, attempt))

        def after_put(self, version: int, landed: bool) -> None:
            phases.append(("after_put", version, landed))

        def committed(self, version: int) -> None:
            phases.append(("committed", version))

    table.log().start_transaction(observer=Recorder()).commit([add("a")], Operation.write())
    assert phases == [("starting", 0), "preparing", ("before_put", 1, 1), ("after_put", 1, True), ("committed", 1)]


def test_commit_large_does_not_resolve_races(table: Table) -> None:
    transaction = table.log().start_transaction()
    table.commit(add("b"), operation=Operation.write())
    with pytest.raises(ConcurrentWriteException) as caught:
        transaction.commit_large([add("a")], Operation.restore(version=0))
    assert caught.value.winning_version == 1
    assert caught.value.winning_commit is not None
    assert caught.value.winning_commit["operation"] == "WRITE"


def test_commit_large_order_and_checkpoint(table: Table) -> None:
    transaction = table.log().start_transaction()
    assert transaction.commit_large([add("a")], Operation.restore(version=0)) == 1
    assert [next(iter(line)) for line in table.lines(1)] == ["commitInfo", "metaData", "add"]
    info = table.info(1)
    assert info["isBlindAppend"] is False
    assert "dataChange" not in info
    assert (table.path / "_delta_log" / f"{1:020d}.checkpoint.parquet").exists()


def test_a_read_version_that_the_log_no_longer_holds(table: Table) -> None:
    transaction = table.log().start_transaction()
    for index in range(10):
        table.commit(add(f"f{index}"))
    log = table.path / "_delta_log"
    for version in range(10):
        (log / f"{version:020d}.json").unlink()
    with pytest.raises(VersionNotFoundException, match="no longer in its log"):
        transaction.commit([add("a")], Operation.write())
    assert not (log / f"{1:020d}.json").exists()


@pytest.mark.parametrize("content", [b"", b'{"commitInfo":{}}\n{"metaDa'])
def test_a_winner_that_is_not_complete_is_no_winner_to_be_passed_over(table: Table, content: bytes) -> None:
    transaction = table.log().start_transaction()
    (table.path / "_delta_log" / f"{1:020d}.json").write_bytes(content)
    with pytest.raises(DeltaLogCorruptedException):
        transaction.commit([add("a")], Operation.write())
    assert table.versions() == [0, 1]


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"min_wait": 2.0, "max_wait": 1.0}, {"min_wait": -1.0}, {"total_timeout": 0}, {"checkpoint": "never"}],
)
def test_policies_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(DeltaIllegalArgumentException):
        CommitPolicy(**options)


@pytest.mark.parametrize(("tracked", "limit"), [(False, 127), (True, 227)], ids=["plain", "row ids and timestamps"])
def test_a_thousand_winners_are_little_work(tmp_path: Path, tracked: bool, limit: int) -> None:
    table = Table(tmp_path / "crowded")
    features = {"delta.feature.rowTracking": "supported", "delta.enableInCommitTimestamps": "true"}
    table.create(("part",), configuration=features if tracked else {})
    transaction = table.log().start_transaction(policy=CommitPolicy(checkpoint="off", checksum=False))
    transaction.filter_files("part = 1")
    for version in range(1, 1001):
        new = {"path": f"w{version}", "partitionValues": {"part": str(version % 50 + 2)}, "size": 1, "modificationTime": 1}
        new |= {"dataChange": True, "baseRowId": version, "defaultRowCommitVersion": version}
        mark = {"domain": "delta.rowTracking", "configuration": f'{{"rowIdHighWaterMark":{version}}}', "removed": False}
        info = foreign_info(isBlindAppend=True, inCommitTimestamp=version)
        table.put_foreign(version, info, {"add": new}, *([{"domainMetadata": mark}] if tracked else []))
    entry = [add("o", part=1, stats='{"numRecords":5}')]
    logging.disable(logging.CRITICAL)  # handlers of other tests would be counted
    try:
        work = calls(lambda: transaction.commit(entry, Operation.write()))
    finally:
        logging.disable(logging.NOTSET)
    assert work < 1000 * limit
    assert transaction.outcome.version == 1001
    lines = table.lines(1001)
    assert lines[-1]["add"].get("baseRowId") == (1001 if tracked else None)


class ListingStore(LocalStore):
    """A store that is asked by listing, as object stores are; counts what is asked."""

    probes = False

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), FAST)
        self.listings = 0
        self.batches: list[int] = []
        self.single: list[str] = []

    def list_from(self, directory: str, start_name: str, *, stat: bool = True) -> list[Any]:
        self.listings += 1
        return super().list_from(directory, start_name, stat=stat)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        self.batches.append(len(paths))
        return [super(ListingStore, self).read(path) for path in paths]

    def read(self, path: str) -> bytes:
        self.single.append(path)
        return super().read(path)


def test_a_hundred_winners_cost_one_listing_and_are_read_together(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_delta.transaction.commit.loop._JUST_NOW", 0.0)  # the start was a while ago

    class Watch(TransactionObserver):
        def before_put(self, version: int, attempt: int) -> None:
            asked.append((version, store.listings, list(store.batches), list(store.single)))

    asked: list[tuple[int, int, list[int], list[str]]] = []
    store = ListingStore(table.path)
    transaction = loser(table, store, observer=Watch())
    for index in range(100):
        table.commit(add(f"w{index}"))
    store.listings, store.batches, store.single = 0, [], []
    assert transaction.commit([add("a")], Operation.write()) == 101
    assert transaction.outcome.versions_checked == 100
    assert asked == [(101, 1, [100], [])]
