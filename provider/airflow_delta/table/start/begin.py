"""Begin a transaction: pin the version that it reads, settle its identity, find out whether it is committed already."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import ISOLATION_LEVELS, KEY_CHECKS, RERUN_POLICIES
from airflow_delta.contract.payloads import OWN_APPS, TransactionHandle
from airflow_delta.contract.staging_directory import is_preview, transaction_directory
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaIllegalArgumentException,
    DeltaTableNotFoundException,
    TransactionAlreadyCommittedException,
    TransactionExpiredException,
)
from airflow_delta.log.features import protocol
from airflow_delta.table.start.format_warnings import warn_of_other_formats
from airflow_delta.table.start.location import check_location
from airflow_delta.table.start.new_table import DEFAULT_CONFIGURATION, default_isolation_level, of_new_table, with_required
from airflow_delta.table.state.commit_result import result_without_commit
from airflow_delta.table.state.find_commit import TryChain, commit_of_chain, find_commit, standing_version
from airflow_delta.table.state.key_users import KeyUser, check_key_of_run, check_key_of_table, described, is_forgotten
from airflow_delta.table.state.read_snapshot import table_fields
from airflow_delta.table.state.transaction_retention import PossibleSince, last_txn_version

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


__all__ = ["RERUN_POLICIES", "begin", "find_commit"]


logger = logging.getLogger(__name__)
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Identity:
    app_id: str
    txn_version: int | None  # None: counts the commits of this key


def begin(
    log: DeltaLog,
    *,
    transaction_key: str | None = None,
    app_id: str | None = None,
    txn_version: int | None = None,
    rerun_policy: str = "skip",
    partition_by: Sequence[str] = (),
    schema: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    name: str | None = None,
    description: str | None = None,
    isolation_level: str | None = None,
    create: bool = True,
    delta_conn_id: str | None = None,
    transaction_id: str | None = None,
    in_place: bool = False,
    tries: TryChain | None = None,
    possible_since: PossibleSince | None = None,
    former_keys: Sequence[str] = (),
    user: KeyUser | None = None,
    takes_back: bool = True,
    settle: Callable[[DeltaLog], object] | None = None,
) -> TransactionHandle:
    """Begin a transaction on a table and return the handle that its other tasks work with.

    Give either ``transaction_key`` (one identity for each Dag run; the default scheme) or ``app_id`` with ``txn_version``
    (Delta's monotonic scheme: one application, versions that grow). Reads the checksum file or the newest commits only, never
    the list of files.

    :param transaction_key: becomes the ``appId``; its ``txnVersion`` counts the commits of this key from 0.
    :param txn_version: a version at or below the one in the log counts as committed.
    :param rerun_policy: what to do if the identity is already in the log: ``skip`` (the handle's ``committed`` says where),
        ``replace`` (the commit removes what the key added before), ``append`` (commit again) or ``fail``.
    :param partition_by: partition columns; for an existing table they must be its own, or empty.
    :param schema: Spark's JSON form of the schema of a new table; default: that of the first staged data.
    :param configuration: properties to create the table with; ``None`` leaves out a default.
    :param isolation_level: ``Serializable`` or ``WriteSerializable``; default: the table's property.
    :param create: let the commit create a missing table; if false, a missing table is an error.
    :param transaction_id: identity of this execution, a new UUID unless given.
    :param in_place: make the table from the files at the location (CONVERT); otherwise the location must be empty.
    :param tries: for an operation that begins and commits in one task: a commit of another try counts as its own, under every
        policy.
    :param possible_since: returns when this identity may have been committed for the first time, in milliseconds since the epoch
        (``None``: within the time that keys are kept). Asked if the table expires keys and does not know this one.
    :param former_keys: keys of an earlier scheme that may mean the same work. If the table knows one of them but not this
        identity, it cannot be known whether the work was committed.
    :param user: who uses the identity, and what to do if the log says that another run has used it, or that this run has
        published under another one; ``None``: that is not looked at.
    :param takes_back: under ``replace`` the commit removes what the identity added before.
    :param settle: called when the log was looked at: lets intents end that are open there, and looks again.
    :raises DeltaIllegalArgumentException: if the identity or the policy is not valid.
    :raises DeltaTableNotFoundException: if there is no table and ``create`` is false.
    :raises NonEmptyLocationException: if other files are where the table would be created.
    :raises ConditionalPutException: if the table would be created on a store that ignores the condition of a put.
    :raises TransactionExpiredException: if it can no longer be known whether the identity was committed.
    :raises TransactionAlreadyCommittedException: if the identity is in the log and the policy is ``fail``, or ``replace`` and
        another writer has rewritten or removed what it added; or if ``user`` must not use it.
    """
    _check_no_preview(log.uri)
    identity = _identity(log.uri, transaction_key, app_id, txn_version)
    _check_choice("rerun_policy", rerun_policy, RERUN_POLICIES, log.uri)
    _check_choice("key_check", KEY_CHECKS[0] if user is None else user.check, KEY_CHECKS, log.uri)
    _check_choice(
        "isolation_level", ISOLATION_LEVELS[0] if isolation_level is None else isolation_level, ISOLATION_LEVELS, log.uri
    )
    snapshot = _newest(log, settle)
    last = last_of_all = None
    if snapshot.version >= 0:
        protocol.check_can_read(snapshot.protocol, log.uri, snapshot.version, provided=log.provided)
        protocol.check_can_write(snapshot.protocol, snapshot.metadata, log.uri, snapshot.version, provided=log.provided)
        warn_of_other_formats(log.uri, snapshot)
        # To commit again needs no memory: 'append' is the author's way out if it cannot be known.
        asked = None if rerun_policy == "append" else possible_since
        last = last_txn_version(log, snapshot, identity.app_id, asked)
        if last is None and rerun_policy != "append":
            _check_former_keys(log.uri, snapshot, identity, former_keys)
        if rerun_policy == "replace" and identity.txn_version is not None:
            _check_unexpired(log.uri, snapshot, identity, last)
        last_of_all, last = last, standing_version(snapshot, identity.app_id, last)
    elif not create:
        raise log.error(
            DeltaTableNotFoundException,
            f"There is no Delta table at {log.uri}. Check the location, the connection, and that an earlier task has "
            "created it: DeltaCreateTableOperator, or a transaction whose start task does not have create=False.",
        )
    else:
        _check_new_location(log, in_place=in_place)
    own = None
    # Under 'skip' it does not matter which try, or run, has committed the identity.
    if last is not None and last >= (identity.txn_version or 0) and rerun_policy != "skip":
        own = commit_of_chain(log, identity.app_id, tries)
    transaction_id = transaction_id if transaction_id is not None else str(uuid.uuid4())
    handle = TransactionHandle(
        transaction_id=transaction_id,
        table=log.uri,
        read_version=snapshot.version,
        staging_path=f"{log.uri}/{transaction_directory(transaction_id)}",
        app_id=identity.app_id,
        txn_version=own.txn_version or 0 if own else _next_version(log.uri, identity, last_of_all, rerun_policy),
        monotonic=identity.txn_version is not None,
        rerun_policy=rerun_policy,
        delta_conn_id=delta_conn_id,
    )
    if snapshot.version < 0:
        required = with_required({**DEFAULT_CONFIGURATION, **(configuration or {})}, log.store.committer, log.uri)
        return of_new_table(handle, partition_by, schema, required, name, description, isolation_level, provided=log.provided)
    handle = _of_table(handle, snapshot, partition_by, isolation_level)
    if own is not None:
        return replace(handle, committed=own)
    is_new = last is None or (identity.txn_version is not None and last < identity.txn_version)
    if rerun_policy == "append":
        return handle
    if is_new or last is None:
        check_key_of_run(log, snapshot, identity.app_id, user)
        return handle
    if rerun_policy == "replace":
        _check_replace(log, snapshot, handle, user, takes_back=takes_back)
        return handle
    committed = find_commit(log, app_id=handle.app_id, txn_version=handle.txn_version if handle.monotonic else None, until=last)
    committed = committed or result_without_commit(log, handle)
    if rerun_policy == "fail":
        raise log.error(
            TransactionAlreadyCommittedException,
            f"Transaction {handle.app_id!r} is committed in version {committed.version} of table {log.uri} (txnVersion "
            f"{last}){f', by {described(committed.committed_by)}' if not is_forgotten(committed) else ''}, and "
            "rerun_policy is 'fail'. Use 'skip' to leave it, 'replace' to redo it, or another transaction_key.",
            version=committed.version,
        )
    check_key_of_table(log.uri, handle, committed, user)
    return replace(handle, committed=committed, txn_version=last if identity.txn_version is None else identity.txn_version)


def _newest(log: DeltaLog, settle: Callable[[DeltaLog], object] | None) -> Snapshot:
    log.update()
    if settle is not None:
        settle(log)
    return log.snapshot


def _check_replace(
    log: DeltaLog, snapshot: Snapshot, handle: TransactionHandle, user: KeyUser | None, *, takes_back: bool
) -> None:
    """Refuse what the commit would refuse to replace, before anything is staged."""
    from airflow_delta.table.start.rerun import files_to_replace

    if user is not None and not handle.app_id.startswith(user.default_prefix):
        committed = find_commit(log, app_id=handle.app_id) or result_without_commit(log, handle)
        check_key_of_table(log.uri, handle, committed, user)
    if takes_back:
        files_to_replace(log, snapshot, handle)


def _identity(table: str, key: str | None, app_id: str | None, txn_version: int | None) -> _Identity:
    if key is not None:
        if app_id is not None or txn_version is not None:
            raise DeltaIllegalArgumentException("Give transaction_key, or app_id with txn_version, but not both.", table=table)
        _check_text("transaction_key", key, table)
        return _Identity(key, None)
    if app_id is None and txn_version is None:
        raise DeltaIllegalArgumentException(
            "The transaction has no identity. Give transaction_key, or app_id with txn_version.", table=table
        )
    if app_id is None or txn_version is None:
        given, missing = ("app_id", "txn_version") if txn_version is None else ("txn_version", "app_id")
        raise DeltaIllegalArgumentException(
            f"{given} was given without {missing}: an idempotent write needs both (Delta's txnAppId and txnVersion).", table=table
        )
    _check_text("app_id", app_id, table)
    if isinstance(txn_version, bool) or not isinstance(txn_version, int) or not 0 <= txn_version <= _MAX_LONG:
        raise DeltaIllegalArgumentException(
            f"txn_version must be a whole number from 0 to {_MAX_LONG}, got {txn_version!r}.", table=table
        )
    return _Identity(app_id, txn_version)


def _check_former_keys(table: str, snapshot: Snapshot, identity: _Identity, keys: Sequence[str]) -> None:
    for key in keys:
        if snapshot.transaction_version(key) is not None:
            raise snapshot.error(
                TransactionExpiredException,
                f"It cannot be known whether transaction {identity.app_id!r} is in table {table}: an earlier version of this "
                f"provider published instances of this run there under keys of map indexes ({key!r}), which do not say "
                "what they worked on. Nothing is committed. Look at the table: if it has the rows, mark the task as success; "
                "if not, run it once with rerun_policy='append'.",
            )


def _check_unexpired(table: str, snapshot: Snapshot, identity: _Identity, last: int | None) -> None:
    if last != snapshot.transaction_version(identity.app_id):
        raise snapshot.error(
            TransactionExpiredException,
            f"The key of app_id {identity.app_id!r} has expired from table {table}, so what its txnVersion "
            f"{identity.txn_version} added cannot be replaced. Overwrite the rows with mode='overwrite' and replace_where, "
            "and rerun_policy='append'.",
        )


def _check_text(name: str, value: object, table: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DeltaIllegalArgumentException(f"{name} must be a non-empty string, got {value!r}.", table=table)
    if value.startswith(OWN_APPS):
        raise DeltaIllegalArgumentException(
            f"{name} must not begin with {' or '.join(map(repr, OWN_APPS))}, as what says how far sources were read: {value!r}.",
            table=table,
        )


def _check_no_preview(table: str) -> None:
    if is_preview(table):
        raise DeltaIllegalArgumentException(
            f"{table} is the preview of a transaction, which cannot be written to: it is deleted with the transaction. "
            "Name the table itself.",
            table=table,
        )


def _check_choice(name: str, value: str, allowed: Sequence[str], table: str) -> None:
    if value not in allowed:
        raise DeltaIllegalArgumentException(f"{name} must be one of {', '.join(allowed)}, got {value!r}.", table=table)


def _next_version(table: str, identity: _Identity, last: int | None, rerun_policy: str) -> int:
    if identity.txn_version is None:
        return 0 if last is None else last + 1
    if last is not None and last > identity.txn_version and rerun_policy in ("append", "replace"):
        raise DeltaIllegalArgumentException(
            f"app_id {identity.app_id!r} has committed txnVersion {last} to table {table}, so {identity.txn_version} cannot be "
            f"committed again (rerun_policy={rerun_policy!r}): versions of one app_id only grow. Use transaction_key, "
            "which gives "
            "each Dag run an identity of its own.",
            table=table,
        )
    return identity.txn_version


def _of_table(
    handle: TransactionHandle, snapshot: Snapshot, partition_by: Sequence[str], isolation_level: str | None
) -> TransactionHandle:
    metadata = snapshot.metadata
    if partition_by and [c.lower() for c in partition_by] != [c.lower() for c in metadata.partition_columns]:
        raise handle.error(
            DeltaAnalysisException,
            f"Table {handle.table} version {snapshot.version} is partitioned by ({', '.join(metadata.partition_columns)}), "
            f"partition_by is ({', '.join(partition_by)}). Leave it out, or overwrite the table with overwrite_schema=True.",
            version=snapshot.version,
        )
    return replace(
        handle,
        **table_fields(snapshot),
        isolation_level=isolation_level or default_isolation_level(metadata.configuration),
        timestamp=snapshot.timestamp,
    )


def _check_new_location(log: DeltaLog, *, in_place: bool) -> None:
    """Check that a table can be created here: nothing else is, and the store keeps writers apart."""
    from airflow_delta.log.storage.conditional_put import check_conditional_put

    if not in_place:
        check_location(log)
    check_conditional_put(log.store)
