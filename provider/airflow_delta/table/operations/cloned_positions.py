"""What a clone knows of where its rows came from: positions in other tables, and which files were loaded.

A clone has the rows that its source took from elsewhere, so it also gets the ``txn`` actions that say so, and the records that
those of loads name. Without them, a Dag that goes on with the clone would take all rows again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_delta.contract.payloads import COPY_APP, OWN_APPS, RECORD_SUFFIX
from airflow_delta.table.stage.file_loads import copy_records

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.actions.actions import SetTransaction
    from airflow_delta.log.delta_log import DeltaLog


def cloned_positions(log: DeltaLog, own: Snapshot, source: DeltaLog, snapshot: Snapshot) -> list[SetTransaction]:
    """Return what makes the positions of a clone those of a version of its source, with their records copied.

    A consumer of the clone that the source does not know begins anew: the clone has none of its rows any more.

    :param log: the clone.
    :param own: the clone as it was; its version is -1 if there was none.
    :param snapshot: the version of the source.
    :raises DeltaIllegalStateException: if the clone has another record under the name of one.
    """
    theirs = {app_id: txn for app_id, txn in snapshot.set_transactions.items() if app_id.startswith(OWN_APPS)}
    before = own.set_transactions if own.version >= 0 else {}
    known = {app_id: txn for app_id, txn in before.items() if app_id.startswith(OWN_APPS)}
    found = [txn for app_id, txn in theirs.items() if app_id not in known or known[app_id].version != txn.version]
    copy_records(log, source, {txn.app_id: txn.version for txn in found}, snapshot.transactions)
    begins = [txn for app_id, txn in known.items() if app_id not in theirs and not app_id.endswith(RECORD_SUFFIX)]
    nothing = {txn.app_id: 0 if txn.app_id.startswith(COPY_APP) else -1 for txn in begins}
    return found + [
        msgspec.structs.replace(txn, version=nothing[txn.app_id]) for txn in begins if txn.version != nothing[txn.app_id]
    ]
