"""What DROP FEATURE refuses, and what it does without Spark; beside Delta's own: tests/delta_spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_delta.contract.changes import ChangeColumn
from airflow_delta.contract.request import StageReport, StageRequest
from airflow_delta.exceptions import (
    CommitCancelledException,
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    FeatureDropConflictException,
    FeatureDropWaitException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, DomainMetadata
from airflow_delta.table.operations.drop_feature.run import drop_feature, remove_column_mapping
from airflow_delta.table.stage.plan_alter import plan_alter
from airflow_delta.transaction import CommitPolicy, Operation
from support.actions import add, schema
from support.table import Table

HOUR = 60 * 60 * 1000
PROTECTED = "delta.requireCheckpointProtectionBeforeVersion"
VECTOR = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", offset=1, size_in_bytes=36, cardinality=10
)


def made(tmp_path: Path, *actions: Any, **configuration: str) -> Table:
    table = Table(tmp_path / "table")
    table.create(configuration={f"delta.{key.replace('__', '.')}": value for key, value in configuration.items()})
    table.commit(*(actions or (add("a", records=10), add("b", records=5))))
    return table


def v2(tmp_path: Path) -> Table:
    table = made(tmp_path, checkpointPolicy="v2")
    table.log().checkpoint()
    return table


def all_deleted(tmp_path: Path) -> Table:
    """A file whose rows are all deleted, which takes no Spark, and another one."""
    table = made(tmp_path, enableDeletionVectors="true")
    table.commit(add("a", records=10).remove(1), add("a", records=10, deletion_vector=VECTOR))
    return table


def in_hours(hours: float) -> Callable[[], int]:
    return lambda: int(time.time() * 1000 + hours * HOUR)


def operations(table: Table, first: int = 2) -> list[str]:
    return [table.info(version)["operation"] for version in table.versions()[first:]]


def checkpoints(table: Table) -> set[int]:
    return {int(path.name[:20]) for path in (table.path / "_delta_log").glob("*.checkpoint*")}


def features(table: Table) -> set[str]:
    protocol = table.log().update().protocol
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


def properties(table: Table) -> dict[str, str]:
    return table.log().update().metadata.configuration


def test_v2_checkpoints(tmp_path: Path) -> None:
    table = v2(tmp_path)
    result = drop_feature(table.log(), " V2checkpoint ", tags={"airflow.taskId": "t"}, user_metadata="of a test")
    assert operations(table) == ["SET TBLPROPERTIES", "Empty Commit", "Empty Commit", "Empty Commit", "DROP FEATURE"]
    assert (result.version, result.operation, result.num_records) == (6, "DROP FEATURE", 0)
    assert table.info(6)["operationParameters"] == {"featureName": "v2Checkpoint", "truncateHistory": False}
    assert all(table.info(version)["tags"]["airflow.taskId"] == "t" for version in range(2, 7))
    assert features(table) == {"appendOnly", "invariants", "checkpointProtection"}
    assert properties(table) == {"delta.checkpointPolicy": "classic", PROTECTED: "6"}
    assert {3, 4, 5, 6} <= checkpoints(table)
    assert not list((table.path / "_delta_log").glob("*6.checkpoint.*.json"))
    again = drop_feature(table.log(), "v2Checkpoint")
    assert (again.attempts, again.version, len(table.versions())) == (0, 6, 7)


@pytest.mark.parametrize("make", [v2, all_deleted])
@pytest.mark.parametrize("done", range(1, 7))
def test_a_run_that_was_cut_off_is_taken_up(tmp_path: Path, make: Callable[[Path], Table], done: int) -> None:
    """Commits that are there stay; nothing is done twice."""
    table = make(tmp_path)
    feature = "v2Checkpoint" if make is v2 else "deletionVectors"
    first = len(table.versions())

    def cancelled() -> bool:
        return len(table.versions()) - first >= done

    whole = Table(tmp_path / "whole")
    whole.copy_from(table)
    drop_feature(whole.log(), feature)
    expected = operations(whole, first)
    if done < len(expected):
        with pytest.raises(CommitCancelledException):
            drop_feature(table.log(), feature, policy=CommitPolicy(cancelled=cancelled))
        assert operations(table, first) == expected[:done]
    drop_feature(table.log(), feature)
    assert operations(table, first) == expected
    assert features(table) == features(whole)
    assert properties(table) == properties(whole)
    assert set(range(len(table.versions()) - 4, len(table.versions()))) <= checkpoints(table)


@pytest.mark.parametrize("written", range(4))
def test_killed_before_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    table = v2(tmp_path)
    log = table.log()
    write, done = log.checkpoint, 0

    def killed(snapshot: Any) -> None:
        nonlocal done
        if done == written:
            raise KeyboardInterrupt
        done += 1
        write(snapshot)

    monkeypatch.setattr(log, "checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        drop_feature(log, "v2Checkpoint")
    drop_feature(table.log(), "v2Checkpoint")
    assert "v2Checkpoint" not in features(table)
    last = int(properties(table)[PROTECTED])
    assert table.info(last)["operation"] == "DROP FEATURE"
    assert {last - 3, last - 2, last - 1, last} <= checkpoints(table)


def test_a_checkpoint_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store takes it and does not have it: the feature stays."""
    table = v2(tmp_path)
    log = table.log()
    monkeypatch.setattr(log, "checkpoint", lambda _snapshot: None)
    with pytest.raises(DeltaIllegalStateException, match="CHECKPOINT_FAILED"):
        drop_feature(log, "v2Checkpoint")
    assert "v2Checkpoint" in features(table)


def test_vectors_of_files_without_rows(tmp_path: Path) -> None:
    """Nothing is rewritten; the vector's file gets a tombstone of its own, which readers without the feature see."""
    table = all_deleted(tmp_path)
    drop_feature(table.log(), "deletionVectors")
    names = ["UNSET TBLPROPERTIES", "REORG", "Deletion Vector Tombstones", *["Empty Commit"] * 3, "DROP FEATURE"]
    assert operations(table, 3) == names
    assert [file.path for file in table.log().update().add_files()] == ["b"]
    (removed,) = table.actions(4)["remove"]
    assert (removed["path"], removed["dataChange"]) == ("a", False)
    (tombstone,) = table.actions(5)["remove"]
    assert tombstone.keys() == {"path", "deletionTimestamp", "dataChange"}
    assert tombstone["path"].endswith("deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin")
    assert features(table) == {"appendOnly", "invariants", "checkpointProtection"}


@pytest.mark.parametrize("late", [False, True], ids=["before the last step", "before its put"])
def test_a_vector_between_the_steps(tmp_path: Path, late: bool) -> None:
    """Another writer marks rows as deleted although the property is off: the feature is looked for again, also in a winner."""
    table = all_deleted(tmp_path)
    log = table.log()
    last = 8 if late else 7  # three checkpoints are the versions 6 to 8

    def raced() -> bool:
        if table.versions()[-1] == last:
            marked = {"path": "b", "partitionValues": {}, "size": 100, "modificationTime": 1, "dataChange": True}
            gone = {"path": "b", "deletionTimestamp": 1, "dataChange": True}
            vector = msgspec.to_builtins(VECTOR_OF_B)
            table.put_foreign(
                last + 1, {"remove": gone}, {"add": {**marked, "stats": '{"numRecords":5}', "deletionVector": vector}}
            )
        return False

    with pytest.raises(FeatureDropConflictException, match="1 files have a deletion vector"):
        drop_feature(log, "deletionVectors", policy=CommitPolicy(cancelled=raced))
    assert "deletionVectors" in features(table)
    table.commit(add("c", records=1))
    with pytest.raises(DeltaIllegalArgumentException, match="no Spark"):
        drop_feature(table.log(), "deletionVectors")


VECTOR_OF_B = DeletionVectorDescriptor(
    storage_type="u", path_or_inline_dv="ab^-aqEH.-t@S}K{vb[*k^", offset=50, size_in_bytes=36, cardinality=2
)


def test_truncated(tmp_path: Path) -> None:
    """Two runs, 25 hours apart; until then nothing is dropped. No checkpointProtection."""
    table = all_deleted(tmp_path)
    with pytest.raises(FeatureDropWaitException, match="its traces are removed"):
        drop_feature(table.log(), "deletionVectors", truncate_history=True)
    assert operations(table, 3) == ["UNSET TBLPROPERTIES", "REORG", "Deletion Vector Tombstones", "Empty Commit"]
    assert checkpoints(table) == {6}
    for hours in (0.0, 23.9):
        with pytest.raises(FeatureDropWaitException, match="HISTORICAL_VERSIONS_EXIST"):
            drop_feature(table.log(), "deletionVectors", truncate_history=True, clock=in_hours(hours))
    assert table.versions() == list(range(7))
    result = drop_feature(table.log(), "deletionVectors", truncate_history=True, clock=in_hours(24.1))
    assert table.versions() == [6, 7]
    assert result.version == 7
    assert table.info(7)["operationParameters"] == {"featureName": "deletionVectors", "truncateHistory": True}
    protocol = table.log().update().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert PROTECTED not in properties(table)
    assert drop_feature(table.log(), "deletionVectors", truncate_history=True).attempts == 0


def test_truncated_by_a_shorter_retention(tmp_path: Path) -> None:
    table = made(tmp_path, checkpointPolicy="v2", dropFeatureTruncateHistory__retentionDuration="interval 2 hours")
    with pytest.raises(FeatureDropWaitException, match="for 2 hours"):
        drop_feature(table.log(), "v2Checkpoint", truncate_history=True)
    drop_feature(table.log(), "v2Checkpoint", truncate_history=True, clock=in_hours(2.1))
    assert "v2Checkpoint" not in features(table)


def test_a_v2_checkpoint_that_is_left(tmp_path: Path) -> None:
    """Not in any commit, but on the way of an older client."""
    table = v2(tmp_path)
    (manifest,) = (table.path / "_delta_log").glob("*.checkpoint.*")
    with pytest.raises(FeatureDropWaitException):
        drop_feature(table.log(), "v2Checkpoint", truncate_history=True)
    assert manifest.exists()
    with pytest.raises(FeatureDropWaitException, match="version 1 uses it"):
        drop_feature(table.log(), "v2Checkpoint", truncate_history=True)


def test_protection(tmp_path: Path) -> None:
    """checkpointProtection goes with what it protects."""
    table = v2(tmp_path)
    drop_feature(table.log(), "v2Checkpoint")
    with pytest.raises(DeltaAnalysisException, match="CAN_ONLY_DROP_CHECKPOINT_PROTECTION_WITH"):
        drop_feature(table.log(), "checkpointProtection")
    with pytest.raises(FeatureDropWaitException, match="CHECKPOINT_PROTECTION_WAIT_FOR_RETENTION_PERIOD"):
        drop_feature(table.log(), "checkpointProtection", truncate_history=True)
    assert "checkpointProtection" in features(table)
    drop_feature(table.log(), "checkpointProtection", truncate_history=True, clock=in_hours(25))
    assert features(table) == set()
    assert PROTECTED not in properties(table)
    assert table.versions()[0] >= 6
    assert operations(table, -2) == ["UNSET TBLPROPERTIES", "DROP FEATURE"]


def test_row_ids(tmp_path: Path) -> None:
    table = made(tmp_path, enableRowTracking="true")
    drop_feature(table.log(), "rowTracking")
    assert operations(table) == ["SET TBLPROPERTIES", "ROW TRACKING UNBACKFILL", "DROP FEATURE"]
    snapshot = table.log().update()
    assert {file.base_row_id for file in snapshot.add_files()} == {None}
    assert not snapshot.domain_metadata
    assert not [key for key in properties(table) if "ow" in key]
    assert features(table) == {"appendOnly", "invariants", "domainMetadata"}
    table.commit(DomainMetadata(domain="mine", configuration="{}", removed=False))
    drop_feature(table.log(), "domainMetadata")
    assert operations(table, -2) == ["DOMAIN METADATA CLEANUP", "DROP FEATURE"]
    assert not table.log().update().domain_metadata


def test_timestamps(tmp_path: Path) -> None:
    table = made(tmp_path)
    log = table.log()
    txn = log.start_transaction()
    txn.update_metadata(_with(txn.metadata, {"delta.enableInCommitTimestamps": "true"}))
    txn.commit([], Operation.set_table_properties({"delta.enableInCommitTimestamps": "true"}))
    assert len(properties(table)) == 3
    drop_feature(table.log(), "inCommitTimestamp")
    assert operations(table, 3) == ["UNSET TBLPROPERTIES", "DROP FEATURE"]
    assert properties(table) == {"delta.enableInCommitTimestamps": "false"}
    assert not checkpoints(table)


def _with(metadata: Any, more: dict[str, str]) -> Any:
    return msgspec.structs.replace(metadata, configuration={**metadata.configuration, **more})


def test_mapping_of_a_table_without_files(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.columnMapping.mode": "name"})
    result = remove_column_mapping(table.log())
    assert result.operation == "REMOVE COLUMN MAPPING"
    assert properties(table) == {"delta.columnMapping.mode": "none"}
    assert "columnMapping" not in table.log().update().metadata.schema_string
    assert remove_column_mapping(table.log()).attempts == 0
    drop_feature(table.log(), "columnMapping")
    assert table.log().update().protocol.min_reader_version == 1


def test_a_constraint_keeps_its_feature(tmp_path: Path) -> None:
    table = made(tmp_path, feature__checkConstraints="supported")
    txn = table.log().start_transaction()
    txn.adopt_changes(_with(txn.metadata, {"delta.constraints.c": "value > 0"}), txn.protocol)
    txn.commit([], Operation.add_constraint("c", "value > 0"))
    with pytest.raises(ProtocolDowngradeException, match="the table uses it"):
        drop_feature(table.log(), "checkConstraints")


@pytest.mark.parametrize(
    ("feature", "truncate", "error", "what"),
    [
        ("delta.enableDeletionVectors", False, DeltaAnalysisException, "IS_DELTA_PROPERTY"),
        ("enableDeletionVectors", False, DeltaAnalysisException, "IS_DELTA_PROPERTY"),
        ("deletionVectors", False, DeltaAnalysisException, "NOT_PRESENT"),
        ("nonsense", True, DeltaAnalysisException, "NOT_PRESENT"),
        ("appendOnly", False, DeltaUnsupportedOperationException, "NONREMOVABLE_FEATURE"),
        ("domainMetadata", True, DeltaAnalysisException, "HISTORY_TRUNCATION_NOT_ALLOWED"),
        ("domainMetadata", False, DeltaAnalysisException, "DEPENDENT_FEATURE"),
        ("  ", False, DeltaIllegalArgumentException, "needs the name"),
    ],
)
def test_what_is_refused(tmp_path: Path, feature: str, truncate: bool, error: type[Exception], what: str) -> None:
    table = made(tmp_path, feature__rowTracking="supported")
    with pytest.raises(error, match=what):
        drop_feature(table.log(), feature, truncate_history=truncate)
    assert len(table.versions()) == 2


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(DeltaTableNotFoundException):
        drop_feature(Table(tmp_path / "none").log(), "deletionVectors")
    with pytest.raises(DeltaTableNotFoundException):
        remove_column_mapping(Table(tmp_path / "none").log())


def test_files_of_which_others_rewrite_some_meanwhile(tmp_path: Path) -> None:
    """The rewrite leaves out what was put together with them; it must not stay as it was. Arrow does Spark's part."""
    table = Table(tmp_path / "table")
    table.create(["part"], schema_string=schema(id="integer", part="string"), configuration={"delta.enableTypeWidening": "true"})

    def file(number: int, part: str, kind: pa.DataType) -> AddFile:
        path = table.path / f"{number}.parquet"
        pq.write_table(pa.table({"id": pa.array([number], kind)}), path)
        return add(path.name, size=path.stat().st_size, part=part, records=1)

    old = file(1, "a", pa.int32())
    table.commit(old, file(2, "a", pa.int32()), file(3, "b", pa.int32()))
    handle = table.begin()
    table.publish(handle, plan_alter(table.view(handle), [ChangeColumn("id", "BIGINT")]))
    raced: list[int] = []

    def on_spark(request: StageRequest) -> StageReport:
        if not raced:
            update = Operation("UPDATE", {"predicate": "[]"})
            raced.append(table.commit(old.remove(1), file(4, "a", pa.int64()), operation=update))
        assert request.rewrite is not None
        written = {}
        for number, members in enumerate(request.arguments["bins"]):
            rows = pa.concat_tables(pq.read_table(table.path / request.rewrite.files[i].path, partitioning=None) for i in members)
            path = table.path / request.directory / f"run-{number}" / "part-0.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(rows.cast(pa.schema({"id": pa.int64()})), path)
            written[path.parent.name] = {"numFiles": 1, "numRows": rows.num_rows, "numBytes": path.stat().st_size}
        return StageReport(
            transaction_id=request.transaction_id,
            stage=request.stage,
            attempt=request.attempt,
            directories=tuple(written),
            written=written,
        )

    identity = {"task_id": "drop", "map_index": -1, "attempt": "1-a"}
    drop_feature(table.log(), "typeWidening", on_spark, identity=identity)
    live = [unquote(added.path) for added in table.log().update().add_files()]
    assert {pq.read_schema(table.path / path).field("id").type for path in live} == {pa.int64()}
    assert table.rows() == [(2, "a"), (3, "b"), (4, "a")]
