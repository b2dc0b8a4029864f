"""Deep clones: their files, what a later run copies, and what others do meanwhile; Delta Spark: tests/delta_spark."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import AddColumns, ClusterBy, Column, RenameColumn, SetProperties
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaIllegalStateException
from airflow_delta.log.actions.deletion_vectors import write_deletion_vectors
from airflow_delta.log.storage.errors import StoreUnavailableError
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from airflow_delta.table.operations.vacuum.run import vacuum
from airflow_delta.table.read.read_table import read_table
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.transaction import Operation
from support.actions import add
from support.table import Table

HOUR = 3600


def clone(target: Table, source: Table, key: str, **options: Any) -> Any:
    return clone_table(target.log(), source.log(), transaction_key=key, attempt="1-test", **{"deep": True, **options})


@pytest.fixture
def source(tmp_path: Path) -> Table:
    path = tmp_path / "src a%b+ü"
    for day, values in (("p=a b%2Fc", [1, 2]), ("p=__HIVE_DEFAULT_PARTITION__", [3])):
        (path / day).mkdir(parents=True)
        pq.write_table(pa.table({"id": values}), path / day / "x y.parquet")
    table = Table(path)
    convert_to_delta(
        table.log(),
        partition_schema="p STRING",
        properties={"user.x": "1", "delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"},
        transaction_key="convert",
        attempt="1-test",
    )
    return table


@pytest.fixture
def target(tmp_path: Path) -> Table:
    return Table(tmp_path / "backup")


def append(table: Table, *values: int, name: str = "new") -> None:
    """Append rows in a file of the table's root."""
    file = table.path / f"{name}.parquet"
    pq.write_table(pa.table({"id": list(values)}), file)
    stats = f'{{"numRecords":{len(values)}}}'
    action = add(file.name, size=file.stat().st_size, partition_values={"p": "z"}, stats=stats)
    table.log().start_transaction().commit([action], Operation("WRITE", {"mode": "Append"}))


def delete(table: Table, *positions: int, where: str) -> None:
    """Mark rows of the only file of a partition as deleted, beside those that are."""
    from pyroaring import BitMap64

    log = table.log()
    [file] = log.update().add_files(where)
    vectors = write_deletion_vectors(log.store, "", [BitMap64([9]), BitMap64(positions)])
    stats = json.dumps({**json.loads(file.stats or "{}"), "tightBounds": False})
    marked = msgspec.structs.replace(file, deletion_vector=vectors[1], data_change=True, stats=stats)
    log.start_transaction().commit([file.remove(1), marked], Operation.delete())


def copied(table: Table) -> dict[str, float]:
    """Return the copies by path, with their times."""
    return {
        str(file.relative_to(table.path)): file.stat().st_mtime_ns
        for file in table.path.glob("staged/*/clone-*/**/*")
        if file.is_file()
    }


def metrics(table: Table, version: int) -> dict[str, str]:
    return table.info(version)["operationMetrics"]


def test_the_files_are_copies(source: Table, target: Table) -> None:
    delete(source, 0, where="p IS NOT NULL")
    result = clone(target, source, "1", properties={"user.x": "2"})
    assert (result.version, result.operation) == (0, "CLONE")
    assert target.rows() == source.rows() == [(2, "a b/c"), (3, None)]
    assert target.info(0)["operationParameters"]["isShallow"] is False
    assert (metrics(target, 0)["numCopiedFiles"], metrics(target, 0)["sourceNumOfFiles"]) == ("2", "2")
    assert all("/clone-" in action["path"] for action in target.actions(0)["add"])
    before, after = source.log().update().metadata, target.log().update().metadata
    assert before.id != after.id
    assert after.configuration["user.x"] == "2"
    rows = target.rows()
    # The source's files go; the clone stays, also when its own VACUUM deletes all that it does not refer to.
    for file in source.path.rglob("*.parquet"):
        file.unlink()
    for file in source.path.glob("*.bin"):
        file.unlink()
    vacuum(target.log(), retention_hours=0, retention_check=False)
    assert target.rows() == rows


def test_a_later_run_copies_what_is_new(source: Table, target: Table) -> None:
    delete(source, 0, where="p IS NOT NULL")
    clone(target, source, "1")
    first = copied(target)
    assert clone(target, source, "1").committed_before
    assert not clone(target, source, "2").operation  # nothing to do
    assert target.versions() == [0]
    append(source, 4, 5)
    clone(target, source, "3")
    assert target.rows() == source.rows()
    assert metrics(target, 1)["numCopiedFiles"] == "1"
    assert first.items() < copied(target).items()
    assert len(target.actions(1)["add"]) == 1
    assert "remove" not in target.actions(1)
    # Another vector on the same file: only the vector is copied.
    delete(source, 0, 1, where="p = 'a b/c'")
    clone(target, source, "4")
    assert target.rows() == source.rows()
    assert (metrics(target, 2)["numCopiedFiles"], metrics(target, 2)["numRemovedFiles"]) == ("0", "1")
    # Back to an earlier version, also of the source itself.
    clone(target, source, "5", version=0)
    assert target.rows() == source.rows(0)
    restore(source.log(), version=0, transaction_key="back", attempt="1-test")
    clone(target, source, "6")
    assert target.rows() == source.rows()
    ids = [file.base_row_id for file in target.log().update().add_files()]
    assert len(set(ids)) == len(ids)


def test_a_schema_that_changes(source: Table, target: Table) -> None:

    clone(target, source, "1")
    changes = [
        SetProperties({"delta.columnMapping.mode": "name"}),
        RenameColumn("id", "number"),
        AddColumns((Column("later", "STRING"),)),
    ]
    for number, change in enumerate(changes):
        handle = source.begin()
        stage = plan_alter(source.view(handle, task_id="alter"), [change])
        assert isinstance(stage, StagedWrite)
        source.publish(handle, stage)
        clone(target, source, f"clone {number}")
        assert target.log().update().schema == source.log().update().schema
        assert own_rows(target) == own_rows(source)


def own_rows(table: Table) -> list[dict[str, Any]]:
    """Return the rows as this provider reads them: Polars does not know names that are mapped on files which are older."""
    return sorted(read_table(table.log()).to_table().to_pylist(), key=repr)


def test_a_clone_that_was_cut_off_goes_on(source: Table, target: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(source, 4)
    real, done = LocalStore.put_file, []

    def killed(self: LocalStore, path: str, file: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        real(self, path, file)
        done.append(path)

    monkeypatch.setattr("airflow_delta.table.operations.deep_clone._LOCAL_THREADS", 1)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_file", killed)
        with pytest.raises(KeyboardInterrupt):
            clone(target, source, "1")
    assert target.versions() == []
    left = copied(target)
    assert len(left) == 2
    # One of them is older than what a VACUUM may leave, and is copied again.
    old = time.time() - 13 * HOUR
    os.utime(target.path / min(left), (old, old))
    clone(target, source, "1")
    assert target.rows() == source.rows()
    assert len(target.live()) == len(copied(target)) == 3
    assert copied(target)[max(left)] == left[max(left)]
    assert copied(target)[min(left)] != left[min(left)]
    # A part of a file is no copy of it.
    other = Table(target.path.parent / "other")
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "read_range", lambda store, path, start, length: b"PAR1"[:length])
        with pytest.raises(StoreUnavailableError, match="became shorter"):
            clone(other, source, "1")
    clone(other, source, "1")
    assert other.rows() == source.rows()


def test_what_others_committed_is_not_lost(source: Table, target: Table) -> None:
    clone(target, source, "1")
    vacuum(target.log(), retention_hours=0, retention_check=False)  # commits that change nothing
    append(source, 4)
    clone(target, source, "2")
    append(target, 77, name="own")
    delete(target, 0, where="p IS NULL")
    with pytest.raises(DeltaIllegalStateException, match=r"changed since it was cloned \(version \d+: WRITE\)"):
        clone(target, source, "3")
    clone(target, source, "3", replace=True)
    assert target.rows() == source.rows()


def test_other_tables(source: Table, target: Table, tmp_path: Path) -> None:
    clone(target, source, "1")
    stranger = Table(tmp_path / "stranger")
    clone(stranger, source, "1", deep=False)
    with pytest.raises(DeltaIllegalStateException, match="deep clone of the table with the id"):
        clone(target, stranger, "2", replace=True)
    # A shallow clone of a deep one is none, and neither is one whose properties were copied.
    shallow = Table(tmp_path / "shallow")
    clone(shallow, target, "1", deep=False)
    with pytest.raises(DeltaIllegalStateException, match="DELTA_UNSUPPORTED_NON_EMPTY_CLONE"):
        clone(shallow, source, "2", replace=True)
    # A deep clone of a shallow one has the files of both tables.
    append(shallow, 9, name="own")
    deep = Table(tmp_path / "deep")
    clone(deep, shallow, "1")
    rows = deep.rows()
    assert len(rows) == 4
    for table in (source, target, shallow):
        for file in table.path.rglob("*.parquet"):
            file.unlink()
    assert deep.rows() == rows


def test_a_file_that_is_gone(source: Table, target: Table) -> None:
    next(source.path.rglob("x y.parquet")).unlink()
    with pytest.raises(DeltaFileNotFoundException, match="cannot be cloned"):
        clone(target, source, "1")
    assert target.versions() == []


def test_a_file_that_was_changed(source: Table, target: Table) -> None:
    with next(source.path.rglob("x y.parquet")).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DeltaIllegalStateException, match="changed outside Delta"):
        clone(target, source, "1")


def test_new_statistics_are_no_new_rows(source: Table, target: Table) -> None:
    """Readers of changes must not take a file for new that is added again: nothing removes it."""
    append(source, 7)
    clone(target, source, "1")
    (file,) = source.log().update().add_files("p = 'z'")
    stats = json.dumps({**json.loads(file.stats or "{}"), "maxValues": {"id": 7}})
    again = msgspec.structs.replace(file, stats=stats, data_change=False)
    source.log().start_transaction().commit([again], Operation("COMPUTE STATS"))
    append(source, 8, name="newer")
    result = clone(target, source, "2")
    adds = target.actions(result.version)["add"]
    assert {add["path"].rpartition("/")[2]: add["dataChange"] for add in adds} == {"new.parquet": False, "newer.parquet": True}
    assert target.rows() == source.rows()


def test_row_tracking_that_begins_later(tmp_path: Path, target: Table) -> None:
    """The files that the clone has must get row ids, too."""
    pq.write_table(pa.table({"id": [1, 2]}), _made(tmp_path / "plain") / "a.parquet")
    source = Table(tmp_path / "plain")
    convert_to_delta(source.log(), transaction_key="convert", attempt="1-test")
    clone(target, source, "1")
    enable_row_tracking(source.log())
    result = clone(target, source, "2")
    assert [file.base_row_id for file in target.log().update().add_files()] == [0]
    assert [add["dataChange"] for add in target.actions(result.version)["add"]] == [False]
    assert clone(target, source, "3").attempts == 0, "nothing is left to do"


def test_clustering_that_changes_alone(tmp_path: Path, target: Table) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), _made(tmp_path / "plain") / "a.parquet")
    source = Table(tmp_path / "plain")
    convert_to_delta(source.log(), transaction_key="convert", attempt="1-test")
    handle = source.begin()
    source.publish(handle, plan_alter(source.view(handle), [ClusterBy(["id"])]))
    clone(target, source, "1")
    handle = source.begin()
    source.publish(handle, plan_alter(source.view(handle), [ClusterBy([])]))
    clone(target, source, "2")
    found, wanted = (table.log().update().domain_metadata.get("delta.clustering") for table in (target, source))
    assert found == wanted


def test_a_rerun_that_commits_again_is_another_transaction(source: Table, target: Table) -> None:
    """Else VACUUM would take its copies for leftovers of the first run, and delete them before the commit."""
    options: dict[str, Any] = {"app_id": "backup", "txn_version": 3, "attempt": "1-test", "deep": True}
    clone_table(target.log(), source.log(), **options)
    append(source, 7)
    assert clone_table(target.log(), source.log(), rerun_policy="append", **options).version == 1
    assert target.info(0)["txnId"] != target.info(1)["txnId"]
    assert target.rows() == source.rows()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
