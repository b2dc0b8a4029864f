"""The positions of a clone: those that its source had at the version that was cloned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import COPY_APP, OWN_APPS, RECORD_SUFFIX
from airflow_delta.log.actions.actions import SetTransaction
from airflow_delta.table.positions.files.records import copy_records

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog


def positions_of_clone(log: DeltaLog, own: Snapshot, source: DeltaLog, snapshot: Snapshot) -> list[SetTransaction]:
    """Return what makes the positions of a clone those of a version of its source, with their records copied.

    A consumer of the clone that the source does not know starts from nothing: the clone no longer has its rows. Batches of
    streaming queries are not among them: their keys look like any others.

    :param log: the clone.
    :param own: the clone as it was; its version is -1 if there was none.
    :param snapshot: the version of the source.
    """
    theirs = {app_id: txn for app_id, txn in snapshot.set_transactions.items() if app_id.startswith(OWN_APPS)}
    before = own.set_transactions if own.version >= 0 else {}
    known = {app_id: txn for app_id, txn in before.items() if app_id.startswith(OWN_APPS)}
    found = [txn for app_id, txn in theirs.items() if app_id not in known or known[app_id].version != txn.version]
    copy_records(log, source, {txn.app_id for txn in found}, snapshot.transactions)
    begins = [txn for app_id, txn in known.items() if app_id not in theirs and not app_id.endswith(RECORD_SUFFIX)]
    nothing = {txn.app_id: 0 if txn.app_id.startswith(COPY_APP) else -1 for txn in begins}
    return found + [
        msgspec.structs.replace(txn, version=nothing[txn.app_id]) for txn in begins if txn.version != nothing[txn.app_id]
    ]
