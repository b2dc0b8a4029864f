"""Version vectors: never half of a publication, never a wait, never a write."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping

import pytest

from airflow_delta.contract.changes import SetProperties
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.staging_directory import new_attempt
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedOperationException,
    PublicationSplitException,
)
from airflow_delta.log import DeltaLog, Snapshot
from airflow_delta.publication import Member, VersionVector, check_versions, get_versions
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.table.stage.stage_view import open_stage
from publication.lake import LakeTable, keep, publish_all
from publication.points import at, killed, visited

PART = "part = 'a'"


def vector(*tables: LakeTable) -> VersionVector:
    return get_versions({table.path.name: table.log() for table in tables})


def heads(*tables: LakeTable) -> dict[str, int]:
    return {table.path.name: table.log().update().version for table in tables}


@pytest.mark.parametrize(("point", "before", "after"), [("published orders", 0, 0), ("published lines", 0, 2)])
def test_between_the_puts_the_versions_before_are_read(
    orders: LakeTable, lines: LakeTable, point: str, before: int, after: int
) -> None:
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


def test_a_killed_publication_holds_back_later_versions_of_its_first_tables_only(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    orders.append([99])
    found = vector(orders, lines)
    assert found.versions == {"orders": 0, "lines": 1}
    assert list(found.held_back.values()) == [("orders",)]
    publish_all(members, anchor=orders.uri)
    assert vector(orders, lines).versions == heads(orders, lines)


def test_a_cut_goes_on_to_other_publications(table: Callable[[str], LakeTable]) -> None:
    one, two, three = (table(name) for name in ("one", "two", "three"))
    for each in (one, two, three):
        each.fill([1])
    first = [one.member("k1", [7]), two.member("k1", [7])]
    killed(lambda: publish_all(first, anchor=one.uri, intents=False), "published two", "before")
    # It does not meet the first one, which has no intents; on table one it is later.
    publish_all([one.member("k2", [8]), three.member("k2", [8])], anchor=three.uri)
    found = vector(one, two, three)
    assert found.versions == {"one": 0, "two": 0, "three": 0}
    assert len(found.held_back) == 2
    assert vector(two, three).versions == heads(two, three)


def test_tables_without_publications_are_at_their_heads(
    orders: LakeTable, lines: LakeTable, table: Callable[[str], LakeTable]
) -> None:
    orders.append([4])
    found = vector(orders, lines, table("missing"))
    assert found.versions == {"orders": 1, "lines": 0, "missing": -1}


def test_what_was_taken_back_is_read_as_it_is(orders: LakeTable, lines: LakeTable) -> None:
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


# -- two looks are two times ----------------------------------------------------------------------------------------------------


def between_the_looks(monkeypatch: pytest.MonkeyPatch, log: DeltaLog, happens: Callable[[], object]) -> DeltaLog:
    """Return the log, with something that happens right before the first look at it."""
    real, done = log.update, list[bool]()

    def update() -> Snapshot:
        if not done:
            done.append(True)
            happens()
        return real()

    monkeypatch.setattr(log, "update", update)
    return log


@pytest.mark.parametrize("is_new", [True, False], ids=["created", "there before"])
@pytest.mark.parametrize("anchor", ["orders", "other"])
def test_a_publication_that_comes_between_the_looks_at_two_tables(
    orders: LakeTable, table: Callable[[str], LakeTable], monkeypatch: pytest.MonkeyPatch, is_new: bool, anchor: str
) -> None:
    other = table("other")
    if not is_new:
        other.fill([1])
    members = [orders.member("k", [7]), other.member("k", [40])]
    uri = (orders if anchor == "orders" else other).uri
    log = between_the_looks(monkeypatch, orders.log(), lambda: publish_all(members, anchor=uri))
    assert get_versions({"other": other.log(), "orders": log}) == VersionVector(versions=heads(other, orders))


def test_one_that_stands_for_good_between_the_looks_is_not_taken_for_half(
    orders: LakeTable, lines: LakeTable, table: Callable[[str], LakeTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    third = table("third")
    third.fill([1])
    members = [orders.member("k", [7]), lines.member("k", [40]), third.member("k", [1])]

    def publish() -> None:
        with visited(at("published third", "before", third.add_property)), pytest.raises(PublicationSplitException):
            publish_all(members, anchor=orders.uri, on_late_conflict="keep")

    log = between_the_looks(monkeypatch, orders.log(), publish)
    assert get_versions({"lines": lines.log(), "orders": log}) == VersionVector(versions=heads(lines, orders))


def test_a_vector_from_before_a_table_is_half(orders: LakeTable, table: Callable[[str], LakeTable]) -> None:
    new = table("new")
    publish_all([orders.member("k", [7]), new.member("k", [40])], anchor=orders.uri)
    check({orders: 0, new: -1})
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check({orders: 1, new: -1})
    shutil.rmtree(new.path)
    check({orders: 1, new: -1})


KEYS = "delta.setTransactionRetentionDuration"


def check(versions: Mapping[LakeTable, int]) -> None:
    check_versions({table.path.name: (table.log(), version) for table, version in versions.items()})


def test_versions_with_half_of_a_publication_are_refused(orders: LakeTable, lines: LakeTable) -> None:
    publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri)
    check({orders: 0, lines: 0})
    check({orders: 0, lines: 1})
    check({orders: 1, lines: 2})
    check({orders: 1})
    for versions in ({orders: 1, lines: 1}, {orders: 1, lines: 0}, {orders: 0, lines: 2}):
        with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
            check(versions)


def test_versions_with_what_was_taken_back_on_one_table_are_refused(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    check({orders: 0, lines: 1})
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check({orders: 1, lines: 1})


@pytest.mark.parametrize("forgetful", ["orders", "lines"])
def test_a_key_that_one_table_keeps_no_longer_holds_nothing_back(
    orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch, forgetful: str
) -> None:
    table = {"orders": orders, "lines": lines}[forgetful]
    keep(table, {KEYS: "interval 7 days"})
    publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri)
    later = time.time() + 8 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert vector(orders, lines) == VersionVector(versions=heads(orders, lines)), "expired, and still in the log"
    table.publish_ids("other", [99])
    found = vector(orders, lines)
    assert found == VersionVector(versions=heads(orders, lines))
    check({orders: found.versions["orders"], lines: found.versions["lines"]})


@pytest.mark.parametrize("intents", [True, False])
def test_keys_that_are_kept_no_longer_are_no_end(
    orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch, intents: bool
) -> None:
    """Nobody has come for eight days; without intents nothing on the other table tells."""
    keep(lines, {KEYS: "interval 7 days"})
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri, intents=intents), "published lines", "before")
    later = time.time() + 8 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    found = vector(orders, lines)
    assert (found.versions["orders"], list(found.held_back.values())) == (0, [("orders",)])
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check({orders: heads(orders)["orders"], lines: heads(lines)["lines"]})


def test_a_decided_publication_is_held_back_however_old_its_intent(
    orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent is in the log although its key has expired, so the state would be, too."""
    keep(lines, {KEYS: "interval 7 days"})
    members = [orders.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=orders.uri), "published lines", "before")
    later = time.time() + 8 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(vector(orders, lines).held_back.values()) == [("orders",)]


@pytest.mark.parametrize(
    "properties",
    [
        {KEYS: "interval 6 days"},
        {"delta.logRetentionDuration": "interval 6 days", "delta.deletedFileRetentionDuration": "interval 1 day"},
    ],
    ids=["keys", "log"],
)
@pytest.mark.parametrize("short", ["orders", "lines"])
def test_a_table_that_forgets_within_a_week_is_refused_before_anything(
    orders: LakeTable, lines: LakeTable, properties: Mapping[str, str], short: str
) -> None:
    keep({"orders": orders, "lines": lines}[short], properties)
    members = [orders.member("k", [7]), lines.member("k", [40])]
    before = heads(orders, lines)
    with pytest.raises(DeltaUnsupportedOperationException, match="at least 7 days"):
        publish_all(members, anchor=orders.uri)
    assert heads(orders, lines) == before


@pytest.mark.parametrize("is_new", [False, True], ids=["SET TBLPROPERTIES", "CREATE TABLE"])
def test_stages_that_make_a_table_forget_within_a_week_are_refused_before_anything(
    orders: LakeTable, lines: LakeTable, is_new: bool
) -> None:
    table = LakeTable(lines.path.with_name("new")) if is_new else orders
    handle = table.begin(transaction_key="k", partition_by=())
    view = open_stage(table.log(), handle, task_id="define", attempt=new_attempt())
    forgets = {KEYS: "interval 6 days"}
    if is_new:
        defined = plan_create(view, schema="id BIGINT", properties=forgets, mode="create_if_not_exists")
    else:
        defined = plan_alter(view, [SetProperties(forgets)])
    assert isinstance(defined, StagedWrite)
    members = [Member(log=table.log(), handle=handle, staged=[defined]), lines.member("k", [40])]
    before = heads(lines)
    with pytest.raises(DeltaUnsupportedOperationException, match="at least 7 days"):
        publish_all(members)
    assert heads(lines) == before


def test_a_version_from_before_a_publication_has_not_forgotten_it(
    orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(lines, {KEYS: "interval 7 days"})
    for commit in (lines.path / "_delta_log").glob("*.json"):
        os.utime(commit, (time.time() - 2 * 24 * 3600,) * 2)
    before = lines.log().update().version
    publish_all([orders.member("k", [7]), lines.member("k", [40])], anchor=orders.uri)
    later = time.time() + 9 * 24 * 3600
    just_before = lines.log().update().version - 1
    monkeypatch.setattr(time, "time", lambda: later)
    check_versions({"orders": (orders.log(), 1), "lines": (lines.log(), heads(lines)["lines"])})
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check_versions({"orders": (orders.log(), 1), "lines": (lines.log(), before)})
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check_versions({"orders": (orders.log(), 1), "lines": (lines.log(), just_before)})
