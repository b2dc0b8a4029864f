"""Versions of several tables that belong together: none of them has half of a publication."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.publication.records import PUBLISHED, STANDS, PublicationId, VersionVector, table_mark
from airflow_delta.publication.states import has_end_note, state_entry, states_of
from airflow_delta.table.state.commit_times import CLOCKS_DIFFER_BY as _CLOCKS
from airflow_delta.transaction.intents import INTENT_APP, STATE_APP

if TYPE_CHECKING:
    from airflow_delta.log import Snapshot
    from airflow_delta.log.delta_log import DeltaLog

logger = logging.getLogger(__name__)

_SHOWN = (PUBLISHED, STANDS)


class _Table:
    """A table of the vector.

    :ivar version: at which it is read.
    :ivar snapshot: its newest version.
    """

    def __init__(self, log: DeltaLog) -> None:
        snapshot = log.update()
        self.log = log
        self.mark = table_mark(log)
        self.version = self._head = snapshot.version
        self.snapshot = snapshot
        self.states = states_of(snapshot)
        self._published: dict[str, int] = {}

    def shows(self, publication: str) -> bool:
        """Tell whether the publication is in the version that is read."""
        if self.states.get(publication) not in _SHOWN and self.version == self._head:
            return False
        if self.version == self._head:
            return True
        # Before a cut: in it if its commit is, and was not taken back by then.
        return self._published_at(publication) <= self.version and not self._undone_by(publication)

    def stands(self, publication: str) -> bool:
        """Tell whether the publication stays here although others of its tables do not have it."""
        return self.states.get(publication) == STANDS

    def cut(self, publication: str) -> bool:
        """Read the version before the publication; ``False`` if the log no longer says which that is."""
        published = self._published_at(publication)
        self.version = min(self.version, published - 1) if published >= 0 else self.version
        return published >= 0

    def _published_at(self, publication: str) -> int:
        if publication not in self.states or self.states[publication] == 2:
            return self._head + 1
        if publication not in self._published:
            entry = state_entry(self.log, publication, PUBLISHED)
            self._published[publication] = -1 if entry is None else entry.version  # so old that it has left the log
        return self._published[publication]

    def _undone_by(self, publication: str) -> bool:
        if self.states.get(publication) != 3:
            return False
        entry = state_entry(self.log, publication, 3)
        return entry is None or entry.version <= self.version


def check_versions(tables: Mapping[str, tuple[DeltaLog, int]]) -> None:
    """Check that versions of tables belong together: each publication is in all of them or in none, or is split for good.

    :param tables: log and version by any name.
    :raises DeltaIllegalArgumentException: if one has a publication that another one lacks.
    """
    snapshots = {name: log.snapshot_at(version) for name, (log, version) in tables.items()}
    marks = {name: table_mark(log) for name, (log, _) in tables.items()}
    states = {name: states_of(snapshot) for name, snapshot in snapshots.items()}
    for publication in sorted({publication for found in states.values() for publication in found}):
        members = [name for name in tables if marks[name] in _tables_of(publication)]
        shown = [name for name in members if states[name].get(publication) in _SHOWN]
        lacking = [name for name in members if name not in shown]
        heads = [snapshots[name] for name in shown]
        if not shown or all(
            (_forgets(snapshots[name], heads[0], publication) and not _is_before(snapshots[name], heads[0], publication))
            or _is_another(snapshots[name], [tables[one][0] for one in shown], heads, publication)
            for name in lacking
        ):
            continue
        if any(states_of(tables[name][0].update()).get(publication) == STANDS for name in shown):
            logger.warning("Publication %s is split: only %s show it.", publication, ", ".join(shown))
            continue
        raise snapshots[lacking[0]].error(
            DeltaIllegalArgumentException,
            f"Version {snapshots[shown[0]].version} of {shown[0]} has publication {publication}, version "
            f"{snapshots[lacking[0]].version} of {lacking[0]} does not: these versions do not belong together. Take all versions "
            "from one call of DeltaHook.get_versions.",
        )


def _tables_of(publication: str) -> tuple[str, ...]:
    try:
        return PublicationId.parse(publication).tables
    except DeltaIllegalArgumentException:
        return ()


def _forgets(lacking: Snapshot, showing: Snapshot, publication: str) -> bool:
    """Tell whether a table had a publication whose key has expired there (``setTransactionRetentionDuration``).

    Where only the intent is still in the log, the publication never came: the state would be there as long.
    """
    retention = lacking.properties.set_transaction_retention if lacking.version >= 0 else None
    txn = showing.set_transaction(f"{STATE_APP}{publication}", expired=True)
    if retention is None or txn is None or txn.last_updated is None:
        return False
    if (expired := lacking.set_transaction(f"{STATE_APP}{publication}", expired=True)) is not None:
        return expired.version in _SHOWN
    is_old = txn.last_updated < int(time.time() * 1000) - retention + _CLOCKS
    return is_old and lacking.set_transaction(f"{INTENT_APP}{publication}", expired=True) is None


def _is_another(lacking: Snapshot, logs: Sequence[DeltaLog], showing: Sequence[Snapshot], publication: str) -> bool:
    """Tell whether a table was dropped, and perhaps created again, after a publication had its end on all of its tables.

    One that was dropped before its turn is none of these: the publication is about to be taken back.
    """
    found = [snapshot.set_transaction(f"{STATE_APP}{publication}", expired=True) for snapshot in showing]
    times = [txn.last_updated for txn in found if txn is not None and txn.last_updated is not None]
    if not times or lacking.set_transaction(f"{INTENT_APP}{publication}", expired=True) is not None:
        return False
    published = min(times)
    if lacking.version >= 0 and (lacking.metadata.created_time or 0) <= published:
        return False
    is_old = published < int(time.time() * 1000) - _CLOCKS  # its note may be gone by now, its worker is too
    return is_old or any(has_end_note(log, publication) for log in logs)


def _is_before(lacking: Snapshot, showing: Snapshot, publication: str) -> bool:
    """Tell whether a version is so much older than a publication that it cannot have had it, and forgotten it."""
    txn = showing.set_transaction(f"{STATE_APP}{publication}", expired=True)
    return txn is not None and txn.last_updated is not None and lacking.timestamp < txn.last_updated - _CLOCKS


def get_versions(logs: Mapping[str, DeltaLog]) -> VersionVector:
    """Return the newest versions of tables that have every publication on all of its tables, or on none.

    Reads each table's newest version once, and more only if they disagree. Never waits, never writes.

    :param logs: by any name.
    """
    tables = {name: _Table(log) for name, log in logs.items()}
    members: dict[str, list[str]] = {}
    for publication in {publication for table in tables.values() for publication in table.states}:
        marks = _tables_of(publication)
        found = [name for name, table in tables.items() if table.mark in marks]
        if len(found) > 1:
            members[publication] = found
    held_back: dict[str, tuple[str, ...]] = {}
    split: dict[str, tuple[str, ...]] = {}
    again = True
    while again:
        again = False
        for publication, names in sorted(members.items()):
            shown = [name for name in names if tables[name].shows(publication)]
            if not 0 < len(shown) < len(names):
                continue
            if any(tables[name].stands(publication) for name in names):
                split[publication] = tuple(shown)
                continue
            logs_of, heads = [tables[name].log for name in shown], [tables[name].snapshot for name in shown]
            lacking = [tables[name].snapshot for name in names if name not in shown]
            if all(_forgets(one, heads[0], publication) or _is_another(one, logs_of, heads, publication) for one in lacking):
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
