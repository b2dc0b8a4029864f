"""Commits through the catalog: each version once, whatever is lost, refused or killed on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_delta.catalog.client import UnityCatalogClient
from airflow_delta.catalog.committer import CatalogCommitter
from airflow_delta.contract.catalog_names import TableName
from airflow_delta.exceptions import (
    CatalogException,
    CatalogLimitException,
    CommitStateUnknownException,
    DeltaIllegalStateException,
    DeltaUnsupportedOperationException,
    DeltaUnsupportedTableFeatureException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.storage.errors import StoreRefusedError
from airflow_delta.table.read.read_table import read_table
from catalog.unity import CatalogTable, append, create, open_log, write_rows
from stores.proxy import FaultProxy, Rule

COMMIT = {"method": "POST", "target": "/tables/"}
LOAD = {"method": "GET", "target": "/tables/"}
spawn = multiprocessing.get_context("spawn")


def ids(log: DeltaLog) -> list[int]:
    return sorted(read_table(log).to_table().column("id").to_pylist())


def test_an_append_is_staged_accepted_and_published(table: CatalogTable) -> None:
    assert append(table.log, [(1, "a"), (2, "b")]) == 1

    assert ids(table.log) == [1, 2]
    assert table.published == [0, 1]
    [staged] = table.staged
    assert staged.startswith(f"{1:020d}.")
    assert (table.path / "_delta_log" / f"{1:020d}.json").read_bytes() == (
        table.path / "_delta_log" / "_staged_commits" / staged
    ).read_bytes()
    assert table.known.latest_table_version == 1
    assert not table.known.commits, "the catalog was told that the version is published"
    first = json.loads((table.path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()[0])
    assert first["commitInfo"]["inCommitTimestamp"] > 0
    assert first["commitInfo"]["txnId"]


def test_the_same_log_goes_on(table: CatalogTable) -> None:
    log = table.log
    versions = [append(log, [(number, "x")]) for number in range(15)]
    assert versions == list(range(1, 16))
    assert ids(log) == ids(table.log) == list(range(15))
    assert table.published == list(range(16))


def _append_some(url: str, name: str, first: int, count: int, found: Any) -> None:
    log = open_log(url, name)
    found.put([append(log, [(number, "x")], max_attempts=1000) for number in range(first, first + count)])


def test_25_appends_by_4_processes_each_version_once(table: CatalogTable) -> None:
    found = spawn.Queue()
    shares = [(0, 7), (7, 6), (13, 6), (19, 6)]
    processes = [spawn.Process(target=_append_some, args=(table.url, table.name, *share, found)) for share in shares]
    for process in processes:
        process.start()
    versions = sorted(version for _ in processes for version in found.get(timeout=240))
    for process in processes:
        process.join()
    assert versions == list(range(1, 26))
    assert ids(table.log) == list(range(25))
    append(table.log, [(25, "last")])  # whatever the others left
    assert table.published == list(range(27))
    by_version = Counter(name[:20] for name in table.staged)
    assert set(by_version.values()) == {1}, "a commit that lost its version leaves nothing"


# -- killed -------------------------------------------------------------------------------------------------------------------


def _killed_before_publishing(url: str, name: str, txn_id: str) -> None:
    def publish(self: CatalogCommitter) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    CatalogCommitter.publish = publish  # type: ignore[method-assign]
    append(open_log(url, name), [(1, "a")], txn_id=txn_id)


def _killed_before_asking(url: str, name: str, txn_id: str) -> None:
    def ask(self: UnityCatalogClient, *args: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    UnityCatalogClient.add_commit = ask  # type: ignore[method-assign]
    append(open_log(url, name), [(1, "a")], txn_id=txn_id)


def _run(target: Callable[..., None], *args: Any) -> None:
    process = spawn.Process(target=target, args=args)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def test_killed_after_the_answer_a_retry_finds_itself_and_publishes(table: CatalogTable) -> None:
    before = table.log
    snapshot = before.update()
    _run(_killed_before_publishing, table.url, table.name, "txn-1")
    assert table.published == [0]
    assert ids(table.log) == [1], "a reader asks the catalog"

    txn = before.start_transaction(snapshot, txn_id="txn-1")
    version = txn.commit([], _write())

    assert version == 1
    assert txn.outcome is not None
    assert txn.outcome.recognised
    assert table.published == [0, 1]
    assert table.known.latest_table_version == 1


def test_what_a_killed_writer_left_the_next_commit_publishes(table: CatalogTable) -> None:
    _run(_killed_before_publishing, table.url, table.name, "txn-1")
    assert append(table.log, [(2, "b")]) == 2
    assert table.published == [0, 1, 2]
    assert ids(table.log) == [1, 2]


def test_killed_before_the_request_nothing_is_committed(table: CatalogTable) -> None:
    _run(_killed_before_asking, table.url, table.name, "txn-1")
    assert len(table.staged) == 1
    assert ids(table.log) == []
    assert append(table.log, [(2, "b")], txn_id="txn-1") == 1
    assert ids(table.log) == [2]


# -- lost and refused answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "status_after"])
def test_a_swallowed_answer_is_found_in_the_catalog(proxied_table: CatalogTable, proxied: FaultProxy, fault: str) -> None:
    log = proxied_table.log
    proxied.set(Rule(fault, **COMMIT, status=500))
    assert append(log, [(1, "a")]) == 1
    assert sum(proxied.faults) == 1
    assert ids(proxied_table.log) == [1]
    assert len(proxied_table.staged) == 1
    assert proxied_table.published == [0, 1]


@pytest.mark.parametrize("fault", ["reset", "status"])
def test_a_request_that_never_arrived_is_made_again(proxied_table: CatalogTable, proxied: FaultProxy, fault: str) -> None:
    log = proxied_table.log
    proxied.set(Rule(fault, **COMMIT, status=500))
    assert append(log, [(1, "a")]) == 1
    assert ids(proxied_table.log) == [1]
    assert proxied_table.known.latest_table_version == 1


def test_a_swallowed_answer_and_a_catalog_that_is_gone_is_unknown(proxied_table: CatalogTable, proxied: FaultProxy) -> None:
    log = proxied_table.log
    txn = log.start_transaction(txn_id="txn-1")
    proxied.set(Rule("lost", **COMMIT), Rule("status", target="/tables/", times=None, status=503))
    with pytest.raises(CommitStateUnknownException):
        txn.commit([write_rows(log, [(1, "a")])], _write())
    proxied.set()
    assert ids(proxied_table.log) == [1], "it was accepted, and its files were not deleted"


def test_a_lost_race_to_another_commit_is_repeated(table: CatalogTable) -> None:
    slow, fast = table.log, table.log
    txn = slow.start_transaction()
    append(fast, [(1, "a")])
    version = txn.commit([SetTransaction(app_id="app", version=1)], _write())
    assert version == 2
    assert ids(table.log) == [1]
    assert len(table.staged) == 2


def test_too_many_unpublished_commits_are_published_first(
    table: CatalogTable, monkeypatch: pytest.MonkeyPatch, proxied: FaultProxy
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(CatalogCommitter, "publish", lambda self: None)
        log = table.log
        for number in range(10):
            append(log, [(number, "x")])
        assert table.published == [0]
        with pytest.raises(CatalogLimitException):  # without publishing there is no way on
            append(log, [(10, "x")])
    assert append(table.log, [(10, "x")]) == 11
    assert table.published == list(range(12))
    assert ids(table.log) == list(range(11))


def test_a_catalog_that_is_busy_is_asked_again(proxied_table: CatalogTable, proxied: FaultProxy) -> None:
    log = proxied_table.log
    proxied.set(Rule("status", **COMMIT, status=429, times=2))
    assert append(log, [(1, "a")]) == 1
    assert proxied.faults == [2]


def test_a_table_that_was_made_anew_is_not_written_to(table: CatalogTable) -> None:
    log = table.log
    txn = log.start_transaction()
    table.server.delete(f"/tables/{table.name}")
    create(table.server.url, table.name)
    with pytest.raises(DeltaIllegalStateException, match="another table by now"):
        txn.commit([], _write())
    assert table.known.latest_table_version == 0
    assert table.staged == []


def test_the_wrong_table_id_is_a_refusal_of_the_catalog(table: CatalogTable) -> None:
    log = table.log
    txn = log.start_transaction()
    log.store.versions.table_uuid = "00000000-0000-0000-0000-000000000000"  # type: ignore[attr-defined]
    with pytest.raises((CatalogException, DeltaIllegalStateException)):
        txn.commit([], _write())
    assert table.known.latest_table_version == 0
    assert table.published == [0]


# -- what only the catalog may do ---------------------------------------------------------------------------------------------


def test_by_its_location_the_table_is_refused(table: CatalogTable) -> None:
    append(table.log, [(1, "a")])
    log = DeltaLog.for_table(str(table.path))
    for refused in (lambda: read_table(log), log.start_transaction):
        with pytest.raises(DeltaUnsupportedTableFeatureException, match="catalogManaged") as error:
            refused()
        assert "catalog.schema.table" in str(error.value)


def test_the_log_is_not_written_beside_the_catalog(table: CatalogTable) -> None:
    store = table.log.store
    for path in (f"_delta_log/{1:020d}.json", f"_delta_log/_staged_commits/{1:020d}.x.json"):
        with pytest.raises(StoreRefusedError):
            store.put_if_absent(path, b"{}")
        with pytest.raises(StoreRefusedError):
            store.put(path, b"{}")
        with pytest.raises(StoreRefusedError):
            store.delete([path])
    with pytest.raises(StoreRefusedError):
        store.put(f"_delta_log/{5:020d}.checkpoint.parquet", b"")
    with pytest.raises(StoreRefusedError):
        store.delete_tree("_delta_log")


def test_maintenance_is_refused(table: CatalogTable) -> None:
    from airflow_delta.table.operations.vacuum.run import vacuum

    log = table.log
    with pytest.raises(DeltaUnsupportedOperationException, match="VACUUM"):
        vacuum(log, retention_hours=0, retention_check=False)
    with pytest.raises(DeltaUnsupportedOperationException, match="OPTIMIZE"):
        log.start_transaction().commit([], _named("OPTIMIZE"))
    with pytest.raises(DeltaUnsupportedOperationException, match="RESTORE"):
        log.start_transaction().commit([], _named("RESTORE"))
    with pytest.raises(DeltaUnsupportedOperationException):
        log.clean_up_expired_logs()
    assert table.known.latest_table_version == 0


def test_checkpoints_are_of_published_versions_only(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    log = table.log
    with monkeypatch.context() as patched:
        patched.setattr(CatalogCommitter, "publish", lambda self: None)
        for number in range(10):
            append(log, [(number, "x")])
        assert not list((table.path / "_delta_log").glob("*.checkpoint.*"))
    later = table.log
    for number in range(10, 20):
        append(later, [(number, "x")])
    assert [file.name[:20] for file in (table.path / "_delta_log").glob("*.checkpoint.*")] == [f"{20:020d}"]
    assert ids(table.log) == list(range(20))
    assert (table.path / "_delta_log" / f"{0:020d}.json").exists()


def _write() -> Any:
    from airflow_delta.transaction import Operation

    return Operation.write("Append")


def _named(name: str) -> Any:
    from airflow_delta.transaction import Operation

    return Operation(name)


def test_a_name_of_three_parts() -> None:
    assert TableName.parse("main.`my schema`.`a.b`") == TableName("main", "my schema", "a.b")
    assert str(TableName("main", "my schema", "a`b")) == "main.`my schema`.`a``b`"
