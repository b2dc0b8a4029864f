"""What the fault proxy does to a client, and what the store keeps of it."""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError, PermissionDeniedError

from stores.proxy import Rule
from stores.tables import client

PUTS = {
    "refused with 503": (Rule("status", "PUT"), False),
    "refused with 429": (Rule("status", "PUT", status=429, code="TooManyRequests"), False),
    "refused with an expired token": (Rule("status", "PUT", status=403, code="ExpiredToken"), False),
    "500 after it took effect": (Rule("status_after", "PUT", status=500, code="InternalError"), True),
    "response lost after it took effect": (Rule("lost", "PUT"), True),
    "connection reset before the store": (Rule("reset", "PUT", times=None), False),
}


@pytest.fixture
def bucket(versitygw) -> str:
    return versitygw.container()


@pytest.fixture
def direct(versitygw, bucket) -> Any:
    return client(versitygw.options, f"s3://{bucket}")


@pytest.fixture
def through(versitygw, bucket, proxy) -> Any:
    return client(versitygw.options | {"aws_endpoint_url": proxy.url}, f"s3://{bucket}", timeout="10s")


@pytest.mark.parametrize(("rule", "stored"), PUTS.values(), ids=PUTS)
def test_puts_that_fail(proxy, through, direct, rule, stored):
    proxy.set(rule)
    with pytest.raises(BaseError) as failed:
        obstore.put(through, "log/1.json", b"{}", mode="create")
    assert proxy.faults[0] >= 1
    if rule.fault.startswith("status"):
        assert rule.code in str(failed.value)
    assert isinstance(failed.value, PermissionDeniedError) == (rule.status == 403)
    assert [meta["path"] for page in obstore.list(direct) for meta in page] == (["log/1.json"] if stored else [])


def test_signed_requests_pass_and_are_noted(proxy, through):
    content = b"x" * 300_000
    obstore.put(through, "a b/ü.parquet", content)
    assert bytes(obstore.get(through, "a b/ü.parquet").bytes()) == content
    assert [(request["method"], request["status"]) for request in proxy.requests] == [("PUT", 200), ("GET", 200)]
    assert proxy.requests[1]["bytes"] == len(content)


def test_a_body_that_breaks_off(proxy, through):
    obstore.put(through, "data", b"x" * 300_000)
    proxy.set(Rule("truncated", "GET", target="/data"))
    with pytest.raises(BaseError):
        bytes(obstore.get(through, "data").bytes())
    assert len(bytes(obstore.get(through, "data").bytes())) == 300_000


def test_slow_bodies_and_added_latency_change_nothing_else(proxy, through):
    obstore.put(through, "data", b"x" * 300_000)
    proxy.set(Rule("slow", "GET", seconds=0.01), Rule("latency", seconds=0.02, times=None))
    assert bytes(obstore.get(through, "data").bytes()) == bytes(obstore.get(through, "data").bytes()) == b"x" * 300_000
    assert proxy.faults == [1, 1]


def test_a_listing_that_misses_the_newest_object(proxy, through):
    for number in range(3):
        obstore.put(through, f"log/{number}", b"x")
    proxy.set(Rule("stale", "GET", target=r"list-type=2"))
    listed = [[meta["path"] for page in obstore.list(through, "log/") for meta in page] for _ in range(2)]
    assert listed == [["log/0", "log/1"], ["log/0", "log/1", "log/2"]]


def test_the_nth_request_of_a_kind(proxy, through):
    proxy.set(Rule("status", "PUT", target=r"/log/", skip=1, times=2))
    results = []
    for number in range(4):
        try:
            obstore.put(through, f"log/{number}", b"x")
        except BaseError:
            results.append(number)
        obstore.put(through, f"data/{number}", b"x")
    assert results == [1, 2]
