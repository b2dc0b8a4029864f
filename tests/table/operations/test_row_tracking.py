"""Row tracking switched on for a table with files, and what others commit between its steps; Delta's own: tests/delta_spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.exceptions import (
    CommitCancelledException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    MetadataChangedException,
    StagedFileException,
)
from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.checkpoint_write.writer import write_checkpoint
from airflow_delta.table.operations.clone import clone_table
from airflow_delta.table.operations.convert import convert_to_delta
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from airflow_delta.transaction import CommitPolicy, Operation
from support.actions import add, remove
from support.table import FAST, Table, metadata

UPGRADE, BACKFILL, ENABLE = "UPGRADE PROTOCOL", "ROW TRACKING BACKFILL", "SET TBLPROPERTIES"
VECTOR = DeletionVectorDescriptor(
    storage_type="i",
    path_or_inline_dv="wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    size_in_bytes=40,
    cardinality=6,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of three files."""
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    table.commit(add("a", records=10), add("b", records=5), add("c", records=1))
    return table


class Raced:
    """The log of a table to which others commit right after the operation has read a version."""

    def __init__(self, table: Table, *others: Callable[[], Any] | None) -> None:
        self.log = table.log()
        self._update = self.log.update
        self._others = list(others)
        self.log.update = self.update  # type: ignore[method-assign]

    def update(self) -> Any:
        snapshot = self._update()
        other = self._others.pop(0) if self._others else None
        if other is not None:
            other()
        return snapshot


def operations(table: Table, first: int = 2) -> list[str]:
    return [table.info(version)["operation"] for version in table.versions()[first:]]


def ids(table: Table) -> dict[str, tuple[int | None, int | None]]:
    """Base row id and row commit version by file, as a log opened anew has them."""
    files = DeltaLog.for_table(table.uri, FAST).update().add_files()
    return {file.path: (file.base_row_id, file.default_row_commit_version) for file in files}


def mark(table: Table) -> int | None:
    return table.log().update().row_id_high_water_mark


def is_tracked(table: Table) -> bool:
    """Whether readers may rely on ids, and every file has them, in ranges that do not overlap."""
    snapshot = table.log().update()
    if snapshot.metadata.configuration.get("delta.enableRowTracking") != "true":
        return False
    taken: list[int] = []
    for file in snapshot.add_files():
        assert file.base_row_id is not None
        assert file.default_row_commit_version is not None
        records = int(file.stats.split('"numRecords":')[1].split(",")[0].rstrip("}")) if file.stats else 0
        taken += range(file.base_row_id, file.base_row_id + records)
    assert len(set(taken)) == len(taken)
    assert max(taken, default=-1) <= (mark(table) or -1)
    return True


def test_the_steps(table: Table) -> None:
    result = enable_row_tracking(table.log(), max_files=2, tags={"airflow.taskId": "t"}, user_metadata="of a test")
    assert operations(table) == [UPGRADE, BACKFILL, BACKFILL, ENABLE]
    assert (result.version, result.operation, result.num_records) == (5, ENABLE, 0)
    assert [table.info(n)["operationParameters"].get("batchId") for n in (3, 4)] == ["0", "1"]
    assert {table.info(n)["isolationLevel"] for n in (3, 4)} == {"SnapshotIsolation"}
    assert all(table.info(n)["tags"]["airflow.taskId"] == "t" for n in range(2, 6))
    assert not any(table.info(n)["isBlindAppend"] for n in (3, 4)), "who reads the table must not overlook it as one"
    assert table.info(5)["tags"]["rowTrackingEnablementOnly"] == "true"
    assert sorted(table.actions(3)) == ["add", "commitInfo", "domainMetadata"]
    assert not any(line["add"]["dataChange"] for n in (3, 4) for line in table.lines(n) if "add" in line)
    assert is_tracked(table)
    assert {version for _base, version in ids(table).values()} == {3, 4}
    assert enable_row_tracking(table.log()).attempts == 0
    assert len(table.versions()) == 6


@pytest.mark.parametrize("done", range(1, 5))
def test_a_run_that_was_cut_off_is_taken_up(table: Table, done: int) -> None:
    """Commits that are there stay; nothing is done twice."""

    def cancelled() -> bool:
        return len(table.versions()) - 2 >= done

    if done < 4:
        with pytest.raises(CommitCancelledException):
            enable_row_tracking(table.log(), max_files=2, policy=CommitPolicy(cancelled=cancelled))
    assert len(table.versions()) - 2 == (done if done < 4 else 0)
    enable_row_tracking(table.log(), max_files=2)
    assert operations(table) == [UPGRADE, BACKFILL, BACKFILL, ENABLE]
    assert is_tracked(table)


def test_what_others_do_with_rows_does_not_conflict(table: Table) -> None:
    def mark_rows() -> None:
        marked = add("b", deletion_vector=VECTOR, stats='{"numRecords":5,"tightBounds":false}')
        table.commit(remove("b"), marked, operation=Operation.delete(["value = 1"]))

    def compact() -> None:
        gone = [remove(path, data_change=False) for path in ("a", "c")]
        table.commit(*gone, add("ac", records=11, data_change=False), operation=Operation("OPTIMIZE"))

    raced = Raced(table, lambda: table.commit(add("d", records=3)), mark_rows, compact, lambda: table.commit(add("e", records=2)))
    enable_row_tracking(raced.log, max_files=2)
    assert operations(table).count("Manual Update") == 2
    assert table.live() == {"ac", "b", "d", "e"}
    assert is_tracked(table)
    vectors = {file.path: file.deletion_vector for file in table.log().update().add_files()}
    assert vectors["b"] == VECTOR, "the winner's"


def test_a_batch_whose_files_are_all_gone(table: Table) -> None:
    raced = Raced(table, None, lambda: table.commit(*(remove(path) for path in ("a", "b", "c"))))
    enable_row_tracking(raced.log)
    assert table.live() == set()
    assert is_tracked(table)


def test_who_began_before_assigns_ids_too(table: Table) -> None:
    before = table.log().start_transaction()
    enable_row_tracking(table.log())
    version = before.commit([add("late", records=4)], Operation.write())
    assert ids(table)["late"] == (16, version)
    assert table.info(version)["tags"]["delta.rowTracking.preserved"] == "false"
    assert is_tracked(table)


def change_comment(table: Table) -> None:
    txn = table.log().start_transaction()
    from msgspec.structs import replace

    txn.update_metadata(replace(txn.metadata, description=f"{len(table.versions())}"))
    txn.commit([], Operation.set_table_properties({"comment": "x"}))


def test_a_change_of_the_table_makes_it_start_over(table: Table) -> None:
    def change() -> None:
        change_comment(table)

    raced = Raced(table, change, None, change, None, change)
    enable_row_tracking(raced.log, max_restarts=1)
    assert is_tracked(table)
    assert table.log().update().metadata.description is not None
    other = Table(table.path.parent / "other")
    other.create()
    with pytest.raises(MetadataChangedException):
        enable_row_tracking(Raced(other, lambda: change_comment(other)).log, max_restarts=0)


def without_ids(table: Table, path: str) -> None:
    """Add a file as a client does that ignores the feature."""
    version = len(table.versions())
    file = {
        "path": path,
        "partitionValues": {},
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "stats": '{"numRecords":2}',
    }
    table.put_foreign(version, {"commitInfo": {"operation": "WRITE", "timestamp": 1}}, {"add": file})


def test_a_client_that_ignores_the_feature(table: Table) -> None:
    raced = Raced(table, None, lambda: without_ids(table, "x"), None, lambda: without_ids(table, "y"))
    enable_row_tracking(raced.log)
    assert is_tracked(table)
    assert {"x", "y"} <= table.live()
    without_ids(table, "z")  # after the property, too
    enable_row_tracking(table.log())
    assert is_tracked(table)


def test_a_client_that_goes_on_ignoring_the_feature(table: Table) -> None:
    others = [lambda n=n: without_ids(table, f"x{n}") for n in range(100)]
    with pytest.raises(DeltaIllegalStateException, match="another writer ignores the table feature rowTracking"):
        enable_row_tracking(Raced(table, *others).log)
    assert len(table.versions()) < 60


@pytest.fixture
def bare(tmp_path: Path) -> Table:
    """A table of two files without statistics."""
    path = tmp_path / "bare"
    path.mkdir()
    for name, values in (("x.parquet", [1, 2]), ("y.parquet", [3])):
        pq.write_table(pa.table({"id": values}), path / name)
    table = Table(path)
    convert_to_delta(table.log(), collect_stats=False, transaction_key="k", attempt="1-test")
    return table


def test_rows_of_files_without_statistics_are_counted(bare: Table) -> None:
    enable_row_tracking(bare.log())
    assert is_tracked(bare)
    assert mark(bare) == 2
    assert bare.rows() == [(1,), (2,), (3,)]


def test_a_file_that_is_gone(bare: Table) -> None:
    (bare.path / "x.parquet").unlink()
    with pytest.raises(StagedFileException, match=r"x\.parquet"):
        enable_row_tracking(bare.log())
    assert operations(bare, 1) == [UPGRADE], "later taken up where it stopped"


def test_checkpoints_and_checksums_have_the_ids(table: Table) -> None:
    enable_row_tracking(table.log(), max_files=1)
    expected = ids(table)
    write_checkpoint(table.log().update())
    for version in table.versions()[:-1]:
        table.log_file(version).unlink()
    assert ids(table) == expected
    assert mark(table) == 15
    for path in (table.path / "_delta_log").glob("*.crc"):
        path.unlink()
    assert ids(table) == expected


def test_a_restore_keeps_the_mark(table: Table) -> None:
    enable_row_tracking(table.log())
    table.commit(add("d", records=3))
    before = mark(table)
    restore(table.log(), version=1, transaction_key="back", attempt="1-test")
    assert (mark(table) or 0) >= (before or 0)
    assert table.live() == {"a", "b", "c"}
    enable_row_tracking(table.log())
    assert is_tracked(table)


def test_a_clone_has_ids_of_its_own(bare: Table, tmp_path: Path) -> None:
    enable_row_tracking(bare.log())
    clone = Table(tmp_path / "clone")
    clone_table(clone.log(), bare.log(), transaction_key="clone", attempt="1-test")
    assert is_tracked(clone)


@pytest.mark.parametrize("max_files", [0, -1])
def test_batches_have_files(table: Table, max_files: int) -> None:
    with pytest.raises(DeltaIllegalArgumentException, match="max_files must be positive"):
        enable_row_tracking(table.log(), max_files=max_files)


def test_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        enable_row_tracking(Table(tmp_path / "none").log())
    suspended = Table(tmp_path / "suspended")
    suspended.put_foreign(
        0,
        {"commitInfo": {"operation": "CREATE TABLE", "timestamp": 1}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking", "domainMetadata"]}},
        {
            "metaData": {
                "id": "i",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": metadata().schema_string,
                "partitionColumns": [],
                "configuration": {"delta.rowTrackingSuspended": "true"},
            }
        },
    )
    with pytest.raises(DeltaIllegalArgumentException, match="DELTA_ROW_TRACKING_ILLEGAL_PROPERTY_COMBINATION"):
        enable_row_tracking(suspended.log())
