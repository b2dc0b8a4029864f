"""RESTORE at the level of the log."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_delta.exceptions import (
    ConcurrentWriteException,
    DeltaAnalysisException,
    DeltaFileNotFoundException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    DeltaUnsupportedOperationException,
    TransactionAlreadyCommittedException,
    VersionNotFoundException,
)
from airflow_delta.table.changes.plan import plan_changes
from airflow_delta.table.operations.drop_feature.run import drop_feature
from airflow_delta.table.operations.restore import restore
from airflow_delta.table.operations.row_tracking import enable_row_tracking
from airflow_delta.transaction import Operation
from support import tables as by_hand
from support.actions import column, schema
from support.table import Table
from support.tables import write_commit


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
    commit = table.actions(3)
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
    assert len(table.versions()) == 5


def test_to_a_timestamp(table):
    times = [table.log().snapshot_at(version).timestamp for version in range(3)]
    text = datetime.fromtimestamp(times[1] / 1000, UTC).isoformat()
    result = run(table, timestamp=text)
    assert table.rows() == [(1,), (2,)]
    parameters = table.info(result.version)["operationParameters"]
    assert parameters["version"] is None
    assert datetime.fromisoformat(parameters["timestamp"]).replace(tzinfo=UTC).timestamp() * 1000 == pytest.approx(times[1])
    with pytest.raises(VersionNotFoundException):
        run(table, "early", timestamp=times[0] - 1000)
    latest = run(table, "late", timestamp=datetime(9999, 1, 1))  # the latest version, as in Delta: nothing changes
    assert (latest.num_files, latest.num_removed_files) == (0, 0)
    assert table.rows() == [(1,), (2,)]


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


def set_configuration(table: Table, configuration: dict[str, str]) -> None:
    txn = table.log().start_transaction()
    changed = msgspec.structs.replace(txn.metadata, configuration=configuration)
    if any(key.startswith("delta.constraints.") for key in configuration):
        txn.commit([changed], Operation.add_constraint("c", "id > 0"))  # as ALTER TABLE does it
    else:
        txn.update_metadata(changed)
        txn.commit([], Operation.set_table_properties(configuration))


def test_properties_that_nobody_may_set_come_back(table):
    set_configuration(table, {"delta.constraints.c": "id > 0"})
    set_configuration(table, {})
    run(table, version=3)
    assert table.log().update().metadata.configuration == {"delta.constraints.c": "id > 0"}


def test_in_commit_timestamps_begin_anew(table):
    """Since when every commit has one is another version after they were off."""
    enabled, since = "delta.enableInCommitTimestamps", "delta.inCommitTimestampEnablementVersion"
    set_configuration(table, {enabled: "true"})
    assert table.log().update().metadata.configuration[since] == "3"
    assert run(table, "off", version=2).version == 4
    assert table.log().update().metadata.configuration == {}
    assert run(table, "on", version=3).version == 5
    assert table.log().update().metadata.configuration[since] == "5"
    assert run(table, "again", version=3).version == 6
    assert table.log().update().metadata.configuration[since] == "5"
    times = [table.info(version).get("inCommitTimestamp") for version in range(3, 7)]
    assert times[1] is None
    assert times[0] < times[2] < times[3]


def test_a_type_that_was_widened_since(table):
    widening = {"delta.enableTypeWidening": "true", "delta.feature.typeWidening": "supported"}

    def with_type(metadata, data_type: str):
        schema = json.loads(metadata.schema_string)
        schema["fields"].append({"name": "w", "type": data_type, "nullable": True, "metadata": {}})
        return msgspec.structs.replace(metadata, schema_string=json.dumps(schema), configuration=widening)

    plain = table.log().update().metadata
    for data_type in ("integer", "long"):
        txn = table.log().start_transaction()
        txn.update_metadata(with_type(plain, data_type))
        txn.commit([], Operation.set_table_properties(widening))
    noted = [{"toType": "long", "fromType": "integer"}]
    assert table.log().update().schema.fields[1].metadata == {"delta.typeChanges": noted}
    run(table, version=3)
    assert table.log().update().schema == table.log().snapshot_at(3).schema
    run(table, "wide", version=4)
    assert table.log().update().schema.fields[1].metadata == {"delta.typeChanges": noted}


def test_the_last_version_is_there_already(table):
    """Nothing changes, but the identity is noted: a retry must not take back what others write after it."""
    result = run(table, version=2)
    assert (result.version, result.operation, result.num_files, result.num_removed_files) == (3, "RESTORE", 0, 0)
    assert table.actions(3).keys() == {"commitInfo", "txn"}
    write_deltalake(table.path, pa.table({"id": [3]}), mode="append")
    again = run(table, version=2)
    assert (again.version, again.committed_before) == (3, True)
    assert table.rows() == [(2,), (3,)]
    assert run(table, "another", version=2).version == 5
    assert table.rows() == [(2,)]


def test_nothing_to_restore_is_no_conflict(table, monkeypatch):
    from airflow_delta.table.operations import restore as module

    compute = module.restore_actions

    def meanwhile(*args, **options):
        found = compute(*args, **options)
        write_deltalake(table.path, pa.table({"id": [3]}), mode="append")
        return found

    monkeypatch.setattr(module, "restore_actions", meanwhile)
    assert run(table, version=2).version == 4
    assert table.rows() == [(2,), (3,)]


def test_identity_column_renamed_since(tmp_path):
    """Values that were given out under another name are not given out again."""
    from airflow_delta.log.actions.actions import Metadata
    from airflow_delta.table.operations.restore import _metadata_with_merged_marks

    def metadata(name: str, mark: int) -> Metadata:
        values = {"start": 1, "step": 1, "highWaterMark": mark, "allowExplicitInsert": False}
        mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
        return by_hand.metadata(column(name, "long", **{f"delta.identity.{key}": v for key, v in values.items()}, **mapped))

    merged = json.loads(_metadata_with_merged_marks(metadata("a", 3), metadata("b", 7)).schema_string)
    assert merged["fields"][0]["metadata"]["delta.identity.highWaterMark"] == 7


def test_missing_files(table):
    removed = table.log().snapshot_at(0).add_files()[0].path
    (table.path / removed).unlink()
    with pytest.raises(DeltaFileNotFoundException, match="1 of its files are gone"):
        run(table, version=0)
    assert len(table.versions()) == 3
    run(table, version=0, ignore_missing_files=True)
    assert len(table.versions()) == 4


def test_refusals(table, tmp_path):
    for options in ({}, {"version": 0, "timestamp": 0}, {"version": 7}, {"version": -1}, {"timestamp": "x"}):
        with pytest.raises(DeltaIllegalArgumentException):
            run(table, **options)
    with pytest.raises(DeltaTableNotFoundException):
        run(Table(tmp_path / "none"), version=0)
    assert len(table.versions()) == 3


def test_versions_older_than_the_retention_of_deleted_files(table):
    DeltaTable(table.path).alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 hours", "delta.logRetentionDuration": "interval 1 days"}
    )
    with pytest.raises(DeltaUnsupportedOperationException, match="BEYOND_DELETED_FILE_RETENTION"):
        run(table, version=0)


def test_concurrent_commit(table, monkeypatch):
    """It is right after the version that was read, or not at all; begun anew when that is allowed."""
    from airflow_delta.table.operations import restore as module

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


BOTH = {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}


def mapped(**names: str) -> str:
    """A schema with the physical name of each column."""
    return schema(
        *(
            {**column(name, "long"), "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}}
            for number, (name, physical) in enumerate(names.items(), 1)
        )
    )


def foreign(path: Path, *commits: list[Any]) -> Table:
    for version, actions in enumerate(commits):
        write_commit(path, version, *actions)
    return Table(path)


def mapping(**names: str) -> Any:
    configuration = {**BOTH, "delta.columnMapping.maxColumnId": "2"}
    return by_hand.metadata(schema_string=mapped(**names), partition_columns=[], configuration=configuration)


FEATURES = ["columnMapping", "changeDataFeed"]


def test_change_data_feed_and_column_mapping(tmp_path):
    """Delta blocks such changes of columns beside files in no RESTORE; readers of the feed refuse ranges that cross it."""
    table = foreign(
        tmp_path / "table",
        [by_hand.protocol(2, 7, writer_features=FEATURES), mapping(a="p1", b="p2"), by_hand.add("f", partition_values={})],
        [mapping(a="p1", c="p2")],
        [by_hand.add("g", partition_values={})],
    )
    result = restore(table.log(), version=0, ignore_missing_files=True, transaction_key="restore", attempt="1-0")
    assert (result.version, [f.path for f in table.log().update().add_files()]) == (3, ["f"])
    assert [field.name for field in table.log().update().schema.fields] == ["a", "b"]
    [commit] = plan_changes(table.log(), starting_version=3).commits
    assert [file.path for file in commit.deletes] == ["g"], "by the same physical names"
    for start in (0, 1, 2):
        with pytest.raises(DeltaAnalysisException, match="INCOMPATIBLE_SCHEMA_CHANGE"):
            plan_changes(table.log(), starting_version=start)


def test_removed_files_with_other_names_are_not_read_as_nulls(tmp_path):
    """As after column mapping was removed and a version with it is restored; Delta's feed shows nulls."""
    plain = schema(column("a", "long"), column("b", "long"))
    table = foreign(
        tmp_path / "table",
        [by_hand.protocol(2, 7, writer_features=FEATURES), mapping(a="p1", b="p2")],
        [
            by_hand.metadata(schema_string=plain, partition_columns=[], configuration={"delta.enableChangeDataFeed": "true"}),
            by_hand.add("f", partition_values={}),
        ],
    )
    restore(table.log(), version=0, ignore_missing_files=True, transaction_key="restore", attempt="1-0")
    with pytest.raises(DeltaAnalysisException, match="removes files that were written under another"):
        plan_changes(table.log(), starting_version=2)


@pytest.mark.parametrize("allowed", [False, True])
def test_across_a_dropped_feature(tmp_path, allowed):
    """The restored metadata need the feature again; the protocol gets it once."""
    vectors = {"delta.enableDeletionVectors": "true"}
    has = by_hand.protocol(3, 7, reader_features=["deletionVectors"], writer_features=["deletionVectors"])
    more = by_hand.protocol(1, 7, writer_features=["appendOnly"])
    about = {"schema_string": schema(column("id", "long")), "partition_columns": []}
    table = foreign(
        tmp_path / "table",
        [has, by_hand.metadata(**about, configuration=vectors)],
        [more, by_hand.metadata(**about, configuration={})],
    )
    run(table, version=0, protocol_downgrade_allowed=allowed)
    snapshot = table.log().update()
    assert snapshot.metadata.configuration == vectors
    assert (snapshot.protocol.min_reader_version, snapshot.protocol.min_writer_version) == (3, 7)
    assert set(snapshot.protocol.writer_features or ()) == {"deletionVectors", *([] if allowed else ["appendOnly"])}
    assert len(table.actions(2)["protocol"]) == 1


# -- counters that began again ------------------------------------------------------------------------------------------------


def tracked(tmp_path: Path) -> Table:
    """Version 1 adds ten rows, version 2 ten more, version 3 removes the first ten. The feature is dropped then."""
    table = Table(tmp_path / "tracked")
    table.create(configuration={"delta.enableRowTracking": "true"})
    for version in (1, 2):
        table.commit(by_hand.add(f"{version}.parquet", stats='{"numRecords":10}'))
        (table.path / f"{version}.parquet").touch()
    table.commit(by_hand.remove("1.parquet"), operation=Operation.delete([]))
    drop_feature(table.log(), "rowTracking")
    return table


def row_ids(table: Table) -> dict[str, int | None]:
    """First row id by file, if no two files of ten rows share one and the mark is not below them."""
    snapshot = table.log().update()
    found = {file.path: file.base_row_id for file in snapshot.add_files()}
    given = sorted(base for base in found.values() if base is not None)
    assert len(given) == len(found), found
    assert all(later - earlier >= 10 for earlier, later in pairwise(given)), found
    assert given[-1] + 9 <= (snapshot.row_id_high_water_mark or -1), (found, snapshot.row_id_high_water_mark)
    return found


@pytest.mark.parametrize("again", [False, True])
def test_row_ids_of_two_times_do_not_meet(tmp_path: Path, again: bool) -> None:
    """The feature was dropped since, and the mark with it; perhaps it is there again, and the file that stayed has a new id."""
    table = tracked(tmp_path)
    if again:
        enable_row_tracking(table.log())
        table.commit(by_hand.add("3.parquet", stats='{"numRecords":10}'))
        assert row_ids(table) == {"2.parquet": 0, "3.parquet": 10}
    result = run(table, version=2)
    assert (result.num_files, result.num_removed_files) == (1 + 1, 1 if again else 0)
    assert row_ids(table) == {"1.parquet": 0, "2.parquet": 10}
    changed = {line["add"]["path"]: line["add"]["dataChange"] for line in table.lines(result.version) if "add" in line}
    assert changed == {"1.parquet": True, "2.parquet": False}, "what stayed is no change for who reads changes"
    table.commit(by_hand.add("4.parquet", stats='{"numRecords":10}'))
    assert row_ids(table)["4.parquet"] == 20


def test_row_ids_that_were_deleted_before_the_restored_version_are_not_given_again(tmp_path: Path) -> None:
    table = tracked(tmp_path)
    table.commit(by_hand.add("3.parquet", stats='{"numRecords":10}'))
    run(table, version=1)
    assert row_ids(table) == {"1.parquet": 0}
    later = Table(tmp_path / "later")
    later.copy_from(tracked(tmp_path / "other"))
    run(later, version=3)
    assert later.log().update().row_id_high_water_mark == 19
    later.commit(by_hand.add("4.parquet", stats='{"numRecords":10}'))
    assert row_ids(later) == {"2.parquet": 10, "4.parquet": 20}


def test_what_is_protected_stays_protected(tmp_path: Path) -> None:
    """checkpointProtection: versions before DROP FEATURE keep their checkpoints, whatever is restored."""
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    table.commit(by_hand.add("1.parquet"))
    (table.path / "1.parquet").touch()
    drop_feature(table.log(), "deletionVectors")
    name = "delta.requireCheckpointProtectionBeforeVersion"
    protected = table.log().update().metadata.configuration[name]
    assert int(protected) > 0
    run(table, version=0)
    assert table.log().update().metadata.configuration.get(name) == protected


def test_timestamps_begin_again_with_the_restored_version(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.enableInCommitTimestamps": "true"})
    table.commit(by_hand.add("1.parquet"))
    (table.path / "1.parquet").touch()
    drop_feature(table.log(), "inCommitTimestamp")
    table.commit(by_hand.remove("1.parquet"), operation=Operation.delete([]))
    result = run(table, version=1)
    assert table.log().update().metadata.configuration["delta.inCommitTimestampEnablementVersion"] == str(result.version)
    assert [commit.version for commit in table.log().history()] == list(range(result.version, -1, -1))
