"""Foreign writers between the decision and a table's turn: taken back, or split, and always named."""

from __future__ import annotations

from collections.abc import Callable

import deltalake
import pyarrow as pa
import pytest

from airflow_delta.exceptions import (
    DeltaUnsupportedOperationException,
    PublicationSplitException,
    PublicationUndoneException,
)
from airflow_delta.publication import Member, abort_tables, get_versions
from publication.lake import LakeTable, again, publish_all, rows
from publication.points import at, visited

PART = "part = 'a'"


def publish_late(members: list, foreign: Callable[[], object], point: str = "published orders", **options: object) -> object:
    with visited(at(point, "after", foreign)):
        return publish_all(members, **options)


def test_a_conflict_after_the_decision_takes_everything_back(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    with pytest.raises(PublicationUndoneException) as error:
        publish_late(members, lambda: lines.append([99]), anchor=orders.uri)
    assert error.value.table == lines.uri
    assert error.value.winning_version == 2
    assert error.value.operation == "WRITE"
    assert orders.ids() == [1, 2, 3]
    assert lines.ids() == [10, 20, 30, 99]
    assert orders.states() == ["published", "undone"]
    assert lines.states() == ["intent", "refused"]
    with pytest.raises(PublicationUndoneException) as again_error:
        publish_all(members, anchor=orders.uri)
    assert again_error.value.winning_version == 2


def test_after_undone_a_clear_publishes_again(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    with pytest.raises(PublicationUndoneException):
        publish_late(members, lambda: lines.append([99]), anchor=orders.uri)
    cleared = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    assert [member.handle.committed for member in cleared] == [None, None]
    assert publish_all(cleared, anchor=orders.uri).outcome == "published"
    assert orders.ids() == [7]
    assert lines.ids() == [40]
    assert all(table.begin(transaction_key="k").committed is not None for table in (orders, lines))


def test_after_undone_an_earlier_commit_of_the_key_counts(orders: LakeTable, lines: LakeTable) -> None:
    publish_all([orders.member("k", [5]), lines.member("k", [50])])
    appended = [
        table.member("k", [n], begin={"rerun_policy": "append"}, replaces=PART) for table, n in ((orders, 6), (lines, 60))
    ]
    with pytest.raises(PublicationUndoneException):
        publish_late(appended, lambda: lines.append([99]), anchor=orders.uri)
    assert orders.ids() == [1, 2, 3, 5]
    handle = orders.begin(transaction_key="k")
    assert handle.committed is not None
    assert handle.committed.version == 2  # after its intent
    replaced = [table.member("k", [n], begin={"rerun_policy": "replace"}) for table, n in ((orders, 8), (lines, 80))]
    publish_all(replaced)
    assert orders.ids() == [1, 2, 3, 8]
    assert lines.ids() == [10, 20, 30, 80, 99]


def test_abort_after_undone_says_so_and_deletes_no_file_of_a_version(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    with pytest.raises(PublicationUndoneException):
        publish_late(members, lambda: lines.append([99]), anchor=orders.uri)
    result = abort_tables([again(member) for member in members])
    assert result.outcome == "undone"
    assert result.tables[orders.uri].outcome == "undone"
    assert result.tables[lines.uri].outcome == "deleted"
    assert orders.ids(1) == [7]  # time travel to the version that was taken back


def test_rows_that_a_stage_only_moved_are_no_change_when_they_are_taken_back(orders: LakeTable, lines: LakeTable) -> None:
    handle = orders.begin(transaction_key="k")
    moved = orders.stage_ids(handle, [1, 2, 3], replaces=PART, data_change=False, task_id="move")
    new = orders.stage_ids(handle, [7], task_id="add", after=[moved.to_dict()])
    members = [Member(log=orders.log(), handle=handle, staged=[moved, new]), lines.member("k", [40], replaces=PART)]
    with pytest.raises(PublicationUndoneException):
        publish_late(members, lambda: lines.append([99]), anchor=orders.uri)
    assert orders.ids() == [1, 2, 3]
    [there, back] = orders.versions()[-2:]
    for version, added, removed in ((there, "add", "remove"), (back, "remove", "add")):
        flags = {kind: sorted(file["dataChange"] for file in orders.actions(version)[kind]) for kind in ("add", "remove")}
        assert flags == {added: [False, True], removed: [False]}


def test_an_append_in_between_is_no_conflict_for_an_append(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40])]
    assert publish_late(members, lambda: lines.append([99])).outcome == "published"
    assert lines.ids() == [10, 20, 30, 40, 99]


def test_what_was_built_on_rows_that_are_taken_back_is_named(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7]), lines.member("k", [40], replaces=PART)]

    def foreign() -> None:
        orders.delete("id = 1")
        lines.append([99])

    with pytest.raises(PublicationUndoneException) as error:
        publish_late(members, foreign, anchor=orders.uri)
    assert [(read["table"], read["version"], read["operation"]) for read in error.value.dirty_reads] == [
        (orders.uri, 2, "DELETE")
    ]
    assert orders.ids() == [2, 3]


def test_rows_that_another_commit_rewrote_cannot_be_taken_back(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7, 8]), lines.member("k", [40], replaces=PART)]

    def foreign() -> None:
        orders.delete("id = 7")
        lines.append([99])

    with pytest.raises(PublicationSplitException) as error:
        publish_late(members, foreign, anchor=orders.uri)
    assert error.value.published == (orders.uri,)
    assert error.value.missing == (lines.uri,)
    assert f"was not taken back: table {orders.uri}: another commit has removed or changed its file" in str(error.value)
    assert orders.ids() == [1, 2, 3, 8]
    assert orders.states() == ["published", "stands"]
    with pytest.raises(PublicationSplitException):
        publish_all(members, anchor=orders.uri)
    vector = get_versions({"orders": orders.log(), "lines": lines.log()})
    assert list(vector.split.values()) == [("orders",)]
    assert vector.versions == {"orders": orders.log().update().version, "lines": lines.log().update().version}
    result = abort_tables([again(member) for member in members])
    assert result.outcome == "split"
    assert result.tables[orders.uri].outcome == "committed"


def test_if_one_table_cannot_be_taken_back_none_is(table: Callable[[str], LakeTable]) -> None:
    tables = [table(name) for name in ("orders", "lines", "third")]
    for one in tables:
        one.fill([1, 2])
    members = [one.member("k", [7, 8], replaces=None if one is tables[0] else PART) for one in tables]

    def foreign() -> None:
        tables[1].delete("id = 7")
        tables[2].append([99])

    with pytest.raises(PublicationSplitException) as error:
        publish_late(members, foreign, "published lines", anchor=tables[0].uri)
    assert error.value.published == (tables[0].uri, tables[1].uri)
    assert tables[0].states() == ["published", "stands"]


def test_keep_leaves_what_is_published(orders: LakeTable, lines: LakeTable) -> None:
    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40], replaces=PART)]
    with pytest.raises(PublicationSplitException, match="on_late_conflict is 'keep'"):
        publish_late(members, lambda: lines.append([99]), anchor=orders.uri, on_late_conflict="keep")
    assert orders.ids() == [7]
    assert lines.ids() == [10, 20, 30, 99]


def test_a_table_that_is_replaced_in_between_has_refused(orders: LakeTable, lines: LakeTable) -> None:
    import shutil

    members = [orders.member("k", [7], replaces=PART), lines.member("k", [40])]

    def foreign() -> None:
        shutil.rmtree(lines.path / "_delta_log")
        lines.fill([1])

    with pytest.raises(PublicationUndoneException):
        publish_late(members, foreign)
    assert orders.ids() == [1, 2, 3]
    assert lines.ids() == [1]


class TestWhatCannotBeTakenBack:
    """It is published last, so that nothing after it can be refused; or nothing is published at all."""

    @staticmethod
    def lasting(kind: str, table: LakeTable) -> Member:
        """A member whose commit has no inverse."""
        if kind == "append-only":
            deltalake.DeltaTable(table.uri).alter.set_table_properties({"delta.appendOnly": "true"})
            return table.member("k", [7])
        handle = table.begin(transaction_key="k")
        wider = rows([7]).append_column("note", pa.array(["new"]))
        return Member(log=table.log(), handle=handle, staged=[table.stage(handle, wider, merge_schema=True)])

    @pytest.mark.parametrize("kind", ["append-only", "new columns"])
    def test_it_is_the_last_one(self, kind: str, orders: LakeTable, lines: LakeTable) -> None:
        """It was the anchor, and what was on it stayed when another table was refused."""
        members = [self.lasting(kind, orders), lines.member("k", [40], replaces=PART)]
        with pytest.raises(PublicationUndoneException):
            publish_late(members, orders.add_property, "published lines")
        assert lines.states() == ["published", "undone"]
        assert orders.states() == ["intent", "refused"]
        assert (orders.ids(), lines.ids()) == ([1, 2, 3], [10, 20, 30])

    @pytest.mark.parametrize("kind", ["append-only", "new columns"])
    def test_without_a_conflict_all_is_published(self, kind: str, orders: LakeTable, lines: LakeTable) -> None:
        result = publish_all([self.lasting(kind, orders), lines.member("k", [40], replaces=PART)])
        assert (result.outcome, result.anchor) == ("published", lines.uri)
        assert (orders.ids(), lines.ids()) == ([1, 2, 3, 7], [40])

    @pytest.mark.parametrize("kind", ["append-only", "new columns"])
    def test_as_the_anchor_it_is_refused_before_anything(self, kind: str, orders: LakeTable, lines: LakeTable) -> None:
        members = [self.lasting(kind, orders), lines.member("k", [40])]
        with pytest.raises(DeltaUnsupportedOperationException, match="cannot be the anchor"):
            publish_all(members, anchor=orders.uri)
        assert orders.states() == lines.states() == []
        assert publish_all(members, anchor=orders.uri, on_late_conflict="keep").outcome == "published"

    def test_two_are_refused_before_anything(self, orders: LakeTable, lines: LakeTable) -> None:
        members = [self.lasting("append-only", orders), self.lasting("new columns", lines)]
        with pytest.raises(DeltaUnsupportedOperationException, match=f"Only one table.*{lines.uri} is, too"):
            publish_all(members)
        assert orders.states() == lines.states() == []


def test_a_version_that_was_given_is_refused(orders: LakeTable, lines: LakeTable) -> None:
    from airflow_delta.publication import Member
    from airflow_delta.table.start.begin import begin

    handle = begin(lines.log(), app_id="app", txn_version=3)
    member = Member(log=lines.log(), handle=handle, staged=[lines.stage_ids(handle, [40])])
    with pytest.raises(DeltaUnsupportedOperationException, match="app_id"):
        publish_all([orders.member("k", [7]), member])
