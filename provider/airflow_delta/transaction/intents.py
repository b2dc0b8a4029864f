"""Intents: what a publication of several tables leaves in a table's log until it is published there, refused or taken back.

They are ``txn`` actions, so they come with the snapshot that a commit loads anyway. A commit that meets an open one lets that
publication end first, so that it is never taken back because of us. Other engines do not see them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_delta.log.actions.intents import INTENT_APP, PREFIXES, STATE_APP, open_intents

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import SetTransaction

__all__ = [
    "IGNORE_INTENTS",
    "INTENT_APP",
    "PATIENCE",
    "STATE_APP",
    "WAIT_FOR_INTENTS",
    "IntentRule",
    "OpenIntents",
    "open_intents",
]

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds for which an open intent holds up a commit that cannot settle its publication."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentRule:
    """What a commit does about open intents.

    :param own: id of the publication that the commit is part of; its intent is no obstacle.
    :param patience: seconds after which an open intent is passed over, as other engines do; 0: all are.
    :param meet: called with the id of a publication whose intent is open, before waiting for it. Returns whether the log should
        be looked at again; if not, the intent is passed over; ``None``: wait for it. Its exceptions end the commit, with nothing
        written.
    """

    own: str | None = None
    patience: float = PATIENCE
    meet: Callable[[str], bool | None] | None = None

    @property
    def looks(self) -> bool:
        """Whether open intents are anything to the commit."""
        return self.patience > 0 or self.meet is not None


WAIT_FOR_INTENTS = IntentRule()
IGNORE_INTENTS = IntentRule(patience=0.0)


class OpenIntents:
    """The open intents that one commit meets.

    :param transactions: those of the version that is read.
    """

    def __init__(self, transactions: Iterable[SetTransaction], rule: IntentRule) -> None:
        self._rule = rule
        self._open: dict[str, int | None] = {}
        self._closed: set[str] = set() if rule.own is None else {rule.own}
        self._seen: dict[str, float] = {}
        self._ended: set[str] = set()
        if rule.looks:
            self.note(transactions)

    def note(self, transactions: Iterable[SetTransaction]) -> None:
        """Take in the transactions of a snapshot, or of a commit after it."""
        for txn in transactions:
            if not txn.app_id.startswith(PREFIXES):
                continue
            prefix, _, publication = txn.app_id.partition("/")
            if f"{prefix}/" == STATE_APP:
                self._closed.add(publication)
                self._open.pop(publication, None)
            elif publication not in self._closed:
                self._open[publication] = txn.last_updated

    def __bool__(self) -> bool:
        return bool(self._open) and self._rule.looks

    def await_next(self, table: str) -> None:
        """Let the next open one end, or a moment pass; then the log is to be looked at again."""
        publication, since = next(iter(self._open.items()))
        answer = None if self._rule.meet is None else self._rule.meet(publication)
        if answer and publication not in self._ended:
            self._ended.add(publication)
            return
        answer = None if answer else answer  # it was said before, and the log does not say so
        if answer is None and self._is_young(publication, since):
            waited = time.monotonic() - self._seen[publication]
            if waited < _FIRST_PAUSE:
                logger.info("Table %s: waiting for publication %s of several tables to end", table, publication)
            time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE + waited / 4))
            return
        if answer is None:
            logger.warning(
                "Table %s: publication %s has been open for more than %g s; committing without waiting for it. "
                "`airflow delta settle` ends it.",
                table,
                publication,
                self._rule.patience,
            )
        self._closed.add(publication)
        del self._open[publication]

    def _is_young(self, publication: str, since: int | None) -> bool:
        """Tell whether to wait: by the writer's clock, and by ours, whichever is over first."""
        waited = time.monotonic() - self._seen.setdefault(publication, time.monotonic())
        age = waited if since is None else max(waited, time.time() - since / 1000)
        return age < self._rule.patience
