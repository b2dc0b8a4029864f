"""Rows that go, in a table of changed rows, if the same commit changes the table's columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_delta.contract.changes import AddColumns, Change, Column, DropColumns, RenameColumn, SetProperties
from airflow_delta.exceptions import DeltaAnalysisException, DeltaUnsupportedOperationException
from airflow_delta.table.operations.rewrite.delete import plan_truncate
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.table_preview import preview_table
from airflow_delta.table.stage.plan_alter import plan_alter
from support.previews import rows
from support.table import Table

ROWS = pa.table(
    {
        "a": [1, 2],
        "b": ["x", "y"],
        "s": [{"x": 1, "y": 3}, None],
        "l": pa.array([[{"x": 1, "y": 3}], []], pa.list_(pa.struct({"x": pa.int64(), "y": pa.int64()}))),
        "m": pa.array([[("k", {"x": 1, "y": 3})], None], pa.map_(pa.string(), pa.struct({"x": pa.int64(), "y": pa.int64()}))),
    }
)
NESTED = {"s": [{"x": 1, "y": 3}, None], "l": [[{"x": 1, "y": 3}], []], "m": [[("k", {"x": 1, "y": 3})], None]}

CHANGES: dict[str, tuple[list[Change], dict[str, list[Any]]]] = {
    "renamed": ([RenameColumn("a", "c")], {"c": [1, 2], "b": ["x", "y"], **NESTED}),
    "another takes the name of a dropped one": ([DropColumns(("b",)), RenameColumn("a", "b")], {"b": [1, 2], **NESTED}),
    "two swap their names": (
        [RenameColumn("a", "c"), RenameColumn("b", "a"), RenameColumn("c", "b")],
        {"b": [1, 2], "a": ["x", "y"], **NESTED},
    ),
    "dropped and added": (
        [DropColumns(("b",)), AddColumns((Column("b", "STRING"),))],
        {"a": [1, 2], **NESTED, "b": [None, None]},
    ),
    "fields renamed": (
        [RenameColumn("s.x", "z"), RenameColumn("l.element.x", "z"), RenameColumn("m.value.x", "z")],
        {
            "a": [1, 2],
            "b": ["x", "y"],
            "s": [{"z": 1, "y": 3}, None],
            "l": [[{"z": 1, "y": 3}], []],
            "m": [[("k", {"z": 1, "y": 3})], None],
        },
    ),
    "fields dropped and added": (
        [
            DropColumns(("s.x", "l.element.x", "m.value.x")),
            AddColumns((Column("s.x", "LONG"), Column("l.element.x", "LONG"), Column("m.value.x", "LONG"))),
        ],
        {
            "a": [1, 2],
            "b": ["x", "y"],
            "s": [{"y": 3, "x": None}, None],
            "l": [[{"y": 3, "x": None}], []],
            "m": [[("k", {"y": 3, "x": None})], None],
        },
    ),
    "none is left": (
        [AddColumns((Column("n", "LONG"),)), DropColumns(("a", "b", "s", "l", "m"))],
        {"n": [None, None]},
    ),
}  # fmt: skip


def emptied(table: Table, changes: list[Change]) -> list[tuple[Any, ...]]:
    """Return what a transaction shows that changes the columns and deletes all rows."""
    handle = table.begin()
    altered = table.operate(handle, plan_alter, task_id="alter", changes=changes)
    gone = table.operate(handle, plan_truncate, task_id="truncate", after=[altered])
    found = preview_changes(table.log(), handle, [altered, gone])
    assert found.changes == {"delete": 2}
    return rows(found.path)


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("name", CHANGES)
def test_under_column_mapping_values_go_with_their_column(table: Table, name: str, mode: str) -> None:
    changes, columns = CHANGES[name]
    table.write(ROWS, begin={"configuration": {"delta.columnMapping.mode": mode}})
    expected = sorted([(*values, "delete") for values in zip(*columns.values(), strict=True)], key=repr)
    assert emptied(table, changes) == expected


@pytest.mark.parametrize("mode", ["name", "id"])
def test_partition_columns_too(table: Table, mode: str) -> None:
    configuration = {"delta.columnMapping.mode": mode}
    table.write(ROWS.select(["a", "b"]), begin={"configuration": configuration, "partition_by": ["b"]})
    assert emptied(table, [RenameColumn("b", "c"), RenameColumn("a", "b")]) == [(1, "x", "delete"), (2, "y", "delete")]


def test_the_commit_may_begin_the_mapping(table: Table) -> None:
    table.write(ROWS.select(["a", "b", "s"]))
    changes = [SetProperties({"delta.columnMapping.mode": "name"}), RenameColumn("a", "c"), RenameColumn("s.x", "z")]
    assert emptied(table, changes) == [(1, "x", {"z": 1, "y": 3}, "delete"), (2, "y", None, "delete")]


def test_without_a_mapping_case_does_not_matter(table: Table) -> None:
    table.write(ROWS.select(["a", "b", "s"]), begin={"partition_by": ["b"]})
    handle = table.begin()
    other = pa.table({"A": [3], "B": ["z"], "S": [{"X": 5, "Y": 6}]})
    staged = table.stage(handle, other, mode="overwrite", overwrite_schema=True, partition_by=["B"])
    assert rows(preview_changes(table.log(), handle, [staged]).path) == [
        (1, "x", {"X": 1, "Y": 3}, "delete"),
        (2, "y", None, "delete"),
        (3, "z", {"X": 5, "Y": 6}, "insert"),
    ]


@pytest.mark.parametrize("name", ["_change_type", "_Change_Type"])
def test_a_column_with_the_name_of_the_kind_of_change(table: Table, name: str) -> None:
    table.write(pa.table({"a": [1], name: ["x"]}))
    handle = table.begin()
    staged = table.stage(handle, pa.table({"a": [2], name: ["y"]}))
    with pytest.raises(DeltaUnsupportedOperationException, match=rf"its column {name} .*only='table'"):
        preview_changes(table.log(), handle, [staged])
    assert rows(preview_table(table.log(), handle, [staged]).path) == [(1, "x"), (2, "y")]
    assert not list(table.path.rglob("_preview_changes"))


def test_a_column_with_that_name_may_go(table: Table) -> None:
    table.write(pa.table({"a": [1], "_change_type": ["x"]}))
    handle = table.begin()
    staged = table.stage(handle, pa.table({"a": [2]}), mode="overwrite", overwrite_schema=True)
    assert rows(preview_changes(table.log(), handle, [staged]).path) == [(1, "delete"), (2, "insert")]


@pytest.mark.parametrize("column", [pa.array([[1.5]]), pa.array(["x"])], ids=["list", "text"])
def test_rows_that_go_do_not_fit_columns_of_another_kind(table: Table, column: pa.Array) -> None:
    table.write(ROWS)
    handle = table.begin()
    staged = table.stage(handle, pa.table({"m": column}), mode="overwrite", overwrite_schema=True)
    with pytest.raises(DeltaAnalysisException, match=r"have the column m as map.* Preview the whole table"):
        preview_changes(table.log(), handle, [staged])
