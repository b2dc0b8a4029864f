"""A table while ALTER TABLE changes it: metadata, protocol, clustering and the Delta operation of each change.

The changes of a transaction are applied twice: by the plan, to refuse impossible ones and to show later stages the result, and by
the commit, on the table as it was read. Both give the same table, including physical names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.payloads import StagedWrite, TransactionHandle
from airflow_delta.exceptions import DeltaAnalysisException, DeltaTableNotFoundException, Subject
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import Protocol
from airflow_delta.log.features import clustering
from airflow_delta.log.features.clustering import clustering_columns
from airflow_delta.log.features.protocol import upgraded
from airflow_delta.log.schema.types import StructField, StructType
from airflow_delta.log.schema.walk import Path, dotted
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.prepare.prepare import TableState

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import DomainMetadata, Metadata
    from airflow_delta.transaction import Operation


MODE = "alter"
"""``StagedWrite.mode`` of a stage that alters the table."""


@dataclass(frozen=True, kw_only=True)
class AlteredTable(Subject):
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
    :param syncs_identity: the only change is to the high-water mark of an identity column.
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
    syncs_identity: bool = False

    @cached_property
    def definition(self) -> TableDefinition:
        """Return what the table is after the changes."""
        return TableDefinition.of(self.metadata, self.protocol, table=self.table, version=self.version)

    @property
    def schema(self) -> StructType:
        """Return the schema."""
        return self.definition.schema

    def _about(self) -> tuple[str, int | None]:
        return self.table, self.version

    def refuse(self, message: str) -> DeltaAnalysisException:
        """Return the error for a change that this table does not allow."""
        return self.error(DeltaAnalysisException, f"{message} (table {self.table} version {self.version})")

    def physical_name(self, path: Path) -> str:
        """Return the physical name of a new column, the same each time this change is applied."""
        return f"col-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.seed}/{len(self.operations)}/{dotted(path)}')}"

    def done(self, operation: Operation, **changed: Any) -> AlteredTable:
        """Return the table after a change."""
        return replace(self, operations=(*self.operations, operation), **changed)

    def with_metadata(self, metadata: Metadata, operation: Operation, *, look_at_files: bool = False) -> AlteredTable:
        """Return the table with new metadata and the protocol that they require.

        :param look_at_files: check the files of the table as well.
        """
        from airflow_delta.transaction.prepare.metadata_update import update_metadata

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
        raise handle.error(
            DeltaTableNotFoundException,
            f"Table {handle.table} did not exist when the transaction began, so there is nothing to alter. Create it with "
            "the right definition, or alter it in a later transaction.",
        )
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


_ALONE = {"DropFeature": "dropping a feature", "SyncIdentity": "syncing an identity column"}


def needs_own_commit(write: StagedWrite) -> str | None:
    """Return what a stage does that shares a commit with nothing else; ``None``: no such thing."""
    return next((_ALONE[kind] for change in write.changes if (kind := change.get("change")) in _ALONE), None)


def protocol_with(features: Iterable[str]) -> Protocol:
    """Return the weakest protocol with exactly these features."""
    named = Protocol(min_reader_version=3, min_writer_version=7, reader_features=[], writer_features=sorted(features))
    return upgraded(Protocol(min_reader_version=1, min_writer_version=1), named)


def column_document(name: str, field: StructField) -> dict[str, Any]:
    """Return a column as ``commitInfo`` has it, with only the kind of nested types."""
    return {"name": name, "type": field.data_type.name, "nullable": field.nullable, "metadata": dict(field.metadata)}
