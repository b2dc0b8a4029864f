"""Version vectors: never half of a publication, never a wait, never a write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_delta.publication import VersionVector, get_versions
from publication.lake import Table, publish_all
from publication.points import at, killed, visited

PART = "part = 'a'"


def vector(*tables: Table) -> VersionVector:
    return get_versions({table.path.name: table.log() for table in tables})


def heads(*tables: Table) -> dict[str, int]:
    return {table.path.name: table.log().update().version for table in tables}


@pytest.mark.parametrize(("point", "before", "after"), [("published orders", 0, 0), ("published lines", 0, 2)])
def test_between_the_puts_the_versions_before_are_read(orders: Table, lines: Table, point: str, before: int, after: int) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40])]
    found: list[VersionVector] = []

    def look() -> None:
        found.append(vector(orders, lines))

    with visited(at(point, "before", look)):
        publish_all(members, anchor=orders.uri)
    assert found[0].versions["orders"] == before
    assert 40 not in lines.ids(found[0].versions["lines"])
    assert bool(found[0].held_back) == (point == "published lines")
    assert vector(orders, lines) == VersionVector(versions=heads(orders, lines))
    assert after in (0, 2)


def test_a_killed_publication_holds_back_later_versions_of_its_first_tables_only(orders: Table, lines: Table) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    orders.append([99])
    found = vector(orders, lines)
    assert found.versions == {"orders": 0, "lines": 1}
    assert list(found.held_back.values()) == [("orders",)]
    publish_all(members, anchor=orders.uri)
    assert vector(orders, lines).versions == heads(orders, lines)


def test_a_cut_goes_on_to_other_publications(table: Callable[[str], Table]) -> None:
    one, two, three = (table(name) for name in ("one", "two", "three"))
    for each in (one, two, three):
        each.create([1])
    first = [one.member("k1", [7]), two.member("k1", [7])]
    killed(lambda: publish_all(first, anchor=one.uri, intents=False), "published two", "before")
    # It does not meet the first one, which has no intents; on table one it is later.
    publish_all([one.member("k2", [8]), three.member("k2", [8])], anchor=three.uri)
    found = vector(one, two, three)
    assert found.versions == {"one": 0, "two": 0, "three": 0}
    assert len(found.held_back) == 2
    assert vector(two, three).versions == heads(two, three)


def test_tables_without_publications_are_at_their_heads(orders: Table, lines: Table, table: Callable[[str], Table]) -> None:
    orders.append([4])
    found = vector(orders, lines, table("missing"))
    assert found.versions == {"orders": 1, "lines": 0, "missing": -1}


def test_what_was_taken_back_is_read_as_it_is(orders: Table, lines: Table) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    seen: list[VersionVector] = []

    def refused() -> None:
        seen.append(vector(orders, lines))

    with (
        visited(lambda when, name: lines.append([99]) if (when, name) == ("after", "published orders") else None),
        visited(at("refused lines", "after", refused)),
        pytest.raises(Exception, match="taken back"),
    ):
        publish_all(members, anchor=orders.uri)
    assert seen[0].versions["orders"] == 0
    assert vector(orders, lines) == VersionVector(versions=heads(orders, lines))
