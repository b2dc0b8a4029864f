"""The next publication that several tables show, by the tags of their logs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta import publication as publications
from airflow_delta.contract.intents import STATE_APP
from airflow_delta.contract.tags import PUBLICATION_TAG, STATE_TAG
from airflow_delta.exceptions import DeltaIllegalArgumentException

if TYPE_CHECKING:
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark

_PUBLISHED, _REFUSED = 1, 2


def watched_tables(tables: Any) -> list[str]:
    """Return the tables in an argument, the first of which is watched.

    :raises DeltaIllegalArgumentException: if there is none, or one occurs twice.
    """
    names = [tables] if isinstance(tables, str) else list(tables or ())
    if not names or not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise DeltaIllegalArgumentException(f"tables must be one or more names of tables, each once, got {tables!r}.")
    return names


def next_publication(logs: Mapping[str, DeltaLog], seen: Watermark) -> tuple[dict[str, Any] | None, Watermark]:
    """Return the first publication on all tables after a watermark of the first one, and the watermark to keep.

    One that is on its way is waited for; one that was taken back, or that is not about all of the tables, is passed over.

    :param logs: by the name of the table.
    :return: ``publication`` (its id), ``versions`` of the tables that show it and belong together, and ``table_uris``.
    """
    first = next(iter(logs.values()))
    marks = {publications.table_mark(log) for log in logs.values()}
    for match, now_seen in engine.matches_after(first, seen, engine.CommitConditions(data_change_only=False)):
        tags = match.summary.tags if match is not None else {}
        publication = str(tags.get(PUBLICATION_TAG))
        if tags.get(STATE_TAG) == "published" and marks <= _marks_of(publication):
            published_at = match.summary.timestamp if match is not None else 0
            states = [_state(log, publication, first, published_at) for log in logs.values()]
            if all(state == _PUBLISHED for state in states):
                return _found(logs, publication), now_seen
            if all(state in (None, _PUBLISHED) for state in states):
                return None, seen  # on its way: look again from here
        seen = now_seen
    return None, seen


def _marks_of(publication: str) -> set[str]:
    """Return the marks of a publication's tables; any writer may have put anything into a tag."""
    one = publications.PublicationId
    return set(one.parse(publication).tables) if one.is_one(publication) else set()


def _state(log: DeltaLog, publication: str, first: DeltaLog, published_at: int) -> int | None:
    """Return the state of a publication on a table, ``None`` if it may still come.

    It does not where keys of that time have expired: then it has been there as far as anybody knows. Nor on another table that
    was created at the same place since.

    :param first: the table that shows it.
    :param published_at: on the first table, in milliseconds.
    """
    snapshot = log.update()
    state = snapshot.set_transaction(f"{STATE_APP}{publication}", expired=True)
    if state is not None:
        return state.version
    if not publications.has_lost(log, publication, [first]):
        return None
    retention = log.snapshot.properties.set_transaction_retention if log.snapshot.version >= 0 else None
    return _PUBLISHED if retention is not None and published_at < time.time() * 1000 - retention else _REFUSED


def _found(logs: Mapping[str, DeltaLog], publication: str) -> dict[str, Any]:
    vector = publications.get_versions(logs)
    return {
        "publication": publication,
        "versions": dict(vector.versions),
        "table_uris": {name: log.uri for name, log in logs.items()},
    }
