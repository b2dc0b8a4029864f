"""Which features of a table can be dropped, and what stands in the way of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import DeltaLogCorruptedException, ProtocolChangedException, ProtocolDowngradeException
from airflow_delta.log.actions.actions import DomainMetadata
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare.feature_drop import obstacle
from support.actions import add, foreign_info, protocol, schema, vector
from support.table import Table, metadata

TRACKED = add("a", stats='{"numRecords":3}')
CLUSTERED = DomainMetadata(domain="delta.clustering", configuration='{"clusteringColumns":[["value"]]}', removed=False)


def created(root: Path, *actions: Any, **configuration: str) -> Table:
    table = Table(root / "table")
    table.create(configuration={f"delta.{key.replace('_', '.')}": value for key, value in configuration.items()})
    if actions:
        table.commit(*actions)
    return table


@pytest.mark.parametrize(
    ("feature", "configuration", "actions", "why"),
    [
        ("domainMetadata", {"feature_domainMetadata": "supported"}, [], None),
        ("clustering", {"feature_domainMetadata": "supported"}, [CLUSTERED], "the table is clustered"),
        ("clustering", {"feature_domainMetadata": "supported"}, [], None),
        ("inCommitTimestamp", {"enableInCommitTimestamps": "true"}, [], "delta.enableInCommitTimestamps"),
        ("inCommitTimestamp", {"feature_inCommitTimestamp": "supported"}, [], None),
        ("deletionVectors", {"enableDeletionVectors": "true"}, [], "delta.enableDeletionVectors"),
        ("deletionVectors", {"feature_deletionVectors": "supported"}, [add("a")], None),
        ("rowTracking", {"enableRowTracking": "true"}, [], "delta.enableRowTracking"),
        ("rowTracking", {"feature_rowTracking": "supported"}, [], None),
        ("rowTracking", {"feature_rowTracking": "supported"}, [TRACKED], "1 files have row ids"),
        ("columnMapping", {"columnMapping_mode": "name"}, [], "the columns are mapped"),
        ("columnMapping", {"feature_columnMapping": "supported"}, [], None),
        ("v2Checkpoint", {"checkpointPolicy": "v2"}, [], "uses it"),
        ("v2Checkpoint", {"feature_v2Checkpoint": "supported"}, [], None),
        ("vacuumProtocolCheck", {"feature_vacuumProtocolCheck": "supported"}, [], None),
        ("appendOnly", {}, [], "does not allow it"),
        ("variantType", {"feature_variantType": "supported"}, [], None),
        ("variantShredding", {"feature_variantShredding": "supported"}, [], None),
        ("icebergCompatV2", {"feature_icebergCompatV2": "supported"}, [], None),
        ("materializePartitionColumns", {"feature_materializePartitionColumns": "supported"}, [], None),
        ("coordinatedCommits-preview", {"feature_coordinatedCommits-preview": "supported"}, [], None),
    ],
)
def test_what_stands_in_the_way(
    tmp_path: Path, feature: str, configuration: dict[str, str], actions: list[Any], why: str | None
) -> None:
    found = obstacle({feature}, created(tmp_path, *actions, **configuration).log().snapshot)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert why in found


@pytest.mark.parametrize(
    ("feature", "changed", "why"),
    [
        ("variantType", {"schemaString": schema(value="integer", v="variant")}, "the table uses it"),
        ("variantType-preview", {"schemaString": schema(value="integer", v="variant")}, "the table uses it"),
        ("variantShredding", {"configuration": {"delta.enableVariantShredding": "true"}}, "the table uses it"),
        ("icebergCompatV1", {"configuration": {"delta.enableIcebergCompatV1": "true"}}, "the table uses it"),
        (
            "coordinatedCommits-preview",
            {"configuration": {"delta.coordinatedCommits.tableConf-preview": "{}"}},
            "the table properties delta.coordinatedCommits.tableConf-preview are set",
        ),
    ],
)
def test_what_another_engine_uses(tmp_path: Path, feature: str, changed: dict[str, Any], why: str) -> None:
    table = created(tmp_path)
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    table.put_foreign(1, foreign_info(), {"metaData": {**before, **changed}})
    assert obstacle({feature}, table.log().snapshot) == why


def test_files_with_deletion_vectors(tmp_path: Path) -> None:
    table = created(
        tmp_path, add("a", stats='{"numRecords":10,"tightBounds":false}', deletion_vector=vector(1)), enableDeletionVectors="true"
    )
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    table.put_foreign(2, foreign_info(), {"metaData": {**before, "configuration": {}}})
    assert obstacle({"deletionVectors"}, table.log().snapshot) == "1 files have a deletion vector"


def test_one_at_a_time(tmp_path: Path) -> None:
    assert (
        obstacle({"clustering", "rowTracking"}, created(tmp_path).log().snapshot) == "only one feature can be dropped in a commit"
    )


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (["appendOnly", "invariants", "rowTracking"], "rowTracking depends on it"),
        (["appendOnly", "domainMetadata", "invariants", "vacuumProtocolCheck"], "vacuumProtocolCheck cannot be added"),
        (["domainMetadata", "invariants"], "only one feature can be dropped"),
    ],
)
def test_protocols_that_no_drop_leads_to(tmp_path: Path, left: list[str], why: str) -> None:
    ours = created(tmp_path, feature_rowTracking="supported").log().start_transaction()
    without = protocol(1, 7, writer_features=left)
    with pytest.raises(ProtocolDowngradeException, match=why):
        ours.commit([without], Operation("DROP FEATURE", {"featureName": "x"}))


# -- row tracking that is dropped cleans up after others ----------------------------------------------------------------------


def suspend(table: Table) -> None:
    """Stop giving row ids, which is how dropping the feature begins."""
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    configuration = {**before["configuration"], "delta.rowTrackingSuspended": "true"}
    table.put_foreign(1, foreign_info(), {"metaData": {**before, "configuration": configuration}})


def test_dropping_row_tracking_takes_the_ids_of_concurrent_commits_away(tmp_path: Path) -> None:
    table = created(tmp_path, feature_rowTracking="supported")
    suspend(table)
    table.commit(add("a", records=3))
    ours = table.log().start_transaction()
    given = {"path": "w", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    table.put_foreign(3, foreign_info(), {"add": {**given, "baseRowId": 3, "defaultRowCommitVersion": 3}})
    without = protocol(1, 7, writer_features=["appendOnly", "domainMetadata", "invariants"])
    assert ours.commit([without], Operation("DROP FEATURE", {"featureName": "rowTracking"})) == 4
    assert [next(iter(line)) for line in table.lines(4)] == ["commitInfo", "protocol", "add"]
    assert table.lines(4)[2]["add"] == {**given, "dataChange": False}
    assert table.live() == {"a", "w"}


def test_a_feature_dropped_by_another_is_a_conflict_for_row_ids(tmp_path: Path) -> None:
    table = created(tmp_path, feature_rowTracking="supported")
    ours = table.log().start_transaction()
    dropped = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "domainMetadata", "invariants"]}
    table.put_foreign(1, foreign_info(operation="DROP FEATURE"), {"protocol": dropped})
    with pytest.raises(ProtocolChangedException, match="rowTracking"):
        ours.commit([add("a", records=3)], Operation.write())


def test_tables_whose_row_tracking_is_suspended_get_no_ids_in_a_race(tmp_path: Path) -> None:
    table = created(tmp_path, feature_rowTracking="supported")
    suspend(table)
    ours = table.log().start_transaction()
    table.commit(add("w", records=3))
    assert ours.commit([add("a", records=3)], Operation.write()) == 3
    assert [next(iter(line)) for line in table.lines(3)] == ["commitInfo", "add"]
    assert "baseRowId" not in table.lines(3)[1]["add"]


@pytest.mark.parametrize("text", ["{}", "not JSON"])
def test_a_mark_that_cannot_be_understood_stops_the_commit(tmp_path: Path, text: str) -> None:
    table = created(tmp_path, feature_rowTracking="supported")
    ours = table.log().start_transaction()
    broken = {"domain": "delta.rowTracking", "configuration": text, "removed": False}
    table.put_foreign(1, foreign_info(), {"domainMetadata": broken})
    with pytest.raises(DeltaLogCorruptedException, match="high-water mark"):
        ours.commit([add("a", records=3)], Operation.write())
    assert table.versions() == [0, 1]


@pytest.mark.parametrize("stats", ["", "no JSON", '{"numRecords":"x"}'])
def test_statistics_that_do_not_tell_the_rows(tmp_path: Path, stats: str) -> None:
    table = created(tmp_path, feature_rowTracking="supported")
    with pytest.raises(Exception, match="numRecords"):
        table.commit(add("a", stats=stats))


# -- versions that the preview of type widening notes in the schema -----------------------------------------------------------


def test_type_changes_follow_the_version_of_the_commit(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.feature.typeWidening-preview": "supported"})
    ours = table.log().start_transaction()
    table.commit(add("w"))

    def schema(new: int) -> str:
        changes = [
            {"fromType": "byte", "toType": "short", "tableVersion": 0},
            {"fromType": "short", "toType": "integer", "tableVersion": new},
        ]
        field = {"name": "value", "type": "integer", "nullable": True, "metadata": {"delta.typeChanges": changes}}
        return json.dumps({"type": "struct", "fields": [field]})

    ours.commit([metadata(schema_string=schema(1))], Operation("CHANGE COLUMN"))
    stored = next(line["metaData"] for line in table.lines(2) if "metaData" in line)
    assert json.loads(stored["schemaString"]) == json.loads(schema(2))


def test_mapping_that_is_switched_off_but_still_in_the_schema(tmp_path: Path) -> None:
    table = created(tmp_path, columnMapping_mode="name")
    before = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    table.put_foreign(1, foreign_info(), {"metaData": {**before, "configuration": {}}})
    assert obstacle({"columnMapping"}, table.log().snapshot) == "the columns are mapped"
