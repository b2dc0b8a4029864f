"""Versions of application ids that a transaction has looked up, and another commit has set (Delta's check of ``readTxn``)."""

from __future__ import annotations

from airflow_delta.exceptions import ConcurrentTransactionException
from airflow_delta.transaction.conflicts.current_transaction import CurrentTransaction
from airflow_delta.transaction.conflicts.errors import conflict
from airflow_delta.transaction.conflicts.winning_commit import WinningCommit
from airflow_delta.transaction.reads.app_ids import LOOKED_UP, START_OVER


def check_winner_app_ids(current: CurrentTransaction, winner: WinningCommit) -> None:
    """Check the application ids of a winning commit.

    :raises ConcurrentTransactionException: if it sets one that the transaction has looked up, or breaks a rule about ids that it
        cannot name.
    """
    read = current.reads.app_ids
    if common := sorted(read.keys() & winner.app_ids):
        kinds = {read[app_id] for app_id in common}
        found = kinds.pop() if len(kinds) == 1 else LOOKED_UP
        what = found.what.format(app_ids=", ".join(common))
        raise conflict(ConcurrentTransactionException, winner, what, found.advice, current=current)
    for rule in current.reads.app_id_rules:
        why = rule({txn.app_id: txn.version for txn in winner.set_transactions})
        if why is not None:
            advice = f"{START_OVER} is told what the table has by then."
            raise conflict(ConcurrentTransactionException, winner, why, advice, current=current)
