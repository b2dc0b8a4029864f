"""One untrustworthy answer of the store at every request of a task: it is right, or fails with a typed error and then is.

The same through real clients and servers: ``tests/stores/faults.py``. Here the answer is wrong behind the client, where no
checksum or length gives it away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.log.storage.base import LogStore
from faults.crash.uncertain import FAULTS, READ, Uncertain
from faults.crash.zombie_table import COMMITTED, GONE, Transaction, commit
from support.pauses import sleep_by

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def with_manifest(transaction: Transaction) -> Callable[[Any], Any]:
    from faults.crash.run import manifests

    with manifests():
        transaction.staged = transaction.table.stage_id(transaction.table.log(), transaction.handle, 2)
    return transaction.commit


def with_checkpoint(transaction: Transaction) -> Callable[[Any], Any]:
    def task(log: Any) -> Any:
        transaction.commit(log)
        return log.checkpoint()

    return task


def after_a_checkpoint(transaction: Transaction) -> Callable[[Any], Any]:
    transaction.table.log().checkpoint()
    return transaction.commit


def again(transaction: Transaction) -> Callable[[Any], Any]:
    commit(transaction.handle, transaction.staged)(transaction.table.log())
    return transaction.commit


TASKS: dict[str, tuple[Callable[[Transaction], Callable[[Any], Any]], list[int]]] = {
    "start": (lambda transaction: transaction.start, GONE),
    "stage": (lambda transaction: transaction.stage, GONE),
    "commit": (lambda transaction: transaction.commit, COMMITTED),
    "commit with a manifest": (with_manifest, COMMITTED),
    "commit and checkpoint": (with_checkpoint, COMMITTED),
    "commit after a checkpoint": (after_a_checkpoint, COMMITTED),
    "commit again": (again, COMMITTED),
    "abort": (lambda transaction: transaction.abort, GONE),
    "VACUUM": (lambda transaction: transaction.vacuum_later, GONE),
    "restart": (lambda transaction: transaction.restart, COMMITTED),
}
CUT = "A log entry without its last lines is a shorter log entry: see LogStore.put_if_absent, readers see all of it or nothing."


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", TASKS)
def test_one_answer_of_the_store_cannot_be_trusted(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Callable[..., None]
) -> None:
    sleep_by(monkeypatch, lambda _seconds: None)
    task, rows = TASKS[name]
    number = right = errors = 0
    while True:
        transaction = Transaction(tmp_path / str(number))
        work = task(transaction)
        stores: list[Uncertain] = []

        def client(below: LogStore, at: int = number, stores: list[Uncertain] = stores) -> LogStore:
            stores.append(Uncertain(below, fault, at))
            return stores[0]

        transaction.table.client = client
        tried = transaction.table.attempt(work).run()
        if stores[0].hit is None:
            break
        where = f"{fault} at {stores[0].hit}"
        if tried.error is not None:
            assert type(tried.error).__module__.startswith("airflow_delta."), f"{where} led to {tried.error!r}"
            monkeypatch.setattr(transaction.table, "client", Uncertain.__mro__[1])
            again = transaction.table.attempt(work).run()
            assert again.error is None, f"{where}: {tried.error!r}, then {again.error!r}"
        found = transaction.table.ids()
        assert found == rows, f"{where}: the table has the ids {found} ({tried.error!r})"
        number, right, errors = number + 1, right + (tried.error is None), errors + (tried.error is not None)
    figures(f"ambiguous stores, {name}, {fault}", tried=number, right=right, errors=errors, failed=0)
    assert number or fault in READ or name in ("start", "stage"), "the fault happened to no request"
