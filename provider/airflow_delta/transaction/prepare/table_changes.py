"""What a transaction changes about the table itself: metadata, protocol, application ids, identity columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAssertionError
from airflow_delta.log.actions.actions import Action, DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_delta.log.features.identity_columns import with_values
from airflow_delta.log.features.protocol import upgraded
from airflow_delta.transaction.prepare.action_checks import deduplicate_set_transactions
from airflow_delta.transaction.prepare.prepare import TableState

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot


class TableChanges:
    """What a transaction sets besides files, each at most once.

    :param snapshot: the version that the transaction reads.
    :param default_properties: for a table that it creates or replaces, unless the metadata sets them itself.
    :ivar new_metadata: metadata that the transaction sets.
    :ivar new_protocol: protocol that the transaction sets, or that its metadata needs.
    :ivar has_written: data files have been written; the metadata may no longer change.
    :ivar is_creating_new_table: the metadata is for a new table, or for one that replaces the table.
    :ivar is_overwriting_schema: the metadata comes with an overwrite that brings its own schema.
    :ivar sync_identity: the commit only sets the high-water marks of identity columns to what the table holds.
    """

    def __init__(self, snapshot: Snapshot, default_properties: Mapping[str, str] | None = None) -> None:
        self.snapshot = snapshot
        self.new_metadata: Metadata | None = None
        self.new_protocol: Protocol | None = None
        self.has_written = False
        self.is_creating_new_table = False
        self.is_overwriting_schema = False
        self.sync_identity = False
        self.default_properties = dict(default_properties or {})
        self._domains: tuple[DomainMetadata, ...] = ()
        self._set_transactions: list[SetTransaction] = []
        self._identity_marks: dict[str, list[int]] = {}
        self._restored_row_id_mark: int | None = None

    @property
    def metadata(self) -> Metadata:
        """The table's metadata as this transaction leaves it."""
        return self.new_metadata if self.new_metadata is not None else self.snapshot.metadata

    @property
    def protocol(self) -> Protocol:
        """The table's protocol as this transaction leaves it."""
        return self.new_protocol if self.new_protocol is not None else self.snapshot.protocol

    @property
    def can_update_metadata(self) -> bool:
        """Whether ``update_metadata`` may still be called."""
        return not self.has_written and self.new_metadata is None

    # -- what callers set ------------------------------------------------------------------------------------------------------

    def update_metadata(
        self, metadata: Metadata, *, ignore_default_properties: bool = False, protocol: Protocol | None = None
    ) -> None:
        """Set the table's new metadata: once, and before any file is written. Upgrades the protocol if it must.

        :param ignore_default_properties: leave the default properties out (a clone has its source's).
        :param protocol: protocol that the table gets in any case and that the metadata is checked against; default: its own.
        :raises DeltaAssertionError: if it was set before, or files have been written.
        """
        from airflow_delta.transaction.prepare.metadata_update import update_metadata

        if self.has_written:
            raise DeltaAssertionError(
                "Cannot update the metadata in a transaction that has already written data.", table=self._table
            )
        if self.new_metadata is not None:
            raise DeltaAssertionError("Cannot change the metadata more than once in a transaction.", table=self._table)
        state = self.state()
        update = update_metadata(
            state if protocol is None else replace(state, protocol=protocol),
            metadata,
            creates_table=self.is_creating_new_table,
            overwrites_schema=self.is_overwriting_schema,
            default_properties=self.default_properties,
            ignore_default_properties=ignore_default_properties,
        )
        self.new_metadata, self.new_protocol, self._domains = update.metadata, update.protocol, update.domains

    def update_metadata_for_new_table(self, metadata: Metadata) -> None:
        """Set the metadata of a table that this transaction creates or replaces; see :meth:`update_metadata`."""
        self._mark(creating=True)
        self.update_metadata(metadata)

    def update_metadata_for_new_table_in_replace(self, metadata: Metadata) -> None:
        """Set the metadata of a table that replaces an existing one; see :meth:`update_metadata`."""
        self.update_metadata_for_new_table(metadata)

    def update_metadata_for_table_overwrite(self, metadata: Metadata) -> None:
        """Set the metadata that comes with an overwrite of all rows; see :meth:`update_metadata`."""
        self._mark(overwriting=True)
        self.update_metadata(metadata)

    def update_metadata_for_clone(self, metadata: Metadata, protocol: Protocol) -> None:
        """Set metadata and protocol of a table that becomes a clone of another; see :meth:`update_metadata`.

        :param metadata: the source's, whose properties were checked when it got them.
        :param protocol: the source's; the table gets the features of both, and those that the metadata needs.
        """
        self._mark(overwriting=True)
        self.update_metadata(metadata, ignore_default_properties=True)
        self.new_protocol = upgraded(protocol, self.protocol)

    def update_metadata_for_restore(self, metadata: Metadata, protocol: Protocol, *, row_id_mark: int | None = None) -> None:
        """Set metadata and protocol of a table that goes back to an earlier version; see :meth:`update_metadata`.

        :param metadata: that version's, whose properties were checked when the table got them.
        :param protocol: has every feature that it needs, including any dropped since.
        :param row_id_mark: the last row id of that version; the table's own may have begun again since.
        """
        self.update_metadata(metadata, ignore_default_properties=True, protocol=protocol)
        self.new_protocol, self._restored_row_id_mark = protocol, row_id_mark

    def adopt_changes(self, metadata: Metadata | None, protocol: Protocol, domains: Sequence[DomainMetadata] = ()) -> None:
        """Set the outcome of several changes, each checked on top of the one before.

        :param metadata: as :func:`airflow_delta.transaction.prepare.metadata_update.update_metadata` gave it; ``None`` keeps the
            table's.
        :param protocol: likewise; not written if it is the table's own.
        :param domains: metadata domains to commit with them.
        :raises DeltaAssertionError: if the metadata was set before, or files have been written.
        """
        if not self.can_update_metadata:
            raise DeltaAssertionError("Cannot change the metadata more than once in a transaction.", table=self._table)
        self.new_metadata, self._domains = metadata, tuple(domains)
        self.new_protocol = None if protocol == self.snapshot.protocol else protocol

    def cluster_new_table(self, domain: DomainMetadata) -> None:
        """Commit clustering columns with the metadata of a table that this transaction creates or replaces.

        The table feature comes with them: no property can ask for it.
        """
        features = ["clustering", "domainMetadata"]
        protocol = upgraded(
            self.protocol, Protocol(min_reader_version=3, min_writer_version=7, reader_features=[], writer_features=features)
        )
        self.new_protocol = None if self.snapshot.version >= 0 and protocol == self.snapshot.protocol else protocol
        self._domains = (domain,)

    def with_global_config_defaults(self, metadata: Metadata) -> Metadata:
        """Return the metadata with the default properties that it does not set itself."""
        from airflow_delta.transaction.prepare.metadata_update import with_global_config_defaults

        return with_global_config_defaults(metadata, self.default_properties)

    def update_set_transaction(self, txn: SetTransaction) -> None:
        """Commit ``txn`` with whatever is committed."""
        self._set_transactions.append(txn)

    def update_identity_high_water_marks(self, marks: Mapping[str, int]) -> None:
        """Commit the last values that rows of this transaction got in identity columns, by column name.

        They become part of the metadata at commit, as far as they lie beyond what the table has recorded.
        """
        for name, value in marks.items():
            self._identity_marks.setdefault(name.lower(), []).append(value)

    def set_sync_identity(self) -> None:
        """Note that the commit only brings identity columns in line with the table's rows."""
        self.sync_identity = True

    # -- what a commit takes from here -----------------------------------------------------------------------------------------

    def state(self) -> TableState:
        """Return the table as it was read, and what is set."""
        state = TableState.of(self.snapshot, new_metadata=self.new_metadata, new_protocol=self.new_protocol)
        mark = self._restored_row_id_mark
        return state if mark is None else replace(state, restored_row_id_mark=mark)

    def added_to(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions of a commit with the metadata domains and application ids that are set.

        A domain among the actions wins over one that the new metadata brings along.
        """
        given = {action.domain for action in actions if isinstance(action, DomainMetadata)}
        domains = [domain for domain in self._domains if domain.domain not in given]
        return deduplicate_set_transactions([*actions, *domains], self._set_transactions)

    def with_identity_marks(self, actions: list[Action]) -> list[Action]:
        """Make the high-water marks part of the metadata that is committed (``updateMetadataAfterWrite``)."""
        if not self._identity_marks:
            return actions
        given = next((action for action in actions if isinstance(action, Metadata)), None)
        current = given if given is not None else self.metadata
        changed = with_values(current, self._identity_marks)
        if given is not None:
            return [changed if action is given else action for action in actions]
        if changed is not current:
            self.new_metadata = changed
        return actions

    @property
    def _table(self) -> str:
        return self.snapshot.log.uri

    def _mark(self, *, creating: bool = False, overwriting: bool = False) -> None:
        if self.can_update_metadata:  # else update_metadata refuses
            self.is_creating_new_table |= creating
            self.is_overwriting_schema |= overwriting
