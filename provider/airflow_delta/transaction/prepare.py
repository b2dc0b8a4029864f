"""What must hold before a commit is tried, and the order of its actions (Delta's ``prepareCommit`` and the checks around it)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_delta.exceptions import (
    AppendOnlyException,
    DeltaAnalysisException,
    DeltaAssertionError,
    DeltaIllegalArgumentException,
    DeltaIllegalStateException,
    DeltaUnsupportedTableFeatureException,
)
from airflow_delta.log import protocol as table_protocol
from airflow_delta.log.actions import (
    Action,
    AddCDCFile,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    SetTransaction,
)
from airflow_delta.transaction.operations import Operation


@dataclass(frozen=True, kw_only=True, slots=True)
class TableState:
    """The table as a transaction read it, and what the transaction itself has set.

    :param metadata: at the version that was read; ``None`` when the table does not exist, as is ``protocol``.
    :param new_metadata: set through ``update_metadata``, as is ``new_protocol``.
    """

    table: str
    read_version: int
    metadata: Metadata | None
    protocol: Protocol | None
    new_metadata: Metadata | None = None
    new_protocol: Protocol | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedCommit:
    """What will be written after ``commitInfo``, and the table as it is then."""

    actions: list[Action]
    metadata: Metadata
    protocol: Protocol
    new_metadata: Metadata | None
    new_protocol: Protocol | None


def deduplicate_set_transactions(actions: Sequence[Action], own: Iterable[SetTransaction]) -> list[Action]:
    """Return the actions with the transaction's own ``txn`` actions after them, each application id once.

    :raises DeltaIllegalArgumentException: one application id with two versions.
    """
    versions: dict[str, int] = {}
    result: list[Action] = []
    for action in [*actions, *own]:
        if isinstance(action, SetTransaction):
            known = versions.get(action.app_id)
            if known is not None and known != action.version:
                raise DeltaIllegalArgumentException(
                    f"The application id {action.app_id!r} is set to version {known} and to version {action.version} in one "
                    "commit. Give one version per application id."
                )
            if known is not None:
                continue
            versions[action.app_id] = action.version
        result.append(action)
    return result


def prepare_commit(state: TableState, actions: Sequence[Action], operation: Operation) -> PreparedCommit:
    """Return the final actions of a commit, after every check that needs no look at other commits.

    The order is metadata, protocol, then the caller's; in the first commit of a table the protocol comes first.

    :raises DeltaAssertionError: metadata or protocol are changed more than once.
    :raises DeltaIllegalStateException: the first commit has no metadata, or a file does not fit the partitioning.
    """
    if any(isinstance(action, CommitInfo) for action in actions):
        raise DeltaIllegalArgumentException("commitInfo is written by the transaction; take it out of the actions.")
    new_metadata = _single(Metadata, state.new_metadata, actions, "metadata")
    new_protocol = _single(Protocol, state.new_protocol, actions, "protocol")
    if new_metadata is not None and new_metadata is not state.new_metadata:
        upgrade = verify_metadata(state, new_metadata)
        if new_protocol is None:
            new_protocol = upgrade
        elif upgrade is not None and not table_protocol.can_upgrade_to(upgrade, new_protocol):
            raise DeltaAssertionError("Cannot change the protocol more than once in a transaction.", table=state.table)
    metadata = new_metadata or state.metadata
    if metadata is None:
        raise DeltaIllegalStateException(
            f"The first commit of table {state.table} has no metadata (DELTA_METADATA_ABSENT). Set it with "
            "update_metadata_for_new_table before committing.",
            table=state.table,
        )
    if state.protocol is None and new_protocol is None:
        new_protocol = table_protocol.required_protocol(metadata)
    protocol = new_protocol or state.protocol
    if protocol is None:
        raise DeltaIllegalStateException(f"Table {state.table} has no protocol", table=state.table)
    if new_protocol is not None:
        check_protocol_change(state, new_protocol)
    if new_metadata is not None or new_protocol is not None:  # else it was checked when the transaction began
        table_protocol.check_can_write(protocol, metadata, state.table, state.read_version)
    _check_partition_columns(state, new_metadata, operation)
    rest: list[Action] = [action for action in actions if not isinstance(action, Metadata | Protocol)]
    _check_files(state.table, rest, metadata, protocol, operation)
    head: list[Action] = [action for action in (new_metadata, new_protocol) if action is not None]
    if state.read_version < 0:
        head.reverse()
    return PreparedCommit(
        actions=head + rest, metadata=metadata, protocol=protocol, new_metadata=new_metadata, new_protocol=new_protocol
    )


def verify_metadata(state: TableState, metadata: Metadata, *, asked_for: Collection[str] = ()) -> Protocol | None:
    """Check metadata that is to be committed, and return the protocol that the table must be upgraded to for it, if any.

    :param asked_for: features that the caller asked for by name.
    :raises DeltaAnalysisException: the schema, the partitioning or a property is not valid.
    :raises DeltaUnsupportedTableFeatureException: it needs a feature that an existing table only gets by name.
    """
    from airflow_delta.log.schema import check_metadata

    check_metadata(metadata)
    required = table_protocol.required_protocol(metadata)
    if state.protocol is None:
        return required
    manual = [name for name in table_protocol.needs_manual_enablement(state.protocol, metadata) if name not in asked_for]
    if manual:
        raise DeltaUnsupportedTableFeatureException(
            f"The new metadata of table {state.table} needs the features {', '.join(manual)}, which an existing table only gets "
            f"when asked for by name: set the table property delta.feature.{manual[0]} to 'supported'.",
            features=tuple(manual),
            table=state.table,
            version=state.read_version,
        )
    upgraded = table_protocol.upgraded(state.protocol, required)
    return None if upgraded == state.protocol else upgraded


_writable: tuple[Protocol, Metadata] | None = None


def check_writable(protocol: Protocol, metadata: Metadata, table: str, version: int) -> None:
    """Refuse a table that this provider cannot write.

    Protocol and metadata are frozen and handed on from version to version, so transactions one after the other on one table
    are examined once.

    :raises DeltaUnsupportedTableFeatureException: a feature is unknown, or is in use and not supported.
    :raises InvalidProtocolVersionException: the table needs a newer reader or writer version.
    """
    global _writable
    known = _writable
    if known is not None and known[0] is protocol and known[1] is metadata:
        return
    table_protocol.check_can_write(protocol, metadata, table, version)
    _writable = (protocol, metadata)


def check_protocol_change(state: TableState, new: Protocol) -> None:
    """Check that the table may go from its protocol to ``new``.

    :raises ProtocolDowngradeException: the table would lose a feature.
    """
    if new.min_reader_version < 1 or new.min_writer_version < 1:
        raise DeltaIllegalArgumentException(
            f"The protocol of table {state.table} must have positive versions, not ({new.min_reader_version}, "
            f"{new.min_writer_version}).",
            table=state.table,
        )
    if state.protocol is None:
        return
    table_protocol.check_transition(state.protocol, new, state.table, state.read_version)


def check_duplicates(table: str, actions: Sequence[Action]) -> None:
    """Check that no file is added twice, removed twice, or both added and removed, and that no domain comes twice.

    A file may be removed and added again with another deletion vector.

    :raises DeltaIllegalStateException: it is (Delta: DELTA_DUPLICATE_ACTIONS_FOUND).
    """
    added = [action for action in actions if isinstance(action, AddFile)]
    removed = [action for action in actions if isinstance(action, RemoveFile)]
    for what, paths in (("added", [a.path for a in added]), ("removed", [r.path for r in removed])):
        if len(set(paths)) != len(paths):
            twice = next(path for path, count in Counter(paths).items() if count > 1)
            raise _duplicate(table, f"The file {twice} is {what} twice")
    if added and removed:
        both = {_file_key(a) for a in added}.intersection(_file_key(r) for r in removed)
        if both:
            raise _duplicate(table, f"The file {min(path for path, _ in both)} is both added and removed")
    domains = Counter(action.domain for action in actions if isinstance(action, DomainMetadata))
    twice_domain = next((domain for domain, count in domains.items() if count > 1), None)
    if twice_domain is not None:
        raise _duplicate(table, f"The metadata domain {twice_domain} is set twice")


def check_domains(table: str, actions: Sequence[Action], protocol: Protocol) -> None:
    """Check that domain metadata is only written to a table whose protocol has the feature.

    :raises DeltaUnsupportedTableFeatureException: it has not (Delta: DELTA_DOMAIN_METADATA_NOT_SUPPORTED).
    """
    domains = [action.domain for action in actions if isinstance(action, DomainMetadata)]
    if domains and "domainMetadata" not in table_protocol.features(protocol):
        raise DeltaUnsupportedTableFeatureException(
            f"The metadata domain {domains[0]} cannot be written to table {table}: its protocol lacks domainMetadata.",
            features=("domainMetadata",),
            table=table,
        )


def _single(kind: type[Any], own: Any, actions: Sequence[Action], what: str) -> Any:
    found = [action for action in actions if isinstance(action, kind)]
    if own is not None:
        found.insert(0, own)
    if len(found) > 1:
        raise DeltaAssertionError(f"Cannot change the {what} more than once in a transaction.")
    return found[0] if found else None


def _file_key(action: AddFile | RemoveFile) -> tuple[str, str | None]:
    return action.path, action.deletion_vector.unique_id if action.deletion_vector is not None else None


def _duplicate(table: str, what: str) -> DeltaIllegalStateException:
    return DeltaIllegalStateException(
        f"{what} in one commit to table {table} (DELTA_DUPLICATE_ACTIONS_FOUND). Nothing was written.", table=table
    )


def _check_partition_columns(state: TableState, new_metadata: Metadata | None, operation: Operation) -> None:
    old = state.metadata
    if old is None or new_metadata is None or operation.may_change_partition_columns:
        return
    if old.partition_columns != new_metadata.partition_columns:
        raise DeltaAnalysisException(
            f"{operation.name} may not change the partition columns of table {state.table} from {old.partition_columns} to "
            f"{new_metadata.partition_columns} (DELTA_UNSUPPORTED_PARTITION_COLUMN_CHANGE). Overwrite the table with "
            "overwriteSchema, or replace it.",
            table=state.table,
            version=state.read_version,
        )


def _check_files(table: str, actions: Sequence[Action], metadata: Metadata, protocol: Protocol, operation: Operation) -> None:
    columns = set(metadata.partition_columns)
    append_only = metadata.configuration.get("delta.appendOnly", "false").lower() == "true"
    for action in actions:
        if isinstance(action, AddFile):
            if action.partition_values.keys() != columns:
                raise _wrong_partitioning(table, action, columns)
            if action.deletion_vector is not None:
                _check_deletion_vector(table, action, metadata, protocol, operation)
        elif isinstance(action, RemoveFile):
            if append_only and action.data_change:
                raise AppendOnlyException(
                    f"{operation.name} would remove {action.path}, but table {table} only allows appends "
                    "(delta.appendOnly=true). Unset the property if rows may be deleted.",
                    table=table,
                )
        elif isinstance(action, AddCDCFile) and action.data_change:
            raise DeltaIllegalArgumentException(
                f"The change data file {action.path} must have dataChange=false (table {table}).", table=table
            )


def _wrong_partitioning(table: str, action: AddFile, columns: Collection[str]) -> DeltaIllegalStateException:
    return DeltaIllegalStateException(
        f"The file {action.path} has the partition columns {sorted(action.partition_values)}, but table {table} is partitioned "
        f"by {sorted(columns)} (DELTA_INVALID_PARTITIONING_SCHEMA).",
        table=table,
    )


class _Bounds(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    tight_bounds: bool | None = None


def _check_deletion_vector(table: str, action: AddFile, metadata: Metadata, protocol: Protocol, operation: Operation) -> None:
    enabled = metadata.configuration.get("delta.enableDeletionVectors", "false").lower() == "true"
    if "deletionVectors" not in table_protocol.features(protocol) or not (enabled or operation.updates_in_place):
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector, which table {table} does not allow "
            "(DELTA_ADDING_DELETION_VECTORS_DISALLOWED).",
            table=table,
        )
    try:
        bounds = msgspec.json.decode(action.stats or "{}", type=_Bounds)
    except msgspec.DecodeError:
        bounds = _Bounds()
    if bounds.num_records is None:
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector but without numRecords (table {table}, "
            "DELTA_DELETION_VECTOR_MISSING_NUM_RECORDS).",
            table=table,
        )
    if operation.checks_loose_bounds and bounds.tight_bounds is not False:
        raise DeltaIllegalStateException(
            f"The file {action.path} comes with a deletion vector, so its statistics must say tightBounds=false (table {table}, "
            "DELTA_ADDING_DELETION_VECTORS_WITH_TIGHT_BOUNDS_DISALLOWED).",
            table=table,
        )
