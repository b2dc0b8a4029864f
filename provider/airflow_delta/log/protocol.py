"""The table protocol: which tables this provider reads and writes, and which protocol a table needs.

A feature that the protocol lists, or that a legacy version implies, does not hinder writing while the metadata leaves it inactive
(Delta protocol, "Table Features").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
    ProtocolDowngradeException,
)
from airflow_delta.log.actions import Metadata, Protocol
from airflow_delta.log.properties import (
    CONSTRAINT_PREFIX,
    FEATURE_PREFIX,
    TableProperties,
    normalise_key,
    strip_protocol_properties,
)
from airflow_delta.log.schema import ArrayType, DataType, MapType, StructField, StructType, parse_schema

MAX_READER_VERSION = 3
MAX_WRITER_VERSION = 7
DEFAULT_VERSIONS = (1, 2)

_INVARIANTS = "delta.invariants"
_GENERATION = "delta.generationExpression"
_IDENTITY = "delta.identity."


class _Schema(NamedTuple):
    """What the features need to know of a schema."""

    fields: tuple[StructField, ...]
    type_names: frozenset[str]


def _examine(data_type: DataType) -> _Schema:
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
    return _Schema(tuple(fields), frozenset(names))


Active = Callable[[Metadata, TableProperties, _Schema], bool]


def _has_metadata(*prefixes: str) -> Active:
    return lambda _m, _p, schema: any(key.startswith(prefixes) for f in schema.fields for key in f.metadata)


def _property(key: str) -> Active:
    return lambda _m, properties, _s: bool(properties.get(key))


def _never(_metadata: Metadata, _properties: TableProperties, _schema: _Schema) -> bool:
    return False


def _type(*names: str) -> Active:
    return lambda _m, _p, schema: any(name in schema.type_names for name in names)


def _invariants(_metadata: Metadata, _properties: TableProperties, schema: _Schema) -> bool:
    return any(not f.nullable or _INVARIANTS in f.metadata for f in schema.fields)


def _constraints(metadata: Metadata, _properties: TableProperties, _schema: _Schema) -> bool:
    return any(key.lower().startswith(CONSTRAINT_PREFIX) for key in metadata.configuration)


def _mapping(_metadata: Metadata, properties: TableProperties, _schema: _Schema) -> bool:
    return properties.column_mapping_mode != "none"


def _v2(_metadata: Metadata, properties: TableProperties, _schema: _Schema) -> bool:
    return properties.checkpoint_policy == "v2"


@dataclass(frozen=True, slots=True)
class Feature:
    """A table feature.

    :param reader: readers must know it too.
    :param legacy: the first (reader, writer) versions that imply it, ``None`` when it exists by name only.
    :param active: whether the metadata makes use of it.
    :param supported: this provider writes tables that make use of it.
    :param tolerated: this provider writes tables that list it without making use of it.
    :param readable: this provider reads tables that list it.
    :param automatic: a metadata change that needs it upgrades an existing table.
    :param requires: other features that it brings along.
    """

    name: str
    reader: bool = False
    legacy: tuple[int, int] | None = None
    active: Active = _never
    supported: bool = False
    tolerated: bool = False
    readable: bool = True
    automatic: bool = True
    requires: tuple[str, ...] = ()


_FEATURES = (
    Feature("appendOnly", legacy=(1, 2), active=_property("appendOnly"), supported=True, tolerated=True),
    Feature("invariants", legacy=(1, 2), active=_invariants, supported=True, tolerated=True),
    Feature("checkConstraints", legacy=(1, 3), active=_constraints, tolerated=True),
    Feature("changeDataFeed", legacy=(1, 4), active=lambda _m, p, _s: p.enable_change_data_feed, tolerated=True),
    Feature("generatedColumns", legacy=(1, 4), active=_has_metadata(_GENERATION), tolerated=True),
    # Listed but switched off: names in files are the names in the schema.
    Feature("columnMapping", reader=True, legacy=(2, 5), active=_mapping, tolerated=True),
    Feature("identityColumns", legacy=(1, 6), active=_has_metadata(_IDENTITY), tolerated=True),
    Feature("timestampNtz", reader=True, active=_type("timestamp_ntz"), supported=True, tolerated=True, automatic=False),
    # At the level of the log only: commands refuse to plan over files that carry a vector.
    Feature("deletionVectors", reader=True, active=_property("enableDeletionVectors"), supported=True, tolerated=True),
    Feature("domainMetadata", supported=True, tolerated=True),
    Feature("vacuumProtocolCheck", reader=True, supported=True, tolerated=True),
    Feature("rowTracking", active=_property("enableRowTracking"), requires=("domainMetadata",)),
    Feature("clustering", requires=("domainMetadata",)),
    Feature("allowColumnDefaults"),
    Feature("v2Checkpoint", reader=True, active=_v2, readable=False),
    Feature("inCommitTimestamp", active=_property("enableInCommitTimestamps")),
    Feature("typeWidening", reader=True, active=_property("enableTypeWidening"), readable=False),
    Feature("variantType", reader=True, active=_type("variant"), readable=False),
    Feature(
        "variantShredding",
        reader=True,
        active=_property("enableVariantShredding"),
        readable=False,
        requires=("variantType",),
    ),
    Feature("icebergCompatV1", active=_property("enableIcebergCompatV1"), requires=("columnMapping",)),
    Feature("icebergCompatV2", active=_property("enableIcebergCompatV2"), requires=("columnMapping",)),
    Feature("icebergCompatV3", active=_property("enableIcebergCompatV3"), requires=("columnMapping", "rowTracking")),
    Feature(
        "coordinatedCommits-preview",
        active=_property("coordinatedCommits.commitCoordinator-preview"),
        requires=("inCommitTimestamp", "vacuumProtocolCheck"),
    ),
    Feature("catalogManaged", reader=True, readable=False, requires=("inCommitTimestamp", "vacuumProtocolCheck")),
    Feature("checkpointProtection"),
    Feature("materializePartitionColumns", active=_property("enableMaterializePartitionColumnsFeature")),
    Feature("redirectReaderWriter-preview", reader=True, active=_property("redirectReaderWriter-preview"), readable=False),
    Feature("redirectWriterOnly-preview", active=_property("redirectWriterOnly-preview")),
)
FEATURES: dict[str, Feature] = {f.name: f for f in _FEATURES}


def features(protocol: Protocol) -> frozenset[str]:
    """Return the names of all features that a protocol supports: listed, or implied by its legacy versions."""
    named = frozenset(protocol.reader_features or ()) | frozenset(protocol.writer_features or ())
    return named | _implied(protocol.min_reader_version, protocol.min_writer_version)


def _implied(reader: int, writer: int) -> frozenset[str]:
    return frozenset(
        f.name
        for f in _FEATURES
        if f.legacy and writer < MAX_WRITER_VERSION and writer >= f.legacy[1] and (not f.reader or reader >= f.legacy[0])
    )


def _reader_features(protocol: Protocol) -> frozenset[str]:
    listed = frozenset(protocol.reader_features or ()) if protocol.min_reader_version >= MAX_READER_VERSION else frozenset()
    return listed | ({"columnMapping"} if protocol.min_reader_version == 2 else frozenset())


def _describe(protocol: Protocol) -> str:
    text = f"reader version {protocol.min_reader_version}, writer version {protocol.min_writer_version}"
    listed = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    return f"{text}, features {', '.join(listed)}" if listed else text


def check_can_read(protocol: Protocol, table: str, version: int) -> None:
    """Refuse a table that this provider cannot read.

    :raises InvalidProtocolVersionException: it needs a newer reader version.
    :raises DeltaUnsupportedTableFeatureException: it lists a reader feature that this provider does not know.
    """
    if not 1 <= protocol.min_reader_version <= MAX_READER_VERSION:
        raise InvalidProtocolVersionException(
            f"{table} at version {version} needs reader version {protocol.min_reader_version}; this provider reads up to "
            f"{MAX_READER_VERSION}. Use a newer airflow-provider-delta, or read the table with the engine that wrote it.",
            table=table,
            version=version,
        )
    unknown = sorted(n for n in _reader_features(protocol) if n not in FEATURES or not FEATURES[n].readable)
    if unknown:
        raise _unsupported("read", unknown, table, version)


def check_can_write(protocol: Protocol, metadata: Metadata | None, table: str, version: int) -> None:
    """Refuse a table that this provider cannot write. Writing needs all that reading needs.

    :param metadata: tells which of the listed features are in use; ``None``: none of them is.
    :raises InvalidProtocolVersionException: it needs a newer reader or writer version.
    :raises DeltaUnsupportedTableFeatureException: a feature is unknown, or is in use and not supported.
    """
    check_can_read(protocol, table, version)
    if not 1 <= protocol.min_writer_version <= MAX_WRITER_VERSION:
        raise InvalidProtocolVersionException(
            f"{table} at version {version} needs writer version {protocol.min_writer_version}; this provider writes up to "
            f"{MAX_WRITER_VERSION}. Use a newer airflow-provider-delta, or write the table with the engine that upgraded it.",
            table=table,
            version=version,
        )
    supported = features(protocol)
    refused = {name for name in supported if name not in FEATURES or not FEATURES[name].tolerated}
    if metadata is not None:
        refused |= {name for name in active_features(metadata) if not FEATURES[name].supported}
    if refused:
        raise _unsupported("write", sorted(refused), table, version)
    if metadata is not None:
        _refuse_expressions(metadata, table, version)


def _refuse_expressions(metadata: Metadata, table: str, version: int) -> None:
    for f in _examine(parse_schema(metadata.schema_string)).fields:
        if _INVARIANTS in f.metadata:
            raise DeltaUnsupportedTableFeatureException(
                f"Cannot write to {table} at version {version}: column {f.name!r} has an expression of the feature "
                f"invariants ({f.metadata[_INVARIANTS]}), which this provider does not evaluate. Write with Delta Spark, "
                "or drop the invariant.",
                features=("invariants",),
                table=table,
                version=version,
            )


def _unsupported(verb: str, names: list[str], table: str, version: int) -> DeltaUnsupportedTableFeatureException:
    plural = "features" if len(names) > 1 else "feature"
    return DeltaUnsupportedTableFeatureException(
        f"Cannot {verb} {table} at version {version}: this provider does not support the table {plural} "
        f"{', '.join(names)}. Use a newer airflow-provider-delta or Delta Spark for this table, "
        f"or drop the {plural} (ALTER TABLE ... DROP FEATURE).",
        features=tuple(names),
        table=table,
        version=version,
    )


def active_features(metadata: Metadata) -> frozenset[str]:
    """Return the names of the features that the metadata makes use of."""
    schema = _examine(parse_schema(metadata.schema_string))
    properties = TableProperties(metadata.configuration)
    return frozenset(f.name for f in _FEATURES if f.active(metadata, properties, schema))


def required_protocol(metadata: Metadata) -> Protocol:
    """Return the weakest protocol of a new table with this metadata: (1, 2) and what the metadata makes use of."""
    return _normalised(_implied(*DEFAULT_VERSIONS) | _closure(active_features(metadata)))


def _closure(names: Iterable[str]) -> frozenset[str]:
    result: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in result:
            result.add(name)
            pending.extend(FEATURES[name].requires if name in FEATURES else ())
    return frozenset(result)


def _normalised(names: frozenset[str]) -> Protocol:
    """Return a legacy version pair when it implies exactly these features, else the features by name."""
    for versions in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)):
        if _implied(*versions) == names:
            return Protocol(min_reader_version=versions[0], min_writer_version=versions[1])
    by_name = sorted(names)
    readers = [n for n in by_name if n in FEATURES and FEATURES[n].reader]
    needs_reader_3 = any(FEATURES[n].legacy is None for n in readers)
    if readers and not needs_reader_3:  # column mapping alone is what reader version 2 means
        return Protocol(min_reader_version=2, min_writer_version=MAX_WRITER_VERSION, writer_features=by_name)
    return Protocol(
        min_reader_version=MAX_READER_VERSION if readers else 1,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=readers if readers else None,
        writer_features=by_name,
    )


def upgraded(current: Protocol, required: Protocol) -> Protocol:
    """Return the weakest protocol with the features of both; ``current`` itself when it has them all."""
    have, need = features(current), features(required)
    return current if need <= have else _normalised(have | need)


def can_upgrade_to(current: Protocol, new: Protocol) -> bool:
    """Return whether a table may go from one protocol to another: no feature is lost."""
    return features(current) <= features(new)


def check_transition(current: Protocol, new: Protocol, table: str, version: int) -> None:
    """Refuse a protocol that lacks a feature of the table's present one.

    :raises ProtocolDowngradeException: a feature would be lost.
    """
    if not can_upgrade_to(current, new):
        lost = ", ".join(sorted(features(current) - features(new)))
        raise ProtocolDowngradeException(
            f"The protocol of {table} (version {version}: {_describe(current)}) cannot become ({_describe(new)}): it would lose "
            f"{lost}. Features are dropped with ALTER TABLE ... DROP FEATURE only.",
            table=table,
            version=version,
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    names: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)


def apply_feature_properties(metadata: Metadata, protocol: Protocol | None) -> tuple[Metadata, Protocol]:
    """Return the metadata without ``delta.feature.*`` and protocol versions, and the protocol that they and the metadata ask for.

    :param protocol: the table's present protocol, ``None`` for a new table.
    :raises DeltaIllegalArgumentException: a feature is unknown.
    """
    asked = _asked(metadata)
    stripped = strip_protocol_properties(metadata.configuration)
    kept = metadata if stripped == metadata.configuration else msgspec.structs.replace(metadata, configuration=stripped)
    wanted = _closure([*active_features(kept), *asked.names])
    if asked.versions:  # lower versions than the table's own are ignored, as in Delta
        reader = min(asked.versions.get("delta.minReaderVersion", 1), MAX_READER_VERSION)
        wanted |= _implied(reader, asked.versions.get("delta.minWriterVersion", 2))
    base = _implied(*DEFAULT_VERSIONS) if protocol is None else features(protocol)
    if protocol is not None and wanted <= base:
        return kept, protocol
    return kept, _normalised(base | wanted)


def _asked(metadata: Metadata) -> _Asked:
    asked = _Asked()
    folded = {name.lower(): name for name in FEATURES}
    for given, value in metadata.configuration.items():
        key = normalise_key(given)
        if key.startswith(FEATURE_PREFIX):
            name = folded.get(key[len(FEATURE_PREFIX) :].lower())
            if name is None:
                raise DeltaIllegalArgumentException(
                    f"Table property {given} names a table feature that this provider does not know; "
                    f"it knows {', '.join(FEATURES)}"
                )
            asked.names.append(name)
        elif key in ("delta.minReaderVersion", "delta.minWriterVersion"):
            asked.versions[key] = int(value)
    return asked


def needs_manual_enablement(current: Protocol, metadata: Metadata) -> tuple[str, ...]:
    """Return the features that a metadata change needs and that an existing table only gets when asked by name.

    Delta: DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT (``delta.feature.<name> = supported``).
    """
    missing = active_features(metadata) - features(current)
    return tuple(sorted(n for n in missing if not FEATURES[n].automatic))
