"""A table while ALTER TABLE changes it: metadata, protocol, clustering and the Delta operation of each change.

The changes of a transaction are applied twice: by the plan, to refuse impossible ones and to show later stages the result, and by
the commit, on the table as it was read. Both give the same table, including physical names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaAnalysisException, DeltaTableNotFoundException
from airflow_delta.staging.contract import StagedWrite, TransactionHandle

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import DomainMetadata, Metadata, Protocol
    from airflow_delta.log.schema.types import StructType
    from airflow_delta.log.schema.walk import Path
    from airflow_delta.transaction import Operation

MODE = "alter"
"""``StagedWrite.mode`` of a stage that alters the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredTable:
    """The table after some changes.

    :param seed: for physical names: the transaction's id.
    :param snapshot: version that the transaction reads; ``None`` if only metadata are needed.
    :param clustering: physical paths of the clustering columns; ``None``: unknown.
    :param domains: metadata domains that the changes set, by name.
    :param operations: Delta's operations for the changes, in order.
    :param sets_metadata: the commit writes the metadata, changed or not, as Delta does.
    :param constraints: CHECK constraints that existing rows must satisfy, by name.
    :param not_null: columns that must not hold a null.
    :param reads_table: the changes depend on the rows of the table: concurrent writes conflict.
    """

    table: str
    version: int
    seed: str
    metadata: Metadata
    protocol: Protocol
    snapshot: Snapshot | None = None
    clustering: tuple[Path, ...] | None = ()
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    operations: tuple[Operation, ...] = ()
    sets_metadata: bool = False
    constraints: dict[str, str] = field(default_factory=dict)
    not_null: tuple[Path, ...] = ()
    reads_table: bool = False

    @property
    def schema(self) -> StructType:
        """Return the schema."""
        from airflow_delta.log.schema.types import parse_schema

        return parse_schema(self.metadata.schema_string)

    def refuse(self, message: str) -> DeltaAnalysisException:
        """Return the error for a change that this table does not allow."""
        return DeltaAnalysisException(
            f"{message} (table {self.table} version {self.version})", table=self.table, version=self.version
        )

    def physical_name(self, path: Path) -> str:
        """Return the physical name of a new column, the same each time this change is applied."""
        from airflow_delta.log.schema.walk import dotted

        return f"col-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.seed}/{len(self.operations)}/{dotted(path)}')}"

    def done(self, operation: Operation, **changed: Any) -> AlteredTable:
        """Return the table after a change."""
        return replace(self, operations=(*self.operations, operation), **changed)

    def with_metadata(self, metadata: Metadata, operation: Operation, *, look_at_files: bool = False) -> AlteredTable:
        """Return the table with new metadata and the protocol that they require.

        :param look_at_files: check the files of the table as well.
        :raises DeltaError: if the metadata are not valid, or need a feature that an existing table must get by name.
        """
        from airflow_delta.log.features import clustering
        from airflow_delta.transaction.prepare.metadata_update import update_metadata
        from airflow_delta.transaction.prepare.prepare import TableState

        state = TableState(
            table=self.table,
            read_version=self.version,
            metadata=self.metadata,
            protocol=self.protocol,
            snapshot=self.snapshot if look_at_files else None,
        )
        if self.clustering:
            clustering.check_clustering(metadata, list(self.clustering))
        update = update_metadata(state, metadata)
        return self.done(operation, metadata=update.metadata, protocol=update.protocol or self.protocol, sets_metadata=True)


def table_as_read(handle: TransactionHandle, snapshot: Snapshot) -> AlteredTable:
    """Return the table at the version that a transaction reads.

    :raises DeltaTableNotFoundException: if the table did not exist.
    """
    if snapshot.version < 0:
        raise DeltaTableNotFoundException(
            f"Table {handle.table} did not exist when the transaction began, so there is nothing to alter. Create it with "
            "the right definition, or alter it in a later transaction.",
            table=handle.table,
        )
    from airflow_delta.log.features.clustering import clustering_columns

    return AlteredTable(
        table=handle.table,
        version=snapshot.version,
        seed=handle.transaction_id,
        metadata=snapshot.metadata,
        protocol=snapshot.protocol,
        snapshot=snapshot,
        clustering=tuple(clustering_columns(snapshot.domain_metadata)),
    )


def is_alter(write: StagedWrite) -> bool:
    """Return whether a stage alters the table."""
    return write.mode == MODE


def handle_of(handle: TransactionHandle, table: AlteredTable) -> TransactionHandle:
    """Return the handle as if the transaction had read the altered table."""
    from airflow_delta.log.features.protocol import features

    return replace(
        handle,
        schema_string=table.metadata.schema_string,
        partition_columns=tuple(table.metadata.partition_columns),
        configuration=table.metadata.properties,
        features=tuple(sorted(features(table.protocol))),
    )


def protocol_with(features: Iterable[str]) -> Protocol:
    """Return the weakest protocol with exactly these features."""
    from airflow_delta.log.actions.actions import Protocol
    from airflow_delta.log.features.protocol import upgraded

    named = Protocol(min_reader_version=3, min_writer_version=7, reader_features=[], writer_features=sorted(features))
    return upgraded(Protocol(min_reader_version=1, min_writer_version=1), named)
