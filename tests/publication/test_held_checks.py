"""Checks that must hold in the versions that a publication shows: what others commit before and after its decision."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_delta.contract.audit import HeldCheck
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    ConcurrentAppendException,
    DeltaAuditFailedException,
    ManifestException,
    PublicationSplitException,
    PublicationUndoneException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.publication import Member, PublicationPlan, abort_tables, settle
from airflow_delta.publication.ids import PublicationId
from airflow_delta.publication.plan import load_plan
from publication.foreign import PUTS, DeltaRs, run_at
from publication.lake import LakeTable, again, publish_all
from publication.points import at, killed, visited


def held(member: Member, **given: object) -> Member:
    """Return the member with a check that has read its table."""
    seen = {"version": member.handle.read_version, "transaction_id": member.handle.transaction_id}
    check = HeldCheck(name="sums agree of totals", task_id="totals", map_index=2, **{**seen, **(given or {"whole_table": True})})
    return replace(member, held=[*member.held, check])


@pytest.fixture
def members(orders: LakeTable, lines: LakeTable) -> list[Member]:
    """Appends to both tables, whose sums a check has compared."""
    return [held(table.member("k", [n])) for table, n in ((orders, 7), (lines, 40))]


@pytest.mark.parametrize("number", [0, 1])
def test_rows_of_others_before_the_decision(members: list[Member], orders: LakeTable, lines: LakeTable, number: int) -> None:
    """Of which no stage knows anything: both only append."""
    other = (orders, lines)[number]
    other.append([99])
    why = r"check sums agree of totals holds for version 0, and version 1 \(WRITE\) has changed the table since.*Clear what is"
    for _ in range(2):  # the commit task, and a retry
        with pytest.raises(ChecksOutdatedException, match=why) as error:
            publish_all(members, anchor=orders.uri)
        assert (error.value.table, error.value.checks) == (other.uri, (("totals", 2),))
    assert (7 in orders.ids(), 40 in lines.ids()) == (False, False)
    assert abort_tables([again(member) for member in members]).outcome == "refused"


def test_the_audit_is_asked_again_and_the_same_stages_are_published(
    members: list[Member], orders: LakeTable, lines: LakeTable
) -> None:
    seen = lines.append([99])
    with pytest.raises(ChecksOutdatedException):
        publish_all(members, anchor=orders.uri)
    checked = [replace(member, held=[replace(check, version=seen) for check in member.held]) for member in members]
    result = publish_all([members[0], checked[1]], anchor=orders.uri)
    assert (result.outcome, orders.ids(), lines.ids()) == ("published", [1, 2, 3, 7], [10, 20, 30, 40, 99])


def test_rows_that_no_check_has_read_change_nothing(orders: LakeTable, lines: LakeTable) -> None:
    read = {"predicates": ("part = 'a'",)}
    members = [held(orders.member("k", [7]), **read), held(lines.member("k", [40]), **read)]
    orders.append([99], part="b")
    lines.append([99], part="b")
    assert publish_all(members, anchor=orders.uri).outcome == "published"
    # Between the decision and the turn of the second table, too.
    members = [held(orders.member("l", [8]), **read), held(lines.member("l", [41]), **read)]
    with visited(at("published orders", "after", lambda: lines.append([98], part="b"))):
        assert publish_all(members, anchor=orders.uri).outcome == "published"


@pytest.mark.parametrize("keep", [False, True])
def test_a_late_commit_of_others_is_a_late_conflict(
    members: list[Member], orders: LakeTable, lines: LakeTable, keep: bool
) -> None:
    kind = PublicationSplitException if keep else PublicationUndoneException
    with visited(at("published orders", "after", lambda: lines.append([99]))), pytest.raises(kind) as error:
        publish_all(members, anchor=orders.uri, on_late_conflict="keep" if keep else "undo")
    assert "the check sums agree of totals holds for version 0, and version 2 (WRITE) has changed" in str(error.value)
    assert "Clear what" not in str(error.value)
    if not keep:
        assert (error.value.table, error.value.winning_version, error.value.operation) == (lines.uri, 2, "WRITE")
    assert orders.ids() == ([1, 2, 3, 7] if keep else [1, 2, 3])
    assert lines.ids() == [10, 20, 30, 99]
    assert abort_tables([again(member) for member in members]).outcome == ("split" if keep else "undone")


@pytest.mark.parametrize("when", ["before", "after the decision"])
def test_the_rows_are_counted_again(orders: LakeTable, lines: LakeTable, when: str) -> None:
    """Three rows and one of ours; without two of them, twice as many are too many."""
    ratio = {"ratios": (None, "1.9"), "rows_before": 3, "rows_after": 4}
    members = [orders.member("k", [7]), held(lines.member("k", [40]), **ratio)]
    why = "1 rows before the commit and 2 after it, 2 times"
    if when == "before":
        lines.delete("id > 10")
        with pytest.raises(DeltaAuditFailedException, match=why):
            publish_all(members, anchor=orders.uri)
    else:
        late = visited(at("published orders", "after", lambda: lines.delete("id > 10")))
        with late, pytest.raises(PublicationUndoneException, match=why):
            publish_all(members, anchor=orders.uri)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3], [10])


def test_keys_stay_unique(orders: LakeTable, lines: LakeTable) -> None:
    """Of two publications that bring a key, one is published; of a foreign writer after the decision, it is taken back."""
    key = {"unique": ("id",)}

    def members(name: str, new: int) -> list[Member]:
        return [orders.member(name, [new]), held(lines.member(name, [new]), **key)]

    one, same, other = members("one", 40), members("same", 40), members("other", 41)
    assert publish_all(one, anchor=orders.uri).outcome == "published"
    with pytest.raises(DeltaAuditFailedException, match=r"key id \(40\)"):
        publish_all(same, anchor=orders.uri)
    assert publish_all(other, anchor=orders.uri).outcome == "published"
    late, taken = members("late", 42), at("published orders", "after", lambda: lines.append([42]))
    with visited(taken), pytest.raises(PublicationUndoneException, match=r"key id \(42\)"):
        publish_all(late, anchor=orders.uri)
    assert (orders.ids(), lines.ids()) == ([1, 2, 3, 40, 41], [10, 20, 30, 40, 41, 42])


def test_a_new_table_that_others_fill_before_it_is_announced(table, orders: LakeTable) -> None:
    """It is created empty by the publication itself, which is nothing that a check has not seen."""
    new = table("new")
    members = [held(new.member("k", [1])), orders.member("k", [7])]
    assert publish_all(members).outcome == "published"
    other = table("other")
    members = [held(other.member("l", [1])), orders.member("l", [8])]
    fill = at("plan other", "after", lambda: other.publish_ids("another", [99]))
    why = "for a table that did not exist, and version 0 .* has changed the table"
    with visited(fill), pytest.raises(ConcurrentAppendException, match=why):
        publish_all(members)
    assert (other.ids(), orders.ids()) == ([99], [1, 2, 3, 7])


class TestPlan:
    """Any worker may go on with a publication: the checks are in its plan."""

    @pytest.mark.parametrize("late", [False, True])
    def test_who_settles_it_asks_them_too(self, members: list[Member], orders: LakeTable, lines: LakeTable, late: bool) -> None:
        killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "after")
        if late:
            lines.append([99])
        (publication,) = {entry["publication"] for entry in orders.entries() if entry["publication"]}
        result = settle(orders.log(), publication, DeltaLog.for_table, patience=0.0)
        assert result.outcome == ("undone" if late else "published")
        assert (7 in orders.ids(), 40 in lines.ids()) == (not late, not late)

    def test_a_release_that_does_not_know_them_does_not_go_on(self, members: list[Member], orders: LakeTable) -> None:
        """It leaves out what it does not know; the digest is then another one than the id of the publication has."""
        killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "after")
        (publication,) = {entry["publication"] for entry in orders.entries() if entry["publication"]}
        path = orders.path / PublicationId.parse(publication).plan_path
        plan = json.loads(path.read_bytes())
        for planned in plan["tables"]:
            assert planned.pop("held")
        assert PublicationPlan.from_dict(plan).digest() != PublicationId.parse(publication).digest
        path.write_text(json.dumps(plan))
        with pytest.raises(ManifestException, match="was altered"):
            load_plan(orders.log(), publication)

    def test_a_plan_without_checks_is_the_one_that_it_was(self, orders: LakeTable, lines: LakeTable) -> None:
        """Written by a release that had none, or read by it."""
        members = [orders.member("k", [7]), lines.member("k", [40])]
        killed(lambda: publish_all(members, anchor=orders.uri), "published orders", "after")
        (publication,) = {entry["publication"] for entry in orders.entries() if entry["publication"]}
        path = orders.path / PublicationId.parse(publication).plan_path
        plan = json.loads(path.read_bytes())
        for planned in plan["tables"]:
            assert planned.pop("held") == []
        path.write_text(json.dumps(plan))
        assert settle(orders.log(), publication, DeltaLog.for_table, patience=0.0).outcome == "published"


@pytest.mark.parametrize("number", range(3), ids=("first", "second", "third"))
def test_a_foreign_append_at_each_put(number: int, tmp_path: Path) -> None:
    """To each table at each point; without the check it would not matter to the third, to which the publication only appends."""
    for point in PUTS:
        for when in ("before", "after"):
            run_at(tmp_path / f"{point} {when}", DeltaRs, number, point, when, "append", held=True)
