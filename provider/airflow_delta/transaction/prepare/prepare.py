"""What must hold before a commit is put, and the order of its actions (Delta's ``prepareCommit`` and the checks around it)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence, Set
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.delta_names import ROW_TRACKING_DOMAIN
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedOperationException,
    DeltaUnsupportedTableFeatureException,
    TableRead,
)
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
)
from airflow_delta.log.features import change_data_feed
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.log.features.constraints import column_defaults
from airflow_delta.log.features.schema_checks import check_table_metadata
from airflow_delta.log.features.universal_format import format_violation
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.transaction.events import record_event
from airflow_delta.transaction.operations import Operation
from airflow_delta.transaction.policy import CommitPolicy
from airflow_delta.transaction.prepare import feature_drop, row_tracking
from airflow_delta.transaction.prepare.file_action_checks import check_file_actions

if TYPE_CHECKING:
    from airflow_delta.log.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class TableState(TableRead):
    """The table as a transaction read it, and what the transaction itself has set.

    :param metadata: at the version that was read; ``None`` if the table does not exist. So is ``protocol``.
    :param new_metadata: set through ``update_metadata``. So is ``new_protocol``.
    :param row_id_high_water_mark: returns the last row id of the version that was read; called only if row ids are assigned.
    :param restored_row_id_mark: the last row id of the version that the commit brings back; -1 if there is none.
    :param snapshot: version that was read; needed only by commits that drop a feature or change metadata.
    :param provided: features that the committer provides through which it was opened.
    """

    table: str
    read_version: int
    metadata: Metadata | None
    protocol: Protocol | None
    new_metadata: Metadata | None = None
    new_protocol: Protocol | None = None
    row_id_high_water_mark: Callable[[], int] = lambda: row_tracking.NO_HIGH_WATER_MARK
    restored_row_id_mark: int = row_tracking.NO_HIGH_WATER_MARK
    snapshot: Snapshot | None = None
    provided: Set[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Snapshot, *, new_metadata: Metadata | None = None, new_protocol: Protocol | None = None) -> TableState:
        """Return the table at a version, which may be -1, and what a transaction on it has set."""
        exists = snapshot.version >= 0

        def row_id_high_water_mark() -> int:
            mark = snapshot.row_id_high_water_mark if exists else None
            return row_tracking.NO_HIGH_WATER_MARK if mark is None else mark

        return cls(
            table=snapshot.log.uri,
            read_version=snapshot.version,
            metadata=snapshot.metadata if exists else None,
            protocol=snapshot.protocol if exists else None,
            new_metadata=new_metadata,
            new_protocol=new_protocol,
            row_id_high_water_mark=row_id_high_water_mark,
            snapshot=snapshot if exists else None,
            provided=snapshot.log.provided,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCommit:
    """What will be written after ``commitInfo``, and the table as the commit leaves it.

    :param read: the table as it was read.
    """

    read: TableState
    actions: list[Action]
    metadata: Metadata
    protocol: Protocol
    new_metadata: Metadata | None
    new_protocol: Protocol | None


def prepare_commit(
    state: TableState,
    actions: Sequence[Action],
    operation: Operation,
    *,
    policy: CommitPolicy,
    large: bool = False,
) -> PreparedCommit:
    """Return the final actions of a commit, after every check that needs no look at other commits.

    The order is metadata, protocol, then the caller's actions; in the first commit of a table, a protocol that nobody asked for
    comes first.

    :param large: of a ``commitLarge``: its metadata is that of another table or version, so neither append-only nor the current
        partitioning applies.
    :raises DeltaAssertionError: if metadata or protocol is changed more than once.
    :raises DeltaIllegalStateException: if the first commit has no metadata, or a file does not fit the partitioning.
    """
    if any(isinstance(action, CommitInfo) for action in actions):
        raise DeltaIllegalArgumentException("The transaction writes commitInfo itself; remove it from the actions.")
    new_metadata, new_protocol, asked_for = _table_actions(state, actions)
    metadata, protocol = new_metadata or state.metadata, new_protocol or state.protocol
    if metadata is None or protocol is None:
        raise state.error(DeltaIllegalStateException, f"Table {state.table} has no protocol or no metadata")
    if new_protocol is not None and not (large and operation.name == "RESTORE"):  # which may take features away
        check_protocol_change(state, new_protocol, operation)
    if new_metadata is not None or new_protocol is not None:  # otherwise it was checked when the transaction began
        table_protocol.check_can_write(protocol, metadata, state.table, state.read_version, provided=state.provided)
        _check_column_defaults(state, metadata, protocol)
    if not large and (violation := format_violation(metadata)) is not None:
        raise state.error(DeltaUnsupportedOperationException, f"Table {state.table} cannot be committed to: {violation}")
    if new_metadata is not None and not large:  # RESTORE and CLONE bring metadata that fits their files, as in Delta
        _check_change_data_feed(state, new_metadata, actions, operation)
    if not large:
        _check_partition_columns(state, new_metadata, operation, policy)
    rest: list[Action] = [action for action in actions if not isinstance(action, Metadata | Protocol)]
    check_file_actions(state.table, rest, metadata, protocol, operation, read_metadata=state.metadata, large=large)
    if row_tracking.is_supported(protocol):
        rest = row_tracking.prepare(
            rest,
            protocol=protocol,
            metadata=metadata,
            snapshot_high_water_mark=state.row_id_high_water_mark(),
            commit_version=state.read_version + 1,
            table=state.table,
            restored_high_water_mark=state.restored_row_id_mark,
        )
    if large:
        ordered = _in_large_order(metadata, new_protocol, rest)
    else:
        head: list[Action] = [action for action in (new_metadata, new_protocol) if action is not None]
        if state.read_version < 0 and not asked_for:
            head.reverse()
        ordered = head + rest
    return PreparedCommit(
        read=state,
        actions=ordered,
        metadata=metadata,
        protocol=protocol,
        new_metadata=new_metadata,
        new_protocol=new_protocol,
    )


def _in_large_order(metadata: Metadata, new_protocol: Protocol | None, rest: Sequence[Action]) -> list[Action]:
    """Return the actions as ``commitLarge`` writes them: metadata always and first, the protocol after the caller's actions."""
    marks = [action for action in rest if isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN]
    others = [action for action in rest if action not in marks] if marks else rest
    return [metadata, *others, *([new_protocol] if new_protocol is not None else []), *marks]


def _table_actions(state: TableState, actions: Sequence[Action]) -> tuple[Metadata | None, Protocol | None, bool]:
    """Return the metadata and the protocol to write, and whether anybody asked for that protocol.

    :raises DeltaAssertionError: if one of them is changed more than once.
    :raises DeltaIllegalStateException: if the first commit has no metadata.
    """
    new_metadata: Metadata | None = _single(Metadata, state.new_metadata, actions, "metadata")
    new_protocol: Protocol | None = _single(Protocol, state.new_protocol, actions, "protocol")
    if new_metadata is not None and new_metadata is not state.new_metadata:
        upgrade = verify_metadata(state, new_metadata)
        if state.protocol is None and upgrade == _default_protocol():
            upgrade = None
        if new_protocol is not None and upgrade is not None:  # Delta counts what the metadata needs as a change too
            raise state.error(DeltaAssertionError, "Cannot change the protocol more than once in a transaction.")
        new_protocol = new_protocol or upgrade
    metadata = new_metadata or state.metadata
    if metadata is None:
        raise state.error(
            DeltaIllegalStateException,
            f"The first commit of table {state.table} has no metadata (DELTA_METADATA_ABSENT). Set it with "
            "update_metadata_for_new_table before committing.",
        )
    if new_protocol is None and state.protocol is None:
        return new_metadata, table_protocol.required_protocol(metadata), False
    return new_metadata, new_protocol, new_protocol is not None


def verify_metadata(state: TableState, metadata: Metadata) -> Protocol | None:
    """Check metadata before it is committed, and return the protocol that the table must be upgraded to for it, if any."""
    check_table_metadata(metadata, state.metadata, table=state.table, version=state.read_version)
    required = table_protocol.required_protocol(metadata)
    if state.protocol is None:
        return required
    check_manual(state, metadata)
    upgraded = table_protocol.upgraded(state.protocol, required)
    return None if upgraded == state.protocol else upgraded


_writable: tuple[Protocol, Metadata, Set[str]] | None = None


def check_manual(state: TableState, metadata: Metadata, *, asked: Collection[str] = ()) -> None:
    """Check that features which an existing table only gets by name were requested.

    :param asked: features that the caller requested by name.
    :raises DeltaUnsupportedTableFeatureException: if one was not (Delta: DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT).
    """
    if state.protocol is None:
        return
    manual = [name for name in table_protocol.needs_manual_enablement(state.protocol, metadata) if name not in asked]
    if manual:
        raise state.error(
            DeltaUnsupportedTableFeatureException,
            f"The new metadata of table {state.table} needs the features {', '.join(manual)}, which must be enabled by name on "
            "an existing table, since older clients can then no longer read or write it "
            f"(DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT). Set the table property delta.feature.{manual[0]} to 'supported'.",
            features=tuple(manual),
        )


def check_writable(protocol: Protocol, metadata: Metadata, table: str, version: int, *, provided: Set[str] = frozenset()) -> None:
    """Refuse a table that this provider cannot write.

    Versions share the frozen protocol and metadata, so a series of transactions on one table is checked once.

    :param provided: features that the committer provides through which it was opened.
    """
    global _writable
    known = _writable
    if known is not None and known[0] is protocol and known[1] is metadata and known[2] == provided:
        return
    table_protocol.check_can_write(protocol, metadata, table, version, provided=provided)
    _writable = (protocol, metadata, provided)


def check_protocol_change(state: TableState, new: Protocol, operation: Operation) -> None:
    """Check that the table may go from its protocol to ``new``.

    Only DROP FEATURE may take a feature away, once nothing uses it.
    """
    table_protocol.check_form(new, state.table)
    if state.protocol is None:
        return
    if operation.name == feature_drop.OPERATION and state.snapshot is not None:
        feature_drop.check_drop(state.protocol, new, state.snapshot, table=state.table)
        return
    table_protocol.check_transition(state.protocol, new, state.table, state.read_version)


def _single(kind: type[Any], own: Any, actions: Sequence[Action], what: str) -> Any:
    found = [action for action in actions if isinstance(action, kind)]
    if own is not None:
        found.insert(0, own)
    if len(found) > 1:
        raise DeltaAssertionError(f"Cannot change the {what} more than once in a transaction.")
    return found[0] if found else None


def _default_protocol() -> Protocol:
    """Return the protocol of a table that needs no feature."""
    reader, writer = table_protocol.DEFAULT_VERSIONS
    return Protocol(min_reader_version=reader, min_writer_version=writer)


def _check_column_defaults(state: TableState, metadata: Metadata, protocol: Protocol) -> None:
    """Check that columns only have default values if the table has that feature."""
    if "CURRENT_DEFAULT" not in metadata.schema_string:
        return
    check_defaults_supported(state, column_defaults(TableDefinition.of(metadata).schema), protocol)


def check_defaults_supported(state: TableState, columns: Collection[str], protocol: Protocol) -> None:
    """Check that the table supports default values, if it has any.

    :param columns: names of the columns with a default value.
    :raises DeltaUnsupportedTableFeatureException: if it does not.
    """
    if columns and "allowColumnDefaults" not in table_protocol.features(protocol):
        raise state.error(
            DeltaUnsupportedTableFeatureException,
            f"The column {next(iter(columns))} of table {state.table} has a default value, which the table does not support "
            "(WRONG_COLUMN_DEFAULTS_FOR_DELTA_FEATURE_NOT_ENABLED). Set the table property delta.feature.allowColumnDefaults to "
            "'supported'.",
            features=("allowColumnDefaults",),
        )


def _check_change_data_feed(state: TableState, new_metadata: Metadata, actions: Sequence[Action], operation: Operation) -> None:
    """Check that row changes can be told from column changes (Delta's ``performCdcColumnMappingCheck``)."""
    changes_files = any(isinstance(action, AddFile | RemoveFile | AddCDCFile) for action in actions)
    change_data_feed.check_column_mapping(new_metadata, state.metadata, has_file_actions=changes_files, operation=operation.name)


def _check_partition_columns(
    state: TableState, new_metadata: Metadata | None, operation: Operation, policy: CommitPolicy
) -> None:
    old = state.metadata
    if old is None or new_metadata is None or operation.may_change_partition_columns or policy.partition_column_change == "off":
        return
    if old.partition_columns != new_metadata.partition_columns:
        data = {"operation": operation.name, "old": old.partition_columns, "new": new_metadata.partition_columns}
        record_event("delta.commit.unexpectedPartitionColumnChange", state.table, data, level=logging.WARNING)
        if policy.partition_column_change == "log":
            return
        raise state.error(
            DeltaAnalysisException,
            f"{operation.name} may not change the partition columns of table {state.table} from {old.partition_columns} to "
            f"{new_metadata.partition_columns} (DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE). Overwrite the table with "
            "overwriteSchema, or replace it.",
        )
