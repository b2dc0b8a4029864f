"""Compactions against changes of the rows that they move, in both orders, on tables without row tracking."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from airflow_delta.contract.partition_events import PartitionEvents
from airflow_delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
)
from airflow_delta.log import AddFile, DeltaLog
from airflow_delta.log.actions.actions import MOVED_ROWS_TAG, SetTransaction
from airflow_delta.log.actions.deletion_vectors import read_deletion_vector, write_deletion_vectors
from airflow_delta.log.actions.moved_rows import (
    MovedRows,
    RowSource,
    read_moved_rows,
    write_moved_rows,
)
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.changes.partition_keys import check_partition_keys
from airflow_delta.table.read.read_table import read_table
from airflow_delta.transaction import Operation
from support.actions import add
from transaction.row_table import RowTable, Work, live, merged, row, with_id

SAME = ((1, 2, 3), (4, 5, 6), (7, 8, 9))


@functools.cache
def contents(feed: bool, **options: bool) -> tuple[RowTable, dict[str, bytes]]:
    """Three files of three rows; row 5 of the second is deleted."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "table"
        table = RowTable(root, configuration={"delta.enableChangeDataFeed": "true"} if feed else {}, **options)
        for ids in SAME:
            table.append(*(row(number) for number in ids))
        table.begin().delete("id = 5", with_id(5), vectors=table.vectors).commit()
        return table, {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def small_table(path: Path, *, feed: bool = False, **options: bool) -> RowTable:
    """Return a copy of such a table, which is made once."""
    original, files = contents(feed, **options)
    table = copy.copy(original)
    table.root = path / "table"
    for name, data in files.items():
        file = table.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return table


@pytest.fixture(params=["", "tracked", "feed"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> RowTable:
    return small_table(tmp_path, tracked=request.param == "tracked", feed=request.param == "feed")


BEFORE = dict.fromkeys((1, 2, 3, 4, 6, 7, 8, 9), 0)

Change = Callable[[RowTable], Work]
CHANGES: dict[str, tuple[Change, Callable[[dict[int, int]], dict[int, int]]]] = {
    "DELETE": (
        lambda table: table.begin().delete("id IN (2, 6, 7)", with_id(2, 6, 7)),
        lambda rows: {number: n for number, n in rows.items() if number not in (2, 6, 7)},
    ),
    "DELETE of all rows of a file": (
        lambda table: table.begin().delete("id IN (4, 6, 9)", with_id(4, 6, 9)),
        lambda rows: {number: n for number, n in rows.items() if number not in (4, 6, 9)},
    ),
    "DELETE of all rows": (lambda table: table.begin().delete("id < 100", bool), lambda _rows: {}),
    "UPDATE": (
        lambda table: table.begin().update("id IN (3, 4)", with_id(3, 4), {"n": 3}),
        lambda rows: {number: 3 if number in (3, 4) else n for number, n in rows.items()},
    ),
    "MERGE": (lambda table: merged(table, 1, 8, 20), lambda rows: rows | {1: 9, 8: 9, 20: 9}),
    "copy-on-write DELETE": (
        lambda table: table.begin().delete("id IN (2, 6)", with_id(2, 6), vectors=False),
        lambda rows: {number: n for number, n in rows.items() if number not in (2, 6)},
    ),
    "copy-on-write UPDATE": (
        lambda table: table.begin().update("id = 3", with_id(3), {"n": 3}, vectors=False),
        lambda rows: rows | {3: 3},
    ),
}


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "found by content"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_loses_to_a_compaction(table: RowTable, change: str, recorded: bool) -> None:
    work, after = CHANGES[change]
    ours = work(table)
    table.compact(recorded=recorded)
    assert live(table) == BEFORE
    ours.commit()
    assert "rows" in ours.resolved
    assert live(table) == after(BEFORE)


@pytest.mark.parametrize("change", CHANGES)
def test_a_compaction_that_loses_to_a_change(table: RowTable, change: str) -> None:
    work, after = CHANGES[change]
    ours = table.begin().compact(recorded=True)
    work(table).commit()
    rows = after(BEFORE)
    assert live(table) == rows
    version = ours.commit()
    assert ours.resolved["rows"] == str(version - 1)
    assert live(table) == rows
    assert not any(action["dataChange"] for kind in ("add", "remove") for action in table.actions(version, kind))
    # And on: the new file with a vector is one as any other.
    table.begin().delete("id = 9", with_id(9)).commit()
    table.compact(recorded=True)
    assert live(table) == {number: n for number, n in rows.items() if number != 9}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("second", CHANGES)
def test_changes_before_and_after_a_compaction(tmp_path: Path, change: str, second: str) -> None:
    """Both were planned before the compaction, which loses to one of them and wins against the other."""
    table = small_table(tmp_path)
    (one, after), (two, then) = CHANGES[change], CHANGES[second]
    compaction, late = table.begin().compact(recorded=True), two(table)
    one(table).commit()
    compaction.commit()
    rows = after(BEFORE)
    assert live(table) == rows
    try:
        late.commit()
    except DeltaConcurrentModificationException:
        assert live(table) == rows
    else:  # as if it had been planned now
        assert live(table) == then(rows)


def test_both_change_the_same_row_around_a_compaction(table: RowTable) -> None:
    ours = table.begin().delete("id IN (2, 3)", with_id(2, 3))
    table.compact(recorded=True)
    table.begin().delete("id = 2", with_id(2)).commit()
    with pytest.raises(ConcurrentDeleteDeleteException, match="1 of the rows"):
        ours.commit()


def test_a_compaction_takes_several_winners_along(table: RowTable) -> None:
    ours = table.begin().compact(recorded=True)
    table.begin().delete("id = 1", with_id(1)).commit()
    table.begin().delete("id IN (2, 8)", with_id(2, 8)).commit()
    table.append(row(30))
    table.begin().delete("id IN (3, 30)", with_id(3, 30)).commit()
    ours.commit()
    assert live(table) == {4: 0, 6: 0, 7: 0, 9: 0}
    assert len(table.files()) == 1


def test_metrics_and_removes_are_those_of_the_end(tmp_path: Path) -> None:
    table = small_table(tmp_path)
    ours = table.begin().compact(recorded=True)
    sizes = [file.size for file in ours.files.values()]
    ours.operation = Operation("OPTIMIZE", {}, {"numAddedFiles": 1, "numRemovedFiles": 3, "numRemovedBytes": sum(sizes)})
    table.begin().delete("id IN (1, 7, 8, 9)", with_id(1, 7, 8, 9)).commit()
    version = ours.commit()
    removes = {action["path"]: action for action in table.actions(version, "remove")}
    assert sorted(removes) == ["001.parquet", "002.parquet"]  # the winner removed the third
    assert removes["001.parquet"]["deletionVector"]["cardinality"] == 1
    [new] = table.actions(version, "add")
    assert new["deletionVector"]["cardinality"] == 4
    assert json.loads(new["stats"])["tightBounds"] is False
    metrics = {
        "numAddedFiles": "1",
        "numRemovedFiles": "2",
        "numRemovedBytes": str(sum(action["size"] for action in removes.values())),
    }
    assert table.info(version)["operationMetrics"] == metrics


def test_without_vectors_a_compaction_that_loses_conflicts(tmp_path: Path) -> None:
    table = small_table(tmp_path, vectors=False)
    ours = table.begin().compact(recorded=True)
    table.begin().delete("id = 2", with_id(2), vectors=False).commit()
    with pytest.raises(DeltaConcurrentModificationException, match="enableDeletionVectors"):
        ours.commit()
    late = table.begin().delete("id = 3", with_id(3), vectors=False)
    table.compact(recorded=True)
    with pytest.raises(DeltaConcurrentModificationException, match="enableDeletionVectors"):
        late.commit()


@pytest.mark.parametrize("ours", ["DELETE of all rows of a file", "OPTIMIZE"])
def test_no_vectors_are_written_for_a_transaction_that_turns_them_off(tmp_path: Path, ours: str) -> None:
    table = small_table(tmp_path)
    work = table.begin().delete("id < 4", with_id(1, 2, 3)) if ours != "OPTIMIZE" else table.begin().compact(recorded=True)
    metadata = work.transaction.metadata
    off = metadata.configuration | {"delta.enableDeletionVectors": "false"}
    work.transaction.update_metadata(msgspec.structs.replace(metadata, configuration=off))
    if ours == "OPTIMIZE":
        table.begin().delete("id = 2", with_id(2)).commit()
    else:
        table.compact(recorded=True)
    with pytest.raises(DeltaConcurrentModificationException, match="enableDeletionVectors"):
        work.commit()


def test_what_the_policy_forbids_of_the_new_files_is_refused(tmp_path: Path) -> None:
    """Three keys are those of the old file; the new one may have more."""
    table = small_table(tmp_path)
    check = check_partition_keys(PartitionEvents("id", max_keys=3, beyond="fail"))
    work = table.begin(check_actions=check).delete("id < 3", with_id(1, 2))
    version = table.compact(recorded=True)
    with pytest.raises(DeltaIllegalArgumentException, match="more than 3 partitions"):
        work.commit()
    assert live(table) == BEFORE
    assert table.log().update().version == version


def test_a_change_that_loses_to_a_compaction_into_several_files(table: RowTable) -> None:
    """As ZORDER writes them, whose rows are in no order that a record could tell."""
    work, after = CHANGES["DELETE"]
    ours, winner = work(table), table.begin("delta").compact()
    [new] = [action for action in winner.actions if isinstance(action, AddFile)]
    rows = list(table.stored(new).values())
    ids = pq.ParquetFile(table.root / new.path).read().column("_row_id").to_pylist() if table.tracked else [None] * len(rows)
    pieces = [table.write(*rows[at::2], data_change=False, ids=ids[at::2] if table.tracked else None) for at in (0, 1)]
    winner.actions = [*(action for action in winner.actions if action is not new), *pieces]
    winner.commit()
    ours.commit()
    assert live(table) == after(BEFORE)
    assert len(table.files()) == 2


@pytest.mark.parametrize("alike", [False, True])
def test_without_vectors_the_error_says_that_they_would_help(tmp_path: Path, alike: bool) -> None:
    """Whatever else keeps rows from being found: the new file could not be changed without writing it again."""
    table = small_table(tmp_path, vectors=False)
    if alike:
        table.append(row(3), row(3))
    late = table.begin().delete("id = 3", with_id(3), vectors=False)
    table.compact()
    with pytest.raises(DeltaConcurrentModificationException, match=r"only deletion vectors .*enableDeletionVectors"):
        late.commit()


def test_rows_that_are_alike_are_not_told_apart_by_content(tmp_path: Path) -> None:
    """Rows 1 of both files are the same, and only one of them was marked: by a reader that knew the file."""
    table = RowTable(tmp_path / "table")
    table.append(row(1), row(2))
    table.append(row(1), row(3))
    ours = table.begin()
    ours.files.pop("002.parquet")
    ours.delete("id = 1", with_id(1))
    recorded = table.begin("delta").compact(recorded=True)
    recorded.commit()
    ours.commit()  # the record tells them apart
    assert [one["id"] for one in table.rows()] == [1, 2, 3]
    table.append(row(1), row(4))
    ours = table.begin()
    ours.files = {path: file for path, file in ours.files.items() if path == "004.parquet"}
    ours.delete("id = 1", with_id(1))
    table.compact()
    with pytest.raises(ConcurrentDeleteReadException, match="their content is not found once"):
        ours.commit()


def test_what_a_compaction_has_read_beside_its_files_counts(tmp_path: Path) -> None:
    """As a stage of the same transaction does: the rows that it read are no others just because they are moved too."""
    table = small_table(tmp_path)
    for read, other in (("id = 2", 2), ("id = 4", 7)):
        ours = table.begin().read(read).compact(recorded=True)
        ours.actions.append(SetTransaction(app_id="ours", version=1, last_updated=1))
        table.begin().delete(f"id = {other}", with_id(other)).commit()
        if other == 2:
            with pytest.raises(ConcurrentDeleteReadException, match="that is gone or changed"):
                ours.commit()
        else:
            ours.commit()
    assert live(table) == {number: n for number, n in BEFORE.items() if number not in (2, 7)}
    assert len(table.files()) == 1


# -- commits that write the same deletion vectors again --------------------------------------------------------------------------


def same_vector(table: RowTable) -> Work:
    """A commit that writes the vector of the second file again, and says that it changes nothing."""
    work, store = table.begin(), table.log().store
    file = work.files["002.parquet"]
    assert file.deletion_vector is not None
    [vector] = write_deletion_vectors(store, "staged/y", [read_deletion_vector(store, file.deletion_vector)])
    again = msgspec.structs.replace(file, data_change=False, deletion_vector=vector)
    work.operation = Operation.optimize()
    work.actions = [file.remove(3, data_change=False), again]
    return work


@pytest.mark.parametrize("change", [*CHANGES, "OPTIMIZE"])
def test_a_winner_that_writes_the_same_vectors_again(table: RowTable, change: str) -> None:
    work, after = CHANGES.get(change, (lambda one: one.begin().compact(recorded=True), dict))
    ours = work(table)
    same_vector(table).commit()
    ours.commit()
    assert live(table) == after(BEFORE)


def test_the_same_vectors_again_after_a_change_and_after_a_compaction(table: RowTable) -> None:
    ours, late = same_vector(table), same_vector(table)
    table.begin().delete("id = 4", with_id(4)).commit()
    version = ours.commit()
    rows = {number: n for number, n in BEFORE.items() if number != 4}
    assert live(table) == rows
    assert not any(action["dataChange"] for kind in ("add", "remove") for action in table.actions(version, kind))
    table.compact(recorded=True)
    version = late.commit()  # nothing is left to say
    assert live(table) == rows
    assert not table.actions(version, "add")
    assert not table.actions(version, "remove")


# -- the record ------------------------------------------------------------------------------------------------------------------


def record(new: AddFile, **changes: Any) -> MovedRows:
    sources = (RowSource.of("a", 10, 4, 0, BitMap64([1])), RowSource.of("b", 20, 2, 3, BitMap64()))
    return msgspec.structs.replace(MovedRows(path=new.path, size=new.size, num_records=5, sources=sources), **changes)


def test_where_rows_went() -> None:
    first, second = record(add("new")).sources
    assert list(first.moved(BitMap64([0, 2, 3]))) == [0, 1, 2]
    assert list(second.moved(BitMap64([0, 1]))) == [3, 4]
    for source, rows in ((first, [1]), (first, [4]), (second, [2])):
        with pytest.raises(ValueError, match="not copied"):
            source.moved(BitMap64(rows))


def test_a_record_is_read_back(tmp_path: Path) -> None:
    store, new = LocalStore(str(tmp_path), {}), add("new")
    other = record(add("other"), path="other")
    tags = write_moved_rows(store, "staged/x/optimize/1-a", [other, record(new)])
    found = read_moved_rows(store, msgspec.structs.replace(new, tags={MOVED_ROWS_TAG: tags[1]}))
    assert found == record(new)
    assert read_moved_rows(store, new) is None
    with pytest.raises(ValueError, match="the record of the file other"):
        read_moved_rows(store, msgspec.structs.replace(new, tags={MOVED_ROWS_TAG: tags[0]}))


@pytest.mark.parametrize("num_records", [4, 6])
def test_a_record_must_account_for_every_row(tmp_path: Path, num_records: int) -> None:
    with pytest.raises(ValueError, match=f"5 of {num_records}"):
        write_moved_rows(LocalStore(str(tmp_path), {}), "staged/x", [record(add("new"), num_records=num_records)])


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "not JSON", "beyond the end"])
def test_a_damaged_record_is_not_used(tmp_path: Path, damage: str) -> None:
    table = small_table(tmp_path)
    table.append(row(2))  # so that content does not tell
    ours = table.begin()
    ours.files = {path: file for path, file in ours.files.items() if path == "001.parquet"}
    ours.delete("id = 2", with_id(2))
    winner = table.begin("delta").compact(recorded=True)
    [path] = (table.root / "staged").rglob("moved-rows-*.json")
    new = winner.actions[-1]
    assert isinstance(new, AddFile)
    assert new.tags is not None
    tag = json.loads(new.tags[MOVED_ROWS_TAG] or "")
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    elif damage == "a bit":
        path.write_bytes(path.read_bytes().replace(b'"firstRow":0', b'"firstRow":1'))
    else:
        text = "what" if damage == "not JSON" else json.dumps(tag | {"offset": 10_000})
        winner.actions[-1] = msgspec.structs.replace(new, tags={MOVED_ROWS_TAG: text})
    winner.commit()
    with pytest.raises(ConcurrentDeleteReadException, match="content is not found once"):
        ours.commit()


@pytest.mark.parametrize("wrong", ["size", "num_records", "path"])
def test_a_record_of_other_files_is_not_used(tmp_path: Path, wrong: str) -> None:
    """Sources that are not the files of the commit: the rows are found by content, at other places than the record says."""
    table = small_table(tmp_path)
    ours = table.begin().delete("id = 4", with_id(4))
    winner = table.begin("delta").compact(recorded=True)
    new = winner.actions[-1]
    assert isinstance(new, AddFile)
    store = table.log().store
    known = read_moved_rows(store, new)
    assert known is not None
    first, second, third = known.sources
    if wrong == "path":
        known = msgspec.structs.replace(known, sources=(first, msgspec.structs.replace(second, path="other"), third))
    elif wrong == "size":
        known = msgspec.structs.replace(known, sources=(first, msgspec.structs.replace(second, size=1), third))
    else:
        more = msgspec.structs.replace(second, num_records=4)
        less = msgspec.structs.replace(third, first_row=third.first_row + 1, num_records=2)
        known = msgspec.structs.replace(known, sources=(first, more, less))
    [tag] = write_moved_rows(store, "staged/x/optimize/1-a", [known])
    winner.actions[-1] = msgspec.structs.replace(new, tags={MOVED_ROWS_TAG: tag})
    winner.commit()
    ours.commit()
    assert live(table) == {number: n for number, n in BEFORE.items() if number != 4}


@pytest.mark.parametrize("wrong", ["old", "new"])
def test_files_whose_rows_the_log_counts_wrong_are_not_followed(tmp_path: Path, wrong: str) -> None:
    """Else a row of an old file stays beside its copy, or one of a new file goes with those that were marked."""
    table = small_table(tmp_path)
    if wrong == "old":  # the log says two rows of three
        ours = table.begin().delete("id IN (1, 2, 3)", with_id(1, 2, 3))
        [remove] = ours.actions
        ours.actions = [msgspec.structs.replace(remove, stats='{"numRecords":2}')]
        winner = table.begin("delta").compact()
    else:
        ours = table.begin().delete("id IN (1, 2, 3)", with_id(1, 2, 3))
        winner = table.begin("delta").compact()
        winner.actions.pop()
        rows = [table.write(*map(row, ids), data_change=False) for ids in ((1, 2, 3, 4), (6, 7, 8, 9))]
        counts = (3, 5)
        winner.actions += [
            msgspec.structs.replace(new, stats=json.dumps({"numRecords": count})) for new, count in zip(rows, counts, strict=True)
        ]
    winner.commit()
    with pytest.raises(DeltaConcurrentModificationException, match="as the log says"):
        ours.commit()


def test_a_new_file_without_statistics_gets_the_number_of_its_rows(tmp_path: Path) -> None:
    """Without it, it must not have a vector."""
    table = small_table(tmp_path)
    ours = table.begin().delete("id = 2", with_id(2))
    winner = table.begin("delta").compact()
    new = winner.actions.pop()
    assert isinstance(new, AddFile)
    winner.actions.append(msgspec.structs.replace(new, stats=None))
    winner.commit()
    [marked] = table.actions(ours.commit(), "add")
    assert json.loads(marked["stats"]) == {"numRecords": 8, "tightBounds": False}
    assert live(table) == {number: n for number, n in BEFORE.items() if number != 2}


def in_julian_calendar(table: RowTable, file: AddFile) -> AddFile:
    """Mark a file as one of Spark's legacy mode, whose dates of before 1900 mean others."""
    path = table.root / file.path
    pq.write_table(pq.read_table(path).replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), path)
    return msgspec.structs.replace(file, size=path.stat().st_size, stats=None)


def test_dates_in_the_julian_calendar_are_not_compared(tmp_path: Path) -> None:
    """Spark writes them otherwise into new files, where what the old file has may be the date of another row."""
    table = RowTable(tmp_path / "table", columns={"id": "long", "day": "date"})
    day = dt.date(1500, 1, 10)
    winner = table.begin().append({"id": 1, "day": day}, {"id": 2, "day": day})
    [file] = winner.actions
    assert isinstance(file, AddFile)
    winner.actions = [msgspec.structs.replace(in_julian_calendar(table, file), stats=file.stats)]
    winner.commit()
    ours = table.begin().delete("id = 1", with_id(1))
    table.compact()
    with pytest.raises(ConcurrentDeleteReadException, match="old calendar"):
        ours.commit()


@pytest.mark.parametrize("condition", ["day = '1500-01-01'", "day = '1500-01-01' AND id = 7"])
def test_a_condition_on_dates_in_the_julian_calendar_may_select_any_row(tmp_path: Path, condition: str) -> None:
    table = RowTable(tmp_path / "table", columns={"id": "long", "day": "date"})
    table.append({"id": 1, "day": dt.date(1500, 1, 1)})
    ours = table.begin().delete(condition, with_id(1))
    winner = table.begin().append({"id": 2, "day": dt.date(1500, 1, 10)})
    [file] = winner.actions
    assert isinstance(file, AddFile)
    winner.actions = [in_julian_calendar(table, file)]
    winner.commit()
    if "id" in condition:
        ours.commit()
    else:
        with pytest.raises(ConcurrentAppendException):
            ours.commit()


def test_rows_are_found_by_content_among_many_row_groups(tmp_path: Path) -> None:
    """Values that are null, empty, or in no column of the old file; only columns of groups with such rows are read."""
    table = RowTable(tmp_path / "table", row_groups=10)
    table.append(*(row(number, "" if number % 3 else None) for number in range(100)))
    table.append(*({"id": number, "kind": None, "n": None} for number in range(100, 130)))
    table.append({"id": None, "kind": None, "n": None}, row(130, "x"))
    gone = {3, 50, 99, 110, None}
    ours = table.begin().delete("id IN (3, 50, 99, 110) OR id IS NULL", lambda one: one["id"] in gone)
    table.compact()
    ours.commit()
    found = [one["id"] for one in table.rows()]
    assert sorted(found) == [number for number in range(131) if number not in gone]
    late = table.begin(conflict_read_limit=300).delete("id = 7", with_id(7))
    table.append(row(200))
    table.compact()
    with pytest.raises(ConcurrentDeleteReadException, match="more than 300 bytes"):
        late.commit()


ENCODED = (pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string()))
LAYOUTS = (pa.string_view(), pa.large_string(), *ENCODED)


@pytest.mark.parametrize("theirs", LAYOUTS, ids=str)
@pytest.mark.parametrize("ours", [None, pa.string_view()], ids=["our plain texts", "our views"])
def test_rows_are_found_by_content_whatever_the_layout_of_texts(
    tmp_path: Path, ours: pa.DataType | None, theirs: pa.DataType
) -> None:
    """delta-rs and Polars note views, large and encoded texts in the footer; Arrow has few functions for these."""
    table = RowTable(tmp_path / "table", layout=ours)
    table.append(*(row(number, kind) for number, kind in enumerate("abcab")), row(5, None))
    gone = table.begin().delete("kind = 'b'", lambda one: one["kind"] == "b")
    looked = table.begin().read("kind = 'x'").append(row(20))
    table.layout = theirs
    table.append(row(10, "a"))
    table.compact()
    gone.commit()
    looked.commit()
    read = read_table(DeltaLog.for_table(str(table.root))).to_table()
    assert sorted(read["id"].to_pylist()) == [0, 2, 3, 5, 10, 20]
    assert theirs in ENCODED or live(table).keys() == {0, 2, 3, 5, 10, 20}  # Polars refuses these
