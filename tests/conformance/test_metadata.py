"""Metadata before they are committed: rules 4.1 and 5.1 to 5.4 of Delta's engine.

What a metadata change does to the protocol is ``test_features.py``; column mapping in depth is
``log/features/test_column_mapping.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
)
from airflow_delta.log.features.properties import TableProperties
from conformance.harness import (
    DAY,
    MANUAL,
    Raises,
    Row,
    Step,
    commit,
    committed,
    created,
    delta,
    row_id,
    snapshot,
    started,
    then,
    updated,
    with_properties,
)
from support.actions import add, column, protocol, schema, vector
from support.table import Table, metadata

PART = ("part",)
LEGACY = protocol()
NEW_TABLE = "update_metadata_for_new_table"


def of(*fields: Any, partition_by: Any = (), **properties: str) -> Any:
    """Metadata of these columns."""
    given = metadata(schema_string=schema(*fields), configuration=delta(**properties))
    return msgspec.structs.replace(given, partition_columns=list(partition_by))


def new(*fields: Any, **options: Any) -> Step:
    """Set metadata of these columns for a table that is not there."""
    return updated(of(*fields, **options))


def given(*fields: Any, **options: Any) -> Step:
    """Commit metadata of these columns as an action, which takes fewer steps than setting them (5.1)."""
    return commit(of(*fields, **options))


def struct(*fields: Any) -> dict[str, Any]:
    return json.loads(schema(*fields))


def array(element: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nullable}


def mapped(name: str, kind: Any = "integer", *, number: int | None = 1, physical: str | None = "p") -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if number is not None:
        extra["delta__columnMapping__id"] = number
    if physical is not None:
        extra["delta__columnMapping__physicalName"] = physical
    return column(name, kind, **extra)


def refused(words: str, kind: type[DeltaError] = DeltaAnalysisException) -> Raises:
    return Raises(kind, words)


V = column("value")
MAPPED = {"columnMapping__mode": "name", "columnMapping__maxColumnId": "2"}
CHARACTERS = "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES"

ASSERT_METADATA = [
    Row(
        "5.3 row 1",
        "char types that were not replaced",
        [],
        given(column("c", "char(3)")),
        refused("char or varchar", DeltaAssertionError),
    ),
    Row("5.3 row 2", "one name twice", [], given(column("a"), column("a", "string")), refused("DELTA_DUPLICATE_COLUMNS_FOUND")),
    Row("5.3 row 2", "names that differ by case", [], given(column("a"), column("A")), refused("DELTA_DUPLICATE_COLUMNS_FOUND")),
    Row(
        "5.3 row 2",
        "in a struct",
        [],
        given(column("s", struct(column("a"), column("A")))),
        refused("DELTA_DUPLICATE_COLUMNS_FOUND"),
    ),
    Row(
        "5.3 row 2",
        "in structs of a list",
        [],
        given(column("s", array(struct(column("a"), column("A"))))),
        refused("DELTA_DUPLICATE_COLUMNS_FOUND"),
    ),
    Row("5.3 row 2", "one name in two structs", [], given(column("s", struct(column("a"))), column("t", struct(column("a")))), 0),
    *(
        Row("5.3 row 3", f"the character {character!r}", [], given(column(f"a{character}b"), V), refused(CHARACTERS))
        for character in " ,;{}()\n\t="
    ),
    Row("5.3 row 3", "in a struct", [], given(column("s", struct(column("a b")))), refused(CHARACTERS)),
    Row("5.3 row 3", "other characters", [], given(column("größe-1.%'"), V), 0),
    Row("5.3 row 3", "any character with column mapping", [], new(column("a b"), columnMapping__mode="name"), ...),
    Row(
        "5.3 row 4",
        "in a partition column",
        [],
        given(column("a b"), V, partition_by=["a b"]),
        refused("DELTA_INVALID_PARTITION_COLUMN_NAME"),
    ),
    Row("5.3 row 5", "a column without an id", [], given(mapped("a", number=None), **MAPPED), refused("MISSING_ID")),
    Row(
        "5.3 row 5",
        "a column without a physical name",
        [],
        given(mapped("a", physical=None), **MAPPED),
        refused("MISSING_PHYSICAL_NAME"),
    ),
    Row("5.3 row 5", "one id twice", [], given(mapped("a"), mapped("b", physical="q"), **MAPPED), refused("id 1")),
    Row(
        "5.3 row 5", "one physical name twice", [], given(mapped("a"), mapped("b", number=2), **MAPPED), refused("physical name")
    ),
    Row("5.3 row 5", "the highest id is not set", [], given(mapped("a"), columnMapping__mode="name"), refused("maxColumnId")),
    Row("5.3 row 5", "the highest id is too low", [], given(mapped("a", number=3), **MAPPED), refused("maxColumnId")),
    Row("5.3 row 7", "an interval", [], given(column("a", "interval day to second")), refused("DELTA_UNSUPPORTED_DATA_TYPES")),
    Row(
        "5.3 row 7",
        "an interval in a list",
        [],
        given(column("a", array("interval year to month"))),
        refused("DELTA_UNSUPPORTED_DATA_TYPES"),
    ),
    Row(
        "5.3 row 7",
        "a decimal of too many digits",
        [],
        given(column("a", "decimal(39,0)")),
        refused("DELTA_UNSUPPORTED_DATA_TYPES"),
    ),
    Row(
        "5.3 row 7",
        "every type that is supported",
        [],
        given(
            *(
                column(f"c{number}", kind)
                for number, kind in enumerate(
                    [
                        "void",
                        "boolean",
                        "byte",
                        "short",
                        "integer",
                        "long",
                        "float",
                        "double",
                        "string",
                        "date",
                        "timestamp",
                        "timestamp_ntz",
                        "binary",
                        "decimal(38,18)",
                    ]
                )
            ),
            column("list", array("integer")),
            column("struct", struct(V)),
            column("map", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
        ),
        0,
    ),
    Row(
        "5.3 row 9",
        "deletion vectors with manifests",
        [],
        given(V, enableDeletionVectors="true", compatibility__symlinkFormatManifest__enabled="true"),
        refused(
            "DELTA_VIOLATE_TABLE_PROPERTY_VALIDATION_FAILED.PERSISTENT_DELETION_VECTORS_WITH_INCREMENTAL_MANIFEST_GENERATION"
        ),
    ),
    Row(
        "5.3 row 9",
        "manifests where files have deletion vectors",
        [
            with_properties(enableDeletionVectors="true"),
            committed(add("a", stats='{"numRecords":5,"tightBounds":false}', deletion_vector=vector())),
        ],
        updated(metadata(configuration=delta(compatibility__symlinkFormatManifest__enabled="true"))),
        refused("EXISTING_DELETION_VECTORS_WITH_INCREMENTAL_MANIFEST_GENERATION"),
    ),
    Row(
        "5.3 row 10",
        "the name of a column of row tracking",
        [],
        given(
            column("_id"),
            enableRowTracking="true",
            rowTracking__materializedRowIdColumnName="_id",
            rowTracking__materializedRowCommitVersionColumnName="_version",
        ),
        refused("DELTA_ADDING_COLUMN_WITH_INTERNAL_NAME_FAILED"),
    ),
    Row(
        "5.3 row 10",
        "the name of a column of row tracking, in files",
        [],
        given(
            mapped("a", physical="_id"),
            **MAPPED,
            enableRowTracking="true",
            rowTracking__materializedRowIdColumnName="_id",
            rowTracking__materializedRowCommitVersionColumnName="_version",
        ),
        refused("DELTA_ADDING_COLUMN_WITH_INTERNAL_NAME_FAILED"),
    ),
]


def generated(expression: str, kind: str = "integer", name: str = "g") -> Any:
    return column(name, kind, delta__generationExpression=expression)


GENERATED = [
    Row("5.3 row 6", "from another column", [], given(V, generated("value + 1")), 0),
    Row(
        "5.3 row 6",
        "from a column that is not there",
        [],
        given(V, generated("nowhere + 1")),
        refused("DELTA_INVALID_GENERATED_COLUMN_REFERENCES"),
    ),
    Row(
        "5.3 row 6",
        "from a generated column",
        [],
        given(V, generated("value + 1"), generated("g + 1", name="h")),
        refused("DELTA_INVALID_GENERATED_COLUMN_REFERENCES"),
    ),
    Row(
        "5.3 row 6",
        "another result each time",
        [],
        given(V, generated("rand()", "double")),
        refused("DELTA_NON_DETERMINISTIC_EXPRESSION_IN_GENERATED_COLUMN"),
    ),
    Row(
        "5.3 row 6", "an aggregate", [], given(V, generated("sum(value)", "long")), refused("DELTA_AGGREGATE_IN_GENERATED_COLUMN")
    ),
    Row(
        "5.3 row 6",
        "a function of a user",
        [],
        given(V, generated("my_function(value)")),
        refused("DELTA_UDF_IN_GENERATED_COLUMN"),
    ),
    Row(
        "5.3 row 6",
        "another type than the column's",
        [],
        given(column("t", "timestamp"), generated("cast(t as date)", "string")),
        refused("DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH"),
    ),
    Row("5.3 row 6", "the type of the column", [], given(column("t", "timestamp"), generated("cast(t as date)", "date")), 0),
]

FEED = {"enableChangeDataFeed": "true"}
CDC_NAMES = ("_change_type", "_commit_version", "_commit_timestamp")

OTHER_CHECKS = [
    *(
        Row(
            "5.4",
            f"the change data feed and a column {name}",
            [],
            given(column(name, "string"), V, **FEED),
            refused("DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS", DeltaIllegalStateException),
        )
        for name in CDC_NAMES
    ),
    Row(
        "5.4",
        "a reserved column comes while the feed is on",
        [with_properties(**FEED)],
        given(column("_change_type", "string"), V, **FEED),
        refused("RESERVED_CDC_COLUMNS_ON_WRITE", DeltaIllegalStateException),
    ),
    Row("5.4", "reserved names while the feed is off", [], given(column("_change_type", "string"), V), 0),
    Row("5.4", "reserved names below the top", [], given(column("s", struct(column("_change_type", "string"))), **FEED), 0),
    Row("5.4", "a partition column that is not in the schema", [], given(V, partition_by=["nowhere"]), refused("'nowhere'")),
    *(
        Row(
            "3.4",
            f"a partition column of the type {kind if isinstance(kind, str) else kind['type']}",
            [],
            given(V, column("p", kind), partition_by=["p"]),
            refused("DELTA_INVALID_PARTITION_COLUMN_TYPE"),
        )
        for kind in (
            array("integer"),
            struct(V),
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        )
    ),
    Row(
        "3.4",
        "all columns are partition columns",
        [],
        given(V, partition_by=["value"]),
        refused("DELTA_NON_PARTITION_COLUMN_ABSENT"),
    ),
    Row(
        "5.4",
        "a constraint by a property",
        [created()],
        updated(metadata(configuration={"delta.constraints.positive": "value > 0"})),
        refused("DELTA_ADD_CONSTRAINTS", DeltaIllegalArgumentException),
    ),
    Row(
        "5.4",
        "a property that nobody may set",
        [created()],
        updated(metadata(configuration=delta(columnMapping__maxColumnId="5"))),
        refused("DELTA_CANNOT_MODIFY_TABLE_PROPERTY", DeltaIllegalArgumentException),
    ),
    Row("3.6", "statistics for a column that is not there", [], new(V, dataSkippingStatsColumns="nowhere"), refused("nowhere")),
    Row(
        "3.6",
        "statistics for a partition column",
        [],
        new(V, column("p"), partition_by=["p"], dataSkippingStatsColumns="p"),
        refused("DELTA_COLUMN_DATA_SKIPPING_NOT_SUPPORTED_PARTITIONED_COLUMN"),
    ),
    Row(
        "3.6",
        "statistics for a list",
        [],
        new(V, column("l", array("integer")), dataSkippingStatsColumns="l"),
        refused("DELTA_COLUMN_DATA_SKIPPING_NOT_SUPPORTED_TYPE"),
    ),
    Row(
        "3.6",
        "statistics for columns in any case, in backticks, of structs",
        [],
        new(V, column("s", struct(column("a"))), dataSkippingStatsColumns="VALUE, `s`"),
        ...,
    ),
]


def schema_of(step: Step) -> Step:
    """The columns that come out: name, type, metadata."""

    def run(table: Table) -> Any:
        fields = json.loads(step(table).schema_string)["fields"]
        return [(f["name"], f["type"], f["metadata"]) for f in fields]

    return run


def configuration_of(step: Step) -> Step:
    return lambda table: step(table).configuration


SESSION = {"delta.checkpointInterval": "77", "delta.enableChangeDataFeed": "true"}
IDENTITY = column("id", "long", delta__identity__start=1, delta__identity__step=1, delta__identity__allowExplicitInsert=False)


def defaults(given: Any, **options: Any) -> Step:
    return configuration_of(updated(given, default_properties=SESSION, **options))


def upgraded_by_name(table: Table) -> list[Any]:
    """Column mapping on a table that is there: physical names are those that its files have (5.2 step 5)."""
    fields = json.loads(
        updated(of(column("a"), column("b"), columnMapping__mode="name"))(table).schema_string,
    )["fields"]
    return [f["metadata"] for f in fields]


STEPS = [
    Row(
        "5.2 step 2",
        "defaults for a new table, under its own properties",
        [],
        defaults(metadata(configuration=delta(checkpointInterval="5"))),
        {**SESSION, "delta.checkpointInterval": "5"},
    ),
    Row("5.2 step 2", "none for a table that is there", [created()], defaults(metadata()), {}),
    Row(
        "5.2 step 2",
        "defaults for a table that replaces another",
        [created()],
        defaults(metadata(), method="update_metadata_for_new_table_in_replace"),
        SESSION,
    ),
    Row(
        "5.2 step 2",
        "none for an overwrite of the schema",
        [created()],
        defaults(metadata(), method="update_metadata_for_table_overwrite"),
        {},
    ),
    Row(
        "5.2 step 5",
        "none to name",
        [created(schema_string=schema(column("a"), column("b")))],
        upgraded_by_name,
        [{"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name} for number, name in ((1, "a"), (2, "b"))],
    ),
    Row(
        "5.2 step 5",
        "none to id",
        [created()],
        updated(metadata(configuration=delta(columnMapping__mode="id"))),
        refused("DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE"),
    ),
    Row(
        "5.2 step 5",
        "name to id",
        [with_properties(columnMapping__mode="name")],
        started(
            lambda t: t.update_metadata(
                msgspec.structs.replace(t.metadata, configuration={**t.metadata.configuration, "delta.columnMapping.mode": "id"})
            )
        ),
        refused("DELTA_UNSUPPORTED_COLUMN_MAPPING_MODE_CHANGE"),
    ),
    Row(
        "5.2 step 6",
        "char becomes string, and says what it was",
        [],
        schema_of(new(column("c", "char(3)"))),
        [("c", "string", {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})],
    ),
    Row(
        "5.2 step 7",
        "NOT NULL in a list",
        [],
        new(column("l", array(struct(column("a", nullable=False))))),
        refused("DELTA_NESTED_NOT_NULL_CONSTRAINT"),
    ),
    Row(
        "5.2 step 7",
        "NOT NULL in a struct that is NOT NULL",
        [],
        new(column("s", struct(column("a", nullable=False)), nullable=False)),
        ...,
    ),
    Row(
        "5.2 step 8",
        "lower versions are ignored",
        [created()],
        configuration_of(updated(metadata(configuration=delta(minReaderVersion="1", minWriterVersion="1")))),
        {},
    ),
    Row(
        "5.2 step 9",
        "a generation expression that comes with data",
        [created()],
        schema_of(updated(of(V, generated("value + 1")))),
        [("value", "integer", {}), ("g", "integer", {})],
    ),
    Row(
        "5.2 step 9",
        "an identity that comes with data",
        [created()],
        schema_of(updated(of(V, IDENTITY))),
        [("value", "integer", {}), ("id", "long", {})],
    ),
    Row(
        "5.2 step 11",
        "properties of the protocol are not stored",
        [],
        configuration_of(
            updated(
                metadata(
                    configuration=delta(
                        minReaderVersion="1",
                        minWriterVersion="4",
                        ignoreProtocolDefaults="true",
                        feature__domainMetadata="supported",
                    )
                )
            )
        ),
        {},
    ),
    Row(
        "5.2 step 12",
        "the names of row tracking's columns",
        [],
        lambda t: sorted(updated(metadata(configuration=delta(enableRowTracking="true")))(t).configuration),
        [
            "delta.enableRowTracking",
            "delta.rowTracking.materializedRowCommitVersionColumnName",
            "delta.rowTracking.materializedRowIdColumnName",
        ],
    ),
]


def names_kept(table: Table) -> bool:
    before = table.log().snapshot.metadata.configuration
    transaction = table.log().start_transaction()
    transaction.update_metadata(metadata(configuration={**before, "delta.appendOnly": "true"}))
    return before.items() <= transaction.metadata.configuration.items()


def written(transaction: Any) -> None:
    transaction.has_written = True
    transaction.update_metadata(metadata())


def again(method: str) -> Step:
    def use(transaction: Any) -> None:
        transaction.update_metadata(metadata())
        getattr(transaction, method)(metadata(description="2"))

    return started(use)


METHODS = (
    "update_metadata",
    NEW_TABLE,
    "update_metadata_for_new_table_in_replace",
    "update_metadata_for_table_overwrite",
)
ENTRY_POINTS = [
    *(
        Row("5.1", f"{method}: once", [created()], again(method), Raises(DeltaAssertionError, "more than once"))
        for method in METHODS
    ),
    Row("5.1", "before anything is written", [created()], started(written), Raises(DeltaAssertionError, "already written data")),
    Row("5.1", "whether it is possible at all", [created()], started(lambda t: t.can_update_metadata), True),
    *(
        Row(
            "5.1",
            f"{method}: what it marks",
            [created()],
            started(
                lambda t, method=method: (getattr(t, method)(metadata()), (t.is_creating_new_table, t.is_overwriting_schema))[1]
            ),
            marks,
        )
        for method, marks in zip(METHODS, [(False, False), (True, False), (True, False), (False, True)], strict=True)
    ),
    Row(
        "5.1",
        "a clone takes no defaults",
        [],
        started(
            lambda t: (t.update_metadata_for_clone(metadata(), LEGACY), t.metadata.configuration)[1],
            default_properties=SESSION,
        ),
        {},
    ),
    Row(
        "5.1",
        "an action brings its protocol along",
        [created()],
        then(commit(metadata(configuration=delta(**FEED))), snapshot(lambda s: s.protocol.writer_features)),
        ["appendOnly", "changeDataFeed", "invariants"],
    ),
    Row(
        "5.1",
        "an action takes no defaults",
        [created()],
        then(
            started(lambda t: t.commit([metadata()], MANUAL), default_properties=SESSION),
            snapshot(lambda s: s.metadata.configuration),
        ),
        {},
    ),
    Row("5.2 step 12", "names that were given stay", [with_properties(enableRowTracking="true")], names_kept, True),
    Row("5.1", "metadata of the transaction", [created()], started(lambda t: t.metadata == t.snapshot_metadata), True),
]


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize("row", [*ASSERT_METADATA, *GENERATED, *OTHER_CHECKS, *STEPS, *ENTRY_POINTS], ids=row_id)
def test_rule(row: Row, tmp_path: Path) -> None:
    if row.expected is ...:  # whatever comes out, it is let through
        row.when(Table(tmp_path / "table"))
        return
    row.run(tmp_path)


# -- 4.1: properties -------------------------------------------------------------------------------------------------------------

DEFAULTS: dict[str, Any] = {
    "logRetentionDuration": 30 * DAY,
    "sampleRetentionDuration": 7 * DAY,
    "checkpointRetentionDuration": 2 * DAY,
    "checkpointInterval": 10,
    "enableExpiredLogCleanup": True,
    "enableFullRetentionRollback": True,
    "dropFeatureTruncateHistory.retentionDuration": DAY,
    "deletedFileRetentionDuration": 7 * DAY,
    "randomizeFilePrefixes": False,
    "randomPrefixLength": 2,
    "appendOnly": False,
    "enableDeletionVectors": False,
    "parquet.format.version": "1.0.0",
    "enableVariantShredding": False,
    "autoOptimize": None,
    "autoOptimize.autoCompact": None,
    "autoOptimize.optimizeWrite": None,
    "dataSkippingNumIndexedCols": 32,
    "dataSkippingStatsColumns": None,
    "dataSkippingStringPrefixLength": None,
    "compatibility.symlinkFormatManifest.enabled": False,
    "checkpoint.writeStatsAsJson": True,
    "checkpoint.writeStatsAsStruct": True,
    "enableChangeDataFeed": False,
    "columnMapping.mode": "none",
    "columnMapping.maxColumnId": 0,
    "setTransactionRetentionDuration": None,
    "isolationLevel": "Serializable",
    "checkpointPolicy": "classic",
    "enableRowTracking": False,
    "rowTrackingSuspended": False,
    "universalFormat.iceberg.atomicConversion.supported": False,
    "enableIcebergCompatV1": None,
    "enableIcebergCompatV2": None,
    "enableIcebergCompatV3": None,
    "castIcebergTimeType": False,
    "ignoreIcebergBucketPartition": False,
    "enableTypeWidening": False,
    "coordinatedCommits.commitCoordinator-preview": None,
    "coordinatedCommits.commitCoordinatorConf-preview": None,
    "coordinatedCommits.tableConf-preview": None,
    "enableInCommitTimestamps": False,
    "inCommitTimestampEnablementVersion": None,
    "inCommitTimestampEnablementTimestamp": None,
    "requireCheckpointProtectionBeforeVersion": 0,
    "enableMaterializePartitionColumnsFeature": None,
    "writePartitionColumnsToParquet": None,
    "redirectReaderWriter-preview": None,
    "redirectWriterOnly-preview": None,
}


@pytest.mark.parametrize("key", DEFAULTS)
def test_default(key: str) -> None:
    assert TableProperties({}).get(key) == DEFAULTS[key]


def of_property(key: str, value: str) -> Step:
    return configuration_of(updated(metadata(configuration={key: value})))


PROPERTIES = [
    # property, value, what is stored; an error's words
    ("delta.checkpointInterval", "0", refused("checkpointInterval", DeltaIllegalArgumentException)),
    ("delta.checkpointInterval", "ten", refused("checkpointInterval", DeltaIllegalArgumentException)),
    ("delta.randomPrefixLength", "0", refused("randomPrefixLength", DeltaIllegalArgumentException)),
    ("delta.dataSkippingNumIndexedCols", "-2", refused("dataSkippingNumIndexedCols", DeltaIllegalArgumentException)),
    ("delta.dataSkippingNumIndexedCols", "-1", {"delta.dataSkippingNumIndexedCols": "-1"}),
    ("delta.dataSkippingStringPrefixLength", "0", {"delta.dataSkippingStringPrefixLength": "0"}),
    ("delta.appendOnly", "maybe", refused("appendOnly", DeltaIllegalArgumentException)),
    ("delta.checkpointPolicy", "v3", refused("checkpointPolicy", DeltaIllegalArgumentException)),
    ("delta.columnMapping.mode", "number", refused("columnMapping.mode", DeltaIllegalArgumentException)),
    ("delta.isolationLevel", "WriteSerializable", refused("isolationLevel", DeltaIllegalArgumentException)),
    ("delta.isolationLevel", "Serializable", {"delta.isolationLevel": "Serializable"}),
    ("delta.logRetentionDuration", "interval 1 month", refused("logRetentionDuration", DeltaIllegalArgumentException)),
    ("delta.logRetentionDuration", "interval -1 days", refused("logRetentionDuration", DeltaIllegalArgumentException)),
    ("delta.logRetentionDuration", "interval 60 days", {"delta.logRetentionDuration": "interval 60 days"}),
    ("delta.logRetentionDuration", "interval 1 day", refused("deletedFileRetentionDuration", DeltaIllegalArgumentException)),
    ("delta.feature.domainMetadata", "perhaps", refused("DELTA_UNSUPPORTED_FEATURE_STATUS", DeltaIllegalArgumentException)),
    ("delta.nonsense", "1", refused("DELTA_UNKNOWN_CONFIGURATION", DeltaIllegalArgumentException)),
    ("DELTA.APPENDONLY", "true", {"delta.appendOnly": "true"}),
    ("anything else", "1", {"anything else": "1"}),
]


@pytest.mark.parametrize(("key", "value", "expected"), PROPERTIES, ids=[f"{key}={value}" for key, value, _ in PROPERTIES])
def test_property(key: str, value: str, expected: Any, tmp_path: Path) -> None:
    Row("4.1", key, [], of_property(key, value), expected).run(tmp_path)
