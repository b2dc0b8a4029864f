"""What is missing of a publication that keeps what it has published; publications that were tried again; names of one table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_delta.engine import watermark_now
from airflow_delta.exceptions import DeltaError, PublicationSplitException, PublicationUndoneException
from airflow_delta.publication import Member, abort_tables, get_versions, own_tables, settle
from airflow_delta.triggers.next_publication import next_publication
from publication.lake import LakeTable, again, publish_all
from publication.points import at, killed, visited

PART = "part = 'a'"


@pytest.fixture
def third(table: Callable[[str], LakeTable]) -> LakeTable:
    found = table("third")
    found.fill([100])
    return found


def members_of(*tables: LakeTable) -> list[Member]:
    return [one.member("k", [7]) for one in tables]


def publish(members: list[Member], anchor: LakeTable, **options: object) -> object:
    return publish_all(members, anchor=anchor.uri, on_late_conflict="keep", **options)


@pytest.fixture
def split(orders: LakeTable, lines: LakeTable, third: LakeTable) -> list[Member]:
    """A publication that is on the first two tables, and keeps that."""
    members = members_of(orders, lines, third)
    with visited(at("published third", "before", third.add_property)), pytest.raises(PublicationSplitException):
        publish(members, orders)
    assert [7 in one.ids() for one in (orders, lines, third)] == [True, True, False]
    return members


class TestSplit:
    @pytest.mark.parametrize("cleared", ["the missing one", "all"])
    def test_what_is_missing_is_published_alone(
        self, split: list[Member], orders: LakeTable, lines: LakeTable, third: LakeTable, cleared: str
    ) -> None:
        members = [*split[:2], third.member("k", [8])] if cleared != "all" else members_of(orders, lines, third)
        result = publish(members, orders)
        assert (result.outcome, result.committed_before) == ("published", False)  # type: ignore[attr-defined]
        assert list(result.states.values()) == [4, 4, 1]  # type: ignore[attr-defined]
        assert all(result.tables.values())  # type: ignore[attr-defined]
        for _ in range(2):
            assert publish(members, orders).outcome == "published"  # type: ignore[attr-defined]
            given_up = abort_tables([again(member) for member in members])
            assert (given_up.outcome, {each.outcome for each in given_up.tables.values()}) == ("published", {"committed"})
        assert [one.ids() for one in (orders, lines)] == [[1, 2, 3, 7], [7, 10, 20, 30]]
        assert third.ids() == [8 if cleared != "all" else 7, 100] or third.ids() == sorted(third.ids())

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_killed_on_the_way_the_next_try_goes_on(
        self, split: list[Member], orders: LakeTable, third: LakeTable, when: str
    ) -> None:
        members = [*split[:2], third.member("k", [8])]
        killed(lambda: publish(members, orders), "published third", when)
        assert publish(members, orders).outcome == "published"  # type: ignore[attr-defined]
        assert third.ids() == [8, 100]

    def test_a_retry_is_split_for_good(self, split: list[Member], orders: LakeTable) -> None:
        with pytest.raises(PublicationSplitException):
            publish(split, orders)

    def test_with_undo_a_person_decides(self, split: list[Member], orders: LakeTable, third: LakeTable) -> None:
        with pytest.raises(DeltaError, match="Nothing"):
            publish_all([*split[:2], third.member("k", [8])], anchor=orders.uri)
        assert third.ids() == [100]

    def test_another_table_is_not_what_is_missing(
        self, split: list[Member], orders: LakeTable, third: LakeTable, table: Callable[[str], LakeTable]
    ) -> None:
        other = table("other")
        other.fill([1])
        with pytest.raises(DeltaError, match="Nothing"):
            publish([*split[:2], other.member("k", [8])], orders)
        assert (third.ids(), other.ids()) == ([100], [1])


def test_the_teardown_reports_what_stands(orders: LakeTable, lines: LakeTable, third: LakeTable) -> None:
    """The publication was undone, and two of three start tasks were cleared: the third transaction is part of both."""
    members = members_of(orders, lines, third)
    with visited(at("published third", "before", third.add_property)), pytest.raises(PublicationUndoneException):
        publish_all(members, anchor=orders.uri)
    tried_again = [orders.member("k", [7]), lines.member("k", [7]), third.member("other", [7])]
    assert publish_all(tried_again, anchor=orders.uri).outcome == "published"
    result = abort_tables([again(member) for member in tried_again])
    assert (result.outcome, {each.outcome for each in result.tables.values()}) == ("published", {"committed"})


def test_the_teardown_of_one_that_was_refused_and_tried_again(orders: LakeTable, lines: LakeTable, third: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40], replaces=PART), third.member("k", [7])]
    with visited(at("published lines", "before", lambda: lines.append([99]))), pytest.raises(PublicationUndoneException):
        publish_all(members, anchor=orders.uri)
    tried_again = [orders.member("k", [7]), lines.member("k", [40], replaces=PART), members[2]]
    published = publish_all(tried_again, anchor=orders.uri)
    result = abort_tables([again(member) for member in tried_again])
    assert (result.publication, result.outcome) == (published.publication, "published")
    assert {each.outcome for each in result.tables.values()} == {"committed"}
    assert (orders.ids(), lines.ids(), third.ids()) == ([1, 2, 3, 7], [40], [7, 100])


@pytest.mark.parametrize("linked", ["anchor", "other", "both"])
def test_a_link_settles_the_table_behind_it(orders: LakeTable, lines: LakeTable, linked: str) -> None:
    names = {"orders": orders, "lines": lines}
    for name in names if linked == "both" else [{"anchor": "orders", "other": "lines"}[linked]]:
        link = LakeTable(orders.path.with_name(f"link to {name}"))
        link.path.symlink_to(names[name].path)
        names[name] = link
    killed(
        lambda: publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri), "published lines", "before"
    )
    logs = {name: one.log() for name, one in names.items()}
    (publication,) = get_versions(logs).held_back
    for log in logs.values():
        assert settle(log, publication, own_tables(list(logs.values())), patience=0.0).outcome == "published"
    seen = watermark_now(logs["orders"])
    found, _ = next_publication(logs, type(seen)(**{**{f: getattr(seen, f) for f in seen.__dataclass_fields__}, "version": 0}))
    assert found is not None
    assert found["publication"] == publication
