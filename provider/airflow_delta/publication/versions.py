"""Versions of several tables that belong together: none of them has half of a publication.

Tables are looked at one after the other, so what one lacks may have come since. It is looked at again after what says otherwise:
a table that shows the publication, or the note that it has ended everywhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from airflow_delta.contract.intents import INTENT_APP, STATE_APP
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.log.actions.intents import open_intents
from airflow_delta.publication.ids import PublicationId, table_mark
from airflow_delta.publication.records import PUBLISHED, STANDS, UNDONE
from airflow_delta.publication.results import VersionVector
from airflow_delta.publication.states import (
    brought_after,
    is_over,
    newest_state,
    state_by_entries,
    state_entry,
    states_after,
    states_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

_Half = tuple[str, list[str], list[str]]
"""A publication, the tables that show it, and those of it that do not."""

_SHOWN = (PUBLISHED, STANDS)

_ONE_BY_ONE = 4
"""Publications whose keys are looked up one by one: each look reads a part of a checkpoint."""

_ROUNDS = 8
"""Looks at tables that change all the time; after that, what a table lacks is held back on the others."""


class _Table:
    """A table of the vector.

    :ivar version: at which it is read.
    :ivar snapshot: its newest version, as of the last look.
    :ivar seen: when that was, as a number that grows with every look at any table.
    :ivar states: of publications on it.
    :ivar shown: the publications that it shows.
    """

    def __init__(self, log: DeltaLog, looks: Iterator[int]) -> None:
        self.log = log
        self.mark = table_mark(log)
        self.seen = next(looks)
        self.snapshot = log.update()
        self.version = self.head = self.snapshot.version
        self.intents = open_intents(self.snapshot.intents)  # first: a checksum has them without all other transactions
        self.states = states_of(self.snapshot)
        self.shown = {publication for publication, state in self.states.items() if state in _SHOWN}
        self._later: dict[str, set[int]] = {}

    def recall(self, publication: str, since: int | None) -> None:
        """Take in the state of a publication that is open on another table, if this one no longer keeps keys that old.

        :param since: when its intent was put there, in milliseconds since the epoch.
        """
        if self.mark not in _tables_of(publication) or publication in self.states or self.head < 0:
            return
        state = newest_state(self.snapshot, publication)
        if state is None:
            state = state_by_entries(self.log, self.snapshot, publication, since=0, begun=since)
        if state is not None:
            self.states[publication] = state
        if state in _SHOWN:
            self.shown.add(publication)

    def shows(self, publication: str) -> bool:
        """Tell whether the publication is in the version that is read."""
        later = self._later.get(publication, ())
        if PUBLISHED in later:
            return False
        return UNDONE in later or STANDS in later or self.states.get(publication) in _SHOWN

    def stands(self, publication: str) -> bool:
        """Tell whether the publication stays here although others of its tables do not have it."""
        return self.states.get(publication) == STANDS

    def cut(self, publication: str) -> bool:
        """Read the version before the publication; ``False`` if the log no longer says which that is."""
        entry = state_entry(self.log, publication, PUBLISHED)
        if entry is None:  # so old that it has left the log
            return False
        if entry.version <= self.version:
            self.version = entry.version - 1
            self._later = states_after(self.log, self.version, until=self.head)
        return True

    @property
    def cut_away(self) -> set[str]:
        """Return the publications whose states came after the version that is read."""
        return set(self._later)


def has_lost(lacking: DeltaLog, publication: str, showing: Sequence[DeltaLog]) -> bool:
    """Tell whether a table no longer has a publication that it had: it was dropped and perhaps created again, or keeps no such
    old keys.

    Looks at the table again, after what says so.

    :param lacking: did not show the publication, or does not exist.
    :param showing: tables that show it.
    """
    if not any(_had_it(lacking, publication, log) for log in showing):
        return False
    snapshot = lacking.update()
    if newest_state(snapshot, publication) is not None:
        return False  # it came since
    return snapshot.version < 0 or snapshot.set_transaction(f"{INTENT_APP}{publication}", expired=True) is None


def _had_it(lacking: DeltaLog, publication: str, showing: DeltaLog) -> bool:
    """Tell whether a table has had a publication, as one knows that shows it."""
    order, mark = _tables_of(publication), table_mark(showing)
    if mark in order and table_mark(lacking) in order[: order.index(mark)]:
        return True  # no table comes before its turn
    published = state_entry(showing, publication, PUBLISHED)
    if published is not None:
        return is_over(showing, publication, published)
    # So old that it has left the log, which keeps what an open publication needs; it cannot be read before it either.
    txn = showing.snapshot.set_transaction(f"{STATE_APP}{publication}", expired=True)
    snapshot = lacking.snapshot
    if snapshot.version < 0 or txn is None or txn.last_updated is None:
        return snapshot.version < 0
    retention = snapshot.properties.set_transaction_retention
    is_forgotten = retention is not None and txn.last_updated < int(time.time() * 1000) - retention
    return is_forgotten or (snapshot.metadata.created_time or 0) > txn.last_updated


def _tables_of(publication: str) -> tuple[str, ...]:
    try:
        return PublicationId.parse(publication).tables
    except DeltaIllegalArgumentException:
        return ()


def check_versions(tables: Mapping[str, tuple[DeltaLog, int]]) -> None:
    """Check that versions of tables belong together: each publication is in all of them or in none, or is split for good.

    :param tables: log and version by any name; -1: the table did not exist.
    :raises DeltaIllegalArgumentException: if one has a publication that another one lacks.
    """
    snapshots = {name: log.snapshot_at(version) if version >= 0 else None for name, (log, version) in tables.items()}
    marks = {name: table_mark(log) for name, (log, _) in tables.items()}
    states = {name: {} if snapshot is None else states_of(snapshot) for name, snapshot in snapshots.items()}
    shows = [{publication for publication, state in found.items() if state in _SHOWN} for found in states.values()]
    differing = set().union(*shows).difference(set(shows[0]).intersection(*shows[1:])) if shows else set()
    _read_ahead([snapshot for snapshot in snapshots.values() if snapshot is not None], len(differing))
    for publication in sorted(differing):
        members = [name for name in tables if marks[name] in _tables_of(publication)]
        shown = [name for name in members if states[name].get(publication) in _SHOWN]
        showing = [tables[name][0] for name in shown]
        lacking = [
            name for name in members if name not in shown and not _has_gone(*tables[name], snapshots[name], publication, showing)
        ]
        if not shown or not lacking:
            continue
        if any(states_of(tables[name][0].update()).get(publication) == STANDS for name in shown):
            logger.warning("Publication %s is split: only %s show it.", publication, ", ".join(shown))
            continue
        raise tables[lacking[0]][0].error(
            DeltaIllegalArgumentException,
            f"Version {tables[shown[0]][1]} of {shown[0]} has publication {publication}, version {tables[lacking[0]][1]} of "
            f"{lacking[0]} does not: these versions do not belong together. Take all versions from one call of "
            "DeltaHook.get_versions.",
        )


def _has_gone(log: DeltaLog, version: int, snapshot: Snapshot | None, publication: str, showing: Sequence[DeltaLog]) -> bool:
    """Tell whether a version lacks a publication because the table has lost it, not because it is older."""
    if snapshot is not None and newest_state(snapshot, publication) in _SHOWN:
        return True  # expired, and still in the log
    return has_lost(log, publication, showing) and brought_after(log, publication, version) is False


def get_versions(logs: Mapping[str, DeltaLog]) -> VersionVector:
    """Return the newest versions of tables that have every publication on all of its tables, or on none.

    Reads each table's newest version once, and more only if they disagree. Never waits, never writes. Past publications are
    compared as sets of ids; only those that one table has and another lacks are looked at.

    :param logs: by any name.
    """
    looks = count()
    tables = {name: _Table(log, looks) for name, log in logs.items()}
    lost: dict[str, set[str]] = {}
    for _ in range(_ROUNDS):
        _recall(tables)
        halves = _halves(tables)
        again = _lacking_too_early(tables, halves)
        if not again:
            lost, again = _lost(tables, halves)
        if not again:
            break
        lost = {}
        tables.update({name: _Table(logs[name], looks) for name in sorted(again)})
    else:
        halves = _halves(tables)
    return _cut(tables, lost, {publication for publication, _, _ in halves})


def _recall(tables: Mapping[str, _Table]) -> None:
    for table in tables.values():
        for publication, intent in table.intents.items():
            for other in tables.values():
                other.recall(publication, intent.last_updated)


def _halves(tables: Mapping[str, _Table]) -> list[_Half]:
    """Return the publications that some newest versions show and others do not, with these and those."""
    candidates = {
        publication
        for one, has in tables.items()
        for other, table in tables.items()
        if one != other
        for publication in has.shown - table.shown
        if table.mark in publication
    }
    found: list[_Half] = []
    for publication in sorted(candidates):
        names = _members(tables, publication)
        showing = [name for name in names if publication in tables[name].shown]
        if 0 < len(showing) < len(names):
            found.append((publication, showing, [name for name in names if name not in showing]))
    return found


def _members(tables: Mapping[str, _Table], publication: str) -> list[str]:
    marks = _tables_of(publication)
    return [name for name, table in tables.items() if table.mark in marks]


def _lacking_too_early(tables: Mapping[str, _Table], halves: Sequence[_Half]) -> set[str]:
    """Return the tables that were looked at before another one that shows what they lack."""
    return {
        name for _, shown, lacking in halves for name in lacking if tables[name].seen < max(tables[one].seen for one in shown)
    }


def _lost(tables: Mapping[str, _Table], halves: Sequence[_Half]) -> tuple[dict[str, set[str]], set[str]]:
    """Return the tables that no longer have what they had, by publication, and those that have changed since the last look."""
    found: dict[str, set[str]] = {}
    _read_ahead([table.snapshot for table in tables.values()], len(halves))
    for publication, shown, lacking in halves:
        if any(tables[name].stands(publication) for name in shown):
            continue
        for name in lacking:
            table = tables[name]
            expired = newest_state(table.snapshot, publication)
            if expired in _SHOWN or (expired is None and has_lost(table.log, publication, [tables[one].log for one in shown])):
                found.setdefault(publication, set()).add(name)
    return found, {name for name, table in tables.items() if table.log.snapshot is not table.snapshot and _has_moved(table)}


def _read_ahead(snapshots: Iterable[Snapshot], publications: int) -> None:
    """Read all transactions of versions at once, if those of many publications will be looked up."""
    for snapshot in snapshots if publications > _ONE_BY_ONE else ():
        _ = snapshot.set_transactions


def _has_moved(table: _Table) -> bool:
    now = table.log.snapshot
    return now.version != table.head or (now.version >= 0 and now.metadata.id != table.snapshot.metadata.id)


def _cut(tables: Mapping[str, _Table], lost: Mapping[str, set[str]], open_ones: set[str]) -> VersionVector:
    held_back: dict[str, tuple[str, ...]] = {}
    split: dict[str, tuple[str, ...]] = {}
    again = True
    while again:
        again = False
        open_ones |= {publication for table in tables.values() for publication in table.cut_away}
        for publication in sorted(open_ones):
            names = [name for name in _members(tables, publication) if name not in lost.get(publication, ())]
            shown = [name for name in names if tables[name].shows(publication)]
            if not 0 < len(shown) < len(names):
                continue
            if any(tables[name].stands(publication) for name in names):
                split[publication] = tuple(shown)
                continue
            cuts = [tables[name].cut(publication) for name in shown]
            if not all(cuts):
                split[publication] = tuple(shown)
                continue
            held_back[publication] = tuple(sorted({*held_back.get(publication, ()), *shown}))
            again = True
    for publication, showing in split.items():
        logger.warning("Publication %s is split: only %s show it.", publication, ", ".join(showing))
    return VersionVector(versions={name: table.version for name, table in tables.items()}, held_back=held_back, split=split)
