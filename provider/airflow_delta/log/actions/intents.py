"""Intents among the transactions of a table: ``txn`` actions like all others, which stay open until another one ends them.

Every commit has to know those that are open, so checksums list them where the list of all transactions is too long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from airflow_delta.contract.intents import INTENT_KINDS, IntentKind

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import SetTransaction

PREFIXES = tuple(prefix for kind in INTENT_KINDS for prefix in (kind.begins, kind.ends))
"""Prefixes of the application ids of intents and their ends."""


def kind_of(app_id: str) -> IntentKind:
    """Return the kind of an intent, or of its end, by an application id with one of :data:`PREFIXES`."""
    return next(kind for kind in INTENT_KINDS if app_id.startswith((kind.begins, kind.ends)))


def open_intents(transactions: Iterable[SetTransaction]) -> dict[str, SetTransaction]:
    """Return the intents that are open in a snapshot, by their id."""
    found = {txn.app_id: txn for txn in transactions if txn.app_id.startswith(PREFIXES)}
    return {
        app_id.removeprefix(kind.begins): txn
        for kind in INTENT_KINDS
        for app_id, txn in found.items()
        if app_id.startswith(kind.begins) and kind.pair(app_id)[1] not in found
    }


def unexpired(transactions: Collection[SetTransaction], since: float) -> list[SetTransaction]:
    """Return the transactions after a time, in milliseconds since the epoch, and open intents of any age.

    An intent and what has ended it go together, whatever clocks they were put by: without its end it would be open again.
    """
    known = {txn.app_id for txn in transactions if txn.app_id.startswith(PREFIXES)}
    if not known:
        return [txn for txn in transactions if txn.last_updated is not None and txn.last_updated > since]
    fresh = {txn.app_id for txn in transactions if txn.last_updated is not None and txn.last_updated > since}

    def stays(app_id: str) -> bool:
        if app_id not in known:
            return app_id in fresh
        intent, end = kind_of(app_id).pair(app_id)
        return end not in known or end in fresh or intent in fresh

    return [txn for txn in transactions if stays(txn.app_id)]
