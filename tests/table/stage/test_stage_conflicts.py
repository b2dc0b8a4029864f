"""Two stages of one transaction of which one changes what the other has read. The operations here need no Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.files import new_attempt
from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import StageConflictException
from airflow_delta.table.operations.rewrite.update import plan_delete, plan_truncate
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from table.flow import Table


def rows(table: Table, handle: TransactionHandle, part: str, *, task_id: str = "rows", **options) -> StagedWrite:
    directory = Path(handle.staging_path) / task_id / f"p={part}"
    directory.mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), directory / "0.parquet")
    return table.stage_files(handle, task_id=task_id, path=task_id, **options)


def delete(table: Table, handle: TransactionHandle, part: str, *, task_id: str = "delete", **options) -> StagedWrite:
    return table.operate(handle, plan_delete, predicate=f"p = '{part}'", task_id=task_id, **options)


@pytest.fixture
def filled(tmp_path) -> Table:
    """A table with rows in the partitions ``a`` and ``b``."""
    table = Table(tmp_path / "table")
    for part in ("a", "b"):
        handle = table.begin(partition_by=["p"])
        table.publish(handle, rows(table, handle, part))
    return table


OTHERS: dict[str, Callable[[Table, TransactionHandle], StagedWrite]] = {
    "an append": lambda table, handle: rows(table, handle, "a"),
    "a delete": lambda table, handle: delete(table, handle, "a", task_id="other"),
    "an overwrite": lambda table, handle: rows(table, handle, "a", mode="overwrite", replace_where="p = 'a'"),
    "a truncate": lambda table, handle: table.operate(handle, plan_truncate, task_id="all"),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_delete_beside_what_changes_its_partition_is_refused(filled, other, first):
    handle = filled.begin()
    stages = [delete(filled, handle, "a"), OTHERS[other](filled, handle)]
    with pytest.raises(
        StageConflictException, match="both touch" if "append" in other else "both touch|is rewritten by two stages"
    ):
        filled.publish(handle, *(stages if first else reversed(stages)))
    assert filled.versions() == 2


def test_the_error_names_both_stages_and_the_partition(filled):
    handle = filled.begin()
    written = rows(filled, handle, "a")
    with pytest.raises(StageConflictException) as raised:
        filled.publish(handle, written, delete(filled, handle, "a"))
    assert re.search(r"delete \(DELETE\) and rows \(WRITE\) .* both touch \S+\.parquet, in partition \[p=a\]", str(raised.value))


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
    with pytest.raises(StageConflictException, match="late"):
        filled.publish(handle, *harmless, gone, rows(filled, handle, "a", task_id="late"))
    filled.publish(handle, *harmless, gone)
    assert filled.rows() == [(1, "a"), (1, "b"), (1, "b"), (2, "a"), (2, "b"), (2, "b")]


@pytest.mark.parametrize("part", ["a", "c"])
def test_a_truncate_beside_new_rows_is_refused(filled, part):
    handle = filled.begin()
    with pytest.raises(StageConflictException, match="both touch"):
        filled.publish(handle, rows(filled, handle, part), filled.operate(handle, plan_truncate, task_id="all"))


def test_a_stage_that_read_the_whole_table_beside_any_other_that_replaces_rows_is_refused(filled):
    """Even if that one found nothing to remove, and added nothing; an append of nothing is harmless."""
    handle = filled.begin()
    whole = delete(filled, handle, "a")
    whole = replace(whole, reads=replace(whole.reads, whole_table=True))
    nothing = delete(filled, handle, "z", task_id="nothing")
    assert (nothing.num_files, nothing.num_removed_files) == (0, 0)
    with pytest.raises(StageConflictException, match="both touch the whole table"):
        filled.publish(handle, whole, nothing)
    filled.publish(handle, whole, replace(nothing, mode="append"))
    assert filled.rows() == [(1, "b"), (2, "b")]


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
        assert filled.versions() == 2
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
    stages = []
    for index, part in enumerate("ab"):
        directory = Path(handle.staging_path) / f"parts-{index}" / f"p={part}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), directory / "0.parquet")
        view = open_stage(filled.log(), handle, task_id="parts", map_index=index, attempt=new_attempt())
        stages.append(collect_files(view, path=f"parts-{index}", mode="overwrite"))
    filled.publish(handle, *stages)
    assert filled.rows() == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
