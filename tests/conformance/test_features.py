"""Table features: rules 2.3 and 3.10 of Delta's engine, as a transaction meets them.

Rows of data on tables with these features are ``delta_spark/test_writes.py`` and ``delta_spark/test_scans.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import (
    DeltaError,
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions.actions import Metadata, Protocol
from airflow_delta.log.features.registry import FEATURES
from airflow_delta.transaction import Operation
from conformance.harness import (
    Raises,
    Row,
    Step,
    commit,
    created,
    delta,
    protocol_of,
    row_id,
    snapshot,
    started,
    then,
    updated,
    with_properties,
)
from support.actions import add, column, listed, schema
from support.table import Table, metadata


@dataclass(frozen=True)
class FeatureRow:
    """A line of the table of features.

    :param name: as the protocol spells it.
    :param reader: readers must know it.
    :param legacy: the versions that imply it.
    :param brought_by: metadata that bring it to a new table; ``None`` when only its name does.
    :param upgrades: whether they bring it to a table that is there, too.
    :param requires: what it brings along.
    :param fails_concurrent: a writer that did not know of it may have broken it (2.3).
    """

    name: str
    reader: bool
    legacy: tuple[int, int] | None
    brought_by: Metadata | None
    upgrades: bool = True
    requires: tuple[str, ...] = ()
    fails_concurrent: bool = True


def by(**properties: str) -> Metadata:
    return metadata(configuration=delta(**properties))


def of(**extra: Any) -> Metadata:
    kind = extra.pop("kind", "integer")
    return metadata(schema_string=schema(column("value", kind, **extra), column("other")))


GENERATED = of(delta__generationExpression="other + 1")
IDENTITY = of(kind="long", delta__identity__start=1, delta__identity__step=1, delta__identity__allowExplicitInsert=False)
NOT_NULL = metadata(schema_string=schema(column("value", nullable=False)))

TABLE = [
    FeatureRow("appendOnly", False, (1, 2), by(appendOnly="true"), fails_concurrent=False),
    FeatureRow("invariants", False, (1, 2), NOT_NULL),
    FeatureRow("checkConstraints", False, (1, 3), by(constraints__positive="value > 0")),
    FeatureRow("changeDataFeed", False, (1, 4), by(enableChangeDataFeed="true"), fails_concurrent=False),
    FeatureRow("generatedColumns", False, (1, 4), GENERATED),
    FeatureRow("columnMapping", True, (2, 5), by(columnMapping__mode="name"), fails_concurrent=False),
    FeatureRow("identityColumns", False, (1, 6), IDENTITY),
    FeatureRow("timestampNtz", True, None, of(kind="timestamp_ntz"), upgrades=False, fails_concurrent=False),
    FeatureRow("deletionVectors", True, None, by(enableDeletionVectors="true"), fails_concurrent=False),
    FeatureRow("rowTracking", False, None, by(enableRowTracking="true"), requires=("domainMetadata",), fails_concurrent=False),
    FeatureRow("domainMetadata", False, None, None, fails_concurrent=False),
    FeatureRow("clustering", False, None, None, requires=("domainMetadata",)),
    FeatureRow("allowColumnDefaults", False, None, None),
    FeatureRow("v2Checkpoint", True, None, by(checkpointPolicy="v2"), fails_concurrent=False),
    FeatureRow("inCommitTimestamp", False, None, by(enableInCommitTimestamps="true"), fails_concurrent=False),
    FeatureRow("vacuumProtocolCheck", True, None, None, fails_concurrent=False),
    FeatureRow("typeWidening", True, None, by(enableTypeWidening="true")),
    FeatureRow("variantType", True, None, of(kind="variant")),
    FeatureRow("variantType-preview", True, None, None),
    FeatureRow("checkpointProtection", False, None, None),
]
# Known by their rules, and refused for writing once they are in use.
UNUSED_ONLY = [
    FeatureRow("variantShredding", True, None, by(enableVariantShredding="true"), requires=("variantType",)),
    FeatureRow("variantShredding-preview", True, None, by(enableVariantShredding="true")),
    FeatureRow(
        "icebergCompatV1", False, None, by(enableIcebergCompatV1="true"), requires=("columnMapping",), fails_concurrent=False
    ),
    FeatureRow(
        "icebergCompatV2", False, None, by(enableIcebergCompatV2="true"), requires=("columnMapping",), fails_concurrent=False
    ),
    FeatureRow(
        "icebergCompatV3",
        False,
        None,
        by(enableIcebergCompatV3="true"),
        requires=("columnMapping", "rowTracking"),
        fails_concurrent=False,
    ),
    FeatureRow(
        "coordinatedCommits-preview",
        False,
        None,
        by(**{"coordinatedCommits__commitCoordinator-preview": "c"}),
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
    ),
    FeatureRow("materializePartitionColumns", False, None, by(enableMaterializePartitionColumnsFeature="true")),
    FeatureRow("redirectWriterOnly-preview", False, None, by(**{"redirectWriterOnly-preview": "{}"})),
]
# Refused wherever they are listed.
REFUSED = [
    FeatureRow("catalogManaged", True, None, None, requires=("inCommitTimestamp", "vacuumProtocolCheck"), fails_concurrent=False),
    FeatureRow("geospatial", True, None, None),
    FeatureRow("redirectReaderWriter-preview", True, None, by(**{"redirectReaderWriter-preview": "{}"})),
]
EVERY = [*TABLE, *UNUSED_ONLY, *REFUSED]


def feature_id(row: FeatureRow) -> str:
    return row.name


def has(protocol: Protocol) -> set[str]:
    """The features of a protocol, also of one that only has versions."""
    implied = {
        row.name
        for row in TABLE
        if row.legacy and protocol.min_writer_version < 7 and row.legacy[1] <= protocol.min_writer_version
    }
    return implied | set(protocol.writer_features or [])


@pytest.mark.parametrize("row", EVERY, ids=feature_id)
def test_facts(row: FeatureRow) -> None:
    ours = FEATURES[row.name]
    assert (ours.reader, ours.legacy, set(ours.requires)) == (row.reader, row.legacy, set(row.requires))
    assert ours.fail_concurrent_transactions_at_upgrade is row.fails_concurrent


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize("row", [row for row in TABLE if row.brought_by is not None], ids=feature_id)
def test_a_new_table_gets_the_feature_that_its_metadata_use(row: FeatureRow, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    transaction = table.log().start_transaction()
    transaction.update_metadata_for_new_table(row.brought_by)
    transaction.commit([], Operation.create_table())
    protocol = table.log().snapshot.protocol
    assert {row.name, *row.requires} <= has(protocol)
    assert (protocol.min_reader_version == 3) is (row.reader and row.legacy is None)
    assert (protocol.reader_features is not None) is (protocol.min_reader_version == 3)
    assert (protocol.writer_features is not None) is (protocol.min_writer_version == 7)


@pytest.mark.depends("sqlglot")
@pytest.mark.parametrize("row", [row for row in TABLE if row.brought_by is not None], ids=feature_id)
def test_an_existing_table_is_upgraded(row: FeatureRow, tmp_path: Path) -> None:
    """A constraint or an expression comes as an action, as ALTER TABLE commits it."""
    table = Table(tmp_path / "table")
    table.create(schema_string=schema(column("value"), column("other")))
    assert has(table.log().snapshot.protocol) == {"appendOnly", "invariants"}
    given = row.brought_by
    assert given is not None

    def change() -> None:
        transaction = table.log().start_transaction()
        if row.name in ("checkConstraints", "generatedColumns", "identityColumns"):
            transaction.commit([given], Operation.set_table_properties({}))
        else:
            transaction.update_metadata(given)
            transaction.commit([], Operation.set_table_properties({}))

    if row.upgrades:
        change()
        assert {row.name, *row.requires} <= has(table.log().snapshot.protocol)
    else:
        with pytest.raises(DeltaUnsupportedTableFeatureException, match="DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT"):
            change()


@pytest.mark.parametrize("row", [row for row in TABLE if FEATURES[row.name].settable], ids=feature_id)
def test_a_feature_can_be_asked_for_by_name(row: FeatureRow, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create()
    transaction = table.log().start_transaction()
    transaction.update_metadata(metadata(configuration={f"delta.feature.{row.name}": "supported"}))
    transaction.commit([], Operation.set_table_properties({}))
    snapshot = table.log().snapshot
    assert {row.name, *row.requires} <= has(snapshot.protocol)
    stored = [key for key in snapshot.metadata.configuration if key.startswith("delta.feature.")]
    assert stored == [], "the property itself is not stored"


def listing(row: FeatureRow) -> dict[str, Any]:
    """The protocol of another engine's table, with this feature and what it requires."""
    names = {row.name, *row.requires, *(more for name in row.requires for more in FEATURES[name].requires)}
    readers = sorted(name for name in names if FEATURES[name].reader)
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if readers else 1,
        "minWriterVersion": 7,
        "writerFeatures": sorted({*names, "appendOnly", "invariants"}),
    }
    return {"protocol": {**protocol, "readerFeatures": readers} if readers else protocol}


def foreign(schema: str, **more: Any) -> dict[str, Any]:
    meta = {"id": "m", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}}
    return {"metaData": {**meta, "schemaString": schema, **more}}


@pytest.mark.parametrize("row", UNUSED_ONLY, ids=feature_id)
def test_a_feature_that_is_listed_and_unused_is_written(row: FeatureRow, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.put_foreign(0, listing(row), foreign(schema(column("value"), column("other"))))
    log = table.log()
    counted = add("a", stats='{"numRecords":1}')
    assert log.start_transaction().commit([counted], Operation.write("Append")) == 1
    log.checkpoint()
    assert row.name in has(table.log().snapshot.protocol)


@pytest.mark.parametrize("row", UNUSED_ONLY, ids=feature_id)
def test_the_same_feature_is_refused_once_it_is_used(row: FeatureRow, tmp_path: Path) -> None:
    """By another engine's metadata, by our own, and by an ALTER TABLE."""
    used = row.brought_by
    assert used is not None
    there = Table(tmp_path / "there")
    there.put_foreign(0, listing(row), foreign(used.schema_string, configuration=used.configuration))
    with pytest.raises(DeltaUnsupportedTableFeatureException):
        there.log().start_transaction()
    table = Table(tmp_path / "later")
    table.put_foreign(0, listing(row), foreign(schema(column("value"), column("other"))))
    for as_action in (True, False):
        transaction = table.log().start_transaction()
        with pytest.raises(DeltaError) as caught:
            _alter(transaction, used, as_action=as_action)
        assert isinstance(caught.value, DeltaUnsupportedTableFeatureException) or "columnMapping" in str(caught.value)
    assert table.log().snapshot.version == 0


def _alter(transaction: Any, used: Metadata, *, as_action: bool) -> None:
    if not as_action:
        transaction.update_metadata(used)
    transaction.commit([used] if as_action else [], Operation.set_table_properties({}))


def test_partition_columns_that_must_be_in_the_files(tmp_path: Path) -> None:
    """The protocol asks for them as soon as the feature is listed; Delta Spark then writes them, too."""
    row = next(row for row in UNUSED_ONLY if row.name == "materializePartitionColumns")
    table = Table(tmp_path / "table")
    both = schema(column("value"), column("other"))
    table.put_foreign(0, listing(row), foreign(both, partitionColumns=["other"]))
    with pytest.raises(DeltaUnsupportedTableFeatureException, match="materializePartitionColumns"):
        table.log().start_transaction()


@pytest.mark.parametrize("row", REFUSED, ids=feature_id)
def test_what_is_refused_is_refused_by_name(row: FeatureRow, tmp_path: Path) -> None:
    """A table that lists the feature, written by another engine."""
    table = Table(tmp_path / "table")
    table.put_foreign(0, listing(row), foreign(schema(column("value"))))
    with pytest.raises(DeltaUnsupportedTableFeatureException) as caught:
        table.log().start_transaction()
    assert row.name in caught.value.features
    assert row.name in str(caught.value)


def new(**properties: str) -> Step:
    """The protocol of a new table with these properties."""

    def run(table: Table) -> Any:
        transaction = table.log().start_transaction()
        transaction.update_metadata_for_new_table(by(**properties))
        return protocol_of(transaction.protocol)

    return run


PLAIN = ["appendOnly", "invariants"]

PROTOCOLS = [
    Row("3.10", "a table that asks for nothing", [], new(), (1, 2, [], [])),
    Row(
        "3.10",
        "a feature that an old version implies with others",
        [],
        new(enableChangeDataFeed="true"),
        (1, 7, [], ["appendOnly", "changeDataFeed", "invariants"]),
    ),
    Row("3.10", "exactly what an old version implies", [], new(feature__checkConstraints="supported"), (1, 3, [], [])),
    Row("3.10", "versions that are asked for", [], new(minReaderVersion="1", minWriterVersion="4"), (1, 4, [], [])),
    Row(
        "3.10",
        "a reader version of 3 needs a writer version of 7",
        [],
        new(enableDeletionVectors="true"),
        (3, 7, ["deletionVectors"], ["appendOnly", "deletionVectors", "invariants"]),
    ),
    Row(
        "3.10",
        "what a feature requires comes along",
        [],
        new(enableRowTracking="true"),
        (1, 7, [], ["appendOnly", "domainMetadata", "invariants", "rowTracking"]),
    ),
    Row(
        "3.10",
        "a legacy reader feature by name",
        [],
        new(columnMapping__mode="name"),
        (2, 7, [], ["appendOnly", "columnMapping", "invariants"]),
    ),
    Row(
        "3.10",
        "enabled is as good as supported",
        [],
        new(feature__domainMetadata="enabled"),
        (1, 7, [], ["appendOnly", "domainMetadata", "invariants"]),
    ),
    Row(
        "3.10",
        "lower versions are ignored",
        [with_properties(enableChangeDataFeed="true")],
        started(lambda t: (t.update_metadata(by(enableChangeDataFeed="true", minWriterVersion="2")), t.new_protocol)[1]),
        None,
    ),
    Row("3.10", "a feature that nobody knows", [], new(feature__fromTheFuture="supported"), Raises(DeltaError, "fromTheFuture")),
    Row(
        "3.10",
        "a column's type brings its feature",
        [],
        lambda t: sorted(has(_created(t, of(kind="timestamp_ntz")))),
        [*PLAIN, "timestampNtz"],
    ),
    Row(
        "3.10",
        "default values never bring their feature along",
        [],
        updated(of(CURRENT_DEFAULT="7")),
        Raises(DeltaUnsupportedTableFeatureException, "allowColumnDefaults"),
    ),
    Row(
        "3.10",
        "a type that must be asked for on a table that is there",
        [created(schema_string=schema(column("other")))],
        lambda t: sorted(has(_updated(t, of(kind="timestamp_ntz"), feature__timestampNtz="supported"))),
        [*PLAIN, "timestampNtz"],
    ),
    Row(
        "3.10",
        "a superset is an upgrade",
        [created()],
        then(commit(listed(("deletionVectors",), "domainMetadata")), snapshot(lambda s: sorted(has(s.protocol)))),
        ["appendOnly", "deletionVectors", "domainMetadata", "invariants"],
    ),
    Row(
        "3.10",
        "a feature is lost by nothing but DROP FEATURE",
        [with_properties(feature__domainMetadata="supported")],
        commit(Protocol(min_reader_version=1, min_writer_version=2)),
        Raises(ProtocolDowngradeException),
    ),
    Row(
        "3.10",
        "DROP FEATURE",
        [with_properties(feature__domainMetadata="supported")],
        commit(Protocol(min_reader_version=1, min_writer_version=2), operation=Operation.drop_feature("domainMetadata")),
        1,
    ),
    Row(
        "3.10",
        "lists of features need the versions that have them",
        [created()],
        commit(Protocol(min_reader_version=3, min_writer_version=6, reader_features=[])),
        Raises(DeltaError),
    ),
    Row(
        "3.10",
        "features of readers are features of writers",
        [created()],
        commit(Protocol(min_reader_version=3, min_writer_version=7, reader_features=["deletionVectors"], writer_features=PLAIN)),
        Raises(DeltaError),
    ),
    Row(
        "3.10",
        "catalogManaged is not for a table that is there",
        [created()],
        commit(reads=lambda t: t.update_metadata(by(feature__catalogManaged="supported"))),
        Raises(DeltaError, "catalogManaged"),
    ),
    Row(
        "3.10",
        "clustering comes with CLUSTER BY, not by its name",
        [created()],
        updated(by(feature__clustering="supported")),
        Raises(DeltaIllegalArgumentException, "clustering"),
    ),
    Row(
        "3.10",
        "a legacy version that implies unused features is written",
        [],
        then(
            lambda t: t.put_foreign(0, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 6}}, _plain()), commit(add("a"))
        ),
        1,
    ),
]


def _plain() -> dict[str, Any]:
    return foreign(schema(column("value")))


def _created(table: Table, given: Metadata) -> Protocol:
    transaction = table.log().start_transaction()
    transaction.update_metadata_for_new_table(given)
    return transaction.protocol


def _updated(table: Table, given: Metadata, **properties: str) -> Protocol:
    transaction = table.log().start_transaction()
    transaction.update_metadata(Metadata(id="m", schema_string=given.schema_string, configuration=delta(**properties)))
    return transaction.protocol


@pytest.mark.parametrize("row", PROTOCOLS, ids=row_id)
def test_protocol(row: Row, tmp_path: Path) -> None:
    row.run(tmp_path)
