"""Publications on S3, Azure and GCS with each fault of a store at each of their puts: on all tables or on none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from stores.faults import AT_MOST, ELSEWHERE, FAULTS, PASSING, cases
from stores.proxy import FaultProxy
from stores.publications import OPERATIONS, PUTS, Lake, lake_on

EVERYWHERE = "FAULT_CASES" in os.environ
"""Whether faults happen to every request, not only to every put and some reads."""

PLACES = {
    "s3": ("s3", "s3", "s3"),
    "azure": ("azure", "azure"),
    "gcs": ("gcs", "gcs"),
    "s3 and azure": ("s3", "azure", "s3"),
    "gcs and s3": ("gcs", "s3"),
}
"""Stores of the tables; the requests to that of the first fail."""

CASES = [("publish", place, fault) for place in ("s3", "azure", "gcs") for fault in FAULTS]
CASES += [("publish", place, fault) for place in ("s3 and azure", "gcs and s3") for fault in ELSEWHERE]
CASES += [(operation, "s3", fault) for operation in OPERATIONS if operation != "publish" for fault in FAULTS]
CASES += [(operation, place, "response lost") for operation in ("go on", "take back") for place in ("azure", "gcs")]


@pytest.fixture(scope="module")
def lake_at(stores: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lake]]:
    """Return a function that makes tables at a place, of which the store of the first is behind a proxy."""
    proxies: dict[str, FaultProxy] = {}
    with ExitStack() as stack:

        def made(place: str) -> Lake:
            first = PLACES[place][0]
            if first not in proxies:
                proxies[first] = stack.enter_context(FaultProxy(stores[first].url, tmp_path_factory.mktemp("proxy")))
            return lake_on([(store, stores[store]) for store in PLACES[place]], proxies[first])

        yield made


@pytest.mark.parametrize("intents", [True, False])
def test_how_often_the_store_is_asked(lake_at: Callable[[str], Lake], intents: bool) -> None:
    """docs/several-tables.md has the formulas."""
    lake = lake_at("s3")
    members, start = lake.members()
    lake.proxy.set()
    assert lake.publish(members, intents=intents) == "published"
    tables = len(lake.tables)
    assert len(lake.proxy.requests) == (19 * tables - 3 if intents else 17 * tables - 1)
    lake.note(start)
    lake.check()


@pytest.mark.parametrize(("operation", "place", "fault"), CASES, ids=["-".join(case).replace(" ", "-") for case in CASES])
def test_a_request_that_fails(operation: str, place: str, fault: str, lake_at: Callable[[str], Lake]) -> None:
    puts = "" if EVERYWHERE else PUTS
    found = list(cases(lake_at(place), operation, fault, AT_MOST, operations=OPERATIONS, at=puts))
    print(f"{len(found)} cases, {sum(case.result != 'right' for case in found)} errors")
    assert found, "the fault happened to no request"
    if fault in PASSING:
        assert {case.result for case in found} == {"right"}, [case for case in found if case.result != "right"]
