"""Begin a transaction: its identity, its table, and what the log already has of it; the handle says so."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_delta.contract.choices import ISOLATION_LEVELS, KEY_CHECKS, RERUN_POLICIES
from airflow_delta.contract.payloads import TransactionHandle
from airflow_delta.contract.staging_directory import transaction_directory
from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.table.start.identity import check_choice, given_identity
from airflow_delta.table.start.location import check_existing, check_missing, check_no_preview
from airflow_delta.table.start.new_table import DEFAULT_CONFIGURATION, default_isolation_level, of_new_table, with_required
from airflow_delta.table.start.rerun_policy import EarlierRuns, InLog, decide, look_up
from airflow_delta.table.state.find_commit import TryChain
from airflow_delta.table.state.key_users import KeyUser
from airflow_delta.table.state.read_snapshot import table_fields
from airflow_delta.table.state.transaction_retention import PossibleSince

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


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
    table = log.uri
    check_no_preview(table)
    identity = given_identity(table, transaction_key, app_id, txn_version, rerun_policy)
    check_choice("rerun_policy", rerun_policy, RERUN_POLICIES, table)
    check_choice("key_check", KEY_CHECKS[0] if user is None else user.check, KEY_CHECKS, table)
    check_choice("isolation_level", ISOLATION_LEVELS[0] if isolation_level is None else isolation_level, ISOLATION_LEVELS, table)
    earlier = EarlierRuns(tries=tries, possible_since=possible_since, former_keys=former_keys, user=user, takes_back=takes_back)
    snapshot = _newest(log, settle)
    if snapshot.version >= 0:
        check_existing(snapshot)
        found = look_up(log, snapshot, identity, earlier)
    else:
        check_missing(log, create=create, in_place=in_place)
        found = InLog()
    transaction_id = transaction_id if transaction_id is not None else str(uuid.uuid4())
    handle = TransactionHandle(
        transaction_id=transaction_id,
        table=table,
        read_version=snapshot.version,
        staging_path=f"{table}/{transaction_directory(transaction_id)}",
        app_id=identity.app_id,
        txn_version=found.own.txn_version or 0 if found.own else identity.next_version(table, found.last),
        monotonic=identity.monotonic,
        rerun_policy=rerun_policy,
        delta_conn_id=delta_conn_id,
    )
    if snapshot.version < 0:
        required = with_required({**DEFAULT_CONFIGURATION, **(configuration or {})}, log.store.committer, table)
        return of_new_table(handle, partition_by, schema, required, name, description, isolation_level, provided=log.provided)
    handle = _of_table(handle, snapshot, partition_by, isolation_level)
    return decide(log, snapshot, handle, identity, found, earlier)


def _newest(log: DeltaLog, settle: Callable[[DeltaLog], object] | None) -> Snapshot:
    log.update()
    if settle is not None:
        settle(log)
    return log.snapshot


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
