"""Faults of a store at every request of every operation: the right answer or a typed error, nothing lost, nothing doubled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_delta.log.storage.errors import StoreUnavailableError
from airflow_delta.log.storage.object import ObjectStore
from stores.faults import AT_MOST, ELSEWHERE, FAULTS, OPERATIONS, PASSING, StoreTable, cases, table_on
from stores.proxy import FaultProxy, Rule
from stores.servers import WAYS

CASES = [("s3", operation, fault) for operation in OPERATIONS for fault in FAULTS]
CASES += list(itertools.product(("azure", "gcs", *WAYS), ("start", "commit"), ELSEWHERE))


@pytest.fixture(scope="module")
def table_of(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], StoreTable]]:
    """Return a function that returns the table of an operation on a store, behind the store's proxy."""
    proxies: dict[str, FaultProxy] = {}
    tables: dict[tuple[str, str], StoreTable] = {}
    with ExitStack() as stack:

        def made(name: str, operation: str) -> StoreTable:
            store = name.partition("-")[0]
            if store not in proxies:
                proxies[store] = stack.enter_context(FaultProxy(stores[store].url, tmp_path_factory.mktemp("proxy")))
            if (name, operation) not in tables:
                tables[name, operation] = table_on(name, stores[store], proxies[store])
            return tables[name, operation]

        yield made


@pytest.mark.parametrize(("store", "operation", "fault"), CASES, ids=["-".join(case).replace(" ", "-") for case in CASES])
def test_a_request_that_fails(store: str, operation: str, fault: str, table_of: Any) -> None:
    found = list(cases(table_of(store, operation), operation, fault, AT_MOST))
    print(f"{len(found)} cases, {sum(case.result != 'right' for case in found)} errors")
    if fault in PASSING and operation in ("start", "commit", "start and commit of a new table"):
        assert {case.result for case in found} == {"right"}, [case for case in found if case.result != "right"]


@pytest.mark.parametrize(
    ("operation", "target"), [("read the log", r"checkpoint\.parquet"), ("read staged files", r"part-\d\.parquet")]
)
def test_a_store_that_stays_away_says_nothing_about_the_file(
    operation: str, target: str, table_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint or a staged file that cannot be reached is not damaged: the task is retried."""
    make = ObjectStore._make
    monkeypatch.setattr(ObjectStore, "_make", lambda store, _: make(store, {"max_retries": 0}))
    table = table_of("s3", operation)
    act, _ = OPERATIONS[operation](table)
    table.proxy.set(Rule("status", "GET", target=target, times=None))
    with pytest.raises(StoreUnavailableError, match="503"):
        act()
