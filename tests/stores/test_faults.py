"""Faults of a store at every request of every operation: the right answer or a typed error, nothing lost, nothing doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_delta.log.storage.base import StoreUnavailableError
from airflow_delta.log.storage.object import ObjectStore
from stores.faults import FAULTS, OPERATIONS, cases, table_on
from stores.proxy import FaultProxy, Rule

ELSEWHERE = ("start", "commit")
"""Operations that other stores than S3 answer in ways of their own; what the client does is the same for all."""

CASES = [("s3", operation) for operation in OPERATIONS] + [(store, name) for store in ("azure", "gcs") for name in ELSEWHERE]
UNLISTED = {"read staged files": "listing misses the newest object"}


@pytest.fixture(scope="module")
def proxies(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], FaultProxy]]:
    started: dict[str, FaultProxy] = {}
    with ExitStack() as stack:

        def proxy_of(store: str) -> FaultProxy:
            if store not in started:
                started[store] = stack.enter_context(FaultProxy(stores[store].url, tmp_path_factory.mktemp("proxy")))
            return started[store]

        yield proxy_of


@pytest.mark.parametrize(("store", "operation"), CASES, ids=[f"{store}-{name}".replace(" ", "-") for store, name in CASES])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_fails(store: str, operation: str, fault: str, stores: Any, proxies: Any) -> None:
    found = list(cases(table_on(store, stores[store], proxies(store)), operation, fault))
    print(f"{len(found)} cases, {sum(case.result != 'right' for case in found)} errors")
    assert all(case.operation == operation for case in found)


@pytest.mark.parametrize(
    ("operation", "target"), [("read the log", r"checkpoint\.parquet"), ("read staged files", r"part-\d\.parquet")]
)
def test_a_store_that_stays_away_says_nothing_about_the_file(
    operation: str, target: str, stores: Any, proxies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint or a staged file that cannot be reached is not damaged: the task is retried."""
    make = ObjectStore._make
    monkeypatch.setattr(ObjectStore, "_make", lambda store, _: make(store, {"max_retries": 0}))
    table = table_on("s3", stores["s3"], proxies("s3"))
    act, _ = OPERATIONS[operation](table)
    table.proxy.set(Rule("status", "GET", target=target, times=None))
    with pytest.raises(StoreUnavailableError, match="503"):
        act()
