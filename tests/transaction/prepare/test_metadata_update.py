"""From the metadata that a caller sets to what is committed: properties, defaults, column mapping, protocol, row tracking."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
)
from airflow_delta.log.actions.actions import DeletionVectorDescriptor, DomainMetadata, Metadata, Protocol
from airflow_delta.log.features import column_mapping
from airflow_delta.log.features.protocol import features
from airflow_delta.log.schema.types import parse_schema
from airflow_delta.transaction import Operation
from airflow_delta.transaction.prepare.metadata_update import MetadataUpdate, update_metadata, with_global_config_defaults
from airflow_delta.transaction.prepare.prepare import TableState
from support import actions
from support.actions import add, column
from support.table import Table

LEGACY = Protocol(min_reader_version=1, min_writer_version=2)


A, B = column("a"), column("b", "string")


def metadata(*columns: dict[str, Any], **given: Any) -> Metadata:
    return actions.metadata(*(columns or (A, B)), **given)


def protocol(*names: str) -> Protocol:
    return Protocol(min_reader_version=3, min_writer_version=7, reader_features=[], writer_features=sorted(names))


def on_new(given: Metadata, **options: Any) -> MetadataUpdate:
    return update_metadata(TableState(table="s3://t", read_version=-1, metadata=None, protocol=None), given, **options)


def on(old: Metadata, given: Metadata, *, has: Protocol = LEGACY, **options: Any) -> MetadataUpdate:
    return update_metadata(TableState(table="s3://t", read_version=4, metadata=old, protocol=has), given, **options)


def named(update: MetadataUpdate) -> set[str]:
    return set() if update.protocol is None else set(features(update.protocol)) - {"appendOnly", "invariants"}


# -- defaults ------------------------------------------------------------------------------------------------------------------

DEFAULTS = {"appendOnly": "true", "delta.checkpointInterval": "3", "feature.domainMetadata": "supported"}


def test_defaults_stand_under_what_the_table_sets():
    new = on_new(metadata(**{"DELTA.appendonly": "false", "x": "y"}), default_properties=DEFAULTS)
    assert new.metadata.configuration == {"delta.checkpointInterval": "3", "delta.appendOnly": "false", "x": "y"}
    assert named(new) == {"domainMetadata"}


def test_defaults_are_for_new_tables_and_those_that_take_their_place():
    old = metadata()
    assert on(old, metadata(x="y"), default_properties=DEFAULTS).metadata.configuration == {"x": "y"}
    assert "delta.checkpointInterval" in on(old, old, default_properties=DEFAULTS, creates_table=True).metadata.configuration
    assert on_new(metadata(), default_properties=DEFAULTS, ignore_default_properties=True).metadata.configuration == {}


def test_defaults_of_the_protocol_can_be_ignored():
    given = metadata(**{"delta.ignoreProtocolDefaults": "true"})
    merged = with_global_config_defaults(given, {**DEFAULTS, "minWriterVersion": "4"})
    assert set(merged.configuration) == {"delta.ignoreProtocolDefaults", "delta.appendOnly", "delta.checkpointInterval"}
    assert on_new(metadata(), default_properties={"minWriterVersion": "4"}).protocol == Protocol(
        min_reader_version=1, min_writer_version=4
    )


def test_a_wrong_default_is_refused_as_a_wrong_property_is():
    with pytest.raises(DeltaIllegalArgumentException, match="DELTA_UNKNOWN_CONFIGURATION"):
        on_new(metadata(), default_properties={"apendOnly": "true"})


# -- properties ----------------------------------------------------------------------------------------------------------------


def test_what_the_table_has_already_is_not_held_against_it():
    old = metadata(**{"delta.isolationLevel": "WriteSerializable", "delta.ofAnotherEngine": "1", "delta.constraints.c": "a > 1"})
    new = on(old, msgspec.structs.replace(old, configuration={**old.configuration, "delta.APPENDONLY": "true"}))
    assert new.metadata.configuration == {**old.configuration, "delta.appendOnly": "true"}


def test_a_constraint_comes_with_a_new_table_only():
    given = metadata(**{"delta.constraints.c": "a > 1"})
    assert on_new(given).protocol == Protocol(min_reader_version=1, min_writer_version=3)
    with pytest.raises(DeltaIllegalArgumentException, match="DELTA_ADD_CONSTRAINTS"):
        on(metadata(), given)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({}, {"delta.logRetentionDuration": "interval 1 day"}, "must not be shorter than delta.deletedFileRetentionDuration"),
        ({}, {"delta.deletedFileRetentionDuration": "interval 60 days"}, r"\(30 days\) must not be shorter"),
        ({}, {"delta.columnMapping.maxColumnId": "4"}, "DELTA_CANNOT_MODIFY_TABLE_PROPERTY"),
        ({}, {"delta.rowTracking.materializedRowIdColumnName": "x"}, "DELTA_CANNOT_MODIFY_TABLE_PROPERTY"),
        ({}, {"delta.inCommitTimestampEnablementVersion": "4"}, "DELTA_CANNOT_MODIFY_TABLE_PROPERTY"),
    ],
)
def test_properties_that_are_refused(old, new, said):
    with pytest.raises(DeltaIllegalArgumentException, match=said):
        on(metadata(**old), metadata(**old, **new))


def test_a_short_retention_that_is_there_stays():
    old = metadata(**{"delta.logRetentionDuration": "interval 1 day"})
    on(old, msgspec.structs.replace(old, configuration={**old.configuration, "x": "y"}))


# -- protocol ------------------------------------------------------------------------------------------------------------------


def test_an_upgrade_by_metadata_is_automatic_but_for_timestamp_ntz():
    assert on(metadata(), metadata(A, column("c"))).protocol is None
    assert named(on(metadata(), metadata(**{"delta.enableDeletionVectors": "true"}))) == {"deletionVectors"}
    ntz = metadata(A, B, column("t", "timestamp_ntz"))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=r"s3://t needs.*DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT"):
        on(metadata(), ntz)
    asked = msgspec.structs.replace(ntz, configuration={"delta.feature.timestampNtz": "supported"})
    assert named(on(metadata(), asked)) == {"timestampNtz"}
    assert on(metadata(), asked).metadata.configuration == {}
    assert named(on_new(ntz)) == {"timestampNtz"}


def test_versions_only_go_up_and_are_not_stored():
    up = on(metadata(), metadata(**{"delta.minWriterVersion": "4"}))
    assert up.protocol == Protocol(min_reader_version=1, min_writer_version=4)
    assert up.metadata.configuration == {}
    assert on(metadata(), metadata(**{"delta.minWriterVersion": "1"})).protocol is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("delta.minWriterVersion", "8", "1 to 7"),
        ("delta.minReaderVersion", "two", "whole number"),
        ("delta.minReaderVersion", "3", "DELTA_READ_FEATURE_PROTOCOL_REQUIRES_WRITE"),
        ("delta.feature.sparkles", "supported", "DELTA_UNSUPPORTED_FEATURES_IN_CONFIG"),
        ("delta.feature.domainMetadata", "on", "DELTA_UNSUPPORTED_FEATURE_STATUS"),
        ("delta.feature.clustering", "supported", "CLUSTERING_TABLE_FEATURE_NOT_ALLOWED"),
    ],
)
def test_protocol_properties_that_are_refused(key, value, said):
    with pytest.raises(DeltaIllegalArgumentException, match=said):
        on(metadata(), metadata(**{key: value}))


# -- schema --------------------------------------------------------------------------------------------------------------------

GENERATED = column("g", **{"delta.generationExpression": "a + 1"})
IDENTITY = column(
    "i", "long", **{"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}
)


@pytest.mark.depends("sqlglot")
def test_an_existing_table_is_not_upgraded_for_expressions_that_come_with_data():
    new = on(metadata(), metadata(A, B, GENERATED, IDENTITY))
    assert new.protocol is None
    assert json.loads(new.metadata.schema_string)["fields"][2:] == [column("g"), column("i", "long")]
    asked = {"delta.minWriterVersion": "6", "delta.minReaderVersion": "1"}
    kept = on(metadata(), metadata(A, B, GENERATED, IDENTITY, **asked))
    assert json.loads(kept.metadata.schema_string)["fields"][2:] == [GENERATED, IDENTITY]
    assert kept.protocol == Protocol(min_reader_version=1, min_writer_version=6)
    replaced = on(metadata(), metadata(A, B, GENERATED), creates_table=True)
    assert named(replaced) == {"generatedColumns"}


def test_char_and_varchar_become_string():
    new = on_new(metadata(column("c", "varchar(3)"), B))
    assert json.loads(new.metadata.schema_string)["fields"][0] == column("c", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")


def test_default_values_need_the_feature_and_are_not_added():
    given = column("a", CURRENT_DEFAULT="1", EXISTS_DEFAULT="1")
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="WRONG_COLUMN_DEFAULTS_FOR_DELTA_FEATURE_NOT_ENABLED"):
        on_new(metadata(given, B))
    new = on_new(metadata(given, B, **{"delta.feature.allowColumnDefaults": "supported"}))
    assert named(new) == {"allowColumnDefaults"}
    assert json.loads(new.metadata.schema_string)["fields"][0] == column("a", CURRENT_DEFAULT="1")
    has = protocol("allowColumnDefaults")
    on(metadata(), metadata(given, B), has=has)
    added = metadata(A, B, column("c", CURRENT_DEFAULT="1"))
    with pytest.raises(DeltaAnalysisException, match="ALTER_TABLE_ADD_COLUMN_NOT_SUPPORTED"):
        on(metadata(), added, has=has)
    on(metadata(), added, has=has, overwrites_schema=True)


def test_widened_types_are_noted_where_the_table_asks_for_it():
    wide, widening = metadata(column("a", "long"), B), {"delta.enableTypeWidening": "true"}
    old = metadata(**widening)
    new = on(old, msgspec.structs.replace(wide, configuration=widening), has=protocol("typeWidening"))
    changes = parse_schema(new.metadata.schema_string).fields[0].metadata["delta.typeChanges"]
    assert changes == [{"toType": "long", "fromType": "integer"}]
    overwritten = on(
        old, msgspec.structs.replace(wide, configuration=widening), has=protocol("typeWidening"), overwrites_schema=True
    )
    assert parse_schema(overwritten.metadata.schema_string).fields[0].metadata == {}


def test_nullability_that_no_writer_enforces():
    inner = {"type": "struct", "fields": [column("x", nullable=False)]}
    in_list = column("l", {"type": "array", "elementType": inner, "containsNull": True})
    for bad in (in_list, column("s", inner)):
        with pytest.raises(DeltaAnalysisException, match="DELTA_NESTED_NOT_NULL_CONSTRAINT"):
            on_new(metadata(A, bad))
    old = metadata(A, column("s", inner))  # Delta lets such a table be created
    on(old, msgspec.structs.replace(old, configuration={"x": "y"}))
    on_new(metadata(A, column("s", inner, nullable=False)))


def test_errors_name_table_and_version():
    with pytest.raises(DeltaAnalysisException, match=r"Metadata of table s3://t: Duplicate") as caught:
        on(metadata(), metadata(A, column("A")))
    assert (caught.value.table, caught.value.version) == ("s3://t", 4)


def test_the_change_data_feed_tells_a_new_reserved_column_from_an_old_one():
    feed = {"delta.enableChangeDataFeed": "true"}
    with pytest.raises(DeltaIllegalStateException, match="DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS"):
        on(metadata(), metadata(A, column("_change_type"), **feed))
    with pytest.raises(DeltaIllegalStateException, match="RESERVED_CDC_COLUMNS_ON_WRITE"):
        on(metadata(**feed), metadata(A, column("_change_type"), **feed))


# -- column mapping and row tracking -------------------------------------------------------------------------------------------

MODE = {"delta.columnMapping.mode": "name"}
ROW_ID, ROW_VERSION = "delta.rowTracking.materializedRowIdColumnName", "delta.rowTracking.materializedRowCommitVersionColumnName"


def test_column_mapping_is_assigned_and_lets_names_hold_anything():
    new = on_new(metadata(column("a b"), column("p;"), partition_by=["p;"], **MODE))
    assert new.metadata.configuration == {**MODE, "delta.columnMapping.maxColumnId": "2"}
    assert named(new) == {"columnMapping"}
    with pytest.raises(DeltaAnalysisException, match="DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES"):
        on_new(metadata(column("a b"), column("c")))
    with pytest.raises(DeltaAnalysisException, match="DELTA_INVALID_PARTITION_COLUMN_NAME"):
        on_new(metadata(column("a"), column("p;"), partition_by=["p;"]))


def test_metadata_that_were_completed_before_staging_come_through_unchanged():
    completed = column_mapping.assign(metadata(**MODE), None)
    assert on_new(completed).metadata == completed


def test_row_tracking_gets_names_once_and_keeps_them():
    new = on(metadata(), metadata(**{"delta.enableRowTracking": "true"}))
    assert named(new) == {"rowTracking", "domainMetadata"}
    names = {key: new.metadata.configuration[key] for key in (ROW_ID, ROW_VERSION)}
    assert re.fullmatch(r"_row-id-col-[0-9a-f-]{36}", names[ROW_ID])
    assert re.fullmatch(r"_row-commit-version-col-[0-9a-f-]{36}", names[ROW_VERSION])
    again = on(new.metadata, metadata(x="y"), has=protocol("rowTracking", "domainMetadata"), overwrites_schema=True)
    assert again.metadata.configuration == {"x": "y", **names}
    replaced = on(new.metadata, metadata(x="y"), has=protocol("rowTracking", "domainMetadata"), creates_table=True)
    assert replaced.metadata.configuration == {"x": "y", "delta.enableRowTracking": "true", **names}
    with pytest.raises(DeltaAnalysisException, match="DELTA_ADDING_COLUMN_WITH_INTERNAL_NAME_FAILED"):
        on(new.metadata, metadata(A, column(names[ROW_ID])), has=protocol("rowTracking", "domainMetadata"))


def test_a_table_that_takes_the_place_of_another_keeps_what_delta_keeps():
    kept = {"delta.enableDeletionVectors": "true", "delta.checkpointPolicy": "v2"}
    old = metadata(x="y", **kept, **{"delta.appendOnly": "true"})
    has = protocol("deletionVectors", "v2Checkpoint", "appendOnly")
    assert on(old, metadata(z="y"), has=has, creates_table=True).metadata.configuration == {"z": "y", **kept}
    own = metadata(**{"delta.checkpointPolicy": "classic"})
    assert on(old, own, has=has, creates_table=True).metadata.configuration["delta.checkpointPolicy"] == "classic"


# -- in a transaction ----------------------------------------------------------------------------------------------------------


def test_a_transaction_commits_what_the_metadata_bring_along(tmp_path):
    table = Table(tmp_path / "table")
    txn = table.log().start_transaction(default_properties={"checkpointInterval": "5"})
    txn.update_metadata_for_new_table(metadata(A, B, **MODE, **{"delta.enableRowTracking": "true"}))
    assert txn.metadata.configuration["delta.columnMapping.maxColumnId"] == "2"
    txn.commit([], Operation.create_table())
    written = next(line["metaData"] for line in table.lines(0) if "metaData" in line)
    assert written["configuration"]["delta.checkpointInterval"] == "5"
    assert set(table.log().update().metadata.configuration) >= {ROW_ID, ROW_VERSION, "delta.columnMapping.mode"}


def test_files_and_mapping_do_not_go_with_the_change_data_feed(tmp_path):
    table = Table(tmp_path / "table")
    txn = table.log().start_transaction()
    txn.update_metadata_for_new_table(metadata(A, B, **MODE, **{"delta.enableChangeDataFeed": "true"}))
    with pytest.raises(DeltaIllegalStateException, match="DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION"):
        txn.commit([add("f")], Operation.create_table())


def test_an_overwrite_of_the_schema_leaves_a_table_unclustered(tmp_path):
    table = Table(tmp_path / "table")
    has = Protocol(min_reader_version=1, min_writer_version=7, writer_features=["clustering", "domainMetadata"])
    clustered = DomainMetadata(domain="delta.clustering", configuration='{"clusteringColumns":[["a"]]}', removed=False)
    given = {"protocol": msgspec.to_builtins(has), "metaData": msgspec.to_builtins(metadata()), "domainMetadata": clustered}
    table.put_foreign(0, {"commitInfo": {}}, *({key: msgspec.to_builtins(value)} for key, value in given.items()))
    txn = table.log().start_transaction()
    with pytest.raises(DeltaError, match="DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN"):
        txn.update_metadata(metadata(B))
    txn = table.log().start_transaction()
    txn.update_metadata_for_table_overwrite(metadata(B))
    txn.commit([], Operation.manual_update())
    assert table.log().update().domain_metadata["delta.clustering"].configuration == (
        '{"clusteringColumns":[],"domainName":"delta.clustering"}'
    )


@pytest.mark.parametrize("has_vectors", [True, False])
def test_manifests_are_not_switched_on_while_files_have_deletion_vectors(tmp_path, has_vectors):
    table = Table(tmp_path / "table")
    table.create(configuration={"delta.enableDeletionVectors": "true"})
    vector = DeletionVectorDescriptor(storage_type="i", path_or_inline_dv="x", size_in_bytes=1, cardinality=1)
    stats = '{"numRecords":3,"tightBounds":false}'
    table.commit(add("f", stats=stats, deletion_vector=vector if has_vectors else None))
    txn = table.log().start_transaction()
    manifest = {"delta.compatibility.symlinkFormatManifest.enabled": "true", "delta.enableDeletionVectors": "false"}
    wanted = msgspec.structs.replace(txn.metadata, configuration=manifest)
    if has_vectors:
        with pytest.raises(DeltaAnalysisException, match=r"1 of its files have deletion vectors.*EXISTING_DELETION_VECTORS"):
            txn.update_metadata(wanted)
    else:
        txn.update_metadata(wanted)


def test_char_types_in_a_metadata_action_are_a_defect_of_the_caller(tmp_path):
    table = Table(tmp_path / "table")
    table.create()
    with pytest.raises(DeltaAssertionError, match="char or varchar"):
        table.commit(metadata(column("value", "char(3)")))


def test_metadata_among_the_actions_bring_no_feature_that_must_be_asked_for(tmp_path: Any) -> None:
    table = Table(tmp_path / "table")
    table.create()
    given = msgspec.structs.replace(
        table.log().snapshot.metadata, schema_string=metadata(column("at", "timestamp_ntz")).schema_string
    )
    with pytest.raises(DeltaUnsupportedTableFeatureException, match=r"delta\.feature\.timestampNtz"):
        table.commit(given)
    assert table.versions() == [0]
