"""Previews of open transactions, read by engines without Spark; tests/delta_spark has Delta Spark and every operation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import (
    DeltaConcurrentModificationException,
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    MissingStageException,
    StagedFileException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.preview.changes_preview import preview_changes
from airflow_delta.table.preview.conflict import note_conflict
from airflow_delta.table.preview.table_preview import Preview, preview_table
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.state.open_transactions import list_transactions
from airflow_delta.table.state.previews import end_previews
from publication.lake import KilledError
from support import readers
from support.previews import rows
from support.table import Table


def stage(table: Table, handle: TransactionHandle, values: list[int], name: str = "rows", **options: Any) -> StagedWrite:
    return table.stage_rows(handle, values, task_id=name, **options)


def write(table: Table, values: list[int], **options: Any) -> None:
    handle = table.begin(**options)
    table.publish(handle, stage(table, handle, values))


def preview(table: Table, handle: TransactionHandle, *staged: StagedWrite) -> Preview:
    return preview_table(table.log(), handle, staged)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_is_staged_is_seen_before_it_is_published(table: Table, checkpointed: bool) -> None:
    for number in range(3):
        write(table, [number])
    if checkpointed:
        write_checkpoint(table.log().update())
        write(table, [3])
    handle = table.begin()
    staged = stage(table, handle, [10, 11])
    found = preview(table, handle, staged)
    before = [(number,) for number in range(4 if checkpointed else 3)]
    assert rows(found.path) == sorted([*before, (10,), (11,)], key=repr)
    assert table.rows() == before
    assert (found.version, found.num_added_files, found.num_removed_files) == (handle.read_version + 1, 1, 0)
    assert (found.num_files, found.num_added_records, found.num_removed_records) == (len(before) + 1, 2, 0)
    assert table.publish(handle, staged).version == found.version


def test_an_overwrite_and_another_stage(table: Table) -> None:
    write(table, [1, 2])
    handle = table.begin()
    first = stage(table, handle, [3], "first", mode="overwrite")
    assert rows(preview(table, handle, first).path) == [(3,)]
    second = stage(table, handle, [4], "second", after=[first])
    found = preview(table, handle, first, second)
    assert rows(found.path) == [(3,), (4,)]
    assert (found.num_files, found.num_removed_files, found.num_removed_records) == (2, 1, 2)


# -- what others commit meanwhile ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
def test_it_comes_after_the_newest_version(table: Table, checkpointed: bool) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [10])
    write(table, [2])
    if checkpointed:
        write_checkpoint(table.log().update())
    write_deltalake(table.uri, pa.table({"id": pa.array([3], pa.int64())}), mode="append")
    found, changes = preview(table, handle, staged), preview_changes(table.log(), handle, [staged])
    assert rows(found.path) == [(1,), (10,), (2,), (3,)]
    assert (handle.read_version, found.base_version, found.version, found.num_files) == (0, 2, 3, 4)
    assert (rows(changes.path), changes.base_version) == ([(10, "insert")], 2)
    assert table.publish(handle, staged).version == found.version
    assert table.rows() == rows(found.path)


def test_an_overwrite_of_a_partition_beside_others(table: Table) -> None:
    def both(*values: int, day: str) -> pa.Table:
        return pa.table({"id": pa.array(values, pa.int64()), "day": [day] * len(values)})

    table.write(both(1, day="a"), begin={"partition_by": ["day"]})
    handle = table.begin()
    staged = table.stage(handle, both(2, day="a"), mode="overwrite", replace_where="day = 'a'")
    table.write(both(3, day="b"))
    assert rows(preview(table, handle, staged).path) == [(2, "a"), (3, "b")]
    changes = preview_changes(table.log(), handle, [staged])
    assert (rows(changes.path), changes.base_version) == ([(1, "a", "delete"), (2, "a", "insert")], 1)


def test_rows_of_a_file_that_others_have_moved(table: Table) -> None:
    """The commit removes the file to which a compaction has moved the rows, and so do the previews."""
    for value in (1, 2):
        write(table, [value])
    handle = table.begin()
    staged = stage(table, handle, [3], mode="overwrite")
    DeltaTable(table.uri).optimize.compact()
    found, changes = preview(table, handle, staged), preview_changes(table.log(), handle, [staged])
    assert (rows(found.path), found.base_version) == ([(3,)], 2)
    assert rows(changes.path) == [(1, "delete"), (2, "delete"), (3, "insert")]
    table.publish(handle, staged)
    assert table.rows() == [(3,)]


def test_after_a_conflict_it_shows_the_version_that_was_read(table: Table) -> None:
    """Of which the note about the conflict tells; the commit says what to do."""
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2], mode="overwrite")
    write(table, [3])
    found, changes = preview(table, handle, staged), preview_changes(table.log(), handle, [staged])
    assert (rows(found.path), found.base_version, found.version) == ([(2,)], 0, 1)
    assert (rows(changes.path), changes.base_version) == ([(1, "delete"), (2, "insert")], 0)
    with pytest.raises(DeltaConcurrentModificationException) as conflict:
        table.publish(handle, staged)
    assert [file["change"] for file in note_conflict(table.log(), handle, [staged], conflict.value)] == ["added"]
    assert rows(found.path) == [(2,)]


def test_a_later_look_shows_what_is_newest_then(table: Table) -> None:
    """A preview that runs again leaves one of the version that is newest then, and nothing is put into the table's log."""
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [10])
    first = preview(table, handle, staged)
    write(table, [2])
    versions = table.versions()
    second = preview(table, handle, staged)
    assert (first.base_version, second.base_version, table.versions()) == (0, 1, versions)
    assert rows(second.path) == [(1,), (10,), (2,)]


def test_a_new_table(table: Table) -> None:
    handle = table.begin(configuration={"delta.appendOnly": "true"})
    found = preview(table, handle, stage(table, handle, [1, 2]))
    assert rows(found.path) == [(1,), (2,)]
    assert not (table.path / "_delta_log").exists()
    assert DeltaLog.for_table(found.path).update().metadata.configuration["delta.appendOnly"] == "true"


def test_a_table_in_a_directory_with_any_name(tmp_path: Path) -> None:
    table = Table(tmp_path / "a b+ü (1)")
    write(table, [1])
    handle = table.begin()
    assert rows(preview(table, handle, stage(table, handle, [2])).path) == [(1,), (2,)]


def test_of_a_shallow_clone(tmp_path: Path, table: Table) -> None:
    write(table, [1, 2])
    clone = Table(tmp_path / "clone")
    clone_table(clone.log(), table.log(), transaction_key="clone", attempt="1-test", source_uri=str(table.path))
    handle = clone.begin()
    found = preview(clone, handle, stage(clone, handle, [3]))
    log = DeltaLog.for_table(found.path)
    assert sorted(row["id"] for row in read_table(log).to_table().to_pylist()) == [1, 2, 3]


def test_staged_files_that_are_gone(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    found = preview(table, handle, staged)
    (Path(handle.staging_path) / "rows" / "part-0.parquet").unlink()
    with pytest.raises(StagedFileException, match=r"The staged file staged/.*/part-0\.parquet of table .* is gone"):
        preview(table, handle, staged)
    with pytest.raises(Exception, match=r"part-0\.parquet"):
        read_table(DeltaLog.for_table(found.path)).to_table()


def test_nothing_was_staged(table: Table) -> None:
    write(table, [1])
    with pytest.raises(MissingStageException):
        preview(table, table.begin())


def test_no_writer_takes_it_for_a_table(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    for found in (preview(table, handle, staged), preview_changes(table.log(), handle, [staged])):
        with pytest.raises(Exception, match="airflowPreview"):
            write_deltalake(found.path, pa.table({"id": pa.array([3], pa.int64())}), mode="append", schema_mode="merge")
        with pytest.raises(DeltaIllegalArgumentException, match="is the preview of a transaction, which cannot be written to"):
            Table(Path(found.path)).begin()


def test_changes_of_an_overwrite(plain_path: Path) -> None:
    table = Table(plain_path / "table")
    write(table, [1, 2])
    handle = table.begin()
    found = preview_changes(table.log(), handle, [stage(table, handle, [2, 3], mode="overwrite")])
    assert rows(found.path) == [(1, "delete"), (2, "delete"), (2, "insert"), (3, "insert")]
    assert found.changes == {"delete": 2, "insert": 2}
    # Its files are its own: engines that cannot read absolute paths read it, too.
    assert set(Path(found.path).rglob("*.parquet")) == {
        Path(found.path) / add.path for add in DeltaLog.for_table(found.path).update().add_files()
    }
    by_paths = readers.READERS[readers.PATHS](found.path, None).to_pylist()
    assert sorted((tuple(row.values()) for row in by_paths), key=repr) == rows(found.path)


def test_changes_with_new_columns(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    wider = pa.table({"id": pa.array([2], pa.int64()), "name": ["b"]})
    staged = table.stage_rows(handle, wider, mode="overwrite", overwrite_schema=True)
    assert rows(preview_changes(table.log(), handle, [staged]).path) == [(1, None, "delete"), (2, "b", "insert")]


def test_nothing_changes(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    found = preview_changes(table.log(), handle, [stage(table, handle, [])])
    assert (rows(found.path), found.changes) == ([], {})


def test_an_abort_removes_it(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    paths = [preview(table, handle, staged).path, preview_changes(table.log(), handle, [staged]).path]
    assert table.abort(handle).outcome == "deleted"
    assert not any(Path(path).exists() for path in paths)


# -- how it ends --------------------------------------------------------------------------------------------------------------


def old(path: Path) -> None:
    """Make everything in a directory look two weeks old."""
    then = time.time() - 14 * 24 * 3600
    for file in [path, *path.rglob("*")]:
        os.utime(file, (then, then))


def test_vacuum_deletes_what_a_commit_left(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    paths = [preview(table, handle, staged).path, preview_changes(table.log(), handle, [staged]).path]
    previews = list(Path(handle.staging_path).glob("_preview*"))
    for each in previews:
        old(each)
    vacuum(table.log())
    assert all(rows(path) for path in paths)  # still open
    table.publish(handle, staged)
    end_previews(table.log(), handle.transaction_id, keep=30)
    vacuum(table.log())
    assert rows(paths[0]) == [(1,), (2,)]
    for each in previews:
        (kept,) = each.glob("_kept-*")
        kept.rename(kept.with_name("_kept-1"))
        old(each)
    vacuum(table.log())
    assert not any(file.is_file() for each in previews for file in each.rglob("*"))
    assert table.rows() == [(1,), (2,)]


def test_a_commit_deletes_it(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    path = preview(table, handle, staged).path
    table.publish(handle, staged)
    end_previews(table.log(), handle.transaction_id)
    assert not Path(path).exists()
    assert table.rows() == [(1,), (2,)]


def test_after_a_conflict_the_files_are_named(table: Table) -> None:
    write(table, [1, 2])
    mine, other = table.begin(), table.begin()
    staged = stage(table, mine, [3], mode="overwrite")
    path = preview(table, mine, staged).path
    removed = table.log().update().add_files()[0].path
    table.publish(other, stage(table, other, [4], mode="overwrite"))
    with pytest.raises(DeltaConcurrentModificationException) as conflict:
        table.publish(mine, staged)
    files = note_conflict(table.log(), mine, [staged], conflict.value)
    (added,) = table.log().update().add_files()
    assert {(file["path"], file["change"]) for file in files} == {(removed, "removed"), (added.path, "added")}
    note = json.loads((Path(mine.staging_path) / "_preview" / "_conflict.json").read_text())
    assert (note["winningVersion"], note["files"], note["readVersion"]) == (1, files, 0)
    assert rows(path) == [(3,)]
    assert table.abort(mine).outcome == "deleted"
    assert not Path(path).exists()


@pytest.mark.parametrize("mapping", ["none", "name"])
def test_only_files_of_the_partition_of_the_conflict_are_noted(table: Table, mapping: str) -> None:
    given = pa.table({"id": [1, 2], "p": ["a", "b"]})
    table.write(given, begin={"partition_by": ["p"], "configuration": {"delta.columnMapping.mode": mapping}})
    mine, other = table.begin(), table.begin()
    staged = table.stage(mine, given.slice(0, 1), mode="overwrite", replace_where="p = 'a'")
    table.publish(other, table.stage(other, given))
    with pytest.raises(DeltaConcurrentModificationException) as conflict:
        table.publish(mine, staged)
    [name] = [field.physical_name for field in table.log().snapshot.schema if field.name == "p"]
    [added] = [add["path"] for add in table.actions(1)["add"] if add["partitionValues"] == {name: "a"}]
    assert note_conflict(table.log(), mine, [staged], conflict.value) == [{"path": added, "change": "added"}]


def test_a_conflict_with_a_commit_that_has_left_the_log(table: Table) -> None:
    write(table, [1, 2])
    mine, other = table.begin(), table.begin()
    staged = stage(table, mine, [3], mode="overwrite")
    table.publish(other, stage(table, other, [4], mode="overwrite"))
    with pytest.raises(DeltaConcurrentModificationException) as conflict:
        table.publish(mine, staged)
    write_checkpoint(table.log().update())
    table.log_file(1).unlink()
    assert note_conflict(table.log(), mine, [staged], conflict.value) == []
    note = json.loads((Path(mine.staging_path) / "_preview" / "_conflict.json").read_text())
    assert (note["winningVersion"], note["error"], note["files"]) == (1, type(conflict.value).__name__, [])


def test_it_does_not_count_as_staged(table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    staged = stage(table, handle, [2])
    preview(table, handle, staged)
    preview_changes(table.log(), handle, [staged])
    (found,) = (each for each in list_transactions(table.log()) if each.transaction_id == handle.transaction_id)
    assert (found.stages, found.num_files) == (("rows",), 1)


def test_its_protocol_keeps_this_provider_off_wherever_it_is_moved(tmp_path: Path, table: Table) -> None:
    write(table, [1])
    handle = table.begin()
    Path(preview(table, handle, stage(table, handle, [2])).path).rename(tmp_path / "moved")
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="airflowPreview"):
        Table(tmp_path / "moved").begin()


@pytest.mark.parametrize("make", [preview_table, preview_changes])
def test_killed_at_any_write_the_next_try_writes_it_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]
) -> None:
    write(table, [1, 2])
    handle = table.begin()
    staged = stage(table, handle, [3])
    effects = {name: getattr(LocalStore, name) for name in ("put", "put_file", "put_if_absent", "delete_tree")}
    killed_at = 0
    while True:
        killed_at += 1
        left = [killed_at]

        def killing(effect: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise KilledError
                return effect(*arguments, **options)

            return call

        try:
            with monkeypatch.context() as patch:
                for name, effect in effects.items():
                    patch.setattr(LocalStore, name, killing(effect))
                make(table.log(), handle, [staged])
            break
        except KilledError:
            found = make(table.log(), handle, [staged])
            assert [row[0] for row in rows(found.path)] == ([1, 2, 3] if make is preview_table else [3])
    assert killed_at > 2
    assert table.rows() == [(1,), (2,)]
