"""Rows whose columns get other names in the same commit stay the rows that they were, however the effect is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import AddColumns, Change, Column, DropColumns, RenameColumn
from airflow_delta.table.audit.audited_table import AuditedTable
from airflow_delta.table.effects.diff import TableDiff, published_diff, staged_diff
from airflow_delta.table.effects.read_limits import ReadLimits
from airflow_delta.table.effects.review import Review, ReviewLimits, review
from airflow_delta.table.stage.plan_alter import plan_alter
from support.actions import SCHEMA, add
from support.table import Table
from support.tables import create_table

MAPPED = {"configuration": {"delta.columnMapping.mode": "name"}}
DATA = ReadLimits(files=10, num_bytes=1 << 20, values=1_000)
LIMITS = ReviewLimits(data=DATA, rows=100, columns=10, statistics=1_000)
ROWS = pa.table(
    {
        "a": [1, 2, 3],
        "b": ["x", "y", "z"],
        "s": [{"x": 1, "y": 3}, None, {"x": 2, "y": None}],
        "l": pa.array([[{"x": 1}], [], None], pa.list_(pa.struct({"x": pa.int64()}))),
    }
)


def renamed(field: pa.Field, names: dict[str, str]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([renamed(kind.field(i), names) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        kind = pa.list_(renamed(kind.value_field, names))
    return pa.field(names.get(field.name, field.name), kind)


def spelled(rows: pa.Table, names: dict[str, str]) -> pa.Table:
    """Return rows under other names of columns and fields."""
    schema = pa.schema([renamed(field, names) for field in rows.schema])
    return pa.Table.from_arrays(
        [column.combine_chunks().view(field.type) for column, field in zip(rows.columns, schema, strict=True)], schema=schema
    )


CHANGES: dict[str, tuple[list[Change], Callable[[pa.Table], pa.Table]]] = {
    "renamed": ([RenameColumn("a", "c")], lambda rows: spelled(rows, {"a": "c"})),
    "two swap their names": (
        [RenameColumn("a", "c"), RenameColumn("b", "a"), RenameColumn("c", "b")],
        lambda rows: rows.rename_columns(["b", "a", "s", "l"]),
    ),
    "fields renamed": (
        [RenameColumn("s.x", "z"), RenameColumn("l.element.x", "z")],
        lambda rows: spelled(rows, {"x": "z"}),
    ),
}  # fmt: skip


def effects(
    table: Table, changes: list[Change], rows: pa.Table, *, keys: list[str], begin: dict[str, Any] | None = None
) -> tuple[TableDiff, Review, TableDiff]:
    """Return what a transaction shows that changes the columns and writes all rows again, and then its commit."""
    handle = table.begin()
    altered = table.operate(handle, plan_alter, task_id="alter", changes=changes)
    written = table.stage(handle, rows, mode="overwrite", task_id="write", after=[altered])
    staged = [altered, written]
    before = staged_diff(AuditedTable(table.log(), handle, staged), keys=keys)
    shown = review(table.log(), handle, staged, limits=LIMITS)
    version = table.publish(handle, *staged).version
    return before, shown, published_diff(table.log(), version, keys=keys)


@pytest.mark.parametrize("name", CHANGES)
def test_the_same_rows_under_other_names(table: Table, name: str) -> None:
    changes, now = CHANGES[name]
    table.write(ROWS, begin=MAPPED)
    staged, shown, published = effects(table, changes, now(ROWS), keys=[])
    assert [(one.exact, one.added, one.removed) for one in (staged, published)] == [(True, 0, 0)] * 2
    assert (shown.exact, shown.partitions) == (True, [])


def test_a_changed_row_has_the_names_of_the_columns_after_the_commit(table: Table) -> None:
    table.write(ROWS, begin=MAPPED)
    rows = spelled(ROWS, {"a": "id"}).set_column(1, "b", pa.array(["x", "y", "other"]))
    staged, shown, published = effects(table, [RenameColumn("a", "id")], rows, keys=["id"])
    for one in (staged, published):
        assert (one.added, one.removed, one.changed) == (0, 0, 1)
        [(old, new)] = one.changed_rows
        assert (old, new["b"]) == ({"id": 3, "b": "z", "s": {"x": 2, "y": None}, "l": None}, "other")
    assert [(one.added, one.removed) for one in shown.partitions] == [(1, 1)]


def test_a_dropped_column_counts_by_its_name(table: Table) -> None:
    """A reader who asks for it by name has no value any more."""
    table.write(ROWS, begin=MAPPED)
    changes: list[Change] = [DropColumns(("b",)), AddColumns((Column("b", "STRING"),))]
    rows = ROWS.select(["a", "s", "l"]).append_column("b", pa.array(["x", None, "z"]))
    staged, shown, published = effects(table, changes, rows, keys=["a"])
    for one in (staged, published):
        assert (one.added, one.removed, one.changed) == (0, 0, 1)
        assert [(old["b"], new["b"]) for old, new in one.changed_rows] == [("y", None)]
    assert [(one.added, one.removed) for one in shown.partitions] == [(1, 1)]


def test_a_dropped_column_whose_name_another_takes(table: Table) -> None:
    table.write(ROWS.select(["a", "b"]), begin=MAPPED)
    changes: list[Change] = [DropColumns(("b",)), RenameColumn("a", "b")]
    staged, shown, published = effects(table, changes, pa.table({"b": [1, 2, 4]}), keys=["b"])
    for one in (staged, published):
        assert (one.added, one.removed, one.changed) == (1, 1, 0)
        assert (one.added_rows, one.removed_rows) == ([{"b": 4}], [{"b": 3}])
        assert [str(change) for change in one.schema_changes] == ["a to b", "b (string)"]
    assert [(one.added, one.removed) for one in shown.partitions] == [(1, 1)]


def test_another_spelling_of_a_column(table: Table) -> None:
    table.write(ROWS)
    handle = table.begin()
    rows = spelled(ROWS, {"a": "A", "s": "S", "x": "X"})
    staged = [table.stage(handle, rows, mode="overwrite", overwrite_schema=True)]
    found = staged_diff(AuditedTable(table.log(), handle, staged), keys=["a"])
    assert (found.keys, found.added, found.removed, found.changed) == (("A",), 0, 0, 0)
    assert review(table.log(), handle, staged, limits=LIMITS).partitions == []


def test_changes_of_the_columns_are_told_at_every_depth(table: Table) -> None:
    table.write(ROWS.select(["a", "b", "s"]), begin=MAPPED)
    handle = table.begin()
    changes: list[Change] = [
        RenameColumn("s.x", "z"),
        DropColumns(("s.y", "b")),
        AddColumns((Column("b", "STRING"), Column("s.n", "LONG"))),
    ]
    altered = table.operate(handle, plan_alter, changes=changes)
    found = staged_diff(AuditedTable(table.log(), handle, [altered])).schema_changes
    assert [(change.kind, str(change)) for change in found] == [
        ("renamed", "s.x to z"),
        ("dropped", "s.y (bigint)"),
        ("dropped", "b (string)"),  # a new one has its name, and none of its values
        ("new", "s.n (bigint)"),
        ("new", "b (string)"),
    ]


def test_a_partition_that_writers_spell_differently(tmp_path: Path) -> None:
    """What goes from ``part=01`` to ``part=1`` has not left its partition."""
    path = tmp_path / "spelled"
    path.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), path / "0.parquet")
    file = add("0.parquet", part="01", size=(path / "0.parquet").stat().st_size, stats='{"numRecords":2}')
    create_table(path, file, partition_columns=["part"], schema_string=SCHEMA.replace("string", "integer"))
    table = Table(path)
    handle = table.begin()
    staged = table.stage(handle, pa.table({"id": [2, 3], "part": pa.array([1, 1], pa.int32())}), mode="overwrite")
    found = review(table.log(), handle, [staged], limits=LIMITS)
    assert found.exact
    assert [(dict(one.values), one.added, one.removed) for one in found.partitions] == [({"part": "1"}, 1, 1)]


def test_other_partition_columns(table: Table) -> None:
    """Rows of one partition before may be in any after: all are compared."""
    table.write(pa.table({"id": [1, 2], "p": [1, 1], "q": [1, 2]}), begin={"partition_by": ["p"]})
    handle = table.begin()
    rows = pa.table({"id": [1, 2, 3], "p": [1, 1, 1], "q": [1, 2, 2]})
    staged = [table.stage(handle, rows, mode="overwrite", overwrite_schema=True, partition_by=["q"])]
    found = review(table.log(), handle, staged, limits=LIMITS)
    counts = {name: sum(getattr(one, name) or 0 for one in found.partitions) for name in ("added", "removed")}
    assert not found.exact or counts == {"added": 1, "removed": 0}
