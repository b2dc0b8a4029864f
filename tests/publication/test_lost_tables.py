"""Tables that are dropped, created again or replaced after their publication: the other tables keep what was published."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    ManifestException,
    PublicationUndoneException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.publication import (
    Member,
    abort_tables,
    check_versions,
    get_versions,
    open_publications,
    publication_states,
    settle,
    settle_named,
    settle_open,
)
from airflow_delta.table.abort import abort_transaction
from publication.lake import LakeTable, again, publish_all
from publication.points import at, killed, visited
from support.actions import foreign_info

NAMES = ("orders", "lines", "third")
PART = "part = 'a'"


@pytest.fixture
def tables(table: Callable[[str], LakeTable]) -> list[LakeTable]:
    found = [table(name) for name in NAMES]
    for one in found:
        one.fill([1])
    return found


def members_of(tables: list[LakeTable], key: str = "k") -> list[Member]:
    return [one.member(key, [7]) for one in tables]


def lose(table: LakeTable, how: str) -> None:
    if how == "replaced":
        table.replace()
        return
    shutil.rmtree(table.path)
    if how == "created again":
        table.fill([1])


def vector(*tables: LakeTable) -> dict[str, int]:
    return get_versions({table.path.name: table.log() for table in tables}).versions


ENDS: dict[str, Callable[[list[LakeTable], list[Member], str], object]] = {
    "settle": lambda tables, _, publication: [settle(one.log(), publication, DeltaLog.for_table, patience=0.0) for one in tables],
    "named": lambda tables, _, publication: settle_named([one.log() for one in tables], publication, patience=0.0),
    "abort": lambda _, members, __: abort_tables([again(member) for member in members]),
    "commit": lambda tables, members, _: publish_all(members, anchor=tables[0].uri),
}


@pytest.mark.parametrize("how", ["dropped", "created again", "replaced"])
@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1], [1, 2], [0, 2]], ids=str)
@pytest.mark.parametrize("end", ENDS)
def test_a_publication_that_is_over_stays(tables: list[LakeTable], end: str, lost: list[int], how: str) -> None:
    members = members_of(tables)
    found = publish_all(members, anchor=tables[0].uri)
    tables[1].append([5])
    for position in lost:
        lose(tables[position], how)
    kept = [one for position, one in enumerate(tables) if position not in lost]
    before = [one.ids() for one in kept]
    heads = {one.path.name: one.log().update().version for one in tables}
    assert vector(*tables) == heads
    check_versions({name: (one.log(), heads[name]) for name, one in zip(NAMES, tables, strict=True)})
    # With the anchor, the plan is gone, and its key.
    error = {"commit": DeltaIllegalStateException, "abort": None}.get(end, ManifestException)
    refused = pytest.raises(error) if error is not None and 0 in lost and how != "replaced" else nullcontext()
    with refused:
        ENDS[end](kept if end == "settle" else tables, members, found.publication)
    assert [one.ids() for one in kept] == before
    assert [one.states() for one in kept] == [one.states()[:1] + ["published"] * (len(one.states()) - 1) for one in kept]
    shown = vector(*tables)
    assert [shown[one.path.name] for one in kept] == [one.log().update().version for one in kept]


@pytest.mark.parametrize("how", ["dropped", "created again", "replaced"])
def test_without_the_note_a_later_table_tells(tables: list[LakeTable], how: str) -> None:
    """As releases before left it, or a worker that was killed right before the note."""
    found = publish_all(members_of(tables), anchor=tables[0].uri)
    for note in tables[0].path.parent.rglob("*.ended"):
        note.unlink()
    lose(tables[1], how)
    result = settle(tables[0].log(), found.publication, DeltaLog.for_table, patience=0.0)
    assert (result.outcome, result.states[tables[1].uri]) == ("published", 1)
    assert [tables[0].ids(), tables[2].ids()] == [[1, 7], [1, 7]]
    assert len(list(tables[0].path.parent.rglob("*.ended"))) >= 2


def test_every_table_has_the_note(tables: list[LakeTable]) -> None:
    publish_all(members_of(tables))
    assert all(len(list((one.path / "staged").rglob("publication-*.ended"))) == 1 for one in tables)


@pytest.mark.parametrize("position", [1, 2])
def test_a_table_that_is_lost_before_its_turn_takes_the_others_back(tables: list[LakeTable], position: int) -> None:
    members = members_of(tables)
    point = ("published orders", "published lines")[position - 1]
    with (
        visited(at(point, "after", lambda: lose(tables[position], "created again"))),
        pytest.raises(PublicationUndoneException),
    ):
        publish_all(members, anchor=tables[0].uri)
    assert [one.ids() for one in tables] == [[1], [1], [1]]
    assert abort_tables([again(member) for member in members]).outcome == "undone"


def test_a_decided_publication_goes_on_after_its_anchor_was_replaced(tables: list[LakeTable]) -> None:
    """Nothing of it is to be seen there any more, so the others do not show it either."""
    members = members_of(tables)
    killed(lambda: publish_all(members, anchor=tables[0].uri), "published lines", "after")
    tables[0].replace()
    result = settle_named([one.log() for one in tables], next(iter(publication_states(tables[2].log()))), patience=0.0)
    assert result is not None
    assert result.outcome == "undone"
    assert [one.ids() for one in tables] == [[], [1], [1]]


def test_a_half_publication_is_held_back_although_a_table_was_created_again(tables: list[LakeTable]) -> None:
    members = members_of(tables)
    killed(lambda: publish_all(members, anchor=tables[0].uri), "published lines", "before")
    lose(tables[2], "created again")
    assert vector(*tables)["orders"] == 0
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check_versions({"orders": (tables[0].log(), 1), "third": (tables[2].log(), 0)})


def test_a_half_publication_is_held_back_however_long(tables: list[LakeTable], monkeypatch: pytest.MonkeyPatch) -> None:
    """A day is no end: whoever settles it takes it back."""
    members = members_of(tables)
    killed(lambda: publish_all(members, anchor=tables[0].uri), "published lines", "before")
    lose(tables[2], "created again")
    later = time.time() + 2 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert vector(*tables)["orders"] == 0
    with pytest.raises(DeltaIllegalArgumentException, match="do not belong together"):
        check_versions({"orders": (tables[0].log(), 1), "third": (tables[2].log(), 0)})


@pytest.mark.parametrize("how", ["dropped", "created again"])
@pytest.mark.parametrize("kept", [[0, 1], [0, 2], [0, 1, 2]], ids=str)
def test_an_anchor_that_is_lost_right_after_the_decision_holds_nothing_back(
    tables: list[LakeTable], how: str, kept: list[int]
) -> None:
    """Created again before the other tables were published, and all of them have their end."""
    members = members_of(tables)
    with visited(at("published lines", "before", lambda: lose(tables[0], how))):
        publish_all(members, anchor=tables[0].uri)
    assert [tables[1].ids(), tables[2].ids()] == [[1, 7], [1, 7]]
    some = [tables[number] for number in kept]
    heads = {one.path.name: one.log().update().version for one in some}
    assert vector(*some) == heads
    check_versions({one.path.name: (one.log(), heads[one.path.name]) for one in some})


def test_later_publications_of_a_table_that_was_created_again_are_shown(tables: list[LakeTable]) -> None:
    for number in range(3):
        publish_all(members_of(tables, f"k{number}"))
    lose(tables[1], "created again")
    publish_all(members_of(tables, "later"))
    assert vector(*tables) == {one.path.name: one.log().update().version for one in tables}


# -- one table by two names -----------------------------------------------------------------------------------------------------


def test_a_link_to_a_table_is_that_table(orders: LakeTable, lines: LakeTable) -> None:
    link = LakeTable(orders.path.with_name("link"))
    link.path.symlink_to(orders.path)
    with pytest.raises(DeltaIllegalArgumentException, match=r"orders is in the publication twice"):
        publish_all([orders.member("k", [7]), link.member("other", [8])])
    members = [link.member("k", [7]), lines.member("k", [40])]
    killed(lambda: publish_all(members, anchor=link.uri), "published lines", "before")
    assert (vector(orders, lines)["orders"], vector(link, lines)["link"]) == (0, 0)
    assert publish_all(members, anchor=link.uri).outcome == "published"


def test_one_place_by_names_that_say_nothing_of_it(orders: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """As two endpoints of one object store: what is put below one is there below the other."""
    link = LakeTable(orders.path.with_name("link"))
    link.path.symlink_to(orders.path)
    monkeypatch.setattr("os.path.realpath", lambda path, **_: path)
    with pytest.raises(DeltaIllegalArgumentException, match="are one table"):
        publish_all([orders.member("k", [7]), link.member("other", [8])])
    assert orders.ids() == [1, 2, 3]


def test_a_copy_of_a_table_is_another_table(orders: LakeTable) -> None:
    """With the same id in its log."""
    copy = LakeTable(orders.path.with_name("copy"))
    shutil.copytree(orders.path, copy.path)
    publish_all([orders.member("k", [7]), copy.member("other", [8])])
    assert (orders.ids(), copy.ids()) == ([1, 2, 3, 7], [1, 2, 3, 8])


# -- what a commit finds --------------------------------------------------------------------------------------------------------


def test_a_transaction_that_joined_after_the_decision_is_refused(tables: list[LakeTable]) -> None:
    members = members_of(tables[:2])
    publish_all(members)
    late = tables[2].member("k", [7])
    with pytest.raises(DeltaIllegalStateException, match=rf"{tables[2].uri} is not part of it.*Clear all start tasks"):
        publish_all([*members, late])
    assert tables[2].ids() == [1]
    assert any((tables[2].path / "staged").rglob("*.parquet"))


def test_a_rerun_names_the_publication_of_its_own_key(orders: LakeTable, lines: LakeTable) -> None:
    found = [publish_all([orders.member(f"k{n}", [n]), lines.member(f"k{n}", [n])]).publication for n in range(3)]
    again_found = [publish_all([orders.member(f"k{n}", []), lines.member(f"k{n}", [])]).publication for n in range(3)]
    assert again_found == found
    log = orders.path / "_delta_log"
    orders.log().checkpoint()
    for version in range(orders.log().update().version):
        (log / f"{version:020}.json").unlink()
    rerun = publish_all([orders.member("k0", []), lines.member("k0", [])])
    assert (rerun.outcome, rerun.publication) == ("published", found[0])  # the log of the other table has it


# -- clocks and names of others -------------------------------------------------------------------------------------------------


def test_a_clock_that_is_ahead_is_not_waited_for(orders: LakeTable, lines: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    members = [orders.member("k", [7]), lines.member("k", [40])]
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "before")
    monkeypatch.setattr(time, "time", now)
    (found,) = open_publications(lines.log())
    assert settle(lines.log(), found.publication, DeltaLog.for_table, patience=0.3).outcome == "refused"


def test_applications_of_others_that_look_like_publications(orders: LakeTable, lines: LakeTable) -> None:
    def names(table: LakeTable, app_id: str, version: int) -> None:
        txn = {"txn": {"appId": app_id, "version": version, "lastUpdated": 1}}
        table.put_foreign(table.versions()[-1] + 1, foreign_info(), txn)

    names(orders, "airflow.publication/nodots", 2)
    names(orders, "airflow.publication/some.dots.in.it", 1)
    names(lines, "airflow.intent/nodots", 0)
    handle = orders.begin(transaction_key="given up", transaction_id="with.dots")
    orders.stage_ids(handle, [9])
    assert abort_transaction(orders.log(), "with.dots", force=True).outcome == "deleted"
    assert open_publications(lines.log()) == settle_open(lines.log(), DeltaLog.for_table, patience=0.0) == []
    assert vector(orders, lines) == {"orders": 2, "lines": 1}
    first = publish_all([orders.member("k", [7]), lines.member("k", [40])])
    assert publish_all([orders.member("k", []), lines.member("k", [])]).publication == first.publication


@pytest.mark.parametrize("data", [b"[]", b"null", b'{"contract": 1, "tables": [{}]}', b"\xff", b'{"contract": 1'], ids=repr)
def test_a_plan_that_is_none_is_named(orders: LakeTable, lines: LakeTable, data: bytes) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40])]
    plan = Path(orders.uri) / "staged" / members[0].handle.transaction_id / "publication-0123456789abcdef.json"
    plan.write_bytes(data)
    with pytest.raises(ManifestException, match=rf"The plan {plan.relative_to(orders.path)} .*was altered"):
        abort_tables([replace(again(member)) for member in members])
