"""The schema to read changes of a table with, and whether it fits every version of the range.

Delta's rules (``CDCReader``): the latest schema, or for a table with column mapping that of the last version of the range.
Between it and the range, columns may only have been added or become nullable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.actions.actions import Metadata
from airflow_delta.log.features import column_mapping
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType
from airflow_delta.log.schema.walk import folded, walk_fields
from airflow_delta.log.table_definition import TableDefinition

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def read_schema(log: DeltaLog, snapshot: Snapshot, start: Snapshot, end: int) -> Snapshot:
    """Return the version whose schema the changes are read with.

    :param snapshot: the table as it is.
    :param start: the first version of the range.
    :param end: its last version.
    """
    if end == snapshot.version:
        return snapshot
    last = log.snapshot_at(end)
    mapped = any(column_mapping.mode(s.metadata.configuration) != "none" for s in (snapshot, start, last))
    return last if mapped else snapshot


def check_readable(table: str, read: Snapshot, metadata: Metadata, version: int, versions: tuple[int, int]) -> None:
    """Check that data of a version can be read with another version's schema.

    :param metadata: metadata that ``version`` has.
    :param versions: the range, for the message.
    :raises DeltaAnalysisException: if they cannot (Delta: DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE).
    """
    older, newer = (metadata, read.metadata) if version <= read.version else (read.metadata, metadata)
    before, now = (TableDefinition.of(one).schema for one in (older, newer))
    fits = _is_readable(before, now, tighten=version > read.version)
    if fits and _same_columns(newer, older) and _same_partitioning(newer, older):
        return
    raise DeltaAnalysisException(
        f"The changes of table {table} from version {versions[0]} to {versions[1]} cannot be read with one schema: the "
        f"schema of version {version} differs from that of version {read.version} in more than added columns "
        "(DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE). Read the versions before the change of the schema, up to "
        "ending_version, and those after it separately.",
        table=table,
        version=version,
    )


def check_removed(table: str, read: Snapshot, before: Metadata, version: int) -> None:
    """Check that rows removed by the first commit of a range can be read if that commit also changes the schema.

    Their files belong to the version before the range: RESTORE and schema overwrites can change the partitioning or physical
    names, and Delta would read nulls.

    :param before: metadata that the files were written under.
    :raises DeltaAnalysisException: if they cannot be read.
    """
    names, now = _physical_names(before), _physical_names(read.metadata)
    if _same_partitioning(read.metadata, before) and all(names[path] == now[path] for path in names.keys() & now.keys()):
        return
    raise DeltaAnalysisException(
        f"Version {version} of table {table} removes files that were written under another partitioning or other physical names "
        f"than those of version {read.version}, which the changes would be read with "
        "(DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE). Read the rows of the version before, with time travel.",
        table=table,
        version=version,
    )


def _physical_names(metadata: Metadata) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the names of columns in files, at any depth, by path."""
    table = TableDefinition.of(metadata)
    schema = table.schema
    physical = column_mapping.physical_schema(schema, table.column_mapping)
    return {folded(path): other for (path, _), (other, _) in zip(walk_fields(schema), walk_fields(physical), strict=True)}


def _same_columns(new: Metadata, old: Metadata) -> bool:
    """Return whether column mapping stayed on, without dropped or renamed columns."""
    before, now = (column_mapping.mode(metadata.configuration) for metadata in (old, new))
    if now == "none":
        return before == "none"
    return not column_mapping.drops_or_renames(new, old)


def _same_partitioning(new: Metadata, old: Metadata) -> bool:
    names: list[Sequence[str]] = [column_mapping.physical_partition_columns(m) for m in (new, old)]
    return list(names[0]) == list(names[1])


def _is_readable(existing: StructType, read: StructType, *, tighten: bool) -> bool:
    """Return whether data of one schema can be read with another (Delta's ``SchemaUtils.isReadCompatible``).

    :param tighten: columns that may be null may be ``NOT NULL`` in the other schema, rather than the other way round.
    """

    def nulls(before: bool, now: bool) -> bool:
        return before or not now if tighten else now or not before

    def struct(before: StructType, now: StructType) -> bool:
        known = {field.name.lower(): field for field in before}
        if not known.keys() <= {field.name.lower() for field in now}:
            return False
        pairs = [(known[field.name.lower()], field) for field in now if field.name.lower() in known]
        return all(a.name == b.name and nulls(a.nullable, b.nullable) and types(a.data_type, b.data_type) for a, b in pairs)

    def types(before: DataType, now: DataType) -> bool:
        match before, now:
            case StructType(), StructType():
                return struct(before, now)
            case ArrayType(), ArrayType():
                return nulls(before.contains_null, now.contains_null) and types(before.element_type, now.element_type)
            case MapType(), MapType():
                values = nulls(before.value_contains_null, now.value_contains_null)
                return values and types(before.key_type, now.key_type) and types(before.value_type, now.value_type)
        return before == now

    return struct(existing, read)
