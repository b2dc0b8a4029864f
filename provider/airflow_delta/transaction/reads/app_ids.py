"""Application ids that a transaction has looked up, and what a conflict over one of them says.

Delta knows one reason: another run has the same ``appId``. Whoever keeps something else in a ``txn`` says what it is.
"""

from __future__ import annotations

from typing import NamedTuple

START_OVER = "What to do: begin again, by clearing the start task or with on_conflict='restart': the new transaction"


class AppIdConflict(NamedTuple):
    """What a conflict says over application ids whose version a transaction looked up.

    :param what: what happened, with ``{app_ids}`` in it; a sentence without its full stop.
    :param advice: what to do.
    """

    what: str
    advice: str


LOOKED_UP = AppIdConflict(
    "The application transaction {app_ids}, whose version this transaction looked up, was written by a concurrent update",
    "What to do: nothing if the other run did the same work; a new transaction will see it in the log and apply its rerun "
    "policy. Otherwise give every concurrent run its own transaction key (appId).",
)
