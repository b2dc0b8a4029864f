"""What a winner's protocol, or dropping a feature ourselves, means for a transaction (Delta's protocol check)."""

from __future__ import annotations

from airflow_delta.exceptions import FeatureDropConflictException, ProtocolChangedException
from airflow_delta.log.actions.actions import Protocol
from airflow_delta.log.features import protocol as table_protocol
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import BEGIN_AGAIN, conflict, describe_winner
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.prepare import feature_drop, row_tracking


def provided(current: CurrentTransaction) -> frozenset[str]:
    """Return the features that the table's committer provides: the transaction could not have begun without them."""
    return table_protocol.features(current.protocol) & table_protocol.BY_COMMITTER


def check_protocol(current: CurrentTransaction, winner: WinningCommit, *, has_protocol: bool) -> None:
    """Check a winning commit that sets the protocol, and adopt it if it is acceptable.

    :param has_protocol: the transaction sets the protocol too.
    :raises ProtocolChangedException: if it is not acceptable.
    :raises DeltaUnsupportedTableFeatureException: if this provider can no longer read the table.
    """
    protocol = winner.protocol
    if protocol is None:
        return
    table_protocol.check_can_read(protocol, winner.table, winner.version, provided=provided(current))
    if has_protocol:
        hint = (
            " Two writers created the table at the same time: create it before tasks write to it in parallel."
            if winner.version == 0
            else ""
        )
        raise _changed(
            current,
            winner,
            "The protocol was changed by a concurrent update while this transaction sets it too",
            BEGIN_AGAIN + hint,
        )
    read = table_protocol.features(current.read_protocol or current.protocol)
    new = table_protocol.features(protocol)
    if read - new:
        raise _changed(current, winner, f"A concurrent update dropped the table features {', '.join(sorted(read - new))}")
    strict = sorted(name for name in new - read if _has_rules_for_every_write(name))
    if strict and current.options.enforce_concurrent_feature_enablement:
        what = f"A concurrent update added the table features {', '.join(strict)}, which have rules for every write"
        raise _changed(current, winner, what)
    current.protocol = protocol


def _has_rules_for_every_write(feature: str) -> bool:
    known = table_protocol.FEATURES.get(feature)
    return known is None or known.fail_concurrent_transactions_at_upgrade


def check_own_drop(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check again, on the table as a winning commit left it, that the feature which the transaction drops is not in use.

    :raises FeatureDropConflictException: if it is, or more than one is dropped.
    """
    if current.read_protocol is None or not any(isinstance(action, Protocol) for action in current.own_actions):
        return
    dropped = feature_drop.dropped(current.read_protocol, current.protocol)
    if not dropped:
        return
    if row_tracking.FEATURE in dropped:
        current.replace_actions(row_tracking.unbackfilled(current.own_actions, winner.added_files, winner.touched))
        current.forgotten |= winner.touched
    else:
        in_use = feature_drop.obstacle(dropped, current.snapshot_at(winner.version))
        if in_use is not None:
            raise winner.error(
                FeatureDropConflictException,
                f"The table feature {', '.join(sorted(dropped))} cannot be dropped from table {current.table}: {in_use}, since "
                f"{describe_winner(winner)}. This transaction read version {current.read_version} and committed nothing. "
                "Remove what uses the feature, and drop it in a new transaction.",
            )
    if feature_drop.needs_history_protection(current.protocol, dropped):
        current.replace_metadata(feature_drop.with_history_protection(current.metadata, winner.version + 1))


def _changed(
    current: CurrentTransaction, winner: WinningCommit, what: str, advice: str = BEGIN_AGAIN
) -> ProtocolChangedException:
    return conflict(ProtocolChangedException, winner, what, advice, current=current)
