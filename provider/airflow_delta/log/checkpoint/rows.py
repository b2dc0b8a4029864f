"""Building the rows of a checkpoint: struct columns of files, tombstones and non-file actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.arrow import kernels
from airflow_delta.log.arrow.arrays import array, repeated
from airflow_delta.log.checkpoint.checkpoint_schema import (
    CHECKPOINT_METADATA,
    DELETION_VECTOR,
    DOMAIN_METADATA,
    METADATA,
    PROTOCOL,
    REMOVE,
    SIDECAR,
    TXN,
    CheckpointSchema,
)
from airflow_delta.log.checkpoint.file_columns import FILE_SCHEMA
from airflow_delta.log.checkpoint.manifest import CheckpointMetadata, SidecarFile
from airflow_delta.log.checkpoint.sort import PartitionTyper
from airflow_delta.log.checkpoint.stats import parse_stats


class AddRows:
    """Turns batches of files into the checkpoint's column ``add``; missing columns become null.

    :param schema: schema of the checkpoint.
    :param typer: parses partition values.
    """

    def __init__(self, schema: CheckpointSchema, typer: PartitionTyper) -> None:
        self._schema = schema
        self._type = schema.add
        self._typer = typer

    def of(self, files: pa.RecordBatch) -> pa.StructArray:
        """Return the rows of some files, which may have a column ``stats_parsed``."""
        return pa.StructArray.from_arrays([self._column(files, field) for field in self._type], fields=list(self._type))

    def _column(self, files: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name == "dataChange":
            return repeated(False, files.num_rows)
        name = _snake(field.name)
        if name in FILE_SCHEMA.names and name not in files.schema.names:
            return pa.nulls(files.num_rows, field.type)
        if field.name == "deletionVector":
            return renamed_vectors(files.column(name))
        if field.name == "partitionValues_parsed":
            typed = self._typer.typed(self._typer.texts(files.column("partition_values")))
            return pa.StructArray.from_arrays(typed, fields=list(field.type))
        if field.name == "stats_parsed":
            if "stats_parsed" in files.schema.names:
                return files.column("stats_parsed")
            return parse_stats(files.column("stats"), field.type)
        return files.column(name)


def add_rows(files: pa.RecordBatch, add: pa.StructType) -> pa.StructArray:
    """Return the column ``add`` for a batch of files, without typed columns.

    :param add: type of the result.
    """
    arrays = [
        renamed_vectors(files.column("deletion_vector")) if field.name == "deletionVector" else files.column(_snake(field.name))
        for field in add
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(add))


def renamed_vectors(vectors: pa.StructArray) -> pa.StructArray:
    """Return the deletion vectors of a table of files with Delta's field names."""
    mask = kernels.is_null(vectors) if vectors.null_count else None
    return pa.StructArray.from_arrays(vectors.flatten(), fields=list(DELETION_VECTOR), mask=mask)


def tombstone_rows(removes: pa.RecordBatch) -> pa.StructArray:
    """Return the column ``remove`` for a batch of tombstones."""
    arrays = [
        renamed_vectors(removes.column("deletion_vector"))
        if field.name == "deletionVector"
        else removes.column(_snake(field.name))
        for field in REMOVE
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(REMOVE))


def state_rows(
    protocol: Protocol,
    metadata: Metadata,
    transactions: Iterable[SetTransaction],
    domains: Iterable[DomainMetadata],
) -> Iterator[tuple[str, pa.StructArray]]:
    """Yield (column, rows) for all non-file actions."""
    txns = sorted(transactions, key=lambda txn: txn.app_id)
    if txns:
        columns = [
            array([txn.app_id for txn in txns], pa.string()),
            array([txn.version for txn in txns], pa.int64()),
            array([txn.last_updated for txn in txns], pa.int64()),
        ]
        yield "txn", pa.StructArray.from_arrays(columns, fields=list(TXN))
    yield "metaData", array([_row(metadata)], METADATA)
    yield "protocol", array([_row(protocol)], PROTOCOL)
    named = sorted(domains, key=lambda domain: domain.domain)
    if named:
        yield "domainMetadata", array([_row(domain) for domain in named], DOMAIN_METADATA)


def metadata_rows(about: CheckpointMetadata) -> pa.StructArray:
    """Return the column ``checkpointMetadata``."""
    return array([{"version": about.version, "tags": about.tags}], CHECKPOINT_METADATA)


def sidecar_rows(sidecars: Sequence[SidecarFile]) -> pa.StructArray:
    """Return the column ``sidecar``."""
    return array([msgspec.to_builtins(sidecar) for sidecar in sidecars], SIDECAR)


def _row(action: Protocol | Metadata | DomainMetadata) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(action)
    if isinstance(action, Metadata):
        row["configuration"] = action.configuration
        row["format"] = {"provider": action.format.provider, "options": action.format.options}
    return row


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
