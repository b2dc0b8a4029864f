"""Conflict detection by rows: who goes on, who conflicts, and what is in the table afterwards, as other engines read it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.tags import DETECTION_TAG, RESOLVED_TAG
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    DeltaConcurrentModificationException,
)
from airflow_delta.log.actions.actions import AddFile, CommitInfo, SetTransaction, encode_actions
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, vector_path
from airflow_delta.log.statistics.wide_bounds import with_wide_bounds
from airflow_delta.transaction import Operation
from transaction.row_table import RowTable, Work, keys_of, merged, row, with_id

CONFLICT = DeltaConcurrentModificationException


@pytest.fixture
def table(tmp_path: Path) -> RowTable:
    """Rows 1 to 6 in two files: kind a in the first, b in the second."""
    table = RowTable(tmp_path / "table")
    table.append(row(1), row(2), row(3))
    table.append(row(4, "b"), row(5, "b"), row(6, "b"))
    return table


@pytest.fixture
def tracked(tmp_path: Path) -> RowTable:
    table = RowTable(tmp_path / "table", tracked=True)
    table.append(row(1), row(2), row(3))
    table.append(row(4, "b"), row(5, "b"), row(6, "b"))
    return table


def of(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: bool(found["kind"] == kind)


# -- added files ----------------------------------------------------------------------------------------------------------------


def test_bounds_rule_out_an_append(table: RowTable) -> None:
    ours = table.begin().delete("id < 3", lambda found: found["id"] < 3)
    table.append(row(10), row(11))
    assert ours.commit() == 4
    assert ours.resolved == {"statistics": "3"}
    assert table.info(4)["tags"] == {DETECTION_TAG: "rows", RESOLVED_TAG: '{"statistics":"3"}'}
    assert sorted(found["id"] for found in table.rows()) == [3, 4, 5, 6, 10, 11]


@pytest.mark.parametrize("level", ["delta", "statistics", "rows"])
def test_a_row_that_should_have_been_read(table: RowTable, level: str) -> None:
    ours = table.begin(level).delete("id < 3", lambda found: found["id"] < 3)
    table.append(row(2), row(11))
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit()
    assert caught.value.version == 3
    assert ("Why the rows did not settle it" in str(caught.value)) == (level != "delta")


@pytest.mark.parametrize(("level", "resolved"), [("delta", None), ("statistics", None), ("rows", {"keys": "3"})])
def test_bounds_that_overlap_are_settled_by_reading(table: RowTable, level: str, resolved: dict[str, str] | None) -> None:
    ours = table.begin(level).delete("id IN (2, 3)", with_id(2, 3))
    table.append(row(1), row(11))
    if resolved is None:
        with pytest.raises(ConcurrentAppendException):
            ours.commit()
    else:
        ours.commit()
        assert ours.resolved == resolved
        assert sorted(found["id"] for found in table.rows()) == [1, 1, 4, 5, 6, 11]


def test_nothing_is_read_beyond_the_limit(table: RowTable) -> None:
    ours = table.begin(conflict_read_limit=10).delete("id IN (2, 3)", with_id(2, 3))
    table.append(row(1), row(11))
    with pytest.raises(ConcurrentAppendException, match="reading more than 10 bytes"):
        ours.commit()


def test_the_limit_counts_all_winners(table: RowTable) -> None:
    ours = table.begin(conflict_read_limit=200).delete("id IN (2, 3)", with_id(2, 3))
    for _ in range(20):
        table.append(row(1), row(11))
    with pytest.raises(ConcurrentAppendException, match="conflict_read_limit"):
        ours.commit()


@pytest.mark.parametrize("damage", ["gone", "cut", "not Parquet"])
def test_a_winners_file_that_cannot_be_read(table: RowTable, damage: str) -> None:
    ours = table.begin().delete("id IN (2, 3)", with_id(2, 3))
    version = table.append(row(1), row(11))
    path = table.root / table.actions(version, "add")[0]["path"]
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content[:-20] if damage == "cut" else b"x" * len(content))
    with pytest.raises(ConcurrentAppendException, match="is gone" if damage == "gone" else "cannot be read"):
        ours.commit()


@pytest.mark.parametrize(("vectors", "tracked"), [(False, False), (True, False), (True, True)])
def test_a_conflict_names_the_features_that_the_table_lacks(tmp_path: Path, vectors: bool, tracked: bool) -> None:
    table = RowTable(tmp_path / "table", vectors=vectors, tracked=tracked)
    table.append(row(1))
    ours = table.begin().delete("id = 1", with_id(1))
    table.begin().append(row(1)).commit()
    with pytest.raises(ConcurrentAppendException) as caught:
        ours.commit()
    text = str(caught.value)
    assert "function calls do not" in text
    assert ("delta.enableDeletionVectors" in text, "delta.enableRowTracking" in text) == (not vectors, not tracked)


@pytest.mark.parametrize("predicate", ["d = DATE'2024-02-29'", "d > DATE'2024-03-01'"])
def test_dates_that_python_cannot_represent(tmp_path: Path, predicate: str) -> None:
    """Spark writes dates up to the year 5881580."""
    table = RowTable(tmp_path / "table", columns={"id": "long", "d": "date"})
    table.append({"id": 1, "d": dt.date(2024, 2, 29)}, {"id": 2, "d": dt.date(2024, 3, 2)})
    ours = table.begin().delete(predicate, lambda found: found["id"] == 1)
    winner = table.begin().append({"id": 3, "d": dt.date(2024, 1, 1)}, {"id": 4, "d": dt.date(2024, 3, 1)})
    (added,) = winner.actions
    days = pa.array([19723, 5_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": pa.array([3, 4]), "d": days}), table.root / added.path)
    size = (table.root / added.path).stat().st_size
    winner.actions = [msgspec.structs.replace(added, size=size, stats=None)]
    winner.commit()
    if ">" in predicate:
        with pytest.raises(ConcurrentAppendException, match="is one that it should have read"):
            ours.commit()
    else:
        ours.commit()
        assert ours.resolved == {"keys": "2"}


def test_integers_without_sign(table: RowTable) -> None:
    """Spark reads the greatest of them as -1."""
    table.append(row(9, n=-1))
    ours = table.begin().delete("n = -1", lambda found: found["n"] == -1)
    winner = table.begin().append(row(7))
    (added,) = winner.actions
    columns = {"id": pa.array([7, 8]), "kind": pa.array(["a", "a"]), "n": pa.array([1, 2**32 - 1], pa.uint32())}
    pq.write_table(pa.table(columns), table.root / added.path)
    winner.actions = [msgspec.structs.replace(added, size=(table.root / added.path).stat().st_size, stats=None)]
    winner.commit()
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_a_winners_file_without_statistics_is_read(table: RowTable) -> None:
    ours = table.begin().delete("id IN (2, 3)", with_id(2, 3))
    winner = table.begin().append(row(1), row(11))
    winner.actions = [msgspec.structs.replace(winner.actions[0], stats=None)]
    winner.commit()
    ours.commit()
    assert ours.resolved == {"keys": "3"}


def test_rows_of_a_winner_that_are_already_deleted_do_not_count(table: RowTable) -> None:
    """One winner appends a row that matches; the next one that is looked at in the same batch has marked it."""
    ours = table.begin().delete("id IN (2, 3)", with_id(2, 3))
    table.append(row(2), row(20))
    table.begin().delete("id = 2 AND n = 0", lambda found: found["id"] == 2 and found["n"] == 0).commit()
    with pytest.raises(CONFLICT):
        ours.commit()


def test_nulls_do_not_match_a_comparison(table: RowTable) -> None:
    table.append(row(20, n=6))
    ours = table.begin().delete("n > 5", lambda found: (found["n"] or 0) > 5)
    table.append(row(7, n=None), row(8, n=0))
    ours.commit()
    assert ours.resolved == {"statistics": "4"}
    ours = table.begin().delete("NOT (n > 5) AND id < 12", lambda found: found["n"] is not None and found["n"] <= 5)
    table.append(row(9, n=None), row(10, n=9), row(13, n=0))
    ours.commit()
    assert ours.resolved == {"keys": "6"}
    ours = table.begin().update("n IS NULL", lambda found: found["n"] is None, {"n": 1})
    table.append(row(12, n=None))
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize("predicate", ["length(kind) = 7", "NOT (kind LIKE 'x%y')", "abs(n) > 3 AND id > 0"])
def test_what_cannot_be_evaluated_may_match(table: RowTable, predicate: str) -> None:
    ours = table.begin().delete(predicate, with_id(1))
    table.append(row(7))
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_a_read_of_the_whole_table_conflicts_with_every_append(table: RowTable) -> None:
    ours = table.begin().read().append(row(9))
    table.append(row(7))
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_nothing_recorded_as_read_is_not_believed(table: RowTable) -> None:
    ours = table.begin().remove_all(read=False)
    table.append(row(7))
    with pytest.raises(ConcurrentAppendException, match="did not record what it read"):
        ours.commit()


def test_a_compaction_with_other_work_has_read_its_files_only(table: RowTable) -> None:
    """As a stage of a transaction, whose key lifts it above SnapshotIsolation."""
    ours = table.begin().compact()
    ours.actions.append(SetTransaction(app_id="x", version=1, last_updated=1))
    table.append(row(7))
    ours.commit()
    assert len(table.rows()) == 7


# -- compaction ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["statistics", "rows"])
def test_a_compaction_is_no_conflict_for_who_only_read(table: RowTable, level: str) -> None:
    ours = table.begin(level).read("kind = 'a'").append(row(9))
    table.compact()
    ours.commit()
    assert ours.resolved == {"moved": "3"}
    whole = table.begin(level).read().append(row(10))
    table.compact()
    whole.commit()
    assert len(table.rows()) == 8


def test_a_compaction_is_a_conflict_for_who_changes_its_files_and_does_not_look_at_rows(table: RowTable) -> None:
    ours = table.begin("statistics").delete("id = 1", with_id(1))
    table.compact(recorded=True)
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()


def test_a_compaction_that_does_not_say_so_is_none(table: RowTable) -> None:
    ours, without_rows = (table.begin(level).read("kind = 'a'").append(row(9)) for level in ("rows", "statistics"))
    table.begin("delta").compact().with_data_change(True).commit()
    with pytest.raises(CONFLICT):
        without_rows.commit()
    ours.commit()
    assert ours.resolved == {"rows": "3"}, "not moved, but read: they are the same rows"


def test_a_compaction_that_loses_rows_is_not_believed(table: RowTable) -> None:
    ours = table.begin().read("kind = 'a'").append(row(9))
    winner = table.begin("delta").compact()
    winner.actions[-1] = table.write(row(1), data_change=False)
    info = CommitInfo(operation="OPTIMIZE", is_blind_append=False)
    (table.root / "_delta_log" / f"{3:020d}.json").write_bytes(encode_actions([info, *winner.actions]))
    with pytest.raises(CONFLICT):
        ours.commit()


@pytest.mark.parametrize("has_stats", [True, False])
def test_a_compaction_that_only_removes_files_is_not_believed(table: RowTable, has_stats: bool) -> None:
    """As a repair removes files that are gone from storage."""
    ours = table.begin().read("kind = 'a'").append(row(9))
    winner = table.begin("delta")
    winner.actions = [file.remove(3, data_change=False) for file in winner.files.values()]
    if not has_stats:
        winner.actions = [msgspec.structs.replace(remove, stats=None) for remove in winner.actions]
    info = CommitInfo(operation="FSCK", is_blind_append=False)
    (table.root / "_delta_log" / f"{3:020d}.json").write_bytes(encode_actions([info, *winner.actions]))
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()


def test_rows_that_were_read_are_followed_through_a_compaction(table: RowTable) -> None:
    """Read, moved by a compaction, then deleted there: the transaction would not read them any more."""
    ours = table.begin().read("kind = 'a'").append(row(9))
    table.compact()
    table.begin().delete("id = 1", with_id(1)).commit()
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()


def test_files_that_were_read_whole_are_followed_through_compactions(table: RowTable) -> None:
    ours = table.begin()
    ours.transaction.track_files_read(ours.files)
    ours.append(row(9))
    table.compact()
    table.compact()
    table.begin().delete("id = 1", with_id(1)).commit()
    with pytest.raises(ConcurrentDeleteReadException, match="relies on every row of the file"):
        ours.commit()


def test_other_rows_of_a_compacted_file_are_not_those_that_were_read(table: RowTable) -> None:
    ours = table.begin().read("kind = 'a'").append(row(9))
    table.compact()
    table.begin().delete("id = 5", with_id(5)).commit()
    ours.commit()
    assert ours.resolved == {"keys": "4", "moved": "3", "rows": "4"}
    assert sorted(found["id"] for found in table.rows()) == [1, 2, 3, 4, 6, 9]


# -- two deletion vectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [False, True])
def test_two_deletion_vectors_with_different_rows(table: RowTable, inline: bool) -> None:
    ours = table.begin().delete("id = 1", with_id(1), inline=inline)
    table.begin().delete("id = 2", with_id(2), inline=not inline).commit()
    ours.commit()
    assert ours.resolved == {"rows": "3"}
    assert [found["id"] for found in table.rows()] == [3, 4, 5, 6]
    (remove,), (add,) = table.actions(4, "remove"), table.actions(4, "add")
    assert remove["deletionVector"]["cardinality"] == 1
    assert add["deletionVector"]["cardinality"] == 2
    assert add["deletionVector"]["storageType"] == ("i" if inline else "u")


def at_absolute_paths(work: Work) -> Work:
    """Name the vectors by absolute path, as a shallow clone does those of its source."""
    store = work.transaction.log.store
    for at, action in enumerate(work.actions):
        vector = action.deletion_vector if isinstance(action, AddFile) else None
        if vector is not None and vector.storage_type == "u":
            uri = f"file:{work.table.root}/{vector_path(store, vector)}"
            vector = msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=uri)
            work.actions[at] = msgspec.structs.replace(action, deletion_vector=vector)
    return work


@pytest.mark.parametrize("kinds", ["pp", "pu", "pi", "up", "ip"])
def test_vectors_at_absolute_paths(table: RowTable, kinds: str) -> None:
    def deletes(number: int, kind: str) -> Work:
        work = table.begin().delete(f"id = {number}", with_id(number), inline=kind == "i")
        return at_absolute_paths(work) if kind == "p" else work

    deletes(4, "p").commit()
    ours = deletes(1, kinds[0]).delete("id = 5", with_id(5))
    for number in (2, 6):
        deletes(number, kinds[1]).commit()
    ours.commit()
    assert ours.resolved == {"rows": "4-5"}
    assert [found["id"] for found in table.rows()] == [3]


def test_several_winners_in_turn_on_one_file(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table")
    table.append(*(row(number) for number in range(10)))
    ours = table.begin().delete("id IN (0, 5)", with_id(0, 5))
    for number in (1, 2, 3):
        table.begin().delete(f"id = {number}", with_id(number)).commit()
    assert ours.commit() == 5
    assert ours.resolved == {"rows": "2-4"}
    assert [found["id"] for found in table.rows()] == [4, 6, 7, 8, 9]


def test_a_row_that_both_touch(table: RowTable) -> None:
    ours = table.begin().delete("id IN (1, 2)", with_id(1, 2))
    table.begin().delete("id IN (2, 3)", with_id(2, 3)).commit()
    with pytest.raises(ConcurrentDeleteDeleteException, match="1 of the rows of a file that this transaction changes or"):
        ours.commit()


def test_a_vector_against_the_whole_file(table: RowTable) -> None:
    ours = table.begin().delete("id = 1", with_id(1))
    table.begin().delete("kind = 'a'", of("a"), vectors=False).commit()
    with pytest.raises(ConcurrentDeleteReadException, match="deletion vectors would have left it in place"):
        ours.commit()
    ours = table.begin().delete("id = 4", with_id(4), vectors=False)
    table.begin().delete("id = 5", with_id(5)).commit()
    with pytest.raises(ConcurrentDeleteReadException, match="deletion vectors would leave it in place"):
        ours.commit()


def test_all_rows_marked_by_two_commits_remove_the_file(table: RowTable) -> None:
    ours = table.begin().delete("id = 1", with_id(1))
    table.begin().delete("id IN (2, 3)", with_id(2, 3)).commit()
    ours.commit()
    assert table.actions(4, "add") == []
    assert [found["id"] for found in table.rows()] == [4, 5, 6]


def test_two_updates_of_different_rows(table: RowTable) -> None:
    ours = table.begin().update("id = 1", with_id(1), {"n": 10})
    table.begin().update("id = 2", with_id(2), {"n": 20}).commit()
    ours.commit()
    assert ours.resolved == {"rows": "3"}
    assert {found["id"]: found["n"] for found in table.rows()} == {1: 10, 2: 20, 3: 0, 4: 0, 5: 0, 6: 0}


def test_an_update_that_moves_a_row_to_where_another_reads(table: RowTable) -> None:
    ours = table.begin().update("kind = 'b'", of("b"), {"n": 1})
    table.begin().update("id = 1", with_id(1), {"kind": "b"}).commit()
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_write_skew_fails(table: RowTable) -> None:
    """Each reads what the other changes: no order of the two gives these rows."""
    ours = table.begin().read("kind = 'a'").update("id = 4", with_id(4), {"n": 3})
    table.begin().read("kind = 'b'").update("id = 1", with_id(1), {"n": 3}).commit()
    with pytest.raises(CONFLICT):
        ours.commit()


def test_metrics_count_the_vectors_that_were_replaced(table: RowTable) -> None:
    names = ("Added", "Removed", "Updated")
    ours = table.begin().delete("id = 1", with_id(1))
    metrics = {f"numDeletionVectors{name}": int(name == "Added") for name in names}
    ours.operation = Operation.delete(["id = 1"], metrics=metrics)
    table.begin().delete("id = 2", with_id(2)).commit()
    ours.commit()
    assert table.info(4)["operationMetrics"] == {f"numDeletionVectors{name}": "1" for name in names}


def test_metrics_count_a_file_that_loses_its_last_row(table: RowTable) -> None:
    names = ("numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated", "numRemovedFiles")
    ours = table.begin().delete("id = 1", with_id(1))
    metrics = {**dict(zip(names, (1, 0, 0, 0), strict=True)), "numRemovedBytes": 0}
    ours.operation = Operation.delete(["id = 1"], metrics=metrics)
    size = min(ours.files.values(), key=lambda file: file.path).size
    table.begin().delete("id IN (2, 3)", with_id(2, 3)).commit()
    ours.commit()
    assert table.info(4)["operationMetrics"] == {**dict(zip(names, "0101", strict=True)), "numRemovedBytes": str(size)}


def test_metrics_count_files_that_rows_moved_to(tracked: RowTable) -> None:
    names = ("numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated", "numRemovedFiles")
    tracked.begin().delete("id = 2", with_id(2)).commit()
    ours = tracked.begin().update("id IN (1, 5)", with_id(1, 5), {"n": 5})
    metrics = {**dict(zip(names, (2, 1, 1, 2), strict=True)), "numUpdatedRows": 2}
    ours.operation = Operation("UPDATE", {"predicate": ["id IN (1, 5)"]}, metrics)
    tracked.compact()
    ours.commit()
    assert tracked.info(5)["operationMetrics"] == {**dict(zip(names, "1001", strict=True)), "numUpdatedRows": "2"}


@pytest.mark.parametrize("predicate", ["id IN (1, 4)", "id IN (1, 2)"])
def test_rows_that_a_restore_brings_back(table: RowTable, predicate: str) -> None:
    """Row 1 was deleted when it read the table; without the vector it is there again."""
    table.begin().delete("id = 1", with_id(1)).commit()
    ids = (2,) if predicate.endswith("2)") else (4,)
    ours = table.begin().update(predicate, with_id(*ids), {"n": 5})
    winner = table.begin("delta")
    file = next(file for file in winner.files.values() if file.deletion_vector is not None)
    winner.actions = [file.remove(5), msgspec.structs.replace(file, deletion_vector=None, data_change=True)]
    winner.commit()
    with pytest.raises(CONFLICT):
        ours.commit()


@pytest.mark.parametrize("theirs", ["marks another row", "says something else about the file", "compacts"])
def test_rows_that_it_brings_back_itself(tracked: RowTable, theirs: str) -> None:
    """Deletes row 3, and brings row 2 back: a union with the vector of a winner would delete it again."""
    tracked.begin().delete("id IN (1, 2)", with_id(1, 2)).commit()
    ours = tracked.begin()
    file = next(file for file in ours.files.values() if file.deletion_vector is not None)
    vector = inline_deletion_vector(BitMap64([0, 2]))
    ours.actions = [file.remove(5), msgspec.structs.replace(file, deletion_vector=vector, data_change=True)]
    ours.transaction.track_files_read([file.path], whole=False)
    ours.transaction.track_read_predicates("id IN (2, 3)", marked=True)
    if theirs == "compacts":
        tracked.compact()
    else:
        rows = [0, 1] if theirs.startswith("says") else [0, 1, 2]
        winner = tracked.begin("delta")
        again = msgspec.structs.replace(file, deletion_vector=inline_deletion_vector(BitMap64(rows)), data_change=len(rows) > 2)
        winner.actions = [file.remove(5, data_change=len(rows) > 2), again]
        winner.commit()
    with pytest.raises(ConcurrentDeleteReadException, match="brings rows of the file"):
        ours.commit()


# -- moved rows ------------------------------------------------------------------------------------------------------------------


def test_deletes_are_carried_over_to_compacted_files(tracked: RowTable) -> None:
    ours = tracked.begin().delete("id IN (1, 5)", with_id(1, 5))
    tracked.compact()
    ours.commit()
    assert ours.resolved == {"moved": "3", "rows": "3"}
    assert [found["id"] for found in tracked.rows()] == [2, 3, 4, 6]
    before, (now,) = tracked.actions(3, "add")[0], tracked.actions(4, "add")
    assert {name: now[name] for name in ("path", "baseRowId", "defaultRowCommitVersion")} == {
        name: before[name] for name in ("path", "baseRowId", "defaultRowCommitVersion")
    }
    assert '"tightBounds":false' in now["stats"]


def test_a_row_that_was_moved_and_then_deleted_is_deleted_twice(tracked: RowTable) -> None:
    ours = tracked.begin().delete("id IN (1, 5)", with_id(1, 5))
    tracked.compact()
    tracked.begin().delete("id = 5", with_id(5)).commit()
    with pytest.raises(ConcurrentDeleteDeleteException, match="1 of the rows"):
        ours.commit()


def test_a_compaction_and_other_deletes_before_and_after_it(tracked: RowTable) -> None:
    ours = tracked.begin().delete("id IN (1, 5)", with_id(1, 5))
    tracked.begin().delete("id = 2", with_id(2)).commit()
    tracked.compact()
    tracked.begin().delete("id = 6", with_id(6)).commit()
    tracked.compact()
    ours.commit()
    assert [found["id"] for found in tracked.rows()] == [3, 4]


def test_a_compaction_that_loses_row_ids(tracked: RowTable) -> None:
    ours = tracked.begin().delete("id IN (1, 5)", with_id(1, 5))
    tracked.compact(keep_ids=False)
    with pytest.raises(ConcurrentDeleteReadException, match="not every row id"):
        ours.commit()


@pytest.mark.parametrize("ids", [(1,), (3,), (1, 3)])
def test_a_compaction_that_moves_some_rows_of_a_file(tracked: RowTable, ids: tuple[int, ...]) -> None:
    """Row 1 is in another file then, rows 2 and 3 are where they were."""
    ours = tracked.begin().delete("id IN (1, 3)", with_id(*ids))
    winner = tracked.begin("delta")
    winner.operation = Operation.optimize()
    file = min(winner.files.values(), key=lambda file: file.path)
    vector, stats = inline_deletion_vector(BitMap64([0])), with_wide_bounds(file.stats)
    stays = msgspec.structs.replace(file, deletion_vector=vector, stats=stats, data_change=False)
    winner.actions = [file.remove(3, data_change=False), stays, tracked.write(row(1), data_change=False, ids=[0])]
    winner.commit()
    ours.commit()
    assert ours.resolved == {"moved": "3", "rows": "3"}
    assert [found["id"] for found in tracked.rows()] == [number for number in range(1, 7) if number not in ids]


def test_a_compaction_that_gives_two_rows_one_id(tracked: RowTable) -> None:
    ours = tracked.begin().delete("id IN (1, 2)", with_id(1, 2))
    winner = tracked.begin("delta").compact()
    numbers = [row(number, "a" if number < 4 else "b") for number in range(1, 7)]
    winner.actions[-1] = tracked.write(*numbers, data_change=False, ids=[0, 0, 2, 3, 4, 5])
    winner.commit()
    with pytest.raises(ConcurrentDeleteReadException, match="not every row id is found there once"):
        ours.commit()


def test_row_ids_are_read_up_to_the_limit(tracked: RowTable) -> None:
    ours = [tracked.begin(conflict_read_limit=limit).delete("id = 1", with_id(1)) for limit in (10, 1000)]
    tracked.compact()
    with pytest.raises(ConcurrentDeleteReadException, match="reading more than 10 bytes"):
        ours[0].commit()
    ours[1].commit()
    assert ours[1].resolved == {"moved": "3", "rows": "3"}


def test_row_ids_are_kept_by_a_union(tracked: RowTable) -> None:
    ours = tracked.begin().update("id = 1", with_id(1), {"n": 5})
    tracked.begin().update("id = 2", with_id(2), {"n": 6}).commit()
    ours.commit()
    adds = {add["path"]: add for add in tracked.actions(4, "add")}
    first = tracked.actions(1, "add")[0]
    assert adds[first["path"]]["baseRowId"] == first["baseRowId"]
    assert adds[first["path"]]["defaultRowCommitVersion"] == first["defaultRowCommitVersion"]
    new = next(add for path, add in adds.items() if path != first["path"])
    assert (new["baseRowId"], new["defaultRowCommitVersion"]) == (7, 4)


# -- the level ------------------------------------------------------------------------------------------------------------------


def test_partitions_are_looked_at_before_rows(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table", partition_by=["kind"])
    table.append(row(1), row(2))
    table.append(row(4, "b"))
    ours = table.begin().delete("kind = 'a' AND id = 1", lambda found: found["kind"] == "a" and found["id"] == 1)
    table.append(row(1, "b"))
    ours.commit()
    assert ours.resolved == {}
    ours = table.begin().delete("kind = 'a' OR id = 7", lambda found: found["kind"] == "a")
    table.append(row(5, "b"), row(9, "b"))
    ours.commit()
    assert ours.resolved == {"keys": "5"}
    assert sorted(found["id"] for found in table.rows()) == [1, 4, 5, 9]


def test_write_serializable_lets_blind_appends_pass(table: RowTable) -> None:
    ours = table.begin(isolation="WriteSerializable").delete("id < 3", lambda found: found["id"] < 3)
    table.append(row(1))
    ours.commit()
    assert ours.resolved == {}


def test_a_commit_without_winners_says_nothing(table: RowTable) -> None:
    ours: Work = table.begin().delete("id = 1", with_id(1))
    ours.commit()
    assert "tags" not in table.info(3)


# -- MERGE ----------------------------------------------------------------------------------------------------------------------


def test_two_merges_of_different_keys(table: RowTable) -> None:
    ours = merged(table, 1, 10)
    merged(table, 2, 11).commit()
    ours.commit()
    assert {found["id"]: found["n"] for found in table.rows()} == {1: 9, 2: 9, 3: 0, 4: 0, 5: 0, 6: 0, 10: 9, 11: 9}
    assert ours.resolved == {"keys": "3", "rows": "3"}


def test_two_merges_that_insert_one_key(table: RowTable) -> None:
    ours = merged(table, 1, 10)
    merged(table, 2, 10).commit()
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_keys_that_are_too_many_leave_their_bounds(table: RowTable) -> None:
    ours = merged(table, 10, 20, listed=False)
    table.append(row(30), row(40))
    ours.commit()
    assert ours.resolved == {"statistics": "3"}
    ours = merged(table, 12, 22, listed=False)
    table.append(row(15))
    with pytest.raises(ConcurrentAppendException):
        ours.commit()


def test_a_row_that_matched_and_stayed(table: RowTable) -> None:
    """The MERGE left row 5 as it was; without it, it would have inserted one."""
    ours = merged(table, 5, changes=lambda _found: False).append(row(50))
    table.begin().delete("id = 5", with_id(5)).commit()
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()
    ours = merged(table, 4, changes=lambda _found: False).append(row(51))
    table.begin().delete("id = 6", with_id(6)).commit()
    ours.commit()
    assert ours.resolved == {"keys": "4", "rows": "4"}


@pytest.mark.parametrize("level", ["delta", "rows"])
def test_a_row_that_matched_in_a_file_that_is_gone(table: RowTable, level: str) -> None:
    """A MERGE that only inserts changes no file: it is the rows that it saw that count."""
    ours = table.begin(level).merge([row(5)], keys_of(table, 5), changes=lambda _found: False)
    ours.append(row(60))
    table.begin().delete("kind = 'b'", of("b")).commit()
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()


def test_files_that_a_winner_added_were_not_seen(table: RowTable) -> None:
    ours = merged(table, 5)
    table.append(row(70), row(71))
    table.begin().delete("id >= 70", lambda found: found["id"] >= 70).commit()
    ours.commit()
    assert ours.resolved == {"statistics": "3"}


# -- what the errors say --------------------------------------------------------------------------------------------------------


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize(("predicate", "said"), [("id = 1", "is one that"), ("id + 1 = 2", "may, as far as")])
def test_only_a_condition_that_was_evaluated_is_said_to_hold(table: RowTable, predicate: str, said: str) -> None:
    ours = table.begin().delete(predicate, with_id(1))
    table.append(row(1), row(2))
    with pytest.raises(ConcurrentAppendException, match=said):
        ours.commit()


@pytest.mark.parametrize(("level", "is_said"), [("delta", True), ("statistics", True), ("rows", False)])
def test_a_level_that_looks_closer_is_named(table: RowTable, level: str, is_said: bool) -> None:
    ours = table.begin(level).delete("id = 1", with_id(1))
    table.append(row(1), row(2))
    with pytest.raises(ConcurrentAppendException) as error:
        ours.commit()
    assert ("With conflict_detection='rows'" in str(error.value)) == is_said
