"""Two stages of one transaction of which one changes what the other has read. The operations here need no Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import SetProperties, SyncIdentity
from airflow_delta.contract.payloads import DeclaredReads, StagedWrite, TransactionHandle
from airflow_delta.exceptions import ReplaceWhereMismatchException, StageConflictException
from airflow_delta.log.data_files.data_file import DataFile
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.operations.rewrite.delete import plan_delete, plan_truncate
from airflow_delta.table.stage import conflicts
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.table.stage.plan_create import plan_create
from airflow_delta.transaction import CommitPolicy
from airflow_delta.transaction.conflicts.checker import ConflictChecker
from support.actions import column, schema
from support.table import Table


def rows(
    table: Table, handle: TransactionHandle, part: str, *, task_id: str = "rows", ids: tuple[int, ...] = (1, 2), **options
) -> StagedWrite:
    return table.stage_rows(handle, ids, part=f"p={part}", task_id=task_id, **options)


def parts(table: Table, handle: TransactionHandle, names: str, ids: tuple[int, ...] = (5,), **options) -> list[StagedWrite]:
    """Stage a file for each partition, each in an instance of one mapped task."""
    return [
        table.stage_rows(handle, ids, f"parts-{index}", part=f"p={part}", task_id="parts", map_index=index, **options)
        for index, part in enumerate(names)
    ]


def delete(table: Table, handle: TransactionHandle, part: str, *, task_id: str = "delete", **options) -> StagedWrite:
    return table.operate(handle, plan_delete, predicate=f"p = '{part}'", task_id=task_id, **options)


def reading(write: StagedWrite, *predicates: str, whole: bool = False) -> StagedWrite:
    """Return a staged write that has read the table, as ``read=`` does."""
    return replace(write, reads=DeclaredReads(predicates=predicates, scanned=predicates, whole_table=whole))


def refused(
    table: Table, handle: TransactionHandle, *stages: StagedWrite, match: str = "both touch|all touch", **options
) -> None:
    """Check that the commit refuses stages in whatever order it gets them, and writes nothing."""
    before = len(table.versions())
    for given in (stages, stages[::-1]):
        with pytest.raises(StageConflictException, match=match):
            table.publish(handle, *given, **options)
    assert len(table.versions()) == before


@pytest.fixture
def filled(tmp_path) -> Table:
    """A table with rows in the partitions ``a`` and ``b``."""
    table = Table(tmp_path / "table")
    for part in ("a", "b"):
        handle = table.begin(partition_by=["p"])
        table.publish(handle, rows(table, handle, part))
    return table


OTHERS: dict[str, Callable[[Table, TransactionHandle], StagedWrite]] = {
    "a delete": lambda table, handle: delete(table, handle, "a", task_id="other"),
    "an overwrite": lambda table, handle: rows(table, handle, "a", mode="overwrite", replace_where="p = 'a'"),
    "a truncate": lambda table, handle: table.operate(handle, plan_truncate, task_id="all"),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_delete_beside_what_removes_its_files_is_refused(filled, other, first):
    handle = filled.begin()
    stages = [delete(filled, handle, "a"), OTHERS[other](filled, handle)]
    with pytest.raises(StageConflictException, match=r"both touch|is rewritten by two stages"):
        filled.publish(handle, *(stages if first else reversed(stages)))
    assert len(filled.versions()) == 2


def test_the_error_names_both_stages_and_the_partition(filled):
    handle = filled.begin()
    over = rows(filled, handle, "a", mode="overwrite", replace_where="p = 'a'")
    with pytest.raises(StageConflictException) as raised:
        filled.publish(handle, over, delete(filled, handle, "a"))
    assert re.search(r"rows \(WRITE\) and delete \(DELETE\) .* both touch \S+\.parquet, in partition \[p=a\]", str(raised.value))
    assert "rows depends on rows that delete changes; delete depends on rows that rows changes" in str(raised.value)


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_rows_that_are_added_beside_a_delete_stay(filled, first):
    """The delete comes before the append, which has read nothing."""
    handle = filled.begin()
    stages = [delete(filled, handle, "a"), rows(filled, handle, "a", ids=(7,))]
    filled.publish(handle, *(stages if first else reversed(stages)))
    assert filled.rows() == [(1, "b"), (2, "b"), (7, "a")]


def test_an_append_that_has_read_what_a_delete_removes_comes_first(filled):
    """Which it cannot, if it adds what the delete would have removed."""
    handle = filled.begin()
    gone = delete(filled, handle, "a")
    refused(filled, handle, gone, reading(rows(filled, handle, "a"), "p = 'a'"), match="both touch")
    filled.publish(handle, gone, reading(rows(filled, handle, "b", task_id="other"), "p = 'a'"))
    assert filled.rows() == [(1, "b"), (1, "b"), (2, "b"), (2, "b")]


def test_the_error_names_the_file_that_was_read(filled):
    handle = filled.begin()
    gone = filled.operate(handle, plan_delete, predicate="p IN ('a', 'b')", task_id="delete")
    for given, part in (("a", "b"), ("b", "a")):
        added = reading(rows(filled, handle, given, task_id=given), f"p = '{part}'")
        for stages, named in (((added, gone), part), ((gone, added), given)):
            with pytest.raises(StageConflictException, match=rf"both touch \S+\.parquet, in partition \[p={named}\]"):
                filled.publish(handle, *stages)


def test_the_error_names_partitions_by_the_columns_of_the_table(table):
    """With column mapping, actions have physical names."""
    handle = table.begin(
        schema=schema(column("id", "long"), column("p", "string")),
        partition_by=["p"],
        configuration={"delta.columnMapping.mode": "name"},
    )
    given = pa.table({"id": [1], "p": ["a"]})
    table.publish(handle, table.stage(handle, given))
    name, part = (field.physical_name for field in table.log().snapshot.schema)
    handle = table.begin()
    over = [table.stage(handle, given, task_id=task, mode="dynamic") for task in ("one", "two")]
    refused(table, handle, *over, match=r"both overwrite partition \[p=a\]")
    gone = delete(table, handle, "a")
    with pytest.raises(StageConflictException, match=r"both touch \S+, in partition \[p=a\]"):
        table.publish(handle, over[0], gone)
    with pytest.raises(ReplaceWhereMismatchException, match=r"lies in the partition \[p=b\]"):
        table.stage_rows(handle, pa.table({name: [1]}), part=f"{part}=b", mode="overwrite", replace_where="p = 'a'")


def test_another_partition_is_no_conflict(filled):
    handle = filled.begin()
    filled.publish(handle, rows(filled, handle, "b"), delete(filled, handle, "a"))
    assert filled.rows() == [(1, "b"), (1, "b"), (2, "b"), (2, "b")]


def test_two_deletes_of_different_partitions_are_none(filled):
    handle = filled.begin()
    filled.publish(handle, delete(filled, handle, "a"), delete(filled, handle, "b", task_id="other"))
    assert filled.rows() == []


def test_each_of_several_is_looked_at(filled):
    """The first other stages are harmless: one in another partition, one that was planned on top of it."""
    handle = filled.begin()
    gone = delete(filled, handle, "a")
    harmless = [rows(filled, handle, "b"), rows(filled, handle, "a", task_id="after", after=[gone.to_dict()])]
    late = reading(rows(filled, handle, "a", task_id="late"), "p = 'a'")
    with pytest.raises(StageConflictException, match="late"):
        filled.publish(handle, *harmless, gone, late)
    filled.publish(handle, *harmless, gone)
    assert filled.rows() == [(1, "a"), (1, "b"), (1, "b"), (2, "a"), (2, "b"), (2, "b")]


@pytest.mark.parametrize("part", ["a", "c"])
def test_rows_that_are_added_beside_a_truncate_stay(filled, part):
    handle = filled.begin()
    filled.publish(handle, rows(filled, handle, part), filled.operate(handle, plan_truncate, task_id="all"))
    assert filled.rows() == [(1, part), (2, part)]


def test_a_stage_that_read_the_whole_table_comes_before_any_change(filled):
    handle = filled.begin()
    whole = delete(filled, handle, "a")
    whole = replace(whole, reads=replace(whole.reads, whole_table=True))
    other = delete(filled, handle, "b", task_id="other")
    nothing = delete(filled, handle, "z", task_id="nothing")
    assert (nothing.num_files, nothing.num_removed_files) == (0, 0)
    refused(filled, handle, whole, replace(other, reads=replace(other.reads, whole_table=True)), match="both touch")
    filled.publish(handle, whole, other, replace(nothing, reads=replace(nothing.reads, whole_table=True)))
    assert filled.rows() == []


def test_overwrites_that_have_read_each_other_are_refused_unless_they_are_parts_of_one(filled):
    """What instances of one mapped task have read is what was there before all of them."""
    handle = filled.begin()
    overwrite = [reading(part, whole=True) for part in parts(filled, handle, "ab", mode="dynamic")]
    another = reading(rows(filled, handle, "b", task_id="another", mode="dynamic"), whole=True)
    refused(filled, handle, overwrite[0], another, match="both touch")
    filled.publish(handle, *overwrite)
    assert filled.rows() == [(5, "a"), (5, "b")]


OVERWRITES = [
    # first, second: options of the two stages, their partitions, whether both may land
    ({"mode": "overwrite"}, "a", {"mode": "overwrite"}, "b", False),
    ({"mode": "overwrite", "replace_where": "p = 'a'"}, "a", {"mode": "overwrite", "replace_where": "p = 'a'"}, "a", False),
    ({"mode": "overwrite", "replace_where": "p = 'a'"}, "a", {"mode": "overwrite", "replace_where": "p = 'b'"}, "b", True),
    (
        {"mode": "overwrite", "replace_where": "p IN ('a', 'b')"},
        "a",
        {"mode": "overwrite", "replace_where": "p >= 'b'"},
        "c",
        True,
    ),
    (
        {"mode": "overwrite", "replace_where": "p IN ('a', 'b')"},
        "a",
        {"mode": "overwrite", "replace_where": "p >= 'b'"},
        "b",
        False,
    ),
    ({"mode": "dynamic"}, "a", {"mode": "dynamic"}, "a", False),
    ({"mode": "dynamic"}, "a", {"mode": "dynamic"}, "b", True),
    ({"mode": "dynamic"}, "a", {"mode": "overwrite", "replace_where": "p = 'b'"}, "b", True),
    ({"mode": "dynamic"}, "a", {"mode": "overwrite"}, "b", False),
    ({"mode": "overwrite"}, "a", {"mode": "append"}, "a", True),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("first", "one", "second", "two", "fine"), OVERWRITES)
def test_two_tasks_overwrite(filled, first, one, second, two, fine, turned):
    """What both land in, if they do, is what either order of the two would give."""
    handle = filled.begin()
    stages = [rows(filled, handle, one, task_id="one", **first), rows(filled, handle, two, task_id="two", **second)]
    stages = stages[::-1] if turned else stages
    if not fine:
        with pytest.raises(StageConflictException, match=r"both overwrite partition \[p=.*after=<output of the other>"):
            filled.publish(handle, *stages)
        assert len(filled.versions()) == 2
        return
    filled.publish(handle, *stages)
    assert {(1, one), (1, two)} <= set(filled.rows())


def test_one_of_two_overwrites_is_after_the_other(filled):
    handle = filled.begin()
    one = rows(filled, handle, "a", task_id="one", mode="overwrite")
    two = rows(filled, handle, "b", task_id="two", mode="overwrite", after=[one.to_dict()])
    filled.publish(handle, two, one)
    assert filled.rows() == [(1, "b"), (2, "b")]


def test_instances_of_one_mapped_task_overwrite_together(filled):
    handle = filled.begin()
    filled.publish(handle, *parts(filled, handle, "ab", (1, 2), mode="overwrite"))
    assert filled.rows() == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_stage_sees_what_the_stages_before_it_leave_in_whatever_order_they_are_given(filled, first):
    """An overwrite keeps the rows that were added beside it."""
    handle = filled.begin()
    stages = [
        rows(filled, handle, "a", task_id="added", ids=(7,)),
        rows(filled, handle, "a", task_id="over", ids=(3,), mode="overwrite", replace_where="p = 'a'"),
    ]
    stages = stages if first else stages[::-1]
    gone = delete(filled, handle, "a", after=[stage.to_dict() for stage in stages])
    assert gone.num_removed_files == 2
    filled.publish(handle, *stages, gone)
    assert filled.rows() == [(1, "b"), (2, "b")]


def test_a_stage_sees_the_rows_of_all_parts_of_an_overwrite(filled):
    handle = filled.begin()
    overwrite = parts(filled, handle, "ab", mode="overwrite")
    gone = delete(filled, handle, "a", after=[part.to_dict() for part in overwrite])
    filled.publish(handle, *overwrite, gone)
    assert filled.rows() == [(5, "b")]


# -- what appends have read ---------------------------------------------------------------------------------------------------


def values(
    table: Table, handle: TransactionHandle, ids: list[int], *, task_id: str, read: str | None = None, **options
) -> StagedWrite:
    """Stage one file with ``ids``, for a table without partitions."""
    index = options.get("map_index", -1)
    write = table.stage_rows(handle, ids, f"{task_id}{index}", task_id=task_id, **options)
    return write if read is None else reading(write, read)


def test_two_appends_that_each_add_what_the_other_has_read_are_refused(filled):
    """Write skew: whichever came second would have read the rows of the first."""
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    two = reading(rows(filled, handle, "b", task_id="two"), "p = 'a'")
    refused(filled, handle, one, two, match=r"one \(WRITE\) and two \(WRITE\)|two \(WRITE\) and one \(WRITE\)")
    refused(filled, handle, one, two, match=r"both touch \S+\.parquet, in partition \[p=[ab]\].*after=<output of the other>")


@pytest.mark.parametrize("level", ["delta", "statistics", "rows"])
def test_the_level_of_conflict_detection_is_about_the_commits_of_others(filled, level):
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    two = reading(rows(filled, handle, "b", task_id="two"), "p = 'a'")
    refused(filled, handle, one, two, policy=CommitPolicy(conflict_detection=level))


def test_two_appends_that_both_read_the_whole_table_are_refused(filled):
    handle = filled.begin()
    stages = [reading(rows(filled, handle, "c", task_id=name), whole=True) for name in ("one", "two")]
    refused(filled, handle, *stages, match="depends on rows that")


def test_an_append_may_have_read_what_another_one_adds(filled):
    """It comes first."""
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    filled.publish(handle, one, rows(filled, handle, "b", task_id="two"))
    assert len(filled.rows()) == 8


def test_appends_in_a_ring_are_refused_and_in_a_row_are_not(filled):
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    two = reading(rows(filled, handle, "b", task_id="two"), "p = 'c'")
    three = rows(filled, handle, "c", task_id="three")
    refused(filled, handle, one, two, reading(three, "p = 'a'"), match="all touch .*three depends on rows that one changes")
    filled.publish(handle, one, two, three)
    assert len(filled.rows()) == 10


def test_an_append_that_was_planned_on_top_of_another_has_read_its_rows(filled):
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    two = reading(rows(filled, handle, "b", task_id="two", after=[one.to_dict()]), "p = 'a'")
    filled.publish(handle, two, one)
    assert len(filled.rows()) == 8


def test_what_was_planned_on_top_of_a_stage_that_is_not_given_is_refused(filled):
    handle = filled.begin()
    one = rows(filled, handle, "a", task_id="one")
    two = rows(filled, handle, "b", task_id="two", after=[one.to_dict()])
    again = rows(filled, handle, "a", task_id="one", path="again")
    for others in ((), (again,)):
        refused(filled, handle, two, *others, match=r"two .* was planned on top of one/\S+, which is not among the staged writes")
    forged = replace(one, after=(f"{two.stage}/{two.attempt}",))
    refused(filled, handle, forged, two, match="The stages (one, two|two, one) were planned on top of each other")


def test_what_was_planned_on_top_of_another_closes_a_ring(filled):
    """``two`` was planned on ``one``; ``three`` has read what ``one`` adds, and ``two`` what ``three`` adds."""
    handle = filled.begin()
    one = rows(filled, handle, "a", task_id="one")
    two = reading(rows(filled, handle, "b", task_id="two", after=[one.to_dict()]), "p = 'c'")
    three = rows(filled, handle, "c", task_id="three")
    four = rows(filled, handle, "d", task_id="four", after=[one.to_dict(), two.to_dict()])
    says = r"all touch staged/\S+, in partition \[p=[ac]\], .*two was planned on top of one"
    refused(filled, handle, one, two, reading(three, "p = 'a'"), four, match=says)
    filled.publish(handle, one, two, reading(three, "p = 'd'"), four)
    assert len(filled.rows()) == 12


def test_a_ring_is_found_behind_stages_that_are_in_none(filled):
    """Four stages lead nowhere, and nothing leads to ``zero``; the error names the stages of the ring."""
    handle = filled.begin()
    ends = [rows(filled, handle, part, task_id=part) for part in "vwxy"]
    zero = reading(rows(filled, handle, "z", task_id="zero"), "p = 'a'")
    one = reading(rows(filled, handle, "a", task_id="one"), "p IN ('v', 'w', 'b')")
    two = reading(rows(filled, handle, "b", task_id="two"), "p IN ('x', 'y', 'a')")
    says = r"The stages (one|two) \(WRITE\) and (one|two) \(WRITE\) of .* both"
    refused(filled, handle, *ends, zero, one, two, match=says)


def test_only_stages_with_files_in_what_was_read_are_compared(filled, monkeypatch):
    handle = filled.begin()
    stages = [reading(rows(filled, handle, part, task_id=part), f"p = '{part}'") for part in "abcd"]
    compared = counted(monkeypatch, ConflictChecker, "check_files")
    filled.publish(handle, *stages, reading(delete(filled, handle, "z", task_id="nothing"), "p = 'a'"))
    # The last one has removed nothing; it is itself held against what was added to the partition that it has read.
    assert len(compared) == 1


def test_rows_that_are_told_apart_by_bounds_or_values_are_no_conflict(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, values(table, handle, [1], task_id="first"))
    handle = table.begin()
    low = values(table, handle, [5], task_id="low", read="id > 100")
    high = values(table, handle, [200], task_id="high", read="id < 100")
    refused(table, handle, low, high, match=r"both touch staged/\S+\.parquet, and no order")
    table.publish(handle, low, values(table, handle, [20], task_id="other", read="id < 5"))
    handle = table.begin()
    odd = values(table, handle, [1, 3, 9], task_id="odd", read="id = 4")
    table.publish(handle, odd, values(table, handle, [2, 8], task_id="even", read="id = 5"))
    handle = table.begin()
    odd = values(table, handle, [1, 5, 9], task_id="odd", read="id = 4")
    refused(table, handle, odd, values(table, handle, [2, 4, 8], task_id="even", read="id = 5"))


@pytest.mark.parametrize("feature", ["delta.enableInCommitTimestamps", "delta.enableRowTracking", "delta.enableChangeDataFeed"])
def test_features_that_are_about_commits_ask_nothing_of_stages(tmp_path, feature):
    table = Table(tmp_path / "table")
    table.publish(table.begin(schema=schema(column("id", "long")), configuration={feature: "true"}))
    handle = table.begin()
    low = values(table, handle, [5], task_id="low", read="id > 100")
    refused(table, handle, low, values(table, handle, [200], task_id="high", read="id < 100"))
    table.publish(handle, low, values(table, handle, [20], task_id="other", read="id < 5"))
    assert table.rows() == [(20,), (5,)]


def test_a_stage_is_held_against_each_other_one_by_itself(tmp_path):
    """``one`` has read what ``two`` adds, and ``three`` what ``one`` adds: three, one, two."""
    table = Table(tmp_path / "table")
    table.publish(table.begin(schema=schema(column("id", "long"))))
    handle = table.begin()
    one = values(table, handle, [1, 9], task_id="one", read="id = 4")
    two = values(table, handle, [2, 4, 8], task_id="two")
    table.publish(handle, one, two, values(table, handle, [3, 7], task_id="three", read="id = 1"))
    assert table.rows() == [(1,), (2,), (3,), (4,), (7,), (8,), (9,)]


def test_a_stage_may_have_read_a_column_that_it_adds(tmp_path):
    table = Table(tmp_path / "table")
    table.publish(table.begin(schema=schema(column("id", "long"))))
    handle = table.begin()
    wider = table.stage(handle, pa.table({"id": [1], "v": [1]}), task_id="wider", merge_schema=True)
    other = values(table, handle, [2], task_id="other")
    refused(table, handle, reading(wider, "v > 0 OR id = 2"), reading(other, "id = 1"))
    table.publish(handle, reading(wider, "v > 0 OR id = 2"), other)
    assert table.rows() == [(1, 1), (2, None)]


@pytest.mark.parametrize("mode", ["overwrite", "dynamic"])
def test_the_parts_of_one_overwrite_are_not_compared_with_each_other(filled, monkeypatch, mode):
    """Their number may be large: what is done for each must not be done for each pair."""
    handle, names = filled.begin(), "abcdefghij"
    staged = [
        filled.stage_rows(
            handle,
            [index],
            f"parts-{index}",
            part=f"p={part}",
            task_id="parts",
            map_index=index,
            mode=mode,
            **({"replace_where": f"p = '{part}'"} if mode == "overwrite" else {}),
        )
        for index, part in enumerate(names)
    ]
    compared, listed = [], []
    real_apart, real_whole = conflicts._Stage.is_apart, conflicts.whole_files
    monkeypatch.setattr(conflicts._Stage, "is_apart", lambda *given: compared.append(given) or real_apart(*given))
    monkeypatch.setattr(conflicts, "whole_files", lambda *given: listed.append(given) or real_whole(*given))
    filled.publish(handle, *staged)
    assert (len(compared), len(listed)) == (0, 0)
    assert sorted(filled.rows()) == sorted((index, part) for index, part in enumerate(names))


def test_instances_of_one_mapped_task_do_not_know_each_other(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, values(table, handle, [1], task_id="first"))
    handle = table.begin()
    whole = [values(table, handle, [n], task_id="parts", read="id < 10", map_index=n) for n in (2, 3)]
    refused(table, handle, *whole, match=r"parts(__|-|\[)?\S*2.* and parts|parts\S*3.* and parts")
    own = [values(table, handle, [n], task_id="own", read=f"id = {n}", map_index=n) for n in (2, 3)]
    table.publish(handle, *own)
    assert table.rows() == [(1,), (2,), (3,)]


def test_an_overwrite_and_an_append_that_has_read_what_it_replaces(filled):
    """The rows that were added stay, so the append would come second, but has read the rows that are gone."""
    handle = filled.begin()
    over = rows(filled, handle, "a", task_id="over", ids=(3,), mode="overwrite", replace_where="p = 'a'")
    again = reading(rows(filled, handle, "a", task_id="again"), "p = 'a'")
    says = r"both touch \S+\.parquet, in partition \[p=a\].*(over depends on rows that again|again depends on rows that over)"
    refused(filled, handle, over, again, match=says)
    other = reading(rows(filled, handle, "b", task_id="other"), "p = 'a'")
    over_and_read = replace(over, reads=DeclaredReads(predicates=("p = 'b'",)))
    for stages, part in (((over_and_read, other), "b"), ((other, over_and_read), "a")):
        with pytest.raises(StageConflictException, match=rf"both touch \S+\.parquet, in partition \[p={part}\]"):
            filled.publish(handle, *stages)
    filled.publish(handle, over, other)


def test_an_overwrite_with_the_same_rows_changes_nothing_that_was_read(filled):
    handle = filled.begin()
    over = rows(filled, handle, "a", task_id="over", mode="overwrite", replace_where="p = 'a'")
    filled.publish(handle, over, reading(rows(filled, handle, "a", task_id="again"), "p = 'a'"))
    assert filled.rows() == [(1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "a"), (2, "b")]


def test_nothing_comes_between_the_parts_of_one_overwrite(filled):
    """An append has read what one part adds, and another part has read what the append adds."""
    handle = filled.begin()
    one, other = parts(filled, handle, "na", (1,), mode="overwrite", replace_where="p IN ('a', 'n')")
    added = reading(rows(filled, handle, "c"), "p = 'n'")
    refused(filled, handle, one, reading(other, "p = 'c'"), added)
    filled.publish(handle, one, other, added)
    assert filled.rows() == [(1, "a"), (1, "b"), (1, "c"), (1, "n"), (2, "b"), (2, "c")]


def test_nothing_is_planned_between_the_parts_of_one_overwrite(filled):
    handle = filled.begin()
    options = {"mode": "overwrite", "task_id": "parts"}
    one = filled.stage_rows(handle, [1], "one", part="p=a", map_index=0, **options)
    added = rows(filled, handle, "c", after=[one.to_dict()])
    other = filled.stage_rows(handle, [2], "two", part="p=b", map_index=1, after=[one.to_dict(), added.to_dict()], **options)
    says = r"all touch .*rows was planned on top of parts\.0; parts\.1 was planned on top of rows"
    refused(filled, handle, one, other, added, match=says)


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[None]:
    """Return a list that gets an item for each call of a method."""
    calls: list[None] = []
    real = getattr(kind, name)

    def call(*arguments, **more):
        calls.append(None)
        return real(*arguments, **more)

    monkeypatch.setattr(kind, name, call)
    return calls


def test_a_staged_file_is_read_once_for_all_stages(tmp_path, monkeypatch):
    """Bounds do not tell the rows apart, so each stage looks for its own among those of all others."""
    table = Table(tmp_path / "table")
    handle = table.begin()
    table.publish(handle, values(table, handle, [1], task_id="first"))
    handle = table.begin()
    parts = [values(table, handle, [0, 2 * n, 99], task_id="parts", read=f"id = {2 * n + 1}", map_index=n) for n in range(1, 9)]
    opened, read = counted(monkeypatch, DataFile, "__init__"), counted(monkeypatch, DataFile, "read")
    table.publish(handle, *parts)
    assert (len(opened), len(read)) == (8, 8)
    assert len(table.rows()) == 25


def test_parts_of_one_overwrite_are_not_compared_with_each_other(filled, monkeypatch):
    handle = filled.begin()
    overwrite = [
        filled.stage_rows(handle, [index], f"parts-{index}", part="p=a", task_id="parts", map_index=index, mode="overwrite")
        for index in range(8)
    ]
    compared = counted(monkeypatch, ConflictChecker, "check_files")
    filled.publish(handle, *overwrite)
    assert not compared
    assert filled.rows() == [(index, "a") for index in range(8)]


def test_the_first_rows_of_a_table_can_be_skewed_too(tmp_path):
    table = Table(tmp_path / "table")
    handle = table.begin(partition_by=["p"])
    one = reading(rows(table, handle, "a", task_id="one"), "p = 'b'")
    two = rows(table, handle, "b", task_id="two")
    for stages in ((one, reading(two, "p = 'a'")), (reading(two, whole=True), one)):
        with pytest.raises(StageConflictException, match="both touch"):
            table.publish(handle, *stages)
    table.publish(handle, one, reading(two, "p = 'c'"))
    assert len(table.rows()) == 4


def test_an_audit_refuses_what_the_commit_refuses(filled):
    handle = filled.begin()
    one = reading(rows(filled, handle, "a", task_id="one"), "p = 'b'")
    two = reading(rows(filled, handle, "b", task_id="two"), "p = 'a'")
    with pytest.raises(StageConflictException, match="both touch"):
        AuditedTable(filled.log(), handle, [one, two])


TOGETHER = {
    "append": ("append", "alter", "truncate"),
    "alter": ("append", "alter", "truncate"),
    "truncate": ("append", "alter", "truncate"),
    "overwrite_schema": ("overwrite_schema",),
    "create": ("append", "truncate"),
}


@pytest.mark.parametrize("first", TOGETHER)
@pytest.mark.parametrize("second", ["append", "alter", "truncate", "overwrite_schema"])
def test_what_cannot_be_committed_with_another_schema_is_refused_before_it_works(filled, first, second):
    handle = filled.begin()
    given = pa.table({"id": [1], "p": ["a"]})

    def planned(kind: str, after: tuple[StagedWrite, ...] = ()) -> StagedWrite:
        options = {"task_id": f"{kind}_{len(after)}", "after": [write.to_dict() for write in after]}
        match kind:
            case "append":
                return filled.stage(handle, given, **options)
            case "overwrite_schema":
                return filled.stage(handle, given, mode="overwrite", overwrite_schema=True, **options)
            case "alter":
                changes = [SetProperties({"delta.logRetentionDuration": f"interval {40 + len(after)} days"})]
                return filled.operate(handle, plan_alter, changes=changes, **options)
            case "truncate":
                return filled.operate(handle, plan_truncate, **options)
        return filled.operate(handle, plan_create, schema="id LONG, p STRING", mode="replace", **options)

    one = planned(first)
    if second in TOGETHER[first]:
        filled.publish(handle, one, planned(second, (one,)))
    else:
        with pytest.raises(StageConflictException, match=f"cannot be planned on top of stage {one.stage}"):
            planned(second, (one,))


def test_stages_that_replace_the_schema_agree_on_it(filled):
    handle = filled.begin()
    options = {"mode": "overwrite", "overwrite_schema": True}
    one = filled.stage(handle, pa.table({"x": [1], "p": ["a"]}), task_id="one", map_index=0, **options)
    two = filled.stage(handle, pa.table({"y": [1], "p": ["a"]}), task_id="one", map_index=1, **options)
    refused(filled, handle, one, two, match="one.* of transaction .* replace the schema of table .* by different ones")
    last = filled.stage(handle, pa.table({"y": [2], "p": ["a"]}), task_id="last", after=[one.to_dict()], **options)
    filled.publish(handle, one, last)
    assert filled.rows() == [(2, "a")]


@pytest.mark.parametrize("partition_by", [["p"], []])
def test_a_stage_that_replaces_the_partitioning_conflicts_with_one_that_has_read_the_table(table, partition_by):
    rows = pa.table({"id": [1], "p": ["a"]})
    other = [] if partition_by else ["p"]
    table.write(rows, begin={"partition_by": other, "configuration": {"delta.columnMapping.mode": "name"}})
    handle = table.begin()
    options = {"mode": "overwrite", "overwrite_schema": True, "partition_by": partition_by}
    replaced = table.stage(handle, pa.table({"id": [5], "p": ["a"]}), task_id="replaced", **options)
    gone = table.operate(handle, plan_delete, predicate="id = 5", task_id="gone")
    refused(table, handle, replaced, gone, match="replace the schema .* others do not: gone")


def test_a_change_that_needs_its_own_commit_has_no_stage_on_top_of_it(table):
    table.run(plan_create, schema="id LONG GENERATED BY DEFAULT AS IDENTITY")
    handle = table.begin()
    change = table.operate(handle, plan_alter, changes=[SyncIdentity("id")], task_id="change")
    with pytest.raises(StageConflictException, match="on top of stage change: syncing an identity column needs its own"):
        table.operate(handle, plan_truncate, after=[change.to_dict()])
    table.publish(handle, change)


def test_an_overwrite_of_a_replaced_table_removes_none_of_its_old_rows(filled):
    """They leave with the table, before any of the two: the overwrite changes nothing that the other has read."""
    handle = filled.begin()
    create = filled.operate(handle, plan_create, schema="id LONG, p STRING", partition_by=["p"], mode="replace", task_id="create")
    after = [create.to_dict()]
    nothing = pa.table({"id": pa.array([], pa.int64()), "p": pa.array([], pa.string())})
    over = filled.stage(handle, nothing, mode="overwrite", replace_where="p = 'a'", task_id="over", after=after)
    added = reading(rows(filled, handle, "a", after=after), "p = 'a'")
    filled.publish(handle, create, over, added)
    assert filled.rows() == [(1, "a"), (2, "a")]


def test_the_table_after_stages_has_their_columns_and_its_partitioning(tmp_path):
    table = Table(tmp_path / "table")
    widening = {"delta.enableTypeWidening": "true"}
    given = schema(column("id", "integer"), column("p", "string"))
    table.publish(table.begin(schema=given, partition_by=["p"], configuration=widening))
    handle = table.begin()
    rows_of = pa.table({"id": pa.array([1], pa.int64()), "p": ["a"], "v": [1.5]})
    wider = table.stage(handle, rows_of, task_id="wider", merge_schema=True)
    found = table.view(handle, task_id="after", after=[wider.to_dict()]).target
    assert [(field.name, field.data_type.name) for field in found.schema] == [("id", "long"), ("p", "string"), ("v", "double")]
    assert list(found.partition_columns) == ["p"]
