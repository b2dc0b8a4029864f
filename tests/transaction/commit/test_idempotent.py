"""Application transactions: what makes a rerun of the same work visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_delta.exceptions import ConcurrentTransactionException
from airflow_delta.log.actions.actions import DomainMetadata
from airflow_delta.transaction import Operation
from support.actions import add, txn
from support.table import Table


def test_txn_version(table: Table) -> None:
    assert table.log().start_transaction().txn_version("app") == -1
    table.commit(txn("app", 4), add("a"))
    table.commit(add("b"))
    transaction = table.log().start_transaction()
    assert transaction.txn_version("app") == 4
    assert transaction.txn_version("other") == -1
    assert set(transaction.reads.app_ids) == {"app", "other"}


def test_txn_version_of_a_table_that_does_not_exist(tmp_path: Path) -> None:
    assert Table(tmp_path / "none").log().start_transaction().txn_version("app") == -1


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_racing_duplicate_is_a_conflict_whatever_its_version(table: Table, version: int) -> None:
    transaction = table.log().start_transaction()
    transaction.txn_version("app")
    tags = {"airflow.dagId": "flights", "airflow.runId": "manual__1", "airflow.taskId": "commit", "airflow.mapIndex": "-1"}
    table.commit(txn("app", 4), add("a"), tags=tags, operation=Operation.write())
    with pytest.raises(ConcurrentTransactionException) as caught:
        transaction.commit([add("b"), txn("app", version)], Operation.write())
    text = str(caught.value)
    assert "app" in text
    assert "committed by Dag flights, run manual__1, task commit at 20" in text
    assert "map index" not in text
    assert caught.value.winning_commit is not None
    assert caught.value.winning_commit["tags"]["airflow.runId"] == "manual__1"


def test_writing_without_looking_never_conflicts(table: Table) -> None:
    transaction = table.log().start_transaction()
    table.commit(txn("app", 4))
    assert transaction.commit([txn("app", 4)], Operation.write()) == 2


def test_looking_elsewhere_can_be_recorded(table: Table) -> None:
    transaction = table.log().start_transaction()
    transaction.track_app_ids("app")
    table.commit(txn("app", 4))
    with pytest.raises(ConcurrentTransactionException):
        transaction.commit([add("b")], Operation.write())


def test_one_domain_written_by_two(tmp_path: Path) -> None:
    table = Table(tmp_path / "domains")
    table.create(configuration={"delta.feature.domainMetadata": "supported"})
    same, other = table.log().start_transaction(), table.log().start_transaction()
    table.commit(DomainMetadata(domain="d", configuration="{}", removed=False))
    with pytest.raises(ConcurrentTransactionException, match="domain metadata d"):
        same.commit([DomainMetadata(domain="d", configuration="1", removed=False)], Operation.manual_update())
    assert other.commit([DomainMetadata(domain="e", configuration="{}", removed=False)], Operation.manual_update()) == 2
