"""A key that was taken back is committed for nobody: neither for handles from before, nor for who begins, aborts or looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_delta.exceptions import (
    ConcurrentTransactionException,
    DeltaConcurrentModificationException,
    DeltaIllegalStateException,
    HandleMismatchException,
    PublicationUndoneException,
)
from airflow_delta.publication import Member
from airflow_delta.table.abort import abort
from airflow_delta.table.commit.publish import committed_before
from airflow_delta.table.state.ended import ended
from airflow_delta.table.state.evidence import evidence
from airflow_delta.table.state.find_commit import committed_earlier
from airflow_delta.table.state.key_users import KeyUser, check_key_of_run
from airflow_delta.table.state.open_transactions import transaction_state
from publication.lake import LakeTable, publish_all
from publication.points import at, killed, visited

PART = "part = 'a'"
RUN = {"airflow.dagId": "d", "airflow.runId": "r"}


@pytest.fixture
def members(orders: LakeTable, lines: LakeTable) -> list[Member]:
    """Handles of a publication that is taken back by :func:`take_back`."""
    found = [orders.member("k", [7]), lines.member("k", [40], replaces=PART)]
    return [replace(one, tags={**RUN, "airflow.taskId": "gone", "airflow.appId": "k"}) for one in found]


@pytest.fixture
def take_back(members: list[Member], orders: LakeTable, lines: LakeTable) -> Callable[[], None]:
    def happens() -> None:
        with (
            visited(at("published orders", "after", lambda: lines.append([99]))),
            pytest.raises(PublicationUndoneException),
        ):
            publish_all(members, anchor=orders.uri)
        assert (orders.ids(), lines.ids()) == ([1, 2, 3], [10, 20, 30, 99])

    return happens


def test_its_own_handle_does_not_publish_alone(orders: LakeTable, members: list[Member], take_back: Callable[[], None]) -> None:
    take_back()
    handle = members[0].handle
    for _ in range(2):
        with pytest.raises(PublicationUndoneException, match="Clear its start task"):
            orders.publish(handle, *members[0].staged)
    assert orders.ids() == [1, 2, 3]
    assert ended(orders.log(), handle, runs_again=True).committed is None  # type: ignore[union-attr]
    assert (evidence(orders.log(), handle).undone, abort(orders.log(), handle).outcome) == (True, "undone")
    state = transaction_state(orders.log(), handle.transaction_id)
    assert state is not None
    assert "took it back" in state.reason


@pytest.mark.parametrize("cleared", ["orders", "lines"])
def test_one_new_handle_beside_an_old_one_makes_no_half(
    orders: LakeTable, lines: LakeTable, members: list[Member], take_back: Callable[[], None], cleared: str
) -> None:
    take_back()
    some = [orders.member("k", [7]), members[1]] if cleared == "orders" else [members[0], lines.member("k", [40])]
    with pytest.raises(
        (DeltaConcurrentModificationException, DeltaIllegalStateException)
    ):  # the old one was taken back, or conflicts with what came between
        publish_all(some, anchor=(orders if cleared == "orders" else lines).uri)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3], [10, 20, 30, 99])
    publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3, 7], [10, 20, 30, 40, 99])


def test_a_handle_that_says_committed_is_not_believed_afterwards(
    orders: LakeTable, lines: LakeTable, members: list[Member]
) -> None:
    killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "after")
    again = orders.begin(transaction_key="k")
    assert again.committed is not None
    lines.append([99])
    with pytest.raises(PublicationUndoneException):
        publish_all(members, anchor=orders.uri)
    with pytest.raises(HandleMismatchException, match="taken back"):
        committed_earlier(orders.log(), again)
    with pytest.raises(HandleMismatchException, match="taken back"):
        publish_all([Member(log=orders.log(), handle=again), lines.member("k", [40])])
    assert (orders.ids(), lines.ids()) == ([1, 2, 3], [10, 20, 30, 99])


@pytest.mark.parametrize("policy", ["skip", "fail", "append"])
def test_another_execution_from_before_conflicts(orders: LakeTable, take_back: Callable[[], None], policy: str) -> None:
    other = orders.member("k", [8], begin={"rerun_policy": policy})
    take_back()
    assert committed_before(orders.log(), other.handle) is None
    with pytest.raises(ConcurrentTransactionException):
        orders.publish(other.handle, *other.staged)
    assert orders.ids() == [1, 2, 3]


def test_the_run_has_not_published_under_another_key(orders: LakeTable, take_back: Callable[[], None]) -> None:
    take_back()
    log, nothing = orders.log(), frozenset[str]()
    user = KeyUser(tags={**RUN, "airflow.taskId": "new"}, committers=nothing, tasks=frozenset({"new"}), default_prefix="d/")
    check_key_of_run(log, log.update(), "other key", replace(user, since=lambda: 0))
