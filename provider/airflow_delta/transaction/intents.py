"""What a commit does about intents that are open in a table's log: it lets them end first.

They are ``txn`` actions, so they come with the snapshot that a commit loads anyway. Other engines do not see them, and commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from airflow_delta.contract.clocks import CLOCKS_DIFFER_BY
from airflow_delta.contract.intents import IntentKind
from airflow_delta.exceptions import VersionsNotContiguousException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.actions.intents import PREFIXES, kind_of
from airflow_delta.log.storage.file_names import commit_file

if TYPE_CHECKING:
    from airflow_delta.log.actions.actions import SetTransaction
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds for which an open intent holds up a commit that cannot end it."""

MOST_MET = 100
"""Intents that one commit lets end before it goes on as other engines do."""

_COMMITS_AT_ONCE = 100
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentRule:
    """What a commit does about open intents.

    :param own: id of the intent that the commit is part of, which is no obstacle.
    :param patience: seconds after which an open intent is passed over, as other engines do; 0: all are.
    :param meet: called with the id of an open intent, before waiting for it. Returns whether the log should
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
        self._open: dict[str, IntentKind] = {}
        self._closed: set[str] = set() if rule.own is None else {rule.own}
        self._seen: dict[str, float] = {}
        self._age: dict[str, float] = {}
        self._ended: set[str] = set()
        if rule.looks:
            self.note(transactions)

    def note(self, transactions: Iterable[SetTransaction]) -> None:
        """Take in the transactions of a snapshot, or of a commit after it."""
        for txn in transactions:
            if not txn.app_id.startswith(PREFIXES):
                continue
            kind = kind_of(txn.app_id)
            if txn.app_id.startswith(kind.ends):
                intent = txn.app_id.removeprefix(kind.ends)
                self._closed.add(intent)
                self._open.pop(intent, None)
            elif (intent := txn.app_id.removeprefix(kind.begins)) not in self._closed:
                self._open[intent] = kind

    def __bool__(self) -> bool:
        return bool(self._open) and self._rule.looks

    def await_next(self, log: DeltaLog) -> None:
        """Let the next open one end, or a moment pass; then the log is to be looked at again."""
        (intent, kind), table = next(iter(self._open.items())), log.uri
        is_young = self._is_young(log, intent, kind)  # before it is met: whoever is asked has waited as long as this
        answer = None if self._rule.meet is None else self._rule.meet(intent)
        if answer and intent not in self._ended:
            self._ended.add(intent)
            return
        answer = None if answer else answer  # it was said before, and the log does not say so
        if answer is None and is_young:
            waited = time.monotonic() - self._seen[intent]
            if waited < _FIRST_PAUSE:
                logger.info("Table %s: waiting for %s to end", table, kind.name.format(id=intent))
            time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE + waited / 4))
            return
        if answer is None:
            logger.warning(
                "Table %s: %s has been open for more than %g s; committing without waiting for it. %s",
                table,
                kind.name.format(id=intent),
                self._rule.patience,
                kind.remedy.format(id=intent),
            )
        self._closed.add(intent)
        del self._open[intent]

    def _is_young(self, log: DeltaLog, intent: str, kind: IntentKind) -> bool:
        """Tell whether to wait: by how long we have, and by the store's times, whichever is over first."""
        waited = time.monotonic() - self._seen.setdefault(intent, time.monotonic())
        if self._rule.patience <= waited or len(self._seen) > MOST_MET:
            return False
        if intent not in self._age:
            self._age[intent] = age_of_intent(log, f"{kind.begins}{intent}")
        return self._age[intent] < self._rule.patience


def age_of_intent(log: DeltaLog, app_id: str) -> float:
    """Return for how many seconds an intent has been in a log, at least: 0 if the store does not tell.

    :param app_id: of the intent.
    """
    newest = log.update().version
    version, needle = newest, app_id.encode()
    for end in range(newest + 1, 0, -_COMMITS_AT_ONCE):
        try:
            files = log.read_commit_range(range(max(end - _COMMITS_AT_ONCE, 0), end))
        except VersionsNotContiguousException:  # it is older than what is left of the log
            break
        found = next((file.version for file in reversed(files) if needle in file.data), None)
        version = files[0].version if found is None else found
        if found is not None:
            break
    return age_at_least(_stored(log, version), _stored(log, newest))


def age_at_least(since: int, newest: int) -> float:
    """Return how old something is, at least, in seconds.

    :param since: when the store wrote it, in milliseconds since the epoch; 0: unknown.
    :param newest: when it wrote something later.
    """
    # What workers claim in the log counts for nothing: an intent of one whose clock is ahead would hold up everybody, and a fresh
    # one of a clock that is behind would be passed over.
    return max(0.0, newest / 1000 - since / 1000, time.time() - (since + CLOCKS_DIFFER_BY) / 1000) if since > 0 else 0.0


def _stored(log: DeltaLog, version: int) -> int:
    status = log.store.head(commit_file(version)) if version >= 0 else None
    return 0 if status is None else status.modification_time
