"""The table protocol: which tables this provider can read and write, and which protocol a table needs.

A feature that the protocol lists, or a legacy version implies, does not prevent writing as long as the metadata does not use it
(Delta protocol, "Table Features"). The features are in :mod:`airflow_delta.log.features.registry`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

import msgspec

from airflow_delta.contract.delta_names import FEATURE_PREFIX, IGNORE_PROTOCOL_DEFAULTS, MIN_READER_VERSION, MIN_WRITER_VERSION
from airflow_delta.exceptions import (
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
    InvalidProtocolVersionException,
    ProtocolDowngradeException,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Metadata, Protocol
from airflow_delta.log.features.properties import TableProperties, normalise_key, strip_protocol_properties
from airflow_delta.log.features.registry import FEATURES, Feature, active_features

__all__ = [
    "CATALOG_MANAGED",
    "DEFAULT_VERSIONS",
    "FEATURES",
    "MAX_READER_VERSION",
    "MAX_WRITER_VERSION",
    "Feature",
    "active_features",
    "apply_feature_properties",
    "can_upgrade_to",
    "check_can_read",
    "check_can_write",
    "check_form",
    "check_transition",
    "features",
    "needs_manual_enablement",
    "required_protocol",
    "upgraded",
]

MAX_READER_VERSION = 3
MAX_WRITER_VERSION = 7
DEFAULT_VERSIONS = (1, 2)

_LEGACY_PAIRS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (1, 6), (2, 6))


def features(protocol: Protocol) -> frozenset[str]:
    """Return the names of all features of a protocol: listed, or implied by its legacy versions."""
    named = frozenset(protocol.reader_features or ()) | frozenset(protocol.writer_features or ())
    return named | _implied(protocol.min_reader_version, protocol.min_writer_version)


def _implied(reader: int, writer: int) -> frozenset[str]:
    return frozenset(
        f.name
        for f in FEATURES.values()
        if f.legacy and writer < MAX_WRITER_VERSION and writer >= f.legacy[1] and (not f.reader or reader >= f.legacy[0])
    )


def _reader_features(protocol: Protocol) -> frozenset[str]:
    listed = frozenset(protocol.reader_features or ()) if protocol.min_reader_version >= MAX_READER_VERSION else frozenset()
    return listed | ({"columnMapping"} if protocol.min_reader_version == 2 else frozenset())


def _describe(protocol: Protocol) -> str:
    text = f"reader version {protocol.min_reader_version}, writer version {protocol.min_writer_version}"
    listed = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    return f"{text}, features {', '.join(listed)}" if listed else text


# -- reading and writing ------------------------------------------------------------------------------------------------------


CATALOG_MANAGED = "catalogManaged"
"""A catalog decides which versions the table has; the log on storage may lack some, and have commits that never were."""
BY_COMMITTER = frozenset({CATALOG_MANAGED})
"""Features for which a table must be opened through a committer that provides them."""


def check_can_read(protocol: Protocol, table: str, version: int, *, provided: Set[str] = frozenset()) -> None:
    """Refuse a table that this provider cannot read.

    :param provided: features that the committer provides through which the table was opened (
        :attr:`~airflow_delta.log.storage.committer.LogCommitter.provides`).
    :raises InvalidProtocolVersionException: if it needs a newer reader version.
    :raises DeltaUnsupportedTableFeatureException: if it lists a reader feature that this provider does not support.
    """
    if not 1 <= protocol.min_reader_version <= MAX_READER_VERSION:
        raise InvalidProtocolVersionException(
            f"{table} at version {version} needs reader version {protocol.min_reader_version}; this provider reads up to "
            f"{MAX_READER_VERSION}. Use a newer airflow-provider-delta, or read the table with the engine that wrote it.",
            table=table,
            version=version,
        )
    listed = _reader_features(protocol)
    if lacking := provided - listed:
        raise DeltaIllegalStateException(
            f"{table} does not list {', '.join(sorted(lacking))} at version {version}: its log on storage decides on its "
            "versions, but it was opened through its catalog. Use its location instead.",
            table=table,
            version=version,
        )
    unknown = sorted(n for n in listed - provided if n not in FEATURES or not FEATURES[n].readable)
    if unknown:
        raise _unsupported("read", unknown, table, version)


def check_can_write(
    protocol: Protocol, metadata: Metadata | None, table: str, version: int, *, provided: Set[str] = frozenset()
) -> None:
    """Refuse a table that this provider cannot write. Writing also requires that it can be read.

    :param metadata: shows which of the listed features are in use; ``None`` means none of them.
    :param provided: features that the committer provides through which the table was opened (
        :attr:`~airflow_delta.log.storage.committer.LogCommitter.provides`).
    :raises InvalidProtocolVersionException: if it needs a newer reader or writer version.
    :raises DeltaUnsupportedTableFeatureException: if a feature is unknown, or in use and not supported.
    """
    check_can_read(protocol, table, version, provided=provided)
    if not 1 <= protocol.min_writer_version <= MAX_WRITER_VERSION:
        raise InvalidProtocolVersionException(
            f"{table} at version {version} needs writer version {protocol.min_writer_version}; this provider writes up to "
            f"{MAX_WRITER_VERSION}. Use a newer airflow-provider-delta, or write the table with the engine that upgraded it.",
            table=table,
            version=version,
        )
    supported = features(protocol)
    refused = {name for name in supported - provided if name not in FEATURES or not FEATURES[name].tolerated}
    if metadata is not None:
        refused |= {name for name in active_features(metadata, supported) if not FEATURES[name].supported}
    if refused:
        raise _unsupported("write", sorted(refused), table, version)


def _unsupported(verb: str, names: list[str], table: str, version: int) -> DeltaUnsupportedTableFeatureException:
    plural = "features" if len(names) > 1 else "feature"
    reasons = {reason: name for name in names if name in FEATURES and (reason := FEATURES[name].reason)}
    because = "".join(f" {name}: {reason}." for reason, name in reasons.items())
    return DeltaUnsupportedTableFeatureException(
        f"Cannot {verb} {table} at version {version}: this provider does not support the table {plural} "
        f"{', '.join(names)} (DELTA_UNSUPPORTED_FEATURES_FOR_{verb.upper()}).{because} Use a newer airflow-provider-delta or "
        f"Delta Spark for this table, or drop the {plural} (ALTER TABLE ... DROP FEATURE).",
        features=tuple(names),
        table=table,
        version=version,
    )


# -- which protocol a table needs ---------------------------------------------------------------------------------------------


def required_protocol(metadata: Metadata) -> Protocol:
    """Return the weakest protocol for a new table with this metadata: (1, 2) and the features that the metadata uses."""
    return _normalised(_implied(*DEFAULT_VERSIONS) | _closure(_brought_along(metadata, ())))


def _brought_along(metadata: Metadata, present: Collection[str]) -> frozenset[str]:
    """Return the features that the metadata uses and thereby adds to the protocol.

    :param present: features already present or requested, which may replace others.
    """
    return frozenset(
        name
        for name in active_features(metadata)
        if not FEATURES[name].by_name_only and (FEATURES[name].stand_in is None or FEATURES[name].stand_in not in present)
    )


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
    """Return legacy versions if they imply exactly these features, else list the features."""
    for versions in _LEGACY_PAIRS:
        if _implied(*versions) == names:
            return Protocol(min_reader_version=versions[0], min_writer_version=versions[1])
    by_name = sorted(names)
    readers = [n for n in by_name if n in FEATURES and FEATURES[n].reader]
    needs_reader_3 = any(FEATURES[n].legacy is None for n in readers)
    if readers and not needs_reader_3:  # reader version 2 means column mapping and nothing else
        return Protocol(min_reader_version=2, min_writer_version=MAX_WRITER_VERSION, writer_features=by_name)
    return Protocol(
        min_reader_version=MAX_READER_VERSION if readers else 1,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=readers if readers else None,
        writer_features=by_name,
    )


def upgraded(current: Protocol, required: Protocol) -> Protocol:
    """Return the weakest protocol with the features of both; ``current`` itself if it has them all."""
    have, need = features(current), features(required)
    return current if need <= have else _normalised(have | need)


def apply_feature_properties(metadata: Metadata, protocol: Protocol | None) -> tuple[Metadata, Protocol]:
    """Return the metadata without ``delta.feature.*`` and protocol versions, and the protocol that these and the metadata need.

    A new table starts from (1, 2), unless versions are given or ``delta.ignoreProtocolDefaults`` is set. An existing table only
    gains features; versions lower than its own are ignored, as in Delta.

    :param protocol: the table's current protocol, ``None`` for a new table.
    :raises DeltaIllegalArgumentException: if a feature is unknown, or a version is not valid.
    """
    asked = _asked(metadata.configuration)
    stripped = strip_protocol_properties(metadata.configuration)
    kept = metadata if stripped == metadata.configuration else msgspec.structs.replace(metadata, configuration=stripped)
    if protocol is None:
        if asked.versions:
            base = _implied(
                asked.versions.get(MIN_READER_VERSION, 1), asked.versions.get(MIN_WRITER_VERSION, DEFAULT_VERSIONS[1])
            )
        else:
            base = frozenset() if asked.ignores_defaults else _implied(*DEFAULT_VERSIONS)
    else:
        base = features(protocol)
        if asked.versions:
            reader, writer = asked.versions.get(MIN_READER_VERSION, 1), asked.versions.get(MIN_WRITER_VERSION, 1)
            if reader >= MAX_READER_VERSION and writer < MAX_WRITER_VERSION:
                raise DeltaIllegalArgumentException(
                    f"Reader version {reader} needs writer version {MAX_WRITER_VERSION}, not {writer} "
                    "(DELTA_READ_FEATURE_PROTOCOL_REQUIRES_WRITE). Name the features instead: delta.feature.<name>."
                )
            asked.names |= _implied(reader, writer)
    wanted = _closure(asked.names)
    wanted |= _closure(_brought_along(kept, base | wanted))
    if protocol is not None and wanted <= base:
        return kept, protocol
    return kept, _normalised(base | wanted)


_HIGHEST = {MIN_READER_VERSION: MAX_READER_VERSION, MIN_WRITER_VERSION: MAX_WRITER_VERSION}


@dataclass(slots=True)
class _Asked:
    names: frozenset[str]
    versions: dict[str, int]
    ignores_defaults: bool


def _asked(configuration: Mapping[str, str]) -> _Asked:
    versions: dict[str, int] = {}
    for given, value in configuration.items():
        key = normalise_key(given)
        if key not in _HIGHEST:
            continue
        if not value.strip().isdecimal():
            raise DeltaIllegalArgumentException(
                f"Table property {given} must be a whole number, got {value!r} (DELTA_PROTOCOL_PROPERTY_NOT_INT)."
            )
        versions[key] = int(value)
        if not 1 <= versions[key] <= _HIGHEST[key]:
            raise DeltaIllegalArgumentException(f"Table property {given} must be from 1 to {_HIGHEST[key]}, got {value!r}.")
    ignores = TableProperties(configuration).get(IGNORE_PROTOCOL_DEFAULTS)
    return _Asked(asked_features(configuration), versions, bool(ignores))


def asked_features(configuration: Mapping[str, str]) -> frozenset[str]:
    """Return the features requested by properties ``delta.feature.<name>``.

    :raises DeltaIllegalArgumentException: if one is unknown or cannot be requested, or its value is not ``supported``.
    """
    folded = {name.lower(): name for name in FEATURES}
    names: set[str] = set()
    for given, value in configuration.items():
        key = normalise_key(given)
        if not key.startswith(FEATURE_PREFIX):
            continue
        name = folded.get(key[len(FEATURE_PREFIX) :].lower())
        if name is None:
            raise DeltaIllegalArgumentException(
                f"Table property {given} names a table feature that this provider does not know "
                f"(DELTA_UNSUPPORTED_FEATURES_IN_CONFIG); known features: {', '.join(FEATURES)}"
            )
        if value.strip().lower() not in ("supported", "enabled"):
            raise DeltaIllegalArgumentException(
                f"Table property {given} must be 'supported', got {value!r} (DELTA_UNSUPPORTED_FEATURE_STATUS)."
            )
        if not FEATURES[name].settable:
            raise DeltaIllegalArgumentException(
                f"Table property {given} cannot be set: the table feature {name} is added when a table is clustered "
                "(DELTA_ALTER_TABLE_SET_CLUSTERING_TABLE_FEATURE_NOT_ALLOWED). Cluster it with Delta Spark: "
                "ALTER TABLE ... CLUSTER BY."
            )
        names.add(name)
    return frozenset(names)


def needs_manual_enablement(current: Protocol, metadata: Metadata) -> tuple[str, ...]:
    """Return the features that a metadata change needs, but that an existing table only gets when requested by name.

    Delta: DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT (``delta.feature.<name> = supported``).
    """
    present = features(current)
    missing = _brought_along(metadata, present) - present
    return tuple(sorted(n for n in missing if not FEATURES[n].automatic))


# -- changes ------------------------------------------------------------------------------------------------------------------


def check_form(protocol: Protocol, table: str) -> None:
    """Check that versions and lists of features are consistent (Delta protocol, "Protocol Evolution").

    :raises DeltaIllegalArgumentException: if there is reader version 3 without writer version 7, a list without its version or
        the other way round, or a reader feature that is not among the writer features.
    """
    reads, writes = protocol.reader_features, protocol.writer_features
    if protocol.min_reader_version < 1 or protocol.min_writer_version < 1:
        problem = f"must have positive versions, not ({protocol.min_reader_version}, {protocol.min_writer_version})"
    elif protocol.min_reader_version >= MAX_READER_VERSION and protocol.min_writer_version < MAX_WRITER_VERSION:
        problem = f"has reader version {protocol.min_reader_version}, which needs writer version {MAX_WRITER_VERSION}"
    elif (reads is not None) != (protocol.min_reader_version >= MAX_READER_VERSION):
        problem = f"must list reader features if and only if its reader version is {MAX_READER_VERSION}"
    elif (writes is not None) != (protocol.min_writer_version >= MAX_WRITER_VERSION):
        problem = f"must list writer features if and only if its writer version is {MAX_WRITER_VERSION}"
    elif not set(reads or ()) <= set(writes or ()):
        problem = f"lists {', '.join(sorted(set(reads or ()) - set(writes or ())))} for readers but not for writers"
    else:
        return
    raise DeltaIllegalArgumentException(f"The protocol of table {table} ({_describe(protocol)}) {problem}.", table=table)


def can_upgrade_to(current: Protocol, new: Protocol) -> bool:
    """Return whether a table may change from one protocol to another: no feature may be lost."""
    return features(current) <= features(new)


def check_transition(current: Protocol, new: Protocol, table: str, version: int) -> None:
    """Refuse a protocol that lacks a feature of the table's current one.

    :raises ProtocolDowngradeException: if a feature would be lost.
    """
    if not can_upgrade_to(current, new):
        lost = ", ".join(sorted(features(current) - features(new)))
        raise ProtocolDowngradeException(
            f"The protocol of {table} (version {version}: {_describe(current)}) cannot become ({_describe(new)}), which would "
            f"lose {lost}. Features can only be dropped with ALTER TABLE ... DROP FEATURE.",
            table=table,
            version=version,
        )
