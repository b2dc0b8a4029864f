"""RESTORE at the level of the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.commands.restore import restore
from airflow_delta.exceptions import (
    ConcurrentWriteException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    TransactionAlreadyCommittedException,
    VersionNotFoundException,
)
from airflow_delta.transaction import Operation
from commands.flow import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Version 0 holds 1, version 1 holds 1 and 2, version 2 holds 2."""
    path = tmp_path / "table"
    for value in (1, 2):
        write_deltalake(path, pa.table({"id": [value]}), mode="append")
    DeltaTable(path).delete("id = 1")
    return Table(path)


def run(table: Table, key: str = "restore", **options):
    return restore(table.log(), transaction_key=key, attempt="1-0", **options)


def test_to_a_version(table):
    result = run(table, version=0)
    assert (result.version, result.num_files, result.num_removed_files, result.operation) == (3, 1, 1, "RESTORE")
    assert table.rows() == [(1,)]
    commit = table.commit(3)
    info = commit["commitInfo"][0]
    assert info["operationParameters"] == {"version": 0, "timestamp": None}
    sizes = {action["path"]: action["size"] for action in (*commit["add"], *commit["remove"])}
    added, removed = sizes[commit["add"][0]["path"]], sizes[commit["remove"][0]["path"]]
    assert info["operationMetrics"] == {
        "tableSizeAfterRestore": str(added),
        "numOfFilesAfterRestore": "1",
        "numRemovedFiles": "1",
        "numRestoredFiles": "1",
        "removedFilesSize": str(removed),
        "restoredFilesSize": str(added),
    }
    assert commit["add"][0]["dataChange"]
    assert list(commit)[:2] == ["commitInfo", "metaData"]
    assert list(commit)[-1] == "protocol"
    assert [txn["appId"] for txn in commit["txn"]] == ["restore"]


def test_once_for_its_identity(table):
    first = run(table, version=0)
    again = run(table, version=0)
    assert (again.version, again.committed_before) == (first.version, True)
    with pytest.raises(TransactionAlreadyCommittedException):
        run(table, version=0, rerun_policy="fail")
    assert run(table, version=1, rerun_policy="append").version == 4
    assert table.rows() == [(1,), (2,)]
    assert table.versions() == 5


def test_to_a_timestamp(table):
    times = [table.log().snapshot_at(version).timestamp for version in range(3)]
    text = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    result = run(table, timestamp=text)
    assert table.rows() == [(1,), (2,)]
    parameters = table.commit(result.version)["commitInfo"][0]["operationParameters"]
    assert parameters["version"] is None
    assert datetime.fromisoformat(parameters["timestamp"]).replace(tzinfo=UTC).timestamp() * 1000 == pytest.approx(times[1])
    with pytest.raises(VersionNotFoundException):
        run(table, "early", timestamp=times[0] - 1000)


def test_schema_and_properties_come_back_and_the_protocol_stays(table):
    configuration = {"delta.enableChangeDataFeed": "true", "delta.feature.deletionVectors": "supported"}
    txn = table.log().start_transaction()
    metadata = txn.metadata
    changed = json.loads(metadata.schema_string)
    changed["fields"].append({"name": "more", "type": "string", "nullable": True, "metadata": {}})
    txn.update_metadata(msgspec.structs.replace(metadata, schema_string=json.dumps(changed), configuration=configuration))
    txn.commit([], Operation.set_table_properties(configuration))
    upgraded = table.log().update().protocol
    run(table, version=1)
    snapshot = table.log().update()
    assert [column.name for column in snapshot.schema.fields] == ["id"]
    assert snapshot.metadata.configuration == {}
    assert snapshot.protocol == upgraded
    assert {file.path for file in snapshot.add_files()} == {file.path for file in table.log().snapshot_at(1).add_files()}


def test_the_last_version_is_there_already(table):
    result = run(table, version=2)
    assert (result.version, result.attempts, result.operation) == (2, 0, "")
    assert table.versions() == 3
    assert run(table, version=0).version == 3  # nothing was noted of it


def test_missing_files(table):
    removed = table.log().snapshot_at(0).add_files()[0].path
    (table.path / removed).unlink()
    with pytest.raises(DeltaFileNotFoundException, match="1 of its files are gone"):
        run(table, version=0)
    assert table.versions() == 3
    run(table, version=0, ignore_missing_files=True)
    assert table.versions() == 4


def test_refusals(table, tmp_path):
    for options in ({}, {"version": 0, "timestamp": 0}, {"version": 7}, {"version": -1}, {"timestamp": "x"}):
        with pytest.raises(DeltaIllegalArgumentException):
            run(table, **options)
    with pytest.raises(DeltaTableNotFoundException):
        run(Table(tmp_path / "none"), version=0)
    assert table.versions() == 3


def test_versions_older_than_the_retention_of_deleted_files(table):
    DeltaTable(table.path).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.logRetentionDuration": "interval 1 days"}
    )
    with pytest.raises(DeltaUnsupportedOperationException, match="BEYOND_DELETED_FILE_RETENTION"):
        run(table, version=0)


def test_concurrent_commit(table, monkeypatch):
    """It is right after the version that was read, or not at all; begun anew when that is allowed."""
    from airflow_delta.commands import restore as module

    compute = module.restore_actions
    others = []

    def meanwhile(*args, **options):
        found = compute(*args, **options)
        if len(others) < 2:
            others.append(1)
            write_deltalake(table.path, pa.table({"id": [3]}), mode="append")
        return found

    monkeypatch.setattr(module, "restore_actions", meanwhile)
    with pytest.raises(ConcurrentWriteException):
        run(table, version=0)
    result = run(table, version=0, max_restarts=1)
    assert result.version == 5
    assert table.rows() == [(1,)]
