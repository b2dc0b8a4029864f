"""Publications in which everything goes well, and those that are refused before anything is visible."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_delta.exceptions import (
    ConcurrentAppendException,
    DeltaIllegalArgumentException,
    NonEmptyLocationException,
    TransactionAbortedException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.publication import abort_tables, get_versions
from publication.lake import LakeTable, again, publish_all

ONE = "part = 'a'"


def vector(*tables: LakeTable) -> dict[str, int]:
    return get_versions({table.path.name: table.log() for table in tables}).versions


def test_both_tables_show_the_publication_and_the_result_names_their_versions(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7], replaces=ONE)]
    result = publish_all(members)
    assert result.outcome == "published"
    assert not result.committed_before
    assert result.anchor == orders.uri  # it replaces what it read
    assert orders.ids() == [7]
    assert lines.ids() == [10, 20, 30, 40]
    assert orders.states() == ["published"]
    assert lines.states() == ["intent", "published"]
    assert {uri: commit.version for uri, commit in result.tables.items() if commit} == {orders.uri: 1, lines.uri: 2}
    assert vector(orders, lines) == {"orders": 1, "lines": 2}


def test_a_second_try_finds_the_publication(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7])]
    first = publish_all(members)
    second = publish_all(members)
    assert second.committed_before
    assert second.publication == first.publication
    assert second.tables[lines.uri].version == first.tables[lines.uri].version
    assert orders.ids() == [1, 2, 3, 7]
    assert lines.ids() == [10, 20, 30, 40]


def test_a_rerun_under_skip_finds_the_keys(orders: LakeTable, lines: LakeTable) -> None:
    publish_all([lines.member("k", [40]), orders.member("k", [7])])
    rerun = [lines.member("k", [40]), orders.member("k", [7])]
    assert all(member.handle.committed is not None for member in rerun)
    result = publish_all(rerun)
    assert result.outcome == "published"
    assert result.committed_before
    assert orders.states() == ["published"] or orders.states() == ["intent", "published"]


def test_a_conflict_on_the_anchor_refuses_it_and_nothing_is_visible(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7], replaces=ONE)]
    orders.append([99])
    with pytest.raises(ConcurrentAppendException):
        publish_all(members)
    assert orders.ids() == [1, 2, 3, 99]
    assert lines.ids() == [10, 20, 30]
    assert orders.states() == ["refused"]
    assert lines.states() == ["intent", "refused"]
    with pytest.raises(ConcurrentAppendException):  # the next try learns it from the log
        publish_all(members)


def test_a_conflict_on_another_table_refuses_it_before_the_decision(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40], replaces=ONE), orders.member("k", [7], replaces=ONE)]
    orders.append([99])
    with pytest.raises(ConcurrentAppendException) as error:
        publish_all(members, anchor=lines.uri)
    assert error.value.table == orders.uri
    assert lines.ids() == [10, 20, 30]
    assert lines.states() == ["refused"]
    assert orders.states() == []


def test_appends_go_on_beside_foreign_appends(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7])]
    orders.append([99])
    lines.append([98])
    assert publish_all(members).outcome == "published"
    assert orders.ids() == [1, 2, 3, 7, 99]
    assert lines.ids() == [10, 20, 30, 40, 98]


def test_abort_before_any_plan_deletes_the_files_and_a_later_commit_is_refused(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7])]
    result = abort_tables([again(member) for member in members])
    assert result.outcome == "refused"
    assert result.publication is None
    assert {found.outcome for found in result.tables.values()} == {"deleted"}
    with pytest.raises(TransactionAbortedException):
        publish_all(members)
    assert orders.ids() == [1, 2, 3]
    assert lines.ids() == [10, 20, 30]


def test_abort_after_the_publication_deletes_nothing(orders: LakeTable, lines: LakeTable) -> None:
    members = [lines.member("k", [40]), orders.member("k", [7])]
    publish_all(members)
    result = abort_tables([again(member) for member in members])
    assert result.outcome == "published"
    assert {found.outcome for found in result.tables.values()} == {"committed"}
    assert lines.ids() == [10, 20, 30, 40]


def test_tables_that_do_not_exist_are_created(table: Callable[[str], LakeTable]) -> None:
    new, other = table("new"), table("other")
    result = publish_all([new.member("k", [1]), other.member("k", [2])])
    assert result.outcome == "published"
    assert new.ids() == [1]
    assert other.ids() == [2]
    assert DeltaLog.for_table(new.uri).update().metadata.partition_columns == ["part"]


def test_three_publications_one_after_the_other(orders: LakeTable, lines: LakeTable) -> None:
    for number in range(3):
        members = [lines.member(f"k{number}", [100 + number]), orders.member(f"k{number}", [number], replaces=ONE)]
        assert publish_all(members).outcome == "published"
    assert orders.ids() == [2]
    assert lines.ids() == [10, 20, 30, 100, 101, 102]


def test_a_place_with_other_files_refuses_all(orders: LakeTable, table: Callable[[str], LakeTable]) -> None:
    new = table("new")
    member = new.member("k", [1])
    (new.path / "other.parquet").write_bytes(b"PAR1")
    members = [member, orders.member("k", [7])]
    with pytest.raises(NonEmptyLocationException):
        publish_all(members, anchor=new.uri)
    assert orders.ids() == [1, 2, 3]
    assert orders.states() == []
    assert abort_tables([again(member) for member in members]).outcome == "refused"
    assert not (new.path / "_delta_log").exists()


def test_a_table_and_its_twin_are_one(orders: LakeTable) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="twice"):
        publish_all([orders.member("k", [7]), orders.member("k2", [8])])
