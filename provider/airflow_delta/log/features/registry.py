"""The table features known to this provider: what they require, what enables them, and whether they are supported.

Delta protocol, "Table Features"; the attributes follow Delta's ``TableFeature``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from airflow_delta.contract.delta_names import CONSTRAINT_PREFIX, GENERATION_EXPRESSION
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.constraints import CURRENT_DEFAULT, INVARIANTS
from airflow_delta.log.features.identity_columns import PREFIX as IDENTITY_PREFIX
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructField, StructType, parse_schema


class SchemaFacts(NamedTuple):
    """The facts about a schema that features depend on."""

    fields: tuple[StructField, ...]
    type_names: frozenset[str]


def examine(data_type: DataType) -> SchemaFacts:
    """Return the fields of a schema and the names of its types, at every depth."""
    fields: list[StructField] = []
    names: set[str] = set()

    def walk(part: DataType) -> None:
        names.add(part.name)
        if isinstance(part, StructType):
            for f in part.fields:
                fields.append(f)
                walk(f.data_type)
        elif isinstance(part, ArrayType):
            walk(part.element_type)
        elif isinstance(part, MapType):
            walk(part.key_type)
            walk(part.value_type)

    walk(data_type)
    return SchemaFacts(tuple(fields), frozenset(names))


Active = Callable[[Metadata, TableProperties, SchemaFacts], bool]


def _has_metadata(*prefixes: str) -> Active:
    return lambda _m, _p, schema: any(key.startswith(prefixes) for f in schema.fields for key in f.metadata)


def _property(key: str) -> Active:
    return lambda _m, properties, _s: bool(properties.get(key))


def _given(key: str) -> Active:
    return lambda _m, properties, _s: properties.get(key) is not None


def _type(*names: str) -> Active:
    return lambda _m, _p, schema: any(name in schema.type_names for name in names)


def _never(_metadata: Metadata, _properties: TableProperties, _schema: SchemaFacts) -> bool:
    return False


def _invariants(_metadata: Metadata, _properties: TableProperties, schema: SchemaFacts) -> bool:
    return any(not f.nullable or INVARIANTS in f.metadata for f in schema.fields)


def _constraints(metadata: Metadata, _properties: TableProperties, _schema: SchemaFacts) -> bool:
    return any(key.lower().startswith(CONSTRAINT_PREFIX) for key in metadata.configuration)


def _feed(_metadata: Metadata, properties: TableProperties, _schema: SchemaFacts) -> bool:
    return properties.enable_change_data_feed


def _mapping(_metadata: Metadata, properties: TableProperties, _schema: SchemaFacts) -> bool:
    return properties.column_mapping_mode != "none"


def _partitioned(metadata: Metadata, _properties: TableProperties, _schema: SchemaFacts) -> bool:
    return bool(metadata.partition_columns)


def _v2(_metadata: Metadata, properties: TableProperties, _schema: SchemaFacts) -> bool:
    return properties.checkpoint_policy == "v2"


_ICEBERG = "this provider does not write the Parquet files and the metadata that Iceberg readers need"
_ICEBERG_OFF = f"{_ICEBERG}; Delta Spark switches it off by SET TBLPROPERTIES ('delta.enableIcebergCompatV%s' = 'false')"
_SHREDDING = "this provider writes variants whole, not shredded: set delta.enableVariantShredding to false"
_COORDINATED = "its commits go through a commit coordinator, which this provider does not support"


@dataclass(frozen=True, slots=True)
class Feature:
    """A table feature.

    :param reader: readers must support it too.
    :param legacy: the first (reader, writer) versions that imply it, ``None`` if it can only be listed by name.
    :param active: whether the metadata uses it.
    :param active_if_listed: whether the metadata uses it as soon as the protocol lists it.
    :param supported: this provider can write tables that use it.
    :param tolerated: this provider can write tables that list it without using it.
    :param readable: this provider can read tables that list it.
    :param automatic: a metadata change that needs it upgrades an existing table.
    :param by_name_only: metadata that uses it does not add it, not even to a new table.
    :param requires: other features that it adds.
    :param stand_in: an equivalent feature; if the protocol has that, metadata does not add this one.
    :param settable: it can be requested with ``delta.feature.<name>``.
    :param fail_concurrent_transactions_at_upgrade: adding it fails concurrent transactions, which may have broken its rules.
    :param reason: why it is refused, unless it is just not implemented.
    """

    name: str
    reader: bool = False
    legacy: tuple[int, int] | None = None
    active: Active = _never
    active_if_listed: Active = _never
    supported: bool = False
    tolerated: bool = False
    readable: bool = True
    automatic: bool = True
    by_name_only: bool = False
    requires: tuple[str, ...] = ()
    stand_in: str | None = None
    settable: bool = True
    fail_concurrent_transactions_at_upgrade: bool = True
    reason: str | None = None


_FEATURES = (
    Feature(
        "appendOnly",
        legacy=(1, 2),
        active=_property("appendOnly"),
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature("invariants", legacy=(1, 2), active=_invariants, supported=True, tolerated=True),
    Feature("checkConstraints", legacy=(1, 3), active=_constraints, supported=True, tolerated=True),
    Feature(
        "changeDataFeed",
        legacy=(1, 4),
        active=_feed,
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature("generatedColumns", legacy=(1, 4), active=_has_metadata(GENERATION_EXPRESSION), supported=True, tolerated=True),
    Feature(
        "columnMapping",
        reader=True,
        legacy=(2, 5),
        active=_mapping,
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature("identityColumns", legacy=(1, 6), active=_has_metadata(IDENTITY_PREFIX), supported=True, tolerated=True),
    Feature(
        "timestampNtz",
        reader=True,
        active=_type("timestamp_ntz"),
        supported=True,
        tolerated=True,
        automatic=False,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature(
        "deletionVectors",
        reader=True,
        active=_property("enableDeletionVectors"),
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature("domainMetadata", supported=True, tolerated=True, fail_concurrent_transactions_at_upgrade=False),
    Feature(
        "vacuumProtocolCheck",
        reader=True,
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature(
        "rowTracking",
        active=_property("enableRowTracking"),
        supported=True,
        tolerated=True,
        requires=("domainMetadata",),
        fail_concurrent_transactions_at_upgrade=False,
    ),
    # Its columns are in a metadata domain, which is kept; files may be added unclustered.
    Feature("clustering", requires=("domainMetadata",), supported=True, tolerated=True, settable=False),
    Feature("allowColumnDefaults", active=_has_metadata(CURRENT_DEFAULT), supported=True, tolerated=True, by_name_only=True),
    Feature(
        "v2Checkpoint", reader=True, active=_v2, supported=True, tolerated=True, fail_concurrent_transactions_at_upgrade=False
    ),
    Feature(
        "inCommitTimestamp",
        active=_property("enableInCommitTimestamps"),
        supported=True,
        tolerated=True,
        fail_concurrent_transactions_at_upgrade=False,
    ),
    Feature(
        "typeWidening",
        reader=True,
        active=_property("enableTypeWidening"),
        supported=True,
        tolerated=True,
        stand_in="typeWidening-preview",
    ),
    Feature("typeWidening-preview", reader=True, supported=True, tolerated=True),
    Feature(
        "variantType",
        reader=True,
        active=_type("variant"),
        supported=True,
        tolerated=True,
        stand_in="variantType-preview",
    ),
    Feature("variantType-preview", reader=True, supported=True, tolerated=True),
    # Files may be shredded, and need not: each file is whole or shredded by itself.
    Feature("variantShredding", reader=True, tolerated=True, requires=("variantType",), reason=_SHREDDING),
    Feature(
        "variantShredding-preview",
        reader=True,
        active=_property("enableVariantShredding"),
        tolerated=True,
        stand_in="variantShredding",
        reason=_SHREDDING,
    ),
    Feature(
        "icebergCompatV1",
        active=_property("enableIcebergCompatV1"),
        tolerated=True,
        requires=("columnMapping",),
        fail_concurrent_transactions_at_upgrade=False,
        reason=_ICEBERG_OFF % 1,
    ),
    Feature(
        "icebergCompatV2",
        active=_property("enableIcebergCompatV2"),
        tolerated=True,
        requires=("columnMapping",),
        fail_concurrent_transactions_at_upgrade=False,
        reason=_ICEBERG_OFF % 2,
    ),
    Feature(
        "icebergCompatV3",
        active=_property("enableIcebergCompatV3"),
        tolerated=True,
        requires=("columnMapping", "rowTracking"),
        fail_concurrent_transactions_at_upgrade=False,
        reason=f"{_ICEBERG}; it cannot be switched off",
    ),
    Feature(
        "coordinatedCommits-preview",
        active=_given("coordinatedCommits.commitCoordinator-preview"),
        tolerated=True,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
        reason=_COORDINATED,
    ),
    Feature(
        "catalogManaged",
        reader=True,
        readable=False,
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
        fail_concurrent_transactions_at_upgrade=False,
        reason="a catalog decides which of its commits exist, so the log on storage is not authoritative; name the table as "
        "catalog.schema.table, with a connection to its catalog",
    ),
    Feature("checkpointProtection", supported=True, tolerated=True),
    # Delta Spark asks its property, the protocol only the list of features: both count.
    Feature(
        "materializePartitionColumns",
        active=_property("enableMaterializePartitionColumnsFeature"),
        active_if_listed=_partitioned,
        tolerated=True,
        reason="this provider writes partition values to the log only, not into the files",
    ),
    Feature("geospatial", reader=True, readable=False),
    Feature("redirectReaderWriter-preview", reader=True, active=_given("redirectReaderWriter-preview"), readable=False),
    Feature("redirectWriterOnly-preview", active=_given("redirectWriterOnly-preview"), tolerated=True),
)
FEATURES: dict[str, Feature] = {f.name: f for f in _FEATURES}


def active_features(metadata: Metadata, listed: Collection[str] = ()) -> frozenset[str]:
    """Return the names of the features that the metadata uses.

    :param listed: the features of the table's protocol, some of which are in use because they are listed.
    """
    schema = examine(parse_schema(metadata.schema_string))
    properties = TableProperties(metadata.configuration)
    return frozenset(
        f.name
        for f in _FEATURES
        if f.active(metadata, properties, schema) or (f.name in listed and f.active_if_listed(metadata, properties, schema))
    )
