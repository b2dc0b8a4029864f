"""Rows that a winner wrote again as they were: who read them goes on, and they are followed to their new files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException
from transaction.row_table import RowTable


def row(number: int) -> dict[str, Any]:
    return {"id": number, "kind": "a", "n": 0}


@pytest.mark.parametrize("winner", ["delete", "update"])
def test_rows_that_a_winner_wrote_again_as_they_were(tmp_path: Path, winner: str) -> None:
    table = RowTable(tmp_path / "table", vectors=False)
    table.append(row(1), row(2), row(3))
    reader = table.begin().read("id = 1").append(row(9))
    other = table.begin("delta")
    if winner == "delete":
        other.delete("id = 3", lambda r: r["id"] == 3, vectors=False).commit()
    else:
        other.update("id = 3", lambda r: r["id"] == 3, {"n": 7}, vectors=False).commit()
    reader.commit()
    assert "rows" in reader.resolved


def test_rows_that_a_winner_wrote_again_are_followed(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", vectors=False)
    table.append(row(1), row(2), row(3))
    reader = table.begin().read("id = 1").append(row(9))
    table.begin("delta").delete("id = 3", lambda r: r["id"] == 3, vectors=False).commit()
    table.begin("delta").delete("id = 1", lambda r: r["id"] == 1, vectors=False).commit()
    with pytest.raises(ConcurrentDeleteReadException, match="is one that it read"):
        reader.commit()


@pytest.mark.parametrize("change", [{"n": 7}, {"kind": None}, {"kind": ""}])
def test_a_row_that_was_read_and_has_another_value_in_any_column(tmp_path: Path, change: dict[str, Any]) -> None:
    table = RowTable(tmp_path / "table", vectors=False)
    table.append(row(1), row(2), row(3))
    reader = table.begin().read("id = 1").append(row(9))
    table.begin("delta").update("id = 1", lambda r: r["id"] == 1, change, vectors=False).commit()
    with pytest.raises(ConcurrentAppendException, match="should have read"):
        reader.commit()


def test_rows_that_are_written_again_may_have_other_row_ids(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", vectors=False, tracked=True)
    table.append(row(1), row(2), row(3))
    reader = table.begin().read("id = 1").append(row(9))
    table.begin("delta").delete("id = 3", lambda r: r["id"] == 3, vectors=False).commit()
    with pytest.raises(ConcurrentAppendException):
        reader.commit()


def test_who_changes_a_row_of_a_file_that_was_rewritten_conflicts(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", vectors=False)
    table.append(row(1), row(2), row(3))
    late = table.begin().delete("id = 1", lambda r: r["id"] == 1, vectors=False)
    table.begin("delta").delete("id = 3", lambda r: r["id"] == 3, vectors=False).commit()
    with pytest.raises(ConcurrentAppendException, match="should have read"):
        late.commit()
