"""Every operation of Delta: its name, parameters, metrics and what the engine must know of it.

The expected values are those that Delta Spark 4.4 gives; ``tests/delta_spark/test_operations.py`` asks it.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from airflow_delta.transaction import Operation
from airflow_delta.transaction.operation_kinds import KINDS

COLUMN = {"name": "v", "type": "integer", "nullable": True, "metadata": {}}
COLUMN_TEXT = '{"name":"v","type":"integer","nullable":true,"metadata":{}}'
TABLE = {"partitionBy": "[]", "clusterBy": "[]", "description": None, "isManaged": "false", "properties": "{}"}

CASES: list[tuple[Operation, str, dict[str, Any]]] = [
    (Operation.write(), "WRITE", {"mode": "Append", "partitionBy": "[]"}),
    (Operation.write("errorifexists"), "WRITE", {"mode": "ErrorIfExists", "partitionBy": "[]"}),
    (
        Operation.write("OVERWRITE", ["p"], predicate="p = 'c'", can_merge_schema=True),
        "WRITE",
        {"mode": "Overwrite", "partitionBy": '["p"]', "predicate": "p = 'c'", "canMergeSchema": True},
    ),
    (
        Operation.write("overwrite", dynamic_partition_overwrite=True, can_overwrite_schema=True),
        "WRITE",
        {"mode": "Overwrite", "partitionBy": "[]", "isDynamicPartitionOverwrite": True, "canOverwriteSchema": True},
    ),
    (
        Operation.write("overwrite", replace_on="(t.id = s.id)"),
        "WRITE",
        {"mode": "Overwrite", "partitionBy": "[]", "replaceOnCond": "(t.id = s.id)"},
    ),
    (
        Operation.write("overwrite", replace_using=["a", "b"]),
        "WRITE",
        {"mode": "Overwrite", "partitionBy": "[]", "replaceUsingCols": "(a, b)"},
    ),
    (
        Operation.streaming_update("Complete", "q", 7),
        "STREAMING UPDATE",
        {"outputMode": "Complete", "queryId": "q", "epochId": "7"},
    ),
    (Operation.delete(["(v = 11)"]), "DELETE", {"predicate": '["(v = 11)"]'}),
    (Operation.truncate(), "TRUNCATE", {}),
    (Operation.update(), "UPDATE", {"predicate": "[]"}),
    (
        Operation.merge(None, not_matched=[{"predicate": "x", "actionType": "insert"}]),
        "MERGE",
        {
            "predicate": "[]",
            "matchedPredicates": "[]",
            "notMatchedPredicates": '[{"predicate":"x","actionType":"insert"}]',
            "notMatchedBySourcePredicates": "[]",
        },
    ),
    (
        Operation.optimize(["(p = 1)"], ["id"], auto=True),
        "OPTIMIZE",
        {"predicate": '["(p = 1)"]', "zOrderBy": '["id"]', "clusterBy": "[]", "auto": True},
    ),
    (
        Operation.optimize(cluster_by=["g"], is_full=True),
        "OPTIMIZE",
        {"predicate": "[]", "zOrderBy": "[]", "clusterBy": '["g"]', "auto": False, "isFull": True},
    ),
    (Operation.reorg(), "REORG", {"predicate": "[]", "applyPurge": True}),
    (Operation.compute_stats(), "COMPUTE STATS", {"predicate": "[]"}),
    (Operation.restore(timestamp="2026-01-01"), "RESTORE", {"version": None, "timestamp": "2026-01-01"}),
    (
        Operation.convert(3, ["p"], collect_stats=False, catalog_table="c.t", source_format="parquet"),
        "CONVERT",
        {"numFiles": 3, "partitionedBy": '["p"]', "collectStats": False, "catalogTable": "c.t", "sourceFormat": "parquet"},
    ),
    (Operation.clone("delta.`/s`", 4), "CLONE", {"source": "delta.`/s`", "sourceVersion": 4}),
    (
        Operation.vacuum_start(retention_check_enabled=True, default_retention_millis=5),
        "VACUUM START",
        {"retentionCheckEnabled": True, "defaultRetentionMillis": 5},
    ),
    (
        Operation.vacuum_start(retention_check_enabled=False, default_retention_millis=5, specified_retention_millis=0),
        "VACUUM START",
        {"retentionCheckEnabled": False, "defaultRetentionMillis": 5, "specifiedRetentionMillis": 0},
    ),
    (Operation.vacuum_end("FAILED"), "VACUUM END", {"status": "FAILED"}),
    (Operation("ROW TRACKING BACKFILL", {"batchId": "2"}), "ROW TRACKING BACKFILL", {"batchId": "2"}),
    (Operation("ROW TRACKING UNBACKFILL", {"batchId": "0"}), "ROW TRACKING UNBACKFILL", {"batchId": "0"}),
    (Operation("Deletion Vector Tombstones"), "Deletion Vector Tombstones", {}),
    (Operation.create_table(), "CREATE TABLE", TABLE),
    (
        Operation.create_table(["p"], as_select=True, is_managed=True, description="d", cluster_by=["g"]),
        "CREATE TABLE AS SELECT",
        {**TABLE, "partitionBy": '["p"]', "isManaged": "true", "description": "d", "clusterBy": '["g"]'},
    ),
    (Operation.replace_table(), "REPLACE TABLE", TABLE),
    (Operation.replace_table(as_select=True), "REPLACE TABLE AS SELECT", TABLE),
    (Operation.replace_table(or_create=True), "CREATE OR REPLACE TABLE", TABLE),
    (
        Operation.replace_table(
            or_create=True,
            as_select=True,
            predicate="pp",
            dynamic_partition_overwrite=True,
            can_overwrite_schema=True,
            can_merge_schema=True,
            is_v1_save_as_table=True,
        ),
        "CREATE OR REPLACE TABLE AS SELECT",
        {
            **TABLE,
            "predicate": "pp",
            "isDynamicPartitionOverwrite": True,
            "canOverwriteSchema": True,
            "canMergeSchema": True,
            "isV1SaveAsTableOverwrite": True,
        },
    ),
    (Operation.set_table_properties({"x": "y"}), "SET TBLPROPERTIES", {"properties": '{"x":"y"}'}),
    (
        Operation.unset_table_properties(["x"], if_exists=True),
        "UNSET TBLPROPERTIES",
        {"properties": '["x"]', "ifExists": True},
    ),
    (
        Operation.add_columns([{"column": COLUMN, "position": "AFTER id"}]),
        "ADD COLUMNS",
        {"columns": f'[{{"column":{COLUMN_TEXT},"position":"AFTER id"}}]'},
    ),
    (Operation.drop_columns(["o2", "n.b"]), "DROP COLUMNS", {"columns": '["o2","n.b"]'}),
    (Operation.rename_column("o", "o2"), "RENAME COLUMN", {"oldColumnPath": "o", "newColumnPath": "o2"}),
    (Operation.change_column(COLUMN), "CHANGE COLUMN", {"column": COLUMN_TEXT}),
    (Operation.change_column(COLUMN, "FIRST"), "CHANGE COLUMN", {"column": COLUMN_TEXT, "position": "FIRST"}),
    (Operation.change_columns([COLUMN]), "CHANGE COLUMNS", {"columns": f"[{COLUMN_TEXT}]"}),
    (Operation.replace_columns([COLUMN]), "REPLACE COLUMNS", {"columns": f"[{COLUMN_TEXT}]"}),
    (Operation("SET COMMENT", {"columns": [COLUMN]}), "SET COMMENT", {"columns": f"[{COLUMN_TEXT}]"}),
    (
        Operation(
            "UPDATE SCHEMA",
            {"oldSchema": {"type": "struct", "fields": []}, "newSchema": {"type": "struct", "fields": [COLUMN]}},
        ),
        "UPDATE SCHEMA",
        {"oldSchema": '{"type":"struct","fields":[]}', "newSchema": f'{{"type":"struct","fields":[{COLUMN_TEXT}]}}'},
    ),
    (Operation.add_constraint("pos", "v > - 10"), "ADD CONSTRAINT", {"name": "pos", "expr": "v > - 10"}),
    (Operation.drop_constraint("pos", "v > 1"), "DROP CONSTRAINT", {"name": "pos", "expr": "v > 1", "existed": "true"}),
    (Operation.drop_constraint("nope"), "DROP CONSTRAINT", {"name": "nope", "existed": "false"}),
    (Operation.cluster_by(["a", "b"], []), "CLUSTER BY", {"oldClusteringColumns": "a,b", "newClusteringColumns": ""}),
    (
        Operation("UPGRADE PROTOCOL", {"newProtocol": {"minReaderVersion": 1, "minWriterVersion": 4}}),
        "UPGRADE PROTOCOL",
        {"newProtocol": '{"minReaderVersion":1,"minWriterVersion":4}'},
    ),
    (Operation.drop_feature("f"), "DROP FEATURE", {"featureName": "f", "truncateHistory": False}),
    (Operation("REMOVE COLUMN MAPPING"), "REMOVE COLUMN MAPPING", {}),
    (
        Operation("REORG TABLE UPGRADE UNIFORM", {"properties": {"x": "y"}}),
        "REORG TABLE UPGRADE UNIFORM",
        {"properties": '{"x":"y"}'},
    ),
    (
        Operation("DOMAIN METADATA CLEANUP", {"domainMetadataRemovedCount": 1}),
        "DOMAIN METADATA CLEANUP",
        {"domainMetadataRemovedCount": 1},
    ),
    (
        Operation("OPTIMIZE CHECKPOINT", {"incremental": True, "triggerName": "x"}),
        "OPTIMIZE CHECKPOINT",
        {"incremental": True, "triggerName": "x"},
    ),
    (Operation.manual_update(), "Manual Update", {}),
    (Operation("Empty Commit"), "Empty Commit", {}),
]


@pytest.mark.parametrize(("operation", "name", "parameters"), CASES, ids=[f"{i} {case[1]}" for i, case in enumerate(CASES)])
def test_name_and_parameters(operation: Operation, name: str, parameters: dict[str, Any]) -> None:
    assert type(operation) is Operation
    assert operation.name == name
    encoded = operation.encoded_parameters()
    assert encoded == parameters
    assert {key: type(value) for key, value in encoded.items()} == {key: type(value) for key, value in parameters.items()}


def test_the_table_names_every_operation_with_its_parameters() -> None:
    found: dict[str, set[str]] = {}
    for _, name, parameters in CASES:
        found.setdefault(name, set()).update(parameters)
    del found["SET COMMENT"]  # as any change of columns' metadata may be called
    assert found.keys() == KINDS.keys()
    for name, parameters in found.items():
        table = set(KINDS[name].parameters)
        # One of the cases has all parameters of the operations that replace a table.
        assert parameters <= table if "REPLACE TABLE" in name else parameters == table, name


def names(*, changes_data: bool | None = None, **flags: bool) -> set[str]:
    found = set(KINDS)
    if changes_data is not None:
        found = {name for name in found if Operation(name).changes_data is changes_data}
    for flag, value in flags.items():
        found = {name for name in found if getattr(Operation(name), flag) is value}
    return found


def test_flags() -> None:
    assert names(changes_data=True) == {
        "WRITE",
        "STREAMING UPDATE",
        "DELETE",
        "TRUNCATE",
        "CONVERT",
        "MERGE",
        "UPDATE",
        "CREATE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "RESTORE",
        "CLONE",
    }
    assert names(may_change_partition_columns=True) == {
        "CREATE TABLE",
        "CREATE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "RENAME COLUMN",
        "CLONE",
        "Manual Update",
    }
    assert names(checks_loose_bounds=False) == {
        "Manual Update",
        "COMPUTE STATS",
        "RESTORE",
        "CLONE",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "OPTIMIZE CHECKPOINT",
    }
    assert names(updates_in_place=True) == {
        "COMPUTE STATS",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "DROP FEATURE",
    }


REPLACED = {"numFiles", "numOutputBytes", "numOutputRows", "numRemovedFiles", "numRemovedBytes"}


@pytest.mark.parametrize(
    ("operation", "allowed"),
    [
        (Operation.write(), {"numFiles", "numOutputBytes", "numOutputRows"}),
        (Operation.write("overwrite"), REPLACED),
        (
            Operation.write("overwrite", predicate="x"),
            REPLACED | {"numAddedChangeFiles", "numDeletedRows", "numCopiedRows"},
        ),
        (
            Operation.write("overwrite", replace_using=["a"]),
            REPLACED | {"numAddedChangeFiles", "numDeletedRows", "numCopiedRows"},
        ),
        (Operation.truncate(), {"numRemovedFiles", "executionTimeMs"}),
        (Operation.create_table(), set()),
        (Operation.replace_table(as_select=True), REPLACED),
        (Operation.set_table_properties({}), set()),
        (Operation.manual_update(), set()),
    ],
)
def test_metrics_that_an_operation_does_not_have_are_dropped(operation: Operation, allowed: set[str]) -> None:
    everything = dict.fromkeys(sorted({name for kind in KINDS.values() for name in kind.metrics}), 1)
    assert set(operation.with_metrics(everything).encoded_metrics()) == allowed


def test_an_operation_that_delta_does_not_have_keeps_its_metrics() -> None:
    operation = Operation("NIGHTLY", {"source": "x"}, {"rows": 3, "unknown": None})
    assert operation.encoded_metrics() == {"rows": "3"}
    assert not operation.changes_data
    assert not operation.may_change_partition_columns
    assert operation.checks_loose_bounds


def test_an_operation_is_a_value() -> None:
    operation = Operation.write(metrics={"numFiles": 1})
    assert pickle.loads(pickle.dumps(operation)) == operation == copy.deepcopy(operation)
    assert operation.with_metrics({"numOutputRows": 2}).encoded_metrics() == {"numFiles": "1", "numOutputRows": "2"}
    assert operation.encoded_metrics() == {"numFiles": "1"}
    with pytest.raises(AttributeError):
        operation.name = "other"  # type: ignore[misc]
