"""The columns of a checkpoint as Delta Spark writes them (protocol, "Checkpoint Schema").

The columns of a table of files (Delta's fields of ``add`` in snake_case), built from checkpoint rows or from actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from airflow_delta.log.arrow.arrays import array as to_array
from airflow_delta.log.arrow.arrays import repeated
from airflow_delta.log.checkpoint.stats import format_stats
from airflow_delta.log.schema.types import (
    FLOATING,
    INTEGRAL,
    DataType,
    DecimalType,
    Leaf,
    StructType,
    arrow_type,
)

STRING_MAP = pa.map_(pa.string(), pa.string())
STRING_LIST = pa.list_(pa.field("element", pa.string()))

DELETION_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", STRING_MAP),
        ("size", pa.int64()),
        ("deletionVector", DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ]
)
METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", STRING_MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", STRING_LIST),
        ("configuration", STRING_MAP),
        ("createdTime", pa.int64()),
    ]
)
PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", STRING_LIST),
        ("writerFeatures", STRING_LIST),
    ]
)
DOMAIN_METADATA = pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())])

CHECKPOINT_METADATA = pa.struct([("version", pa.int64()), ("tags", STRING_MAP)])
SIDECAR = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", STRING_MAP)])

_ADD = [
    pa.field("path", pa.string()),
    pa.field("partitionValues", STRING_MAP),
    pa.field("size", pa.int64()),
    pa.field("modificationTime", pa.int64()),
    pa.field("dataChange", pa.bool_()),
    pa.field("tags", STRING_MAP),
    pa.field("deletionVector", DELETION_VECTOR),
    pa.field("baseRowId", pa.int64()),
    pa.field("defaultRowCommitVersion", pa.int64()),
    pa.field("clusteringProvider", pa.string()),
]

_ORDERED = frozenset({*INTEGRAL, *FLOATING, "string", "date", "timestamp", "timestamp_ntz"})


@dataclass(frozen=True, slots=True)
class CheckpointSchema:
    """The columns that a checkpoint has for files.

    :param stats_json: whether statistics are written as JSON.
    :param stats: type of ``stats_parsed``, or ``None`` if it is not written.
    :param partition: type of ``partitionValues_parsed``, with physical names, or ``None`` if it is not written.
    """

    stats_json: bool
    stats: pa.StructType | None
    partition: pa.StructType | None

    @property
    def add(self) -> pa.StructType:
        """Return the type of the column ``add``."""
        fields = list(_ADD)
        if self.stats_json:
            fields.append(pa.field("stats", pa.string()))
        if self.stats is not None:
            fields.append(pa.field("stats_parsed", self.stats))
        if self.partition is not None:
            fields.append(pa.field("partitionValues_parsed", self.partition))
        return pa.struct(fields)

    @property
    def files(self) -> pa.Schema:
        """Return the schema of a sidecar."""
        return pa.schema([("add", self.add), ("remove", REMOVE)])

    @property
    def classic(self) -> pa.Schema:
        """Return the schema of a file of a classic checkpoint."""
        return pa.schema(
            [
                ("txn", TXN),
                *self.files,
                ("metaData", METADATA),
                ("protocol", PROTOCOL),
                ("domainMetadata", DOMAIN_METADATA),
            ]
        )


MANIFEST = pa.schema(
    [
        *CheckpointSchema(stats_json=True, stats=None, partition=None).classic,
        ("checkpointMetadata", CHECKPOINT_METADATA),
        ("sidecar", SIDECAR),
    ]
)
"""Schema of a Parquet manifest: as in Delta, it has columns for all kinds, although files are in sidecars."""


def partition_type(partition_schema: StructType) -> pa.StructType | None:
    """Return the type of ``partitionValues_parsed``; ``None`` for an unpartitioned table."""
    if not partition_schema.fields:
        return None
    return pa.struct([(f.physical_name, arrow_type(f.data_type)) for f in partition_schema.fields])


def stats_type(indexed: list[Leaf], *, tight_bounds: bool = False) -> pa.StructType:
    """Return the type of ``stats_parsed`` for the columns that have statistics (protocol, "Per-file Statistics").

    :param tight_bounds: include ``tightBounds``, as for tables with deletion vectors.
    """
    members: list[tuple[str, pa.DataType]] = [("numRecords", pa.int64())]
    bounds = [(leaf, arrow_type(leaf.data_type)) for leaf in indexed if type_has_bounds(leaf.data_type)]
    if bounds:
        nested = _nested(bounds)
        members += [("minValues", nested), ("maxValues", nested)]
    if indexed:
        members.append(("nullCount", _nested([(leaf, pa.int64()) for leaf in indexed])))
    if tight_bounds:
        members.append(("tightBounds", pa.bool_()))
    return pa.struct(members)


def type_has_bounds(data_type: DataType) -> bool:
    """Tell whether statistics have bounds for columns of that type."""
    return isinstance(data_type, DecimalType) or data_type.name in _ORDERED


def _nested(leaves: list[tuple[Leaf, pa.DataType]], depth: int = 0) -> pa.StructType:
    fields: dict[str, list[tuple[Leaf, pa.DataType]]] = {}
    for leaf, arrow in leaves:
        fields.setdefault(leaf.physical_path[depth], []).append((leaf, arrow))
    return pa.struct(
        [
            (name, below[0][1] if len(below[0][0].physical_path) == depth + 1 else _nested(below, depth + 1))
            for name, below in fields.items()
        ]
    )


_SPARK_NAMES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def spark_schema(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """Return columns in Spark's JSON form, all nullable, as Delta records the schema of a checkpoint."""
    return {
        "type": "struct",
        "fields": [{"name": f.name, "type": _spark_type(f.type), "nullable": True, "metadata": {}} for f in fields],
    }


def _spark_type(data_type: pa.DataType) -> Any:
    if pa.types.is_struct(data_type):
        return spark_schema(data_type)
    if pa.types.is_map(data_type):
        return {
            "type": "map",
            "keyType": _spark_type(data_type.key_type),
            "valueType": _spark_type(data_type.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(data_type):
        return {"type": "array", "elementType": _spark_type(data_type.value_type), "containsNull": True}
    if pa.types.is_timestamp(data_type):
        return "timestamp" if data_type.tz is not None else "timestamp_ntz"
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _SPARK_NAMES[data_type]


VECTOR_COLUMN = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline_dv", pa.string()),
        ("offset", pa.int32()),
        ("size_in_bytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", STRING_MAP),
        ("size", pa.int64()),
        ("modification_time", pa.int64()),
        ("data_change", pa.bool_()),
        ("stats", pa.string()),
        ("tags", STRING_MAP),
        ("deletion_vector", VECTOR_COLUMN),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("clustering_provider", pa.string()),
    ]
)
"""All columns of a table of live files. ``data_change`` is always ``False``, as in Delta's replay."""

FILE_COLUMNS = tuple(FILE_SCHEMA.names)
"""Their names: what an action is made of."""

_DEFAULT = pa.schema([field for field in FILE_SCHEMA if field.name != "stats"])

TOMBSTONE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("deletion_timestamp", pa.int64()),
        ("data_change", pa.bool_()),
        ("extended_file_metadata", pa.bool_()),
        ("partition_values", STRING_MAP),
        ("size", pa.int64()),
        ("deletion_vector", VECTOR_COLUMN),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
    ]
)
"""All columns of a table of tombstones."""


def camel(name: str) -> str:
    """Return Delta's spelling of a column: ``modificationTime`` for ``modification_time``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def projected(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns, in the given order; of all columns but ``stats`` for ``None``.

    :raises DeltaIllegalArgumentException: if a column does not exist.
    """
    if columns is None:
        return _DEFAULT
    unknown = [name for name in columns if name not in FILE_SCHEMA.names]
    if unknown:
        raise DeltaIllegalArgumentException(
            f"A table of files has no column {', '.join(unknown)}; the columns are {', '.join(FILE_SCHEMA.names)}"
        )
    return pa.schema([FILE_SCHEMA.field(name) for name in columns])


def to_columns(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return checkpoint rows (Delta's names, any writer's types) as a batch of ``schema``; missing columns become null."""
    arrays = []
    for field in schema:
        source = camel(field.name)
        if field.name == "data_change":
            arrays.append(repeated(False, rows.num_rows))
        elif field.name == "stats" and "stats_parsed" in rows.schema.names and _absent(rows, "stats"):
            arrays.append(format_stats(rows.column("stats_parsed")))
        elif source not in rows.schema.names:
            arrays.append(pa.nulls(rows.num_rows, field.type))
        elif field.name == "deletion_vector":
            arrays.append(_deletion_vectors(rows.column(source)))
        else:
            array = rows.column(source)
            arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _absent(rows: pa.RecordBatch, name: str) -> bool:
    return name not in rows.schema.names or rows.column(name).null_count == rows.num_rows


def _deletion_vectors(array: pa.StructArray) -> pa.StructArray:
    if array.null_count == len(array):
        return pa.nulls(len(array), VECTOR_COLUMN)
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [
        fields[name].cast(field.type) if (name := camel(field.name)) in fields else pa.nulls(len(array), field.type)
        for field in VECTOR_COLUMN
    ]
    return pa.StructArray.from_arrays(children, fields=list(VECTOR_COLUMN), mask=array.is_null())


def from_actions(actions: Iterable[AddFile] | Iterable[RemoveFile], schema: pa.Schema) -> pa.RecordBatch:
    """Return actions as a batch of ``schema``."""
    rows = list(actions)
    return pa.RecordBatch.from_arrays([_column(rows, field) for field in schema], schema=schema)


def _column(rows: list[Any], field: pa.Field) -> pa.Array:
    name = field.name
    if name == "data_change":
        return repeated(False, len(rows))
    values = [getattr(row, name) for row in rows]
    if name == "deletion_vector":
        values = [None if value is None else msgspec.structs.asdict(value) for value in values]
    return to_array(values, field.type)


def to_add_files(files: pa.Table) -> list[AddFile]:
    """Return a table of files as actions; for the few files of a commit, not for whole tables.

    Missing columns take their default; the first four of :data:`FILE_SCHEMA` are required.
    """
    adds = []
    for row in files.to_pylist():
        vector = row.get("deletion_vector")
        tags = row.get("tags")
        adds.append(
            AddFile(
                path=row["path"],
                partition_values=dict(row["partition_values"]),
                size=row["size"],
                modification_time=row["modification_time"],
                data_change=False,
                stats=row.get("stats"),
                tags=None if tags is None else dict(tags),
                deletion_vector=None if vector is None else DeletionVectorDescriptor(**vector),
                base_row_id=row.get("base_row_id"),
                default_row_commit_version=row.get("default_row_commit_version"),
                clustering_provider=row.get("clustering_provider"),
            )
        )
    return adds
