"""delta-rs wins on a table with deletion vectors, and goes on from what was committed on top of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_delta.exceptions import DeltaConcurrentModificationException
from transaction.row_table import RowTable, Work, merged, row, with_id


@pytest.fixture
def table(tmp_path: Path) -> RowTable:
    """Rows 1, 2 in the first file, which has a deletion vector, and 4 to 6 in the second."""
    table = RowTable(tmp_path / "table", configuration={"delta.enableChangeDataFeed": "true"})
    table.append(row(1), row(2), row(3))
    table.append(row(4, "b"), row(5, "b"), row(6, "b"))
    table.begin().delete("id = 3", with_id(3)).commit()
    return table


def merge(table: DeltaTable, *ids: int) -> None:
    schema = pa.schema({"id": pa.int64(), "kind": pa.string(), "n": pa.int32()})
    source = pa.Table.from_pylist([row(number, "r", 7) for number in ids], schema)
    merging = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


Change = Callable[[DeltaTable], object]

WINNERS: dict[str, tuple[Change, dict[int, int]]] = {
    "DELETE": (lambda table: table.delete("id = 5"), {1: 0, 2: 0, 4: 0, 6: 0}),
    "UPDATE": (lambda table: table.update({"n": "7"}, predicate="id = 5"), {1: 0, 2: 0, 4: 0, 5: 7, 6: 0}),
    "MERGE": (lambda table: merge(table, 5, 20), {1: 0, 2: 0, 4: 0, 5: 7, 6: 0, 20: 7}),
    "OPTIMIZE": (lambda table: table.optimize.compact(), {1: 0, 2: 0, 4: 0, 5: 0, 6: 0}),
    "ZORDER": (lambda table: table.optimize.z_order(["id"]), {1: 0, 2: 0, 4: 0, 5: 0, 6: 0}),
}
"""What delta-rs does, and ``n`` of each row afterwards."""

Stage = Callable[[RowTable], Work]

OURS: dict[str, tuple[Stage, Callable[[dict[int, int]], dict[int, int]]]] = {
    "DELETE": (
        lambda table: table.begin().delete("id = 1", with_id(1)),
        lambda rows: {number: n for number, n in rows.items() if number != 1},
    ),
    "UPDATE": (lambda table: table.begin().update("id = 1", with_id(1), {"n": 3}), lambda rows: rows | {1: 3}),
    "MERGE": (lambda table: merged(table, 1, 10), lambda rows: rows | {1: 9, 10: 9}),
    "a look": (lambda table: table.begin().read("kind = 'a'").append(row(10)), lambda rows: rows | {10: 0}),
}
"""What this transaction stages before that, and what it makes of the rows."""


@pytest.mark.parametrize("theirs", WINNERS)
@pytest.mark.parametrize("ours", OURS)
def test_rows_of_delta_rs(table: RowTable, ours: str, theirs: str) -> None:
    stage, expected = OURS[ours]
    change, rows = WINNERS[theirs]
    work = stage(table)
    change(DeltaTable(str(table.root)))
    assert live(table) == rows
    work.commit()  # neither row ids nor a record: rows that were moved are found by their content
    rows = expected(rows)
    assert live(table) == rows
    DeltaTable(str(table.root)).delete("id = 4")
    merge(DeltaTable(str(table.root)), 2, 30)
    DeltaTable(str(table.root)).optimize.compact()
    rows = {number: n for number, n in rows.items() if number != 4} | {2: 7, 30: 7}
    assert live(table) == rows


@pytest.mark.parametrize("theirs", ["id = 1", "id = 2"])
def test_whole_files_conflict(table: RowTable, theirs: str) -> None:
    """delta-rs does not mark rows, it rewrites their file."""
    work = table.begin().delete("id = 1", with_id(1))
    DeltaTable(str(table.root)).delete(theirs)
    with pytest.raises(DeltaConcurrentModificationException):
        work.commit()


def live(table: RowTable) -> dict[int, int]:
    return {found["id"]: found["n"] for found in table.rows()}
