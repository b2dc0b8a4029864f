"""What metadata must fulfil before they are committed (Delta's ``assertMetadata``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions import Metadata
from airflow_delta.log.partition_values import is_partition_type
from airflow_delta.log.properties import TableProperties
from airflow_delta.log.schema import (
    PRIMITIVES,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    leaves,
    parse_schema,
)

INVALID_CHARACTERS = " ,;{}()\n\t="
_CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def check_metadata(metadata: Metadata) -> None:
    """Check schema, partitioning and the columns that properties name.

    :raises DeltaAnalysisException: a name is given twice or holds characters that Parquet does not take, a type is not supported,
        a partition column is missing or of the wrong type, or a statistics column is unknown.
    """
    schema = parse_schema(metadata.schema_string)
    properties = TableProperties(metadata.configuration)
    if not schema.fields:
        raise DeltaAnalysisException("The schema has no columns; a table needs at least one")
    _check_names(schema, mapped=properties.column_mapping_mode != "none")
    _check_types(schema, "")
    _check_not_null(schema, "", enforceable=True)
    _check_partitioning(schema, metadata.partition_columns)
    if properties.enable_change_data_feed:
        reserved = [f.name for f in schema.fields if f.name.lower() in _CHANGE_COLUMNS]
        if reserved:
            raise DeltaAnalysisException(
                f"Columns {', '.join(reserved)} are reserved while the change data feed is on; rename them"
            )
    if properties.data_skipping_stats_columns is not None:
        _check_stats_columns(schema, metadata.partition_columns, properties.data_skipping_stats_columns)


def _paths(data_type: DataType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    match data_type:
        case StructType(fields):
            for f in fields:
                yield (*path, f.name)
                yield from _paths(f.data_type, (*path, f.name))
        case ArrayType(element, _):
            yield from _paths(element, (*path, "element"))
        case MapType(key, value, _):
            yield from _paths(key, (*path, "key"))
            yield from _paths(value, (*path, "value"))


def _check_names(schema: StructType, *, mapped: bool) -> None:
    paths = list(_paths(schema, ()))
    counts = Counter(tuple(name.lower() for name in path) for path in paths)
    twice = sorted({".".join(path) for path in paths if counts[tuple(name.lower() for name in path)] > 1})
    if twice:
        raise DeltaAnalysisException(f"Duplicate columns in the schema (names are compared without case): {', '.join(twice)}")
    bad = [] if mapped else sorted({".".join(path) for path in paths if not path[-1] or set(path[-1]) & set(INVALID_CHARACTERS)})
    if bad:
        raise DeltaAnalysisException(
            f"Column names must not be empty or hold any of {INVALID_CHARACTERS!r}: {', '.join(map(repr, bad))}. Rename them."
        )


def _check_types(data_type: DataType, path: str) -> None:
    match data_type:
        case StructType(fields):
            for f in fields:
                _check_types(f.data_type, f"{path}.{f.name}" if path else f.name)
        case ArrayType(element, _):
            _check_types(element, f"{path}.element")
        case MapType(key, value, _):
            _check_types(key, f"{path}.key")
            _check_types(value, f"{path}.value")
        case DecimalType(precision, scale):
            if not 0 < precision <= 38 or not 0 <= scale <= precision:
                raise DeltaAnalysisException(
                    f"Column {path} has the type {data_type}: precision is 1 to 38, scale 0 to precision"
                )
        case _ if data_type.name not in PRIMITIVES:
            raise DeltaAnalysisException(f"Column {path} has the type {data_type}, which Delta does not support; cast it")


def _check_not_null(data_type: DataType, path: str, *, enforceable: bool) -> None:
    """Refuse NOT NULL where no writer enforces it: in lists and maps, and below columns that may be null."""
    match data_type:
        case StructType(fields):
            for f in fields:
                here = f"{path}.{f.name}" if path else f.name
                if not f.nullable and not enforceable:
                    raise DeltaAnalysisException(
                        f"Column {here} is NOT NULL inside a list, a map or a struct that may be null, which cannot be enforced"
                    )
                _check_not_null(f.data_type, here, enforceable=enforceable and not f.nullable)
        case ArrayType(element, _):
            _check_not_null(element, f"{path}.element", enforceable=False)
        case MapType(key, value, _):
            _check_not_null(key, f"{path}.key", enforceable=False)
            _check_not_null(value, f"{path}.value", enforceable=False)


def _check_partitioning(schema: StructType, partition_columns: list[str]) -> None:
    folded = [name.lower() for name in partition_columns]
    if len(set(folded)) != len(folded):
        raise DeltaAnalysisException(f"A partition column is given twice: {', '.join(partition_columns)}")
    for name in partition_columns:
        f: StructField | None = next((f for f in schema.fields if f.name == name), None)
        if f is None:
            close = schema.find(name)
            hint = f"; it is spelled {close.name!r}" if close else f"; the columns are {', '.join(schema.names)}"
            raise DeltaAnalysisException(f"Partition column {name!r} is not in the schema{hint}")
        if not is_partition_type(f.data_type):
            raise DeltaAnalysisException(f"Column {name!r} of type {f.data_type} cannot partition a table")
    if partition_columns and len(partition_columns) == len(schema.fields):
        raise DeltaAnalysisException("All columns are partition columns; a table needs at least one that is not")


def _check_stats_columns(schema: StructType, partition_columns: list[str], listed: str) -> None:
    from airflow_delta.log.indexed_columns import parse_column_list

    partitions = {name.lower() for name in partition_columns}
    known = [tuple(name.lower() for name in leaf.path) for leaf in leaves(schema)]
    for path in parse_column_list(listed):
        folded = tuple(name.lower() for name in path)
        if folded[0] in partitions:
            raise DeltaAnalysisException(f"delta.dataSkippingStatsColumns names the partition column {'.'.join(path)}")
        if not any(leaf[: len(folded)] == folded for leaf in known):
            raise DeltaAnalysisException(f"delta.dataSkippingStatsColumns names {'.'.join(path)}, which is not in the schema")
