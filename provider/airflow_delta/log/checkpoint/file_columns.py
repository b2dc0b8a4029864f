"""The columns of a table of files (Delta's fields of ``add`` in snake_case), built from checkpoint rows or from actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.actions import AddFile, DeletionVectorDescriptor, RemoveFile
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array as to_array
from airflow_delta.log.arrow.arrays import repeated
from airflow_delta.log.checkpoint.checkpoint_schema import STRING_MAP
from airflow_delta.log.checkpoint.stats import format_stats

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
            arrays.append(array if array.type == field.type else kernels.cast(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _absent(rows: pa.RecordBatch, name: str) -> bool:
    return name not in rows.schema.names or rows.column(name).null_count == rows.num_rows


def _deletion_vectors(array: pa.StructArray) -> pa.StructArray:
    if array.null_count == len(array):
        return pa.nulls(len(array), VECTOR_COLUMN)
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [
        kernels.cast(fields[name], field.type) if (name := camel(field.name)) in fields else pa.nulls(len(array), field.type)
        for field in VECTOR_COLUMN
    ]
    return pa.StructArray.from_arrays(children, fields=list(VECTOR_COLUMN), mask=kernels.is_null(array))


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
