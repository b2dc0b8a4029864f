"""What a commit asks an object store for, counted by a proxy before an S3 server."""

from __future__ import annotations

import os
import re
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_delta.exceptions import MetadataChangedException, VersionNotFoundException
from airflow_delta.log import DeltaLog
from airflow_delta.log.segment import commit_files
from airflow_delta.log.storage.file_names import commit_file
from airflow_delta.log.storage.turns import turn
from airflow_delta.transaction import CommitPolicy, Operation, OptimisticTransaction, TransactionObserver
from stores.locked_moto import s3_server
from stores.proxy import FaultProxy, Rule
from stores.servers import make_bucket, s3_options
from support.actions import add
from support.table import metadata

pytestmark = pytest.mark.s3

WRITE = Operation.write()
LISTING = "GET list 200"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    with s3_server() as endpoint:
        yield s3_options(endpoint, "test", "test")


@pytest.fixture(scope="module")
def _proxy(options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    with FaultProxy(options["aws_endpoint_url"], tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: FaultProxy) -> FaultProxy:
    _proxy.set()
    return _proxy


@pytest.fixture(scope="module")
def bucket(options: dict[str, str]) -> str:
    return make_bucket(options)


@pytest.fixture
def uri(bucket: str, options: dict[str, str]) -> str:
    """A table with the versions 0 and 1."""
    uri = f"s3://{bucket}/{uuid.uuid4().hex}"
    log = DeltaLog.for_table(uri, options)
    transaction = log.start_transaction()
    transaction.update_metadata_for_new_table(metadata())
    transaction.commit([], Operation.manual_update())
    log.start_transaction().commit([add("first")], WRITE)
    return uri


@pytest.fixture
def rival(uri: str, options: dict[str, str]) -> DeltaLog:
    """Somebody else, whose requests do not pass the proxy."""
    return DeltaLog.for_table(uri, options)


@pytest.fixture
def log(uri: str, options: dict[str, str], proxy: FaultProxy) -> DeltaLog:
    """The table as the proxy shows it, open."""
    log = DeltaLog.for_table(uri, options | {"aws_endpoint_url": proxy.url})
    assert log.snapshot.metadata is not None
    proxy.set()
    return log


def asked(proxy: FaultProxy) -> list[str]:
    """Return the requests: method, what for, status."""

    def short(target: str) -> str:
        name = re.search(r"(\d{20})\.(\w+)", target.partition("?")[0])
        return "list" if "list-type" in target else f"{int(name[1])}.{name[2]}" if name else target

    return [f"{request['method']} {short(request['target'])} {request['status']}" for request in proxy.requests]


class Rival(TransactionObserver):
    """Has others commit right before a put."""

    def __init__(self, log: DeltaLog, *numbers: int) -> None:
        self.log, self.numbers = log, list(numbers)

    def before_put(self, version: int, attempt: int) -> None:
        for _ in range(self.numbers.pop(0) if self.numbers else 0):
            self.log.start_transaction().commit([add(uuid.uuid4().hex)], WRITE)


def test_a_transaction_takes_three_requests(log: DeltaLog, proxy: FaultProxy) -> None:
    log.start_transaction().commit([add("a")], WRITE)
    assert asked(proxy) == [LISTING, "PUT 2.json 200", "PUT 2.crc 200"]
    proxy.set()
    log.start_transaction().commit([add("b")], WRITE)
    assert asked(proxy) == [LISTING, "PUT 3.json 200", "PUT 3.crc 200"]


def test_a_commit_long_after_its_start_takes_three_requests(
    log: DeltaLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = log.start_transaction()
    proxy.set()
    monkeypatch.setattr(commit_files, "now", lambda now=commit_files.now: now() + 3600)
    transaction.commit([add("a")], WRITE)
    assert asked(proxy) == [LISTING, "PUT 2.json 200", "PUT 2.crc 200"]


@pytest.mark.parametrize("losses", [1, 3])
def test_a_lost_race_takes_two_requests(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy, losses: int) -> None:
    transaction = log.start_transaction(observer=Rival(rival, *[1] * losses))
    proxy.set()
    assert transaction.commit([add("a")], WRITE) == 2 + losses
    race = [request for version in range(2, 2 + losses) for request in (f"PUT {version}.json 412", f"GET {version}.json 206")]
    assert asked(proxy) == [*race, f"PUT {2 + losses}.json 200", f"PUT {2 + losses}.crc 200"]
    assert transaction.outcome is not None
    assert (transaction.outcome.attempts, transaction.outcome.versions_checked) == (losses + 1, losses)


def test_many_winners_since_the_start_take_one_listing(
    log: DeltaLog, rival: DeltaLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = log.start_transaction()
    for number in range(12):
        rival.start_transaction().commit([add(f"w{number}")], WRITE)
    proxy.set()
    monkeypatch.setattr("airflow_delta.transaction.commit.loop._JUST_NOW", 0.0)
    assert transaction.commit([add("a")], WRITE) == 14
    requests = asked(proxy)
    assert requests[0] == LISTING
    assert sorted(requests[1:13]) == sorted(f"GET {version}.json 206" for version in range(2, 14))
    assert requests[13:] == ["PUT 14.json 200", "PUT 14.crc 200"]


def test_a_large_entry_is_not_sent_in_vain(
    log: DeltaLog, rival: DeltaLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_delta.transaction.commit.loop._SMALL", 100)
    transaction = log.start_transaction()
    rival.start_transaction().commit([add("w")], WRITE)
    proxy.set()
    assert transaction.commit([add("a")], WRITE) == 3
    assert asked(proxy) == [LISTING, "GET 2.json 206", "PUT 3.json 200", "PUT 3.crc 200"]


def test_what_the_winner_changed_is_seen_without_listing(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy) -> None:
    transaction = log.start_transaction()
    other = rival.start_transaction()
    other.update_metadata(metadata(configuration={"delta.appendOnly": "true"}))
    other.commit([], Operation.manual_update())
    with pytest.raises(MetadataChangedException):
        transaction.commit([add("a")], WRITE)
    assert LISTING not in asked(proxy)[1:]


@pytest.mark.parametrize("seconds", [0, 3600])
def test_a_version_that_was_cleaned_up_is_not_written_again(
    log: DeltaLog, rival: DeltaLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The log's end is known for a minute; after that, its next version may be free because it was deleted."""
    transaction = log.start_transaction(observer=Rival(rival, *[1] * 8), policy=CommitPolicy(max_attempts=4))
    for number in range(9):
        rival.start_transaction().commit([add(f"w{number}")], WRITE)
    rival.checkpoint()
    monkeypatch.setattr(commit_files, "now", lambda now=commit_files.now: now() + seconds)
    if seconds:
        rival.store.delete([commit_file(version) for version in range(10)])
        with pytest.raises(VersionNotFoundException):
            transaction.commit([add("a")], WRITE)
        assert not any(request.startswith("PUT") for request in asked(proxy))
    else:
        with pytest.raises(Exception, match="has been tried 4 times"):
            transaction.commit([add("a")], WRITE)


def test_the_log_of_a_deleted_table_does_not_come_back(
    log: DeltaLog, rival: DeltaLog, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = log.start_transaction()
    rival.store.delete_tree("_delta_log")
    monkeypatch.setattr(commit_files, "now", lambda now=commit_files.now: now() + 3600)
    with pytest.raises(VersionNotFoundException):
        transaction.commit([add("a")], WRITE)
    assert rival.store.list_from("_delta_log", "") == []


def test_a_winner_that_cannot_be_read_yet_is_looked_for_in_the_log(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy) -> None:
    transaction = log.start_transaction(observer=Rival(rival, 1))
    proxy.set(Rule("status", "GET", target=r"0002\.json", status=404, code="NoSuchKey"))
    assert transaction.commit([add("a")], WRITE) == 3
    assert asked(proxy)[:4] == ["PUT 2.json 412", "GET 2.json 404", LISTING, "GET 2.json 206"]


def test_a_stale_listing_at_the_start_costs_a_race(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy) -> None:
    rival.start_transaction().commit([add("w")], WRITE)
    rival.store.delete(["_delta_log/00000000000000000002.crc"])
    proxy.set(Rule("stale", "GET", target="list-type"))
    transaction = log.start_transaction()
    assert transaction.read_version == 1
    assert transaction.commit([add("a")], WRITE) == 3
    assert asked(proxy) == [LISTING, "PUT 2.json 412", "GET 2.json 206", "PUT 3.json 200", "PUT 3.crc 200"]


def test_a_lost_answer_is_settled_by_one_read(log: DeltaLog, proxy: FaultProxy) -> None:
    transaction: OptimisticTransaction = log.start_transaction()
    proxy.set(Rule("lost", "PUT", target=r"0002\.json"))
    assert transaction.commit([add("a")], WRITE) == 2
    assert transaction.outcome is not None
    assert transaction.outcome.recognised
    assert asked(proxy)[:2] == ["PUT 2.json 200", "GET 2.json 206"]
    assert [request for request in asked(proxy) if request.startswith("PUT")] == ["PUT 2.json 200", "PUT 2.crc 200"]


def test_who_finds_others_waiting_reads_on_before_the_next_put(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy) -> None:
    policy = CommitPolicy(min_wait=0.001, max_wait=0.001)  # a pause after every loss
    transaction = log.start_transaction(observer=Rival(rival, 3), policy=policy)
    proxy.set()
    assert transaction.commit([add("a")], WRITE) == 5
    reads = [f"GET {version}.json 206" for version in (2, 3, 4)]
    assert asked(proxy) == ["PUT 2.json 412", *reads, "GET 5.json 404", "PUT 5.json 200", "PUT 5.crc 200"]


def test_transactions_that_share_a_log_see_each_other_without_asking(log: DeltaLog, proxy: FaultProxy) -> None:
    """Several ready transactions of one process: a log entry and a checksum each, one look at the log for all of them."""
    policy = CommitPolicy(commit_lock=True)
    snapshot = log.update()
    ready = [log.start_transaction(snapshot, policy=policy) for _ in range(4)]
    proxy.set()
    assert [transaction.commit([add(f"a{number}")], WRITE) for number, transaction in enumerate(ready)] == [2, 3, 4, 5]
    assert asked(proxy) == [f"PUT {version}.{kind} 200" for version in (2, 3, 4, 5) for kind in ("json", "crc")]
    assert [transaction.outcome.versions_checked for transaction in ready if transaction.outcome is not None] == [0, 1, 2, 3]


def test_transactions_that_share_a_log_conflict_as_all_do(log: DeltaLog, proxy: FaultProxy) -> None:
    first, second = log.start_transaction(), log.start_transaction()
    first.update_metadata(metadata(configuration={"delta.appendOnly": "true"}))
    first.commit([], Operation.manual_update())
    proxy.set()
    with pytest.raises(MetadataChangedException):
        second.commit([add("a")], WRITE)
    assert asked(proxy) == []


def test_threads_that_share_a_log_queue_for_it_before_they_look(log: DeltaLog, proxy: FaultProxy) -> None:
    policy = CommitPolicy(commit_lock=True)
    snapshot = log.update()
    ready = [log.start_transaction(snapshot, policy=policy) for _ in range(4)]
    proxy.set()
    threads = [threading.Thread(target=ready[number].commit, args=([add(f"a{number}")], WRITE)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    puts = [request for request in asked(proxy) if ".json" in request]
    assert puts == [f"PUT {version}.json 200" for version in (2, 3, 4, 5)], "nobody lost a race"


def test_one_process_at_a_time_writes_checkpoints_of_a_table_on_s3(log: DeltaLog, rival: DeltaLog, proxy: FaultProxy) -> None:
    transaction = log.start_transaction()
    transaction.update_metadata(metadata(configuration={"delta.checkpointInterval": "1"}))
    with turn(rival.store) as free, turn(log.store) as taken:  # other descriptors, as those of other processes
        assert free
        assert not taken
        transaction.commit([], Operation.manual_update())
    assert not any("checkpoint.parquet" in request for request in asked(proxy))
    assert log.start_transaction().commit([add("a")], WRITE) == 3
    assert log.store.head("_delta_log/00000000000000000003.checkpoint.parquet") is not None


def test_a_turn_is_not_taken_in_a_directory_of_somebody_else(
    log: DeltaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    for name in ("cache/airflow-delta", f"airflow-delta-{os.getuid()}"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with turn(log.store) as first, turn(log.store) as second:
        assert (first, second) == (True, False), "in a directory of this process alone"
    assert list((tmp_path / "elsewhere").iterdir()) == []
