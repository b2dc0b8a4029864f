"""Rows that a winner wrote again as they were: who read them goes on, and they are followed to their new files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException
from airflow_delta.log import AddFile
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


def test_values_that_python_cannot_represent_are_not_compared(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", columns={"id": "long", "d": "date"}, vectors=False)
    table.append(*({"id": number, "d": dt.date(2024, 1, 1)} for number in (1, 2)))
    reader = table.begin().read("id = 1").append({"id": 9, "d": None})
    winner = table.begin("delta").delete("id = 2", lambda r: r["id"] == 2, vectors=False)
    (added,) = (action for action in winner.actions if isinstance(action, AddFile))
    after_9999 = pa.array([5_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": pa.array([1]), "d": after_9999}), table.root / added.path)
    written = msgspec.structs.replace(added, size=(table.root / added.path).stat().st_size, stats=None)
    winner.actions = [written if action is added else action for action in winner.actions]
    winner.commit()
    with pytest.raises(ConcurrentAppendException):
        reader.commit()
