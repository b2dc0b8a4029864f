"""The columns of a checkpoint as Delta Spark writes them, and their types for a table (protocol, "Checkpoint Schema")."""

from __future__ import annotations

import pyarrow as pa

from airflow_delta.light_dataclasses import dataclass
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
