"""Compactions that lose to compactions of the same files, or to changes of rows that nobody can follow: they drop those bins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_delta.exceptions import ConcurrentDeleteReadException, DeltaConcurrentModificationException
from airflow_delta.log import AddFile, RemoveFile
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.log.actions.deletion_vectors import inline_deletion_vector, read_deletion_vector
from airflow_delta.transaction import Operation
from transaction.row_table import RowTable, Work, live, row, with_id

PARTS = ("a", "b")
METRICS = ("numAddedFiles", "numRemovedFiles", "numAddedBytes", "numRemovedBytes", "minFileSize", "maxFileSize")


def in_two_parts(path: Path, **options: Any) -> RowTable:
    """Two files in each of two partitions, two rows each."""
    table = RowTable(path / "table", partition_by=("kind",), **options)
    for first, part in ((1, "a"), (3, "a"), (5, "b"), (7, "b")):
        table.append(row(first, part), row(first + 1, part))
    return table


BEFORE = dict.fromkeys(range(1, 9), 0)


@pytest.fixture(params=["vectors", "tracked", "plain", "plain, recorded"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> RowTable:
    """``recorded`` says whether our compactions record where rows went."""
    vectors = not request.param.startswith("plain")
    found = in_two_parts(tmp_path, vectors=vectors, tracked=request.param == "tracked")
    found.recorded = request.param in ("vectors", "plain, recorded")  # type: ignore[attr-defined]
    return found


def compaction(table: RowTable, *parts: str, level: str = "rows", operation: str = "OPTIMIZE") -> Work:
    """Compact each of some partitions into a file of its own."""
    work = table.begin(level)
    for part in parts:
        one = table.begin(level)
        one.files = {path: file for path, file in one.files.items() if file.partition_values["kind"] == part}
        work.actions += one.compact(recorded=getattr(table, "recorded", False)).actions
        work.transaction.track_files_read(one.files)
    work.operation = Operation(operation, {}, dict.fromkeys(METRICS, 0))
    return work


def paths(work: Work, kind: type[AddFile | RemoveFile], part: str) -> set[str]:
    return {one.path for one in work.actions if isinstance(one, kind) and (one.partition_values or {})["kind"] == part}


def committed(table: RowTable, version: int, kind: str) -> set[str]:
    return {action["path"] for action in table.actions(version, kind)}


# -- against compactions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["OPTIMIZE", "REORG"])
def test_bins_that_others_have_compacted_are_dropped(table: RowTable, operation: str) -> None:
    ours = compaction(table, *PARTS, operation=operation)
    compaction(table, "a").commit()
    version = ours.commit()
    assert ours.resolved["dropped"] == str(version - 1)
    assert committed(table, version, "add") == paths(ours, AddFile, "b")
    assert committed(table, version, "remove") == paths(ours, RemoveFile, "b")
    assert live(table) == BEFORE
    assert len(table.files()) == 2
    new = [one.size for one in ours.actions if isinstance(one, AddFile) and one.path in committed(table, version, "add")]
    metrics = table.info(version)["operationMetrics"]
    assert (metrics["numAddedFiles"], metrics["numRemovedFiles"]) == ("1", "2")
    assert {metrics[name] for name in ("numAddedBytes", "minFileSize", "maxFileSize")} == {str(new[0])}


def test_if_others_have_compacted_everything_nothing_is_committed(table: RowTable) -> None:
    ours = compaction(table, "a")
    last = compaction(table, *PARTS).commit()
    assert ours.transaction.commit_if_needed(ours.actions, ours.operation) is None
    assert not ours.transaction.committed
    assert table.log().update().version == last
    assert live(table) == BEFORE


def test_the_identity_of_a_stage_is_committed_all_the_same(table: RowTable) -> None:
    ours = compaction(table, "a")
    ours.actions.append(SetTransaction(app_id="ours", version=1, last_updated=1))
    compaction(table, *PARTS).commit()
    version = ours.transaction.commit_if_needed(ours.actions, ours.operation)
    assert version is not None
    assert table.actions(version, "txn") == [{"appId": "ours", "version": 1, "lastUpdated": 1}]
    assert not table.actions(version, "add")
    assert not table.actions(version, "remove")
    metrics = table.info(version)["operationMetrics"]
    assert metrics == {"numAddedFiles": "0", "numRemovedFiles": "0", "numAddedBytes": "0", "numRemovedBytes": "0"}


def test_winners_one_after_the_other_and_a_change_of_a_file_that_stays(table: RowTable) -> None:
    """What happens to the files of a dropped bin is none of its business."""
    ours = compaction(table, *PARTS)
    compaction(table, "a").commit()
    vectors = table.vectors
    table.begin().delete("kind = 'a' AND id = 2", with_id(2), vectors=vectors).commit()
    compaction(table, "a").commit()
    table.begin().delete("kind = 'a' AND id = 4", with_id(4), vectors=vectors).commit()
    version = ours.commit()
    assert committed(table, version, "remove") == paths(ours, RemoveFile, "b")
    assert live(table) == {number: 0 for number in BEFORE if number not in (2, 4)}


def test_rows_that_others_compacted_are_left_to_them(table: RowTable) -> None:
    """It planned by a predicate, and so it read them; what becomes of them in files of others is none of its business."""
    ours, alone = compaction(table, *PARTS), compaction(table, "a")
    for work in (ours, alone):
        work.transaction.track_read_predicates("true")
    compaction(table, "a").commit()
    table.begin().delete("kind = 'a' AND id = 2", with_id(2), vectors=table.vectors).commit()
    assert alone.transaction.commit_if_needed(alone.actions, alone.operation) is None
    version = ours.commit()
    assert committed(table, version, "remove") == paths(ours, RemoveFile, "b")
    assert live(table) == {number: 0 for number in BEFORE if number != 2}


def test_bins_of_one_partition_are_told_apart_by_their_records(tmp_path: Path) -> None:
    table = RowTable(tmp_path / "table")
    for first in (1, 3, 5, 7):
        table.append(row(first), row(first + 1))
    names = sorted(file.path for file in table.files())

    def bins(*chosen: list[str]) -> Work:
        work = table.begin()
        work.operation = Operation.optimize()
        for files in chosen:
            one = table.begin()
            one.files = {path: file for path, file in one.files.items() if path in files}
            work.actions += one.compact(recorded=True).actions
            work.transaction.track_files_read(files)
        return work

    ours = bins(names[:2], names[2:])
    late = table.begin().delete("id IN (2, 8)", with_id(2, 8))
    bins(names[1:3]).commit()
    assert ours.transaction.commit_if_needed(ours.actions, ours.operation) is None
    ours = bins(names[:1], names[3:])
    bins(names[:1]).commit()
    version = ours.commit()
    assert committed(table, version, "remove") == {names[3]}
    late.commit()
    assert live(table) == {number: 0 for number in BEFORE if number not in (2, 8)}


# -- against changes that cannot be followed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["DELETE", "copy-on-write DELETE", "DELETE of a file"])
def test_bins_whose_rows_others_have_changed(table: RowTable, change: str) -> None:
    gone = (1, 2) if change == "DELETE of a file" else (2,)
    ours, alone = compaction(table, *PARTS), compaction(table, "a")
    text = f"kind = 'a' AND id <= {max(gone)} AND id >= {min(gone)}"
    theirs = table.begin().delete(text, with_id(*gone), vectors=table.vectors and "copy" not in change)
    theirs.commit()
    version = ours.commit()
    rows = {number: 0 for number in BEFORE if number not in gone}
    assert live(table) == rows
    assert paths(ours, AddFile, "b") < committed(table, version, "add") or "dropped" in ours.resolved
    if "dropped" in ours.resolved:
        with pytest.raises(DeltaConcurrentModificationException):  # nothing else is left of it: its task compacts again
            alone.commit()
        assert live(table) == rows


def test_bins_that_were_carried_along_are_dropped_when_others_compact_them(tmp_path: Path) -> None:
    table = in_two_parts(tmp_path)
    table.recorded = True  # type: ignore[attr-defined]
    ours = compaction(table, *PARTS)
    table.begin().delete("id IN (1, 5)", with_id(1, 5)).commit()
    compaction(table, "a").commit()
    version = ours.commit()
    assert ours.resolved["dropped"] == str(version - 1)
    assert ours.resolved["rows"] == str(version - 2)
    [new] = table.actions(version, "add")
    assert {new["path"]} == paths(ours, AddFile, "b")
    assert new["deletionVector"]["cardinality"] == 1
    assert live(table) == {number: 0 for number in BEFORE if number not in (1, 5)}


def test_nothing_left_because_of_both_is_a_conflict(tmp_path: Path) -> None:
    """One bin was compacted by others; of the other one, rows have changed, so there is something to compact again."""
    table = in_two_parts(tmp_path, vectors=False)
    ours = compaction(table, *PARTS)
    table.begin().delete("kind = 'b' AND id = 5", with_id(5), vectors=False).commit()
    compaction(table, "a").commit()
    with pytest.raises(DeltaConcurrentModificationException):
        ours.commit()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", ["ZORDER", "REORG", "REORG of the same files"])
def test_nothing_left_although_there_is_something_to_do_is_a_conflict(tmp_path: Path, kind: str, alone: bool) -> None:
    """A compaction orders no rows, and purges only the files that it takes."""
    table = in_two_parts(tmp_path)
    names = sorted(file.path for file in table.files() if file.partition_values["kind"] == "a")
    ours = compaction(table, "a", operation=kind.partition(" ")[0])
    if kind == "ZORDER":
        ours.operation = Operation.optimize(z_order_by=["id"])
    if not alone:
        ours.actions.append(SetTransaction(app_id="ours", version=1, last_updated=1))
    theirs = table.begin()
    theirs.files = {path: file for path, file in theirs.files.items() if path in (names[:1] if kind == "REORG" else names)}
    theirs.compact(recorded=True).commit()
    if kind == "REORG of the same files":
        assert (ours.transaction.commit_if_needed(ours.actions, ours.operation) is None) == alone
        return
    with pytest.raises(DeltaConcurrentModificationException):
        ours.transaction.commit_if_needed(ours.actions, ours.operation)
    assert live(table) == BEFORE


def test_files_that_others_only_add_again_can_be_compacted_again(tmp_path: Path) -> None:
    table = in_two_parts(tmp_path)
    table.begin().delete("kind = 'a' AND id IN (1, 3)", with_id(1, 3)).commit()
    ours = compaction(table, "a")
    again = table.begin("delta")
    for file in again.files.values():
        if file.deletion_vector is not None:
            store = table.log().store
            vector = inline_deletion_vector(read_deletion_vector(store, file.deletion_vector))
            again.actions += [
                file.remove(4, data_change=False),
                msgspec.structs.replace(file, deletion_vector=vector, data_change=False),
            ]
    again.commit()
    with pytest.raises(DeltaConcurrentModificationException):
        ours.transaction.commit_if_needed(ours.actions, ours.operation)
    assert live(table) == {number: 0 for number in BEFORE if number not in (1, 3)}


def test_files_that_others_took_away_and_brought_back_count_as_removed(tmp_path: Path) -> None:
    """Each winner is checked, as in Delta; an OPTIMIZE that runs alone then commits again, with new reads."""
    table = in_two_parts(tmp_path)
    ours = compaction(table, "a")
    files = [file for file in table.files() if file.partition_values["kind"] == "a"]
    for put in (lambda file: file.remove(2), lambda file: file):
        work = table.begin("delta")
        work.actions += [put(file) for file in files]
        work.commit()
    with pytest.raises(ConcurrentDeleteReadException):
        ours.commit()
    again = table.begin()
    again.transaction.track_files_read([file.path for file in files])
    again.transaction.commit_if_needed(ours.actions, ours.operation)
    assert live(table) == BEFORE


# -- what it must not do ---------------------------------------------------------------------------------------------------------


def test_what_was_read_beside_counts_also_in_dropped_bins(tmp_path: Path) -> None:
    table = in_two_parts(tmp_path)
    for gone, conflicts in ((2, True), (1, False)):
        ours = compaction(table, *PARTS).read("kind = 'a' AND id = 2")
        ours.actions.append(SetTransaction(app_id=f"ours {gone}", version=1, last_updated=1))
        compaction(table, "a").commit()
        table.begin().delete(f"kind = 'a' AND id = {gone}", with_id(gone)).commit()
        if conflicts:
            with pytest.raises(ConcurrentDeleteReadException, match="that is gone or changed"):
                ours.commit()
            table.begin().append(row(2, "a")).commit()
        else:
            ours.commit()
    assert live(table) == {number: 0 for number in BEFORE if number != 1}


@pytest.mark.parametrize("what", ["adds rows", "other operation", "other numbers of rows", "level"])
def test_only_a_compaction_drops_files(tmp_path: Path, what: str) -> None:
    table = in_two_parts(tmp_path, vectors=False)
    ours = compaction(table, *PARTS, level="statistics" if what == "level" else "rows")
    if what == "adds rows":
        ours.append(row(20, "a"))
    elif what == "other operation":
        ours.operation = Operation.manual_update()
    elif what == "other numbers of rows":
        ours.actions = [
            msgspec.structs.replace(one, stats='{"numRecords":3}') if isinstance(one, AddFile) else one for one in ours.actions
        ]
    compaction(table, "a").commit()
    with pytest.raises(DeltaConcurrentModificationException):
        ours.commit()
    assert live(table) == BEFORE


# -- beside changes of rows ------------------------------------------------------------------------------------------------------


def beside(table: RowTable, *parts: str, reordered: bool = False) -> Work:
    """A transaction with a compaction of some partitions as a stage, and another stage that adds a row."""
    work = table.begin()
    for part in parts:
        one = table.begin()
        one.files = {path: file for path, file in one.files.items() if file.partition_values["kind"] == part}
        work.actions += one.compact(recorded=getattr(table, "recorded", False)).actions
        work.transaction.track_files_moved(one.files, reordered=reordered)
    work.operation = Operation("WRITE", {"mode": "Append"}, dict.fromkeys(("numFiles", "numOutputBytes"), 0))
    return work.append(row(20, "a"))


def test_beside_changes_bins_that_others_have_compacted_are_dropped(table: RowTable) -> None:
    ours = beside(table, *PARTS)
    compaction(table, "a").commit()
    version = ours.commit()
    assert ours.resolved["dropped"] == str(version - 1)
    [new] = [one for one in ours.actions if isinstance(one, AddFile) and one.data_change]
    kept = paths(ours, AddFile, "b") | {new.path}
    assert committed(table, version, "add") == kept
    assert committed(table, version, "remove") == paths(ours, RemoveFile, "b")
    assert live(table) == {**BEFORE, 20: 0}
    sizes = [one.size for one in ours.actions if isinstance(one, AddFile) and one.path in kept]
    assert table.info(version)["operationMetrics"] == {"numFiles": "2", "numOutputBytes": str(sum(sizes))}


def test_beside_changes_nothing_need_be_left_of_a_compaction(table: RowTable) -> None:
    ours = beside(table, "a")
    compaction(table, "a").commit()
    version = ours.commit()
    assert len(committed(table, version, "add")) == 1
    assert not table.actions(version, "remove")
    assert live(table) == {**BEFORE, 20: 0}


def test_beside_changes_rows_that_others_delete_are_carried_along(tmp_path: Path) -> None:
    table = in_two_parts(tmp_path)
    table.recorded = True  # type: ignore[attr-defined]
    ours = beside(table, *PARTS)
    table.begin().delete("id = 2", with_id(2)).commit()
    version = ours.commit()
    assert ours.resolved == {"rows": str(version - 1)}
    assert committed(table, version, "add") >= paths(ours, AddFile, "b") | paths(ours, AddFile, "a")
    assert live(table) == {number: 0 for number in (*BEFORE, 20) if number != 2}


@pytest.mark.parametrize("reordered", [True, False])
def test_beside_changes_a_compaction_with_nothing_left_is_a_conflict(tmp_path: Path, reordered: bool) -> None:
    """Unless others have done all that it was to do."""
    table = in_two_parts(tmp_path, vectors=False)
    ours = beside(table, "a", reordered=reordered)
    if reordered:
        compaction(table, "a").commit()
    else:
        table.begin().delete("kind = 'a' AND id = 2", with_id(2), vectors=False).commit()
    with pytest.raises(DeltaConcurrentModificationException):
        ours.commit()


@pytest.mark.parametrize("read", ["whole", "id = 2", "id = 1"])
def test_beside_changes_what_a_stage_read_of_the_files_counts(tmp_path: Path, read: str) -> None:
    table = in_two_parts(tmp_path)
    ours = beside(table, *PARTS)
    if read == "whole":
        ours.transaction.track_files_read(paths(ours, RemoveFile, "a"))
    else:
        ours.read(f"kind = 'a' AND {read}")
    table.begin().delete("kind = 'a' AND id = 2", with_id(2)).commit()
    if read == "id = 1":
        ours.commit()
        assert live(table) == {number: 0 for number in (*BEFORE, 20) if number != 2}
    else:
        with pytest.raises(ConcurrentDeleteReadException):
            ours.commit()


@pytest.mark.parametrize("lost", ["nothing", "a file", "rows"])
def test_beside_changes_rows_of_files_without_statistics_are_counted_in_their_footers(tmp_path: Path, lost: str) -> None:
    """If they are not as many as before, or cannot be counted, it is a conflict."""
    table = in_two_parts(tmp_path)
    ours = beside(table, "a")
    ours.actions = [msgspec.structs.replace(one, stats=None) if is_moved(one) else one for one in ours.actions]
    if lost == "a file":
        [new] = [one.path for one in ours.actions if isinstance(one, AddFile) and not one.data_change]
        (table.root / new).unlink()
    elif lost == "rows":
        ours.actions.remove(next(one for one in ours.actions if isinstance(one, RemoveFile)))
    compaction(table, "a").commit()
    if lost == "nothing":
        version = ours.commit()
        assert ours.resolved["dropped"] == str(version - 1)
        assert live(table) == {**BEFORE, 20: 0}
    else:
        with pytest.raises(DeltaConcurrentModificationException):
            ours.commit()
        assert live(table) == BEFORE


def is_moved(action: Any) -> bool:
    return isinstance(action, AddFile | RemoveFile) and not action.data_change
