"""The active transaction belongs to its thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_delta.exceptions import DeltaIllegalStateException
from airflow_delta.transaction import Operation, OptimisticTransaction, last_commit_version_in_session
from support.actions import add
from support.table import Table


def test_set_get_clear(table: Table) -> None:
    assert OptimisticTransaction.get_active() is None
    transaction = table.log().start_transaction()
    OptimisticTransaction.set_active(transaction)
    OptimisticTransaction.set_active(transaction)
    assert OptimisticTransaction.get_active() is transaction
    with pytest.raises(DeltaIllegalStateException, match="already has an active one"):
        OptimisticTransaction.set_active(table.log().start_transaction())
    OptimisticTransaction.clear_active()
    assert OptimisticTransaction.get_active() is None


def test_with_new_transaction_always_clears(table: Table) -> None:
    log = table.log()

    def fail() -> None:
        with log.with_new_transaction():
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert OptimisticTransaction.get_active() is None


def test_transactions_do_not_nest(table: Table) -> None:
    log = table.log()
    with log.with_new_transaction(), pytest.raises(DeltaIllegalStateException):
        log.with_new_transaction().__enter__()


def test_threads_do_not_see_each_other(table: Table) -> None:
    seen: list[object] = []

    def other() -> None:
        seen.append(OptimisticTransaction.get_active())
        with table.log().with_new_transaction() as transaction:
            seen.append(transaction.commit([add("b")], Operation.write()))
            seen.append(last_commit_version_in_session())

    with table.log().with_new_transaction() as transaction:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [None, 1, 1]
        assert transaction.commit([add("a")], Operation.write()) == 2
    assert last_commit_version_in_session() == 2


def test_with_active_restores_what_was_active(table: Table) -> None:
    log = table.log()
    outer, inner = log.start_transaction(), log.start_transaction()
    with OptimisticTransaction.with_active(outer) as active:
        assert active is outer is OptimisticTransaction.get_active()
        with OptimisticTransaction.with_active(outer):
            assert OptimisticTransaction.get_active() is outer
        assert OptimisticTransaction.get_active() is outer, "setting it again changes nothing"
        with (
            pytest.raises(DeltaIllegalStateException, match="DELTA_ACTIVE_TRANSACTION_ALREADY_SET"),
            OptimisticTransaction.with_active(inner),
        ):
            pytest.fail("two active transactions")
        with OptimisticTransaction.with_active(inner, override_existing=True):
            assert OptimisticTransaction.get_active() is inner
        assert OptimisticTransaction.get_active() is outer
    assert OptimisticTransaction.get_active() is None


def test_with_active_restores_after_an_error(table: Table) -> None:
    outer, inner = table.log().start_transaction(), table.log().start_transaction()

    def fail() -> None:
        with OptimisticTransaction.with_active(inner, override_existing=True):
            raise ValueError("stop")

    with OptimisticTransaction.with_active(outer):
        with pytest.raises(ValueError, match="stop"):
            fail()
        assert OptimisticTransaction.get_active() is outer


def test_two_tables_in_one_thread(table: Table, tmp_path: Path) -> None:
    other = Table(tmp_path / "other")
    other.create()
    with table.log().with_new_transaction() as first:
        second = other.log().start_transaction()
        assert second.commit([add("b")], Operation.write()) == 1
        assert OptimisticTransaction.get_active() is first
        assert first.commit([add("a")], Operation.write()) == 1
    assert last_commit_version_in_session() == 1
