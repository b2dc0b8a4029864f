"""What the log already has of an identity, and what its rerun policy makes of that: begin anew, replace, or leave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from airflow_delta.contract.payloads import CommitResult, TransactionHandle
from airflow_delta.exceptions import TransactionAlreadyCommittedException, TransactionExpiredException
from airflow_delta.table.start.identity import Identity
from airflow_delta.table.state.commit_result import result_without_commit
from airflow_delta.table.state.find_commit import TryChain, commit_of_chain, find_commit, standing_version
from airflow_delta.table.state.key_users import KeyUser, check_key_of_run, check_key_of_table, described, is_forgotten
from airflow_delta.table.state.transaction_retention import PossibleSince, last_txn_version

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


class EarlierRuns(NamedTuple):
    """What whoever begins a transaction knows of earlier executions; see :func:`~airflow_delta.table.start.begin.begin`."""

    tries: TryChain | None = None
    possible_since: PossibleSince | None = None
    former_keys: Sequence[str] = ()
    user: KeyUser | None = None
    takes_back: bool = True


class InLog(NamedTuple):
    """What a version of the table has of an identity.

    :param last: the last version in the log; ``None`` if there is none.
    :param standing: the last one that was not taken back.
    :param own: the commit of an earlier try of the same task instance, if that decides.
    """

    last: int | None = None
    standing: int | None = None
    own: CommitResult | None = None


def look_up(log: DeltaLog, snapshot: Snapshot, identity: Identity, earlier: EarlierRuns) -> InLog:
    """Look an identity up in a version of the table.

    :raises TransactionExpiredException: if it can no longer be known whether it was committed, or what it added.
    """
    # To commit again needs no memory: 'append' is the author's way out if it cannot be known.
    asked = None if identity.rerun_policy == "append" else earlier.possible_since
    last = last_txn_version(log, snapshot, identity.app_id, asked)
    if last is None and identity.rerun_policy != "append":
        _check_former_keys(snapshot, identity, earlier.former_keys)
    if identity.rerun_policy == "replace" and identity.monotonic:
        _check_unexpired(snapshot, identity, last)
    standing = standing_version(snapshot, identity.app_id, last)
    own = None
    # Under 'skip' it does not matter which try, or run, has committed the identity.
    if identity.covers(standing) and identity.rerun_policy != "skip":
        own = commit_of_chain(log, identity.app_id, earlier.tries)
    return InLog(last, standing, own)


def decide(
    log: DeltaLog, snapshot: Snapshot, handle: TransactionHandle, identity: Identity, found: InLog, earlier: EarlierRuns
) -> TransactionHandle:
    """Return the handle with its commit, if the transaction is committed already and is not to be run again.

    :param handle: with the version to commit.
    :raises TransactionAlreadyCommittedException: if it is committed and the policy is ``fail``, or ``replace`` and another
        writer has changed what it added; or if the user of the identity must not use it.
    """
    if found.own is not None:
        return replace(handle, committed=found.own)
    if identity.rerun_policy == "append":
        return handle
    last = found.standing
    if last is None or not identity.covers(last):
        check_key_of_run(log, snapshot, identity.app_id, earlier.user)
        return handle
    if identity.rerun_policy == "replace":
        _check_replace(log, snapshot, handle, earlier)
        return handle
    txn_version = handle.txn_version if identity.monotonic else None
    committed = find_commit(log, app_id=handle.app_id, txn_version=txn_version, until=last)
    committed = committed or result_without_commit(log, handle)
    if identity.rerun_policy == "fail":
        raise log.error(
            TransactionAlreadyCommittedException,
            f"Transaction {handle.app_id!r} is committed in version {committed.version} of table {log.uri} (txnVersion "
            f"{last}){f', by {described(committed.committed_by)}' if not is_forgotten(committed) else ''}, and "
            "rerun_policy is 'fail'. Use 'skip' to leave it, 'replace' to redo it, or another transaction_key.",
            version=committed.version,
        )
    check_key_of_table(log.uri, handle, committed, earlier.user)
    return replace(handle, committed=committed, txn_version=last if identity.txn_version is None else identity.txn_version)


def _check_replace(log: DeltaLog, snapshot: Snapshot, handle: TransactionHandle, earlier: EarlierRuns) -> None:
    """Refuse what the commit would refuse to replace, before anything is staged."""
    from airflow_delta.table.start.replaced_files import files_to_replace

    if earlier.user is not None and not handle.app_id.startswith(earlier.user.default_prefix):
        committed = find_commit(log, app_id=handle.app_id) or result_without_commit(log, handle)
        check_key_of_table(log.uri, handle, committed, earlier.user)
    if earlier.takes_back:
        files_to_replace(log, snapshot, handle)


def _check_former_keys(snapshot: Snapshot, identity: Identity, keys: Sequence[str]) -> None:
    for key in keys:
        if snapshot.transaction_version(key) is not None:
            raise snapshot.error(
                TransactionExpiredException,
                f"It cannot be known whether transaction {identity.app_id!r} is in table {snapshot.log.uri}: an earlier version "
                f"of this provider published instances of this run there under keys of map indexes ({key!r}), which do not say "
                "what they worked on. Nothing is committed. Look at the table: if it has the rows, mark the task as success; "
                "if not, run it once with rerun_policy='append'.",
            )


def _check_unexpired(snapshot: Snapshot, identity: Identity, last: int | None) -> None:
    if last != snapshot.transaction_version(identity.app_id):
        raise snapshot.error(
            TransactionExpiredException,
            f"The key of app_id {identity.app_id!r} has expired from table {snapshot.log.uri}, so what its txnVersion "
            f"{identity.txn_version} added cannot be replaced. Overwrite the rows with mode='overwrite' and replace_where, "
            "and rerun_policy='append'.",
        )
