"""Checking metadata before it is committed (Delta's ``assertMetadata``, formerly ``verifyNewMetadata``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_delta.contract.delta_names import (
    COLLATIONS,
    DATA_SKIPPING_STATS_COLUMNS,
    MATERIALIZED_ROW_COMMIT_VERSION,
    MATERIALIZED_ROW_ID,
    SYMLINK_MANIFEST,
)
from airflow_delta.exceptions import DeltaAnalysisException, DeltaAssertionError, DeltaError
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping, generated_columns, identity_columns
from airflow_delta.log.features.change_data_feed import check_reserved_columns
from airflow_delta.log.features.constraints import has_char_varchar
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.features.stats_columns import parse_column_list
from airflow_delta.log.features.universal_format import check_universal_format
from airflow_delta.log.schema.partition_values import is_partition_type
from airflow_delta.log.schema.suggestions import known_names
from airflow_delta.log.schema.types import (
    PRIMITIVES,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    parse_schema,
)
from airflow_delta.log.schema.walk import dotted, folded, walk_fields

INVALID_CHARACTERS = " ,;{}()\n\t="


def check_table_metadata(
    metadata: Metadata, old: Metadata | None = None, *, table: str | None = None, version: int | None = None
) -> None:
    """Check the schema, partitioning and the columns named in properties.

    :param old: the table's current metadata; some faults that it already has are accepted.
    :param table: table for error messages, as is ``version``.
    """
    try:
        _check(metadata, old)
    except DeltaError as error:
        if table is not None and error.table is None:
            error.table, error.version = table, version
            error.message = f"Metadata of table {table}: {error.message}"
        raise


def _check(metadata: Metadata, old: Metadata | None) -> None:
    schema = parse_schema(metadata.schema_string)
    properties = TableProperties(metadata.configuration)
    if not schema.fields and (old is None or parse_schema(old.schema_string).fields):
        raise DeltaAnalysisException("The schema has no columns; a table needs at least one")
    if has_char_varchar(schema):
        raise DeltaAssertionError("The schema still has char or varchar types, which must be stored as string.")
    _check_names(schema, metadata.partition_columns, mapped=properties.column_mapping_mode != "none")
    column_mapping.check_mapping(metadata)
    _check_types(schema)
    _check_collations(schema, old)
    kept = set() if old is None else set(_unenforceable(parse_schema(old.schema_string), "", ""))
    _check_not_null(schema, kept)
    _check_partitioning(schema, metadata.partition_columns)
    identity_columns.check_identity_columns(metadata)
    generated_columns.check_generated_columns(metadata)
    check_reserved_columns(metadata, old)
    _check_properties(metadata, properties)
    check_universal_format(metadata, old)
    _check_row_tracking_names(schema, metadata)
    if properties.data_skipping_stats_columns is not None:
        _check_stats_columns(schema, metadata.partition_columns, properties.data_skipping_stats_columns)


def _check_names(schema: StructType, partition_columns: list[str], *, mapped: bool) -> None:
    paths = [path for path, _ in walk_fields(schema)]
    counts = Counter(map(folded, paths))
    twice = sorted({".".join(path) for path in paths if counts[folded(path)] > 1})
    if twice:
        raise DeltaAnalysisException(
            f"Duplicate columns in the schema (names are case-insensitive): {', '.join(twice)} "
            "(DELTA_DUPLICATE_COLUMNS_FOUND.METADATA_UPDATE). Rename or drop one."
        )
    if mapped:
        return
    bad = sorted({".".join(path) for path in paths if not path[-1] or set(path[-1]) & set(INVALID_CHARACTERS)})
    if bad:
        partitions = [name for name in bad if name in partition_columns]
        error = "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES" if bad != partitions else "DELTA_INVALID_PARTITION_COLUMN_NAME"
        raise DeltaAnalysisException(
            f"Column names must not be empty or contain any of {INVALID_CHARACTERS!r}: {', '.join(map(repr, bad))} ({error}). "
            "Rename them, or set delta.columnMapping.mode to 'name'."
        )


def _check_types(schema: StructType) -> None:
    unsupported = [(path, part) for path, part in _leaf_types(schema, "") if not _is_supported(part)]
    if unsupported:
        listed = ", ".join(f"{path} ({part})" for path, part in unsupported)
        raise DeltaAnalysisException(
            f"Columns have types that Delta does not support (DELTA_UNSUPPORTED_DATA_TYPES): {listed}. Cast them; decimals "
            "need a precision from 1 to 38 and a scale from 0 to the precision."
        )


def _check_collations(schema: StructType, old: Metadata | None) -> None:
    known = {} if old is None else dict(walk_fields(parse_schema(old.schema_string)))
    for path, field in walk_fields(schema):
        collations = field.metadata.get(COLLATIONS)
        if collations and (path not in known or known[path].metadata.get(COLLATIONS) != collations):
            raise DeltaAnalysisException(
                f"Column {dotted(path)} has a collation ({', '.join(sorted(set(map(str, collations.values()))))}), which Delta "
                "tables do not support (DELTA_UNSUPPORTED_DATA_TYPES). Make it a plain STRING, and name the collation in queries."
            )


def _leaf_types(data_type: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    match data_type:
        case StructType(fields):
            for f in fields:
                yield from _leaf_types(f.data_type, f"{path}.{f.name}" if path else f.name)
        case ArrayType(element, _):
            yield from _leaf_types(element, f"{path}.element")
        case MapType(key, value, _):
            yield from _leaf_types(key, f"{path}.key")
            yield from _leaf_types(value, f"{path}.value")
        case _:
            yield path, data_type


def _is_supported(data_type: DataType) -> bool:
    if isinstance(data_type, DecimalType):
        return 0 < data_type.precision <= 38 and 0 <= data_type.scale <= data_type.precision
    return data_type.name in PRIMITIVES


def _unenforceable(data_type: DataType, path: str, inside: str) -> Iterator[tuple[str, str]]:
    """Yield the NOT NULL columns that no writer enforces, each with what it is inside of: a list, a map, a nullable struct."""
    match data_type:
        case StructType(fields):
            for f in fields:
                here = f"{path}.{f.name}" if path else f.name
                if not f.nullable and inside:
                    yield here, inside
                yield from _unenforceable(f.data_type, here, inside or ("a nullable struct" if f.nullable else ""))
        case ArrayType(element, _):
            yield from _unenforceable(element, f"{path}.element", "a list")
        case MapType(key, value, _):
            yield from _unenforceable(key, f"{path}.key", "a map")
            yield from _unenforceable(value, f"{path}.value", "a map")


def _check_not_null(schema: StructType, kept: set[tuple[str, str]]) -> None:
    for path, inside in _unenforceable(schema, "", ""):
        if (path, inside) not in kept:
            raise DeltaAnalysisException(
                f"Column {path} is NOT NULL inside {inside}, which cannot be enforced (DELTA_NESTED_NOT_NULL_CONSTRAINT). Make "
                "it nullable."
            )


def _check_partitioning(schema: StructType, partition_columns: list[str]) -> None:
    folded = [name.lower() for name in partition_columns]
    if len(set(folded)) != len(folded):
        raise DeltaAnalysisException(
            f"Duplicate partition columns: {', '.join(partition_columns)} (DELTA_DUPLICATE_COLUMNS_FOUND.PARTITION_COLUMNS)"
        )
    for name in partition_columns:
        f: StructField | None = next((f for f in schema.fields if f.name == name), None)
        if f is None:
            close = schema.find(name)
            known = f"Did you mean {close.name!r}?" if close else f"{known_names(name, schema.names)}."
            raise DeltaAnalysisException(
                f"Partition column {name!r} is not in the schema (DELTA_PARTITION_COLUMN_NOT_FOUND). {known}"
            )
        if not is_partition_type(f.data_type):
            raise DeltaAnalysisException(
                f"Column {name!r} of type {f.data_type} cannot be a partition column (DELTA_INVALID_PARTITION_COLUMN_TYPE)"
            )
    if partition_columns and len(partition_columns) == len(schema.fields):
        raise DeltaAnalysisException(
            "All columns are partition columns; a table needs at least one other column (DELTA_NON_PARTITION_COLUMN_ABSENT)"
        )


def _check_properties(metadata: Metadata, properties: TableProperties) -> None:
    if not properties.enable_deletion_vectors:
        return
    error = "DELTA_VIOLATE_TABLE_PROPERTY_VALIDATION_FAILED"
    if metadata.format.provider.lower() != "parquet":
        raise DeltaAnalysisException(
            f"delta.enableDeletionVectors requires Parquet files, but the table has {metadata.format.provider} "
            f"({error}.PERSISTENT_DELETION_VECTORS_IN_NON_PARQUET_TABLE)."
        )
    if properties.get(SYMLINK_MANIFEST):
        raise DeltaAnalysisException(
            "delta.enableDeletionVectors and delta.compatibility.symlinkFormatManifest.enabled cannot both be set: readers of "
            f"the manifest would see deleted rows ({error}.PERSISTENT_DELETION_VECTORS_WITH_INCREMENTAL_MANIFEST_GENERATION). "
            "Disable one of them."
        )


def _check_row_tracking_names(schema: StructType, metadata: Metadata) -> None:
    reserved = {metadata.configuration.get(key) for key in (MATERIALIZED_ROW_ID, MATERIALIZED_ROW_COMMIT_VERSION)} - {None}
    for path, field in walk_fields(schema):
        if field.name in reserved or field.physical_name in reserved:
            raise DeltaAnalysisException(
                f"The name of column {dotted(path)} is reserved for the row ids or commit versions of row tracking "
                "(DELTA_ADDING_COLUMN_WITH_INTERNAL_NAME_FAILED). Rename it."
            )


def _check_stats_columns(schema: StructType, partition_columns: list[str], listed: str) -> None:
    key = DATA_SKIPPING_STATS_COLUMNS
    partitions = {name.lower() for name in partition_columns}
    for path in parse_column_list(listed):
        folded = tuple(name.lower() for name in path)
        if folded[0] in partitions:
            raise DeltaAnalysisException(
                f"{key} names the partition column {dotted(path)} (DELTA_COLUMN_DATA_SKIPPING_NOT_SUPPORTED_PARTITIONED_COLUMN)"
            )
        at: DataType = schema
        for name in path:
            field = at.find(name) if isinstance(at, StructType) else None
            if field is None:
                raise DeltaAnalysisException(
                    f"{key} names {dotted(path)}, which is not in the schema (DELTA_COLUMN_NOT_FOUND_IN_SCHEMA)"
                )
            at = field.data_type
        if not isinstance(at, StructType) and not _has_bounds(at):
            raise DeltaAnalysisException(
                f"{key} names {dotted(path)} of type {at}, which has no bounds (DELTA_COLUMN_DATA_SKIPPING_NOT_SUPPORTED_TYPE)"
            )


def _has_bounds(data_type: DataType) -> bool:
    return not isinstance(data_type, ArrayType | MapType) and data_type.name not in ("boolean", "binary", "void")
