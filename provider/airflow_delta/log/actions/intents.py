"""Intents of publications of several tables among the transactions of a table: ``txn`` actions like all others.

Every commit has to know those that are open, so checksums list them where the list of all transactions is too long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import SetTransaction

INTENT_APP = "airflow.intent/"
"""Prefix of the application id of an intent; the id of the publication follows."""
STATE_APP = "airflow.publication/"
"""Prefix of the application id whose version is the state of a publication on the table."""
PREFIXES = (INTENT_APP, STATE_APP)


def open_intents(transactions: Iterable[SetTransaction]) -> dict[str, SetTransaction]:
    """Return the intents that are open in a snapshot, by the id of their publication."""
    found = {txn.app_id: txn for txn in transactions if txn.app_id.startswith(PREFIXES)}
    ids = {app_id.removeprefix(INTENT_APP): txn for app_id, txn in found.items() if app_id.startswith(INTENT_APP)}
    return {publication: txn for publication, txn in ids.items() if f"{STATE_APP}{publication}" not in found}


def unexpired(transactions: Collection[SetTransaction], since: float) -> list[SetTransaction]:
    """Return the transactions after a time, in milliseconds since the epoch, and open intents of any age.

    An intent and what has ended it go together, whatever clocks they were put by: without its end it would be open again.
    """
    known = {txn.app_id: txn for txn in transactions if txn.app_id.startswith(PREFIXES)}
    if not known:
        return [txn for txn in transactions if txn.last_updated is not None and txn.last_updated > since]
    fresh = {txn.app_id for txn in transactions if txn.last_updated is not None and txn.last_updated > since}

    def stays(app_id: str) -> bool:
        if app_id not in known:
            return app_id in fresh
        _, _, publication = app_id.partition("/")
        intent, state = f"{INTENT_APP}{publication}", f"{STATE_APP}{publication}"
        return state not in known or state in fresh or intent in fresh

    return [txn for txn in transactions if stays(txn.app_id)]
