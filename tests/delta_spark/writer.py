"""Our side of a table: transactions that commit real Parquet files in milliseconds, without Spark."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_delta.log import DeltaLog
from airflow_delta.log.actions.actions import Action, AddFile, DomainMetadata, Metadata, SetTransaction
from airflow_delta.log.features.column_mapping import field_id, mode
from airflow_delta.log.features.properties import TableProperties
from airflow_delta.log.schema.partition_directories import partition_directory
from airflow_delta.log.schema.partition_values import serialize_partition_value
from airflow_delta.log.schema.types import StructField, arrow_type, parse_schema
from airflow_delta.log.statistics.footers_to_stats import stats_from_footer
from airflow_delta.transaction import Operation, OptimisticTransaction
from delta_spark.support import open_log

Rows = Sequence[Mapping[str, Any]]
"""Rows by logical column name; columns that are left out are null."""


def now() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)


class Writer:
    """One client of ours, which keeps its log between the transactions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log: DeltaLog = open_log(path)

    @property
    def version(self) -> int:
        return self.log.update().version

    @property
    def metadata(self) -> Metadata:
        return self.log.update().metadata

    # -- files ----------------------------------------------------------------------------------------------------------------

    def files(self, metadata: Metadata, rows: Rows, *, data_change: bool = True) -> list[AddFile]:
        """Write one Parquet file for each partition of the rows."""
        schema = parse_schema(metadata.schema_string)
        partition_fields = [f for name in metadata.partition_columns if (f := schema.find(name)) is not None]
        groups: dict[tuple[str | None, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            values = tuple(serialize_partition_value(row.get(f.name), f.data_type) for f in partition_fields)
            groups.setdefault(values, []).append(row)
        mapped = mode(metadata.configuration) != "none"
        stored = [f for f in schema.fields if f not in partition_fields]
        adds = []
        for group, members in groups.items():
            values = {f.physical_name if mapped else f.name: value for f, value in zip(partition_fields, group, strict=True)}
            arrow = pa.table(
                [pa.array([row.get(f.name) for row in members], arrow_type(f.data_type)) for f in stored],
                schema=pa.schema([_arrow_field(f, mapped=mapped) for f in stored]),
            )
            name = f"ours-{uuid.uuid4()}.parquet"
            directory = "" if mapped else partition_directory(values, list(values))
            target = self.path / directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(arrow, target)
            footer = pq.read_metadata(target)
            adds.append(
                AddFile(
                    path=quote(f"{directory}/{name}" if directory else name, safe="/=:"),
                    partition_values=values,
                    size=target.stat().st_size,
                    modification_time=now(),
                    data_change=data_change,
                    stats=stats_from_footer(footer, schema, TableProperties(metadata.configuration), metadata.partition_columns),
                )
            )
        return adds

    # -- commits --------------------------------------------------------------------------------------------------------------

    def create(
        self,
        columns: Sequence[Mapping[str, Any]],
        *,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> int:
        """Create the table, with columns in Spark's JSON form."""
        txn = self.log.start_transaction()
        txn.update_metadata_for_new_table(
            Metadata(
                id=str(uuid.uuid4()),
                schema_string=json.dumps({"type": "struct", "fields": list(columns)}),
                partition_columns=list(partition_by),
                configuration=dict(configuration or {}),
                created_time=now(),
            )
        )
        return txn.commit([], Operation.create_table(partition_by, properties=configuration))

    def append(self, rows: Rows) -> int:
        txn = self.log.start_transaction()
        return txn.commit(self.files(txn.metadata, rows), Operation.write())

    def append_once(self, rows: Rows, app_id: str) -> int:
        """Append with the next version of an application."""
        txn = self.log.start_transaction()
        version = txn.txn_version(app_id) + 1
        actions = [*self.files(txn.metadata, rows), SetTransaction(app_id=app_id, version=version, last_updated=now())]
        return txn.commit(actions, Operation.streaming_update("Append", str(uuid.uuid4()), version))

    def overwrite(self, rows: Rows) -> int:
        txn = self.log.start_transaction()
        return self._replace(txn, _chosen(txn, txn.filter_files()), rows, Operation.write("Overwrite"))

    def replace_where(self, predicate: str, rows: Rows) -> int:
        """Replace the files that a predicate on partition columns selects."""
        txn = self.log.start_transaction()
        return self._replace(
            txn, _chosen(txn, txn.filter_files(predicate)), rows, Operation.write("Overwrite", predicate=predicate)
        )

    def delete_where(self, predicate: str) -> int:
        """Delete the partitions that a predicate selects."""
        txn = self.log.start_transaction()
        return self._replace(txn, _chosen(txn, txn.filter_files(predicate)), [], Operation.delete([predicate]))

    def overwrite_partitions(self, rows: Rows) -> int:
        """Replace the partitions that the rows are in."""
        txn = self.log.start_transaction()
        adds = self.files(txn.metadata, rows)
        old = _chosen(txn, txn.filter_files_for_partitions(adds))
        operation = Operation.write("Overwrite", dynamic_partition_overwrite=True)
        return txn.commit([*(add.remove(now()) for add in old), *adds], operation)

    def set_properties(self, **properties: str) -> int:
        txn = self.log.start_transaction()
        named = {key.replace("_", "."): value for key, value in properties.items()}
        metadata = txn.metadata
        txn.update_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, **named}))
        return txn.commit([], Operation.set_table_properties(named))

    def set_domain(self, domain: str, configuration: str, *, removed: bool = False) -> int:
        return self.commit([DomainMetadata(domain=domain, configuration=configuration, removed=removed)])

    def commit(self, actions: Iterable[Action], operation: Operation | None = None) -> int:
        return self.log.start_transaction().commit(list(actions), operation or Operation.manual_update())

    def checkpoint(self) -> None:
        self.log.checkpoint(self.log.update())

    def _replace(self, txn: OptimisticTransaction, old: Iterable[AddFile], rows: Rows, operation: Operation) -> int:
        deleted_at = now()
        return txn.commit([*(add.remove(deleted_at) for add in old), *self.files(txn.metadata, rows)], operation)


def _chosen(txn: OptimisticTransaction, files: pa.Table) -> list[AddFile]:
    paths = set(files["path"].to_pylist())
    return [add for add in txn.snapshot.add_files() if add.path in paths]


def _arrow_field(field: StructField, *, mapped: bool) -> pa.Field:
    if not mapped:
        return pa.field(field.name, arrow_type(field.data_type), field.nullable)
    ids = {b"PARQUET:field_id": str(field_id(field)).encode()}
    return pa.field(field.physical_name, arrow_type(field.data_type), field.nullable, metadata=ids)
