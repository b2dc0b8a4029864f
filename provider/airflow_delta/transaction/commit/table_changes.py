"""The half of a transaction that changes the table itself: metadata, protocol, application ids, identity columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAssertionError
from airflow_delta.log.actions.actions import Action, DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.transaction.commit.table_reads import TableReads

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.transaction.prepare.prepare import TableState


class TableChanges(TableReads):
    """What a transaction sets beside files, each at most once.

    :ivar has_written: data files have been written; the metadata may not change any more.
    :ivar default_properties: for tables that the transaction creates or replaces, under those that their metadata has.
    :ivar is_creating_new_table: the metadata was set for a new table, or for one that replaces the table.
    :ivar is_overwriting_schema: the metadata was set by an overwrite that brings a schema of its own.
    :ivar sync_identity: the commit only sets high-water marks of identity columns to what the table holds.
    """

    def __init__(self, log: DeltaLog, snapshot: Snapshot, *, default_properties: Mapping[str, str] | None = None) -> None:
        super().__init__(log, snapshot)
        self.has_written = False
        self.default_properties = dict(default_properties or {})
        self.is_creating_new_table = False
        self.is_overwriting_schema = False
        self.sync_identity = False
        self._new_metadata: Metadata | None = None
        self._new_protocol: Protocol | None = None
        self._domains: tuple[DomainMetadata, ...] = ()
        self._set_transactions: list[SetTransaction] = []
        self._identity_marks: dict[str, list[int]] = {}

    @property
    def metadata(self) -> Metadata:
        """The table's metadata as this transaction leaves it.

        :raises DeltaTableNotFoundException: the table does not exist and the transaction has not set it.
        """
        return self._new_metadata if self._new_metadata is not None else self.snapshot.metadata

    @property
    def snapshot_metadata(self) -> Metadata:
        """The table's metadata at the version that is read."""
        return self.snapshot.metadata

    @property
    def new_metadata(self) -> Metadata | None:
        """Metadata that the transaction sets."""
        return self._new_metadata

    @property
    def protocol(self) -> Protocol:
        """The table's protocol as this transaction leaves it."""
        return self._new_protocol if self._new_protocol is not None else self.snapshot.protocol

    @property
    def new_protocol(self) -> Protocol | None:
        """Protocol that the transaction sets, or that its metadata asks for."""
        return self._new_protocol

    @property
    def can_update_metadata(self) -> bool:
        """Whether ``update_metadata`` may still be called."""
        return not self.has_written and self._new_metadata is None

    def update_metadata(
        self, metadata: Metadata, *, ignore_default_properties: bool = False, protocol: Protocol | None = None
    ) -> None:
        """Set the table's new metadata: once, and before any file is written. Upgrades the protocol where it must.

        :param ignore_default_properties: leave the default properties out (a clone has its source's).
        :param protocol: what the table gets in any case; the metadata are checked against it. Default: the table's own.
        :raises DeltaAssertionError: it was set before, or files have been written.
        :raises DeltaAnalysisException: the metadata is not valid.
        :raises DeltaUnsupportedTableFeatureException: it needs a feature that an existing table only gets by name.
        """
        if self.has_written:
            raise DeltaAssertionError(
                "Cannot update the metadata in a transaction that has already written data.", table=self.log.uri
            )
        if self._new_metadata is not None:
            raise DeltaAssertionError("Cannot change the metadata more than once in a transaction.", table=self.log.uri)
        self._update_metadata(metadata, ignore_default_properties=ignore_default_properties, protocol=protocol)

    def update_metadata_for_new_table(self, metadata: Metadata, *, ignore_default_properties: bool = False) -> None:
        """Set the metadata of a table that this transaction creates or replaces; see :meth:`update_metadata`."""
        self._mark(creating=True)
        self.update_metadata(metadata, ignore_default_properties=ignore_default_properties)

    def update_metadata_for_new_table_in_replace(self, metadata: Metadata) -> None:
        """Set the metadata of a table that takes the place of the one that is there; see :meth:`update_metadata`."""
        self._mark(creating=True)
        self.update_metadata(metadata)

    def update_metadata_for_table_overwrite(self, metadata: Metadata) -> None:
        """Set the metadata that comes with an overwrite of all rows; see :meth:`update_metadata`."""
        self._mark(overwriting=True)
        self.update_metadata(metadata)

    def update_metadata_for_clone(self, metadata: Metadata, protocol: Protocol) -> None:
        """Set metadata and protocol of a table that becomes a clone of another one; see :meth:`update_metadata`.

        :param metadata: the source's, whose properties were checked when it got them.
        :param protocol: the source's; the table gets the features of both, and those that the metadata ask for.
        """
        from airflow_delta.log.features.protocol import upgraded

        self._mark(overwriting=True)
        self.update_metadata(metadata, ignore_default_properties=True)
        self._new_protocol = upgraded(protocol, self.protocol)

    def update_metadata_for_restore(self, metadata: Metadata, protocol: Protocol) -> None:
        """Set metadata and protocol of a table that goes back to an earlier version; see :meth:`update_metadata`.

        :param metadata: those of that version, whose properties were checked when the table got them.
        :param protocol: has every feature that they need, also one that was dropped since.
        """
        self.update_metadata(metadata, ignore_default_properties=True, protocol=protocol)
        self._new_protocol = protocol

    def adopt_changes(self, metadata: Metadata | None, protocol: Protocol, domains: Sequence[DomainMetadata] = ()) -> None:
        """Set what several changes, each checked on top of the one before, have made of the table.

        :param metadata: as :func:`airflow_delta.transaction.prepare.metadata_update.update_metadata` gave it; ``None``: it stays.
        :param protocol: likewise; not written when it is the table's own.
        :param domains: metadata domains to commit besides.
        :raises DeltaAssertionError: the metadata was set before, or files have been written.
        """
        if not self.can_update_metadata:
            raise DeltaAssertionError("Cannot change the metadata more than once in a transaction.", table=self.log.uri)
        self._new_metadata, self._domains = metadata, tuple(domains)
        self._new_protocol = None if protocol == self.snapshot.protocol else protocol

    def cluster_new_table(self, domain: DomainMetadata) -> None:
        """Commit clustering columns with the metadata of a table that this transaction creates or replaces.

        The feature comes with them: it cannot be asked for as a property.
        """
        from airflow_delta.log.features.protocol import upgraded

        features = ["clustering", "domainMetadata"]
        protocol = upgraded(
            self.protocol, Protocol(min_reader_version=3, min_writer_version=7, reader_features=[], writer_features=features)
        )
        self._new_protocol = None if self.read_version >= 0 and protocol == self.snapshot.protocol else protocol
        self._domains = (domain,)

    def with_global_config_defaults(self, metadata: Metadata) -> Metadata:
        """Return metadata with the default properties, where it does not set them itself."""
        from airflow_delta.transaction.prepare.metadata_update import with_global_config_defaults

        return with_global_config_defaults(metadata, self.default_properties)

    def update_set_transaction(self, txn: SetTransaction) -> None:
        """Commit ``txn`` with whatever is committed."""
        self._set_transactions.append(txn)

    def update_identity_high_water_marks(self, marks: Mapping[str, int]) -> None:
        """Commit the last values that rows of this transaction got in identity columns, by column name.

        They become part of the metadata when the transaction commits, as far as they lie beyond what the table has noted.
        """
        for name, value in marks.items():
            self._identity_marks.setdefault(name.lower(), []).append(value)

    def set_sync_identity(self) -> None:
        """Note that the commit only synchronises identity columns with the rows of the table."""
        self.sync_identity = True

    def _fold_identity_marks(self, actions: list[Action]) -> list[Action]:
        """Make the collected high-water marks part of the metadata that is committed (``updateMetadataAfterWrite``)."""
        if not self._identity_marks:
            return actions
        from airflow_delta.log.features.identity_columns import identity_columns, with_high_water_marks
        from airflow_delta.log.schema.types import parse_schema

        given = next((action for action in actions if isinstance(action, Metadata)), None)
        current = given if given is not None else self.metadata
        marks = dict(self._identity_marks)
        moved: dict[str, int] = {}
        for column in identity_columns(parse_schema(current.schema_string)):
            beyond = [value for value in marks.pop(column.name.lower(), ()) if column.is_beyond(value)]
            if beyond:
                moved[column.name] = max(beyond) if column.step > 0 else min(beyond)
        moved |= {name: values[-1] for name, values in marks.items()}  # no identity columns, which is an error
        changed = with_high_water_marks(current, moved)
        if given is not None:
            return [changed if action is given else action for action in actions]
        if changed is not current:
            self._new_metadata = changed
        return actions

    def _mark(self, *, creating: bool = False, overwriting: bool = False) -> None:
        if self.can_update_metadata:  # else update_metadata refuses
            self.is_creating_new_table |= creating
            self.is_overwriting_schema |= overwriting

    def _update_metadata(self, metadata: Metadata, *, ignore_default_properties: bool, protocol: Protocol | None) -> None:
        from airflow_delta.transaction.prepare.metadata_update import update_metadata

        state = self._state()
        update = update_metadata(
            state if protocol is None else replace(state, protocol=protocol),
            metadata,
            creates_table=self.is_creating_new_table,
            overwrites_schema=self.is_overwriting_schema,
            default_properties=self.default_properties,
            ignore_default_properties=ignore_default_properties,
        )
        self._new_metadata, self._new_protocol, self._domains = update.metadata, update.protocol, update.domains

    def _with_domains(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions with the metadata domains that the new metadata brings along, unless the caller sets them itself."""
        given = {action.domain for action in actions if isinstance(action, DomainMetadata)}
        return [*actions, *(domain for domain in self._domains if domain.domain not in given)]

    @abstractmethod
    def _state(self) -> TableState:
        """Return the table as it was read, and what is set."""
