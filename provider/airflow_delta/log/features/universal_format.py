"""UniForm: what tables must keep to that readers of Iceberg or Hudi read too (Delta's ``UniversalFormat``, ``IcebergCompat``).

This provider writes for neither. What Delta Spark refuses is refused with its error, in its order; then the formats themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_delta.contract.delta_names import COLUMN_MAPPING_MODE, ENABLE_ROW_TRACKING, UNIVERSAL_FORMAT
from airflow_delta.exceptions import DeltaUnsupportedOperationException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.types import ArrayType, DataType, DecimalType, MapType, StructType, parse_schema

_VIOLATION = "DELTA_UNIVERSAL_FORMAT_VIOLATION"
_COMPAT_VIOLATION = "DELTA_ICEBERG_COMPAT_VIOLATION"
_VERSIONS = (1, 2, 3)
_NOT_IN_HUDI = ("void", "byte", "short", "timestamp_ntz")
_NOT_IN_ICEBERG = {1: ("array", "map", "void"), 2: ("void", "variant"), 3: ("void",)}


def check_universal_format(metadata: Metadata, old: Metadata | None = None) -> None:
    """Refuse metadata that breaks a rule of UniForm or of IcebergCompat, and formats that the table does not have yet.

    :param old: the table's current metadata; ``None`` for a new table, which gets what it does not set itself.
    :raises DeltaUnsupportedOperationException: with Delta's error class.
    """
    violation = format_violation(metadata)
    if violation is not None:
        raise DeltaUnsupportedOperationException(violation)
    versions = enabled_versions(metadata)
    for version in versions:
        _check_iceberg_compat(version, versions, metadata, old)
    known = frozenset[str]() if old is None else TableProperties(old.configuration).universal_formats
    if added := TableProperties(metadata.configuration).universal_formats - known:
        raise DeltaUnsupportedOperationException(
            f"{UNIVERSAL_FORMAT} names {' and '.join(sorted(added))}, whose metadata this provider does not write "
            f"({_VIOLATION}): its commits would be missing there until Delta Spark commits again. Leave the format out, or write "
            "the table with Delta Spark."
        )


def format_violation(metadata: Metadata) -> str | None:
    """Return the rule of UniForm that a table breaks: Delta Spark then refuses every commit that does not end it."""
    properties = TableProperties(metadata.configuration)
    formats = properties.universal_formats
    if "hudi" in formats:
        if properties.enable_deletion_vectors:
            return (
                f"{UNIVERSAL_FORMAT} names hudi, which rules out deletion vectors ({_VIOLATION}). "
                "Set delta.enableDeletionVectors to false, or take the format out."
            )
        found = next((kind for kind in _types(parse_schema(metadata.schema_string)) if kind in _NOT_IN_HUDI), None)
        if found is not None:
            return f"{UNIVERSAL_FORMAT} names hudi, which rules out columns of type {found} ({_VIOLATION}). Take the format out."
    if "iceberg" in formats and not enabled_versions(metadata):
        return (
            f"{UNIVERSAL_FORMAT} names iceberg, which requires delta.enableIcebergCompatV1, V2 or V3 ({_VIOLATION}). This "
            "provider cannot write such tables either: take the format out, or create the table with Delta Spark and write it "
            "from there."
        )
    return None


def enabled_versions(metadata: Metadata) -> tuple[int, ...]:
    """Return the versions of IcebergCompat that are enabled, in order."""
    properties = TableProperties(metadata.configuration)
    return tuple(version for version in _VERSIONS if properties.get(f"delta.enableIcebergCompatV{version}"))


def _check_iceberg_compat(version: int, versions: tuple[int, ...], metadata: Metadata, old: Metadata | None) -> None:
    """Check the rules that metadata alone can break; those of files only matter once such tables can be written."""
    name = f"delta.enableIcebergCompatV{version}"
    properties = TableProperties(metadata.configuration)
    mode, tracking = COLUMN_MAPPING_MODE, ENABLE_ROW_TRACKING
    if properties.column_mapping_mode == "none" and (old is not None or mode in metadata.configuration):
        raise _violation("WRONG_REQUIRED_TABLE_PROPERTY", f"{name} requires {mode} = name")
    if version == 3 and tracking in metadata.configuration and not properties.get(tracking):
        raise _violation("WRONG_REQUIRED_TABLE_PROPERTY", f"{name} requires {tracking} = true")
    if len(versions) > 1:
        raise _violation(
            "VERSION_MUTUAL_EXCLUSIVE", f"Only one IcebergCompat can be enabled, not V{versions[0]} and V{versions[1]}"
        )
    schema = parse_schema(metadata.schema_string)
    found = next((kind for kind in _types(schema) if kind in _NOT_IN_ICEBERG[version]), None)
    if found is not None:
        raise _violation("UNSUPPORTED_DATA_TYPE", f"{name} rules out columns of type {found}")
    keys = schema.select(metadata.partition_columns)
    if version > 1 and any(isinstance(field.data_type, DecimalType) for field in keys):
        raise _violation("UNSUPPORTED_PARTITION_DATA_TYPE", f"{name} rules out partition columns of a decimal type")
    if old is not None and old.partition_columns and old.partition_columns != metadata.partition_columns:
        raise _violation("REPLACE_TABLE_CHANGE_PARTITION_NAMES", f"{name} rules out other partition columns than before")
    vectors = any(TableProperties(m.configuration).enable_deletion_vectors for m in (metadata, old) if m is not None)
    if version < 3 and vectors:
        raise _violation("DELETION_VECTORS_SHOULD_BE_DISABLED", f"{name} requires delta.enableDeletionVectors = false, before")


def _violation(kind: str, message: str) -> DeltaUnsupportedOperationException:
    return DeltaUnsupportedOperationException(
        f"{message} ({_COMPAT_VIOLATION}.{kind}). This provider cannot write such tables either: leave IcebergCompat out, or "
        "write the table with Delta Spark."
    )


def _types(data_type: DataType) -> Iterator[str]:
    """Yield the names of all types, each before its parts."""
    yield data_type.name
    match data_type:
        case StructType(fields):
            for field in fields:
                yield from _types(field.data_type)
        case ArrayType(element, _):
            yield from _types(element)
        case MapType(key, value, _):
            yield from _types(key)
            yield from _types(value)
